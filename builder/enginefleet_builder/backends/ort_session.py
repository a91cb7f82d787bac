"""ONNX Runtime sessions on a CPU: how an engine is made, and how judge and server load it. The one place for session options."""

from __future__ import annotations

import importlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeAlias, TypedDict

ort: Any = importlib.import_module("onnxruntime")
"""Its own annotations re-export nothing, so a type checker sees an empty module."""
InferenceSession: TypeAlias = Any

PROVIDERS = ["CPUExecutionProvider"]
LOG_ERRORS = 3

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
    """`threads`: intra-op. Level `none` is for engines: they were optimized when they were built."""
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.graph_optimization_level = _LEVELS[level]
    chosen.log_severity_level = LOG_ERRORS
    return chosen


def load(model: Path | bytes, threads: int, level: Level = "none") -> InferenceSession:
    return ort.InferenceSession(model if isinstance(model, bytes) else str(model), options(threads, level), providers=PROVIDERS)


def optimize(model: Path, engine: Path, threads: int, inline: bool) -> None:
    """Write `model`, optimized for this machine (fusions, memory layouts of its instruction sets), as the single file `engine`.

    `inline`: the model has external data. ONNX Runtime would leave it where it is and the engine would lean on files that it has lost.
    """
    chosen = options(threads, "all")
    chosen.optimized_model_filepath = str(engine)
    source: str | bytes = importlib.import_module("onnx").load(model).SerializeToString() if inline else str(model)
    ort.InferenceSession(source, chosen, providers=PROVIDERS)


class Ran(TypedDict):
    """One node: operator, element types of its inputs and outputs in ONNX Runtime's spelling, seconds of one run."""

    op: str
    inputs: list[str]
    outputs: list[str]
    seconds: float


def profile(engine: Path, threads: int, feeds: Mapping[str, Any], runs: int, folder: Path) -> list[Ran]:
    """Run the engine under ONNX Runtime's profiler, which writes into `folder`; each node with its median over `runs`, a first one not counted.

    The median, since a pause of a busy machine falls onto one node of one run. A node in a loop counts with all that it does in a run.
    """
    chosen = options(threads, "none")
    chosen.enable_profiling = True
    chosen.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(str(engine), chosen, providers=PROVIDERS)
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
        node: Ran = {"op": details["op_name"], "inputs": _types(details, "input"), "outputs": _types(details, "output"), "seconds": 0.0}
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
