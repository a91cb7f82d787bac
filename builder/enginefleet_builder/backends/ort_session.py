"""ONNX Runtime sessions: how an engine is made, and how judge and server load it. The one place for session options."""

from __future__ import annotations

import importlib
import json
import shutil
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias, TypedDict

from .providers import CPU, ExecutionProvider, Traits, build_options, run_options

ort: Any = importlib.import_module("onnxruntime")
"""Its own annotations re-export nothing, so a type checker sees an empty module."""
InferenceSession: TypeAlias = Any

LOG_ERRORS = 3
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
"""Known from ONNX Runtime 1.24 on; older ones ignore it."""

Level = Literal["none", "basic", "all"]
_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Described(TypedDict):
    """The fields of documents.TensorSpec, which would take pydantic along."""

    name: str
    dtype: str
    shape: list[int | str | None]


_DTYPES = {"float": "float32", "double": "float64"}


def options(threads: int, level: Level) -> Any:
    """`threads`: intra-op. Level `none` is for engines: they were optimized when they were built. `basic` is for models whose outputs count, not
    their speed: their threads do not spin while they wait, which would take cores from whatever else runs.
    """
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.graph_optimization_level = _LEVELS[level]
    chosen.log_severity_level = LOG_ERRORS
    if level == "basic":
        chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return chosen


class ProviderInactiveError(Exception):
    """A provider that was asked for does not work here. ONNX Runtime only warns, and runs everything on the CPU."""


class ProviderUnusedError(Exception):
    """A provider works and takes not one node of the model."""


class NotEmbeddedError(Exception):
    """An EP context model leans on another file."""


def load(
    model: Path | bytes,
    threads: int,
    level: Level = "none",
    provider: ExecutionProvider = CPU,
    recipe: Mapping[str, Any] | None = None,
) -> InferenceSession:
    """Raises ProviderInactiveError, NotEmbeddedError, and what ONNX Runtime raises."""
    if provider.form == "context" and isinstance(model, Path):
        require_embedded(model)
    source = model if isinstance(model, bytes) else str(model)
    return create(source, options(threads, level), provider, run_options(provider, recipe or {}, threads))


def create(source: str | bytes, chosen: Any, provider: ExecutionProvider, asked: Mapping[str, str]) -> InferenceSession:
    """A session in which `provider`, with the options `asked`, really is. Raises ProviderInactiveError."""
    there: list[str] = ort.get_available_providers()
    if provider.called not in there:
        raise ProviderInactiveError(f"this ONNX Runtime has {', '.join(there)}, not {provider.called}")
    beside = [name for name in provider.beside if name in there]
    chain = [provider.called, *beside, *([] if provider is CPU else [CPU.called])]
    session = ort.InferenceSession(
        source, chosen, providers=chain, provider_options=[dict(asked), *({} for _ in chain[1:])], enable_fallback=False
    )
    if provider.called not in session.get_providers():
        raise ProviderInactiveError(f"{provider.called} did not start, ONNX Runtime went on with {', '.join(session.get_providers())}")
    return session


def build(
    model: Path, engine: Path, threads: int, inline: bool, provider: ExecutionProvider = CPU, recipe: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """Write the single file `engine` for this machine; the answer is the number of nodes by provider, empty where it is not known.

    `inline`: the model has external data. ONNX Runtime would leave it where it is and the engine would lean on files that it has lost.
    Raises ProviderInactiveError, ProviderUnusedError, NotEmbeddedError, and what ONNX Runtime raises.
    """
    recipe = recipe or {}
    chosen = options(threads, "none" if provider.form == "model" else "all")
    chosen.add_session_config_entry(RECORD_PLACEMENT, "1")
    source: str | bytes = importlib.import_module("onnx").load(model).SerializeToString() if inline else str(model)
    asked = run_options(provider, recipe, threads)
    match provider.form:
        case "optimized":
            # optimized for this machine: fusions, memory layouts of its instruction sets
            chosen.optimized_model_filepath = str(engine)
        case "context":
            chosen.add_session_config_entry("ep.context_enable", "1")
            chosen.add_session_config_entry("ep.context_embed_mode", "1")
            chosen.add_session_config_entry("ep.context_file_path", str(engine))
            asked |= build_options(provider, recipe, traits(model), engine.parent)
        case "model":
            if isinstance(source, bytes):
                engine.write_bytes(source)
            else:
                shutil.copyfile(source, engine)
    placed = placement(create(source, chosen, provider, asked))
    if placed and not placed.get(provider.called):
        raise ProviderUnusedError(f"{provider.called} took none of the {sum(placed.values())} nodes")
    if provider.form == "context":
        require_embedded(engine)
    return placed


def placement(session: InferenceSession) -> dict[str, int]:
    """Nodes of the graph by the provider that took them, for a session that recorded it; empty before ONNX Runtime 1.24, which does not tell."""
    told = getattr(session, "get_provider_graph_assignment_info", None)
    counts: Counter[str] = Counter()
    for part in told() if told is not None else ():
        counts[part.ep_name] += len(part.get_nodes())
    return dict(counts)


def traits(model: Path) -> Traits:
    """Of a model as it is prepared; its tensors are not read."""
    onnx: Any = importlib.import_module("onnx")
    opened = onnx.load(model, load_external_data=False)
    types = {item.data_type for graph in _graphs(opened.graph) for item in graph.initializer}
    types |= {
        attribute.i for graph in _graphs(opened.graph) for node in graph.node for attribute in node.attribute if attribute.name == "to"
    }
    ops = {node.op_type for graph in _graphs(opened.graph) for node in graph.node}
    known = set(onnx.TensorProto.DataType.values())
    return Traits(
        frozenset(onnx.TensorProto.DataType.Name(kind) for kind in types & known), bool({"QuantizeLinear", "DequantizeLinear"} & ops)
    )


def _graphs(graph: Any) -> Iterable[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _graphs(inner)


def require_embedded(engine: Path) -> None:
    """Raise NotEmbeddedError when `engine` is no EP context model, or one whose parts are named as files: anywhere, `../` included."""
    if not engine.is_file():
        raise NotEmbeddedError("the provider wrote no EP context model, as it does when it cannot take all of the graph")
    opened = importlib.import_module("onnx").load(engine, load_external_data=False)
    contexts = [node for graph in _graphs(opened.graph) for node in graph.node if node.op_type == "EPContext"]
    if not contexts:
        raise NotEmbeddedError("the engine has no EPContext node")
    for node in contexts:
        # without the attribute it is embedded: the default of the operator's schema
        if any(attribute.name == "embed_mode" and attribute.i != 1 for attribute in node.attribute):
            raise NotEmbeddedError(f"the EPContext node {node.name or 'without a name'} names a file instead of holding what was compiled")
    if any(item.data_location == item.EXTERNAL for graph in _graphs(opened.graph) for item in graph.initializer):
        raise NotEmbeddedError("the engine names files for its tensors")


class Ran(TypedDict):
    """One node: operator, element types of its inputs and outputs in ONNX Runtime's spelling, seconds of one run, whether a provider compiled it."""

    op: str
    inputs: list[str]
    outputs: list[str]
    seconds: float
    compiled: bool


def profile(
    engine: Path,
    threads: int,
    feeds: Mapping[str, Any],
    runs: int,
    folder: Path,
    provider: ExecutionProvider = CPU,
    recipe: Mapping[str, Any] | None = None,
) -> list[Ran]:
    """Run the engine under ONNX Runtime's profiler, which writes into `folder`; each node with its median over `runs`, a first one not counted.

    The median, since a pause of a busy machine falls onto one node of one run. A node in a loop counts with all that it does in a run, and what
    a provider compiled is one node.
    """
    chosen = options(threads, "none")
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(folder / "profile")
    session = create(str(engine), chosen, provider, run_options(provider, recipe or {}, threads))
    for _ in range(runs + 1):
        session.run(None, dict(feeds))
    events = json.loads(Path(session.end_profiling()).read_bytes())
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    nodes: dict[tuple[str, str], tuple[Ran, list[float]]] = {}
    for event in events:
        details = event.get("args", {})
        run = bisect_right(starts, event["ts"]) - 2
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time") or run < 0:
            continue
        node: Ran = {
            "op": details["op_name"],
            "inputs": _types(details, "input"),
            "outputs": _types(details, "output"),
            "seconds": 0.0,
            "compiled": provider.form != "optimized" and details.get("provider") == provider.called,
        }
        nodes.setdefault((event["name"], str(details.get("node_index"))), (node, [0.0] * runs))[1][run] += event["dur"] / 1e6
    return [{**node, "seconds": median(seconds)} for node, seconds in nodes.values()]


def _types(details: Mapping[str, Any], side: str) -> list[str]:
    """A list of {type: shape}, one an input that is there."""
    return [name for item in details.get(f"{side}_type_shape", []) for name in item]


def inputs(session: InferenceSession) -> list[Described]:
    return [_spec(item) for item in session.get_inputs()]


def outputs(session: InferenceSession) -> list[Described]:
    return [_spec(item) for item in session.get_outputs()]


def _spec(item: Any) -> Described:
    dtype = item.type.removeprefix("tensor(").removesuffix(")")
    return {"name": item.name, "dtype": _DTYPES.get(dtype, dtype), "shape": list(item.shape)}
