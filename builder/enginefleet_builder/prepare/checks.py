"""What preflight looks for in a model: a list of small functions from a subject to findings. All of them are run.

They read the parsed file and the sizes and numbers of its data; nothing of the model is executed. What targets take is in target_checks.py,
what ONNX's own C++ code says in native_checks.py.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from pydantic import Field

from enginefleet_api.base import Contract
from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import PreflightTarget
from enginefleet_api.resources import InputSpec, Profile
from enginefleet_api.variants import SCALED

from . import model as models
from . import runtime_limits as limits
from .findings import Finding, clean, named
from .opsets import lowered_opset
from .targets import Table, load

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
FED = ("float32", "float16", "float64", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool")
"""Types of inputs that data sets and servers can feed."""
LARGEST_SIZE = 2**31 - 1
"""Of one axis."""
MOST_ELEMENTS = 2**40
"""Of one tensor."""
SCRATCH = 3
"""Quantizing keeps the source, a folded copy and the result on disk at once."""
CONSTANT_WEIGHTS = 1024
"""Elements from which a Constant node of floats is a weight: scales and shapes are smaller."""
FP16_MAX = 65504.0
RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
PLACEHOLDERS = ("?", "*", "-1", "None", "none", "unk", "unknown", "Unknown", "dynamic", "N/A", "nan")
"""Names that exporters give to any dynamic dimension: two of one name need not be equal."""


class Asked(Contract):
    """What the model is to become."""

    precisions: list[str] = Field(default_factory=lambda: ["fp32"])
    best_effort: bool = False
    """A precision that does not work is left out (`precision: auto`)."""
    inputs: list[InputSpec] = Field(default_factory=list)
    scales: Literal["", "dataset", "model"] = ""
    """Where those of int8 and fp8 come from."""
    batch_sizes: list[int] = Field(default_factory=list)
    targets: list[PreflightTarget] = Field(default_factory=list)
    flavours: list[str] = Field(default_factory=list)
    """What is prepared for; counts where no target is told."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: the model (without external data in memory), where it lies, what is asked of it, and what targets take."""

    path: Path
    model: ModelProto
    asked: Asked = field(default_factory=Asked)
    table: Table = field(default_factory=load)

    @property
    def scaled(self) -> bool:
        return any(precision in SCALED for precision in self.asked.precisions)


def check(subject: Subject, checks: Sequence[Callable[[Subject], Iterator[Finding]]] | None = None) -> list[Finding]:
    return [finding for one in (CHECKS if checks is None else checks) for finding in one(subject)]


# ---- the files ----


def external_data(subject: Subject) -> Iterator[Finding]:
    """A location may only name a file below the model's folder: it comes from outside."""
    seen: set[tuple[str, str]] = set()
    for item in models.external(subject.model):
        found = external_finding(subject.path.parent, item)
        if found is not None and (found.reason, item.location) not in seen:
            seen.add((found.reason, item.location))
            yield found


def external_finding(folder: Path, item: models.External) -> Finding | None:
    location, tensor = clean(item.location), clean(item.tensor)
    if not item.safe:
        message = f"tensor {tensor} keeps its data in {location!r}, expected a path below the model's folder."
        return Finding("error", "ExternalDataUnsafe", message, "Export the model again, with its data beside it.")
    if item.offset < 0 or (item.length is not None and item.length < 0):
        message = f"tensor {tensor} keeps its data in {location} at an offset or of a length that is no number."
        return Finding("error", "ExternalDataUnsafe", message, "Export the model again.")
    file = folder / item.location
    try:
        # before looking at the file: a link may lead anywhere
        inside, there = file.resolve().is_relative_to(folder.resolve()), file.is_file()
        size = file.stat().st_size if inside and there else 0
    except (OSError, ValueError, RuntimeError):
        inside, there, size = True, False, 0
    if not inside:
        message = f"{location} is a link that leads out of the model's folder."
        return Finding("error", "ExternalDataUnsafe", message, "Put the file itself there.")
    if not there:
        message = f"tensor {tensor} keeps its data in {location}, which is not there."
        return Finding("error", "ExternalDataMissing", message, "Upload it beside the .onnx file.")
    needed = item.offset + (item.length or 0)
    if needed > size:
        message = f"{location} has {size} bytes, tensor {tensor} needs {needed}."
        return Finding("error", "ExternalDataTruncated", message, "Upload the file again, in whole.")
    return None


def scratch_space(subject: Subject) -> Iterator[Finding]:
    total = model_bytes(subject)
    scratch = tempfile.gettempdir()
    free = shutil.disk_usage(scratch).free
    if total * SCRATCH > free:
        message = f"{free} bytes are free below {scratch}, preparing a model of {total} bytes needs {total * SCRATCH}."
        hint = "Give the prepare Job more ephemeral storage, or set TMPDIR to a larger disk."
        yield Finding("error", "DiskFull", message, hint, FailureClass.ENVIRONMENT)


def convertible(subject: Subject) -> Iterator[Finding]:
    """Other precisions than FP32 are made by rewriting the file. With best effort they are left out."""
    if subject.asked.scales != "model" and (named := [p for p in subject.asked.precisions if p not in ("fp32", "tf32")]):
        total = model_bytes(subject)
        if total > models.CONVERTIBLE_BYTES:
            error = models.too_large_to_convert(total)
            yield Finding(
                "warning" if subject.asked.best_effort else "error", error.reason, error.message, error.hint, precisions=tuple(named)
            )


def model_bytes(subject: Subject) -> int:
    """Of the .onnx file and the external data that is there."""
    files = {subject.path.parent / item.location for item in models.external(subject.model) if item.safe}
    return subject.path.stat().st_size + sum(file.stat().st_size for file in files if file.is_file())


# ---- tensors and shapes ----


def stored_sizes(subject: Subject) -> Iterator[Finding]:
    """A tensor's bytes must be what its shape and type say; readers take memory for what is claimed."""
    for tensor in models.tensors(subject.model):
        dims = [int(size) for size in tensor.dims]
        if any(not 0 <= size <= LARGEST_SIZE for size in dims) or math.prod(dims) > MOST_ELEMENTS:
            message = f"tensor {clean(tensor.name)} has the shape {dims[:8]}, expected sizes of 0 to {LARGEST_SIZE}."
            yield Finding("error", "BadDimension", message, "The file is damaged or made up: export it again.")
            continue
        found = _size_mismatch(tensor, math.prod(dims))
        if found:
            yield Finding("error", "TensorSizeMismatch", f"tensor {clean(tensor.name)} {found}.", "Export the model again.")
    for sparse in (item for graph in models.graphs(subject.model) for item in graph.sparse_initializer):
        dims = [int(size) for size in sparse.dims]
        if any(not 0 <= size <= LARGEST_SIZE for size in dims) or math.prod(dims) > LARGEST_SIZE:
            message = f"sparse tensor {clean(sparse.values.name)} has the shape {dims[:8]}, at most {LARGEST_SIZE} elements are unpacked."
            yield Finding("error", "BadDimension", message, "Store it densely.")


def _size_mismatch(tensor: TensorProto, elements: int) -> str:
    """In words; empty when the bytes fit the shape."""
    if tensor.data_type == TensorProto.STRING:
        stored = len(tensor.string_data)
        return "" if stored == elements else f"has {stored} texts, its shape {list(tensor.dims)} needs {elements}"
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        field_name = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    except KeyError:
        return f"has the data type {tensor.data_type}, which ONNX does not define"
    bits = 4 if tensor.data_type in _FOUR_BITS else 2 if tensor.data_type in _TWO_BITS else dtype.itemsize * 8
    needed = (elements * bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        length = models.external_of(tensor).length
        return "" if length is None or length == needed else f"has {length} bytes outside, its shape {list(tensor.dims)} needs {needed}"
    if tensor.HasField("raw_data"):
        stored = len(tensor.raw_data)
        return "" if stored == needed else f"has {stored} bytes, its shape {list(tensor.dims)} needs {needed}"
    stored = len(getattr(tensor, field_name))
    words = elements * 2 if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128) else elements
    words = (words * bits + 7) // 8 if bits < 8 else words
    return "" if stored == words else f"has {stored} values, its shape {list(tensor.dims)} needs {words}"


_FOUR_BITS = {getattr(TensorProto, name) for name in ("INT4", "UINT4", "FLOAT4E2M1") if hasattr(TensorProto, name)}
_TWO_BITS = {getattr(TensorProto, name) for name in ("INT2", "UINT2") if hasattr(TensorProto, name)}


def interface_shapes(subject: Subject) -> Iterator[Finding]:
    """Fixed sizes of inputs and outputs. -1 is how some exporters write a free axis."""
    for what, items in (("input", _fed(subject.model.graph)), ("output", subject.model.graph.output)):
        for item in items:
            sizes = [int(dim.dim_value) for dim in item.type.tensor_type.shape.dim if dim.HasField("dim_value")]
            bad = [size for size in sizes if not (size == -1 or 0 < size <= LARGEST_SIZE)]
            if bad:
                message = f"{what} {clean(item.name)} has an axis of size {bad[0]}, expected 1 to {LARGEST_SIZE}, or a free axis."
                yield Finding("error", "BadDimension", message, "Export the model with the sizes that it is used with.")
            if -1 in sizes:
                message = f"{what} {clean(item.name)} has {sizes.count(-1)} axes of size -1, which are made free ones."
                yield Finding("cured", "NegativeDimension", message)


def alike_dimensions(subject: Subject) -> Iterator[Finding]:
    """Unlike axes of one name: ONNX Runtime does not mind, TensorRT refuses to build."""
    for name, where in alike(subject.model, subject.asked.inputs).items():
        message = (
            f"the free axes of {named(where)} are all called {clean(name)!r}, though their sizes need not be equal; each gets its own name."
        )
        yield Finding("cured", "DimensionsNamedAlike", message)


def alike(model: ModelProto, profiles: Sequence[InputSpec]) -> dict[str, list[str]]:
    """Names of dimensions that stand for unlike sizes, with the inputs that have them.

    That is told by the name (a placeholder that stands twice in one shape) or by profiles that give its axes different sizes.
    """
    given = {spec.name: spec.profiles for spec in profiles}
    found: dict[str, dict[str, None]] = {}
    for item in _fed(model.graph):
        names = [dim.dim_param for dim in item.type.tensor_type.shape.dim]
        for name, times in Counter(name for name in names if name).items():
            axes = [axis for axis, other in enumerate(names) if other == name]
            shapes = [shape for profile in given.get(item.name, []) for shape in (profile.min, profile.opt, profile.max)]
            unlike = any(len({shape[axis] for axis in axes if axis < len(shape)}) > 1 for shape in shapes)
            if times > 1 and (unlike or name.strip() in PLACEHOLDERS):
                found.setdefault(name, {})[item.name] = None
    return {name: list(where) for name, where in found.items()}


def _fed(graph: GraphProto) -> list[ValueInfoProto]:
    stored = {tensor.name for tensor in graph.initializer}
    return [item for item in graph.input if item.name not in stored]


# ---- versions and operators ----


def versions(subject: Subject) -> Iterator[Finding]:
    opset, newest = models.opsets(subject.model).get("", 0), limits.newest_opset()
    if opset > newest:
        message = f"the model has opset {opset}, ONNX Runtime {limits.version()} takes at most {newest}."
        if lowered_opset(subject.model, newest) is not None:
            yield Finding("cured", "OpsetTooNew", f"{message[:-1]}; no operator of it changed since, so the number is lowered.")
        else:
            yield Finding("error", "OpsetTooNew", message, f"Export it with opset {newest} or lower.")
    ir, newest_ir = subject.model.ir_version, limits.newest_ir()
    if ir > newest_ir:
        message = f"the model has IR version {ir}, ONNX Runtime {limits.version()} takes at most {newest_ir}."
        if lowest_ir(subject.model, min(opset, newest)) <= newest_ir:
            yield Finding("cured", "IrTooNew", f"{message[:-1]}; nothing in it needs more, so the number is lowered.")
        else:
            yield Finding("error", "IrTooNew", message, "Export it with an older onnx package.")
    elif ir < 1:
        yield Finding("error", "IrMissing", "the model has no IR version, expected 3 or more.", "The file is damaged: export it again.")


def lowest_ir(model: ModelProto, opset: int) -> int:
    """The lowest IR version that has everything which the model uses with that opset, of those that matter here (4 and up)."""
    lowest = 4
    if model.functions:
        lowest = max(lowest, 8)
    types = {tensor.data_type for tensor in models.tensors(model)}
    types |= {
        item.type.tensor_type.elem_type for graph in models.graphs(model) for item in (*graph.input, *graph.output, *graph.value_info)
    }
    for version, names in _TYPES_SINCE.items():
        if types & {getattr(TensorProto, name) for name in names if hasattr(TensorProto, name)}:
            lowest = max(lowest, version)
    newest_type = max(types, default=0)
    if newest_type > _NEWEST_TYPE or getattr(model, "configuration", None):
        return int(model.ir_version)
    needed = onnx.helper.OP_SET_ID_VERSION_MAP
    for domain, version in models.opsets(model).items():
        lowest = max(lowest, _ir_of_opset(needed, domain or "ai.onnx", version if domain else opset))
    return min(lowest, int(model.ir_version))


def _ir_of_opset(table: Any, domain: str, version: int) -> int:
    """The IR version that an opset came with; opsets that the table lacks need none."""
    return int(table.get((domain, version), 3))


_TYPES_SINCE = {
    9: ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    10: ("UINT4", "INT4"),
    11: ("FLOAT4E2M1",),
    12: ("FLOAT8E8M0",),
    13: ("UINT2", "INT2"),
}
_NEWEST_TYPE = max(TensorProto.DataType.values())


def operators(subject: Subject) -> Iterator[Finding]:
    known = limits.known_operators()
    unknown: dict[tuple[str, str], list[str]] = {}
    for domain, op, name in used_operators(subject.model):
        if (domain, op) not in known:
            unknown.setdefault((domain, op), []).append(name)
    for (domain, op), names in sorted(unknown.items()):
        where = f"operator {clean(op)}" + (f" of domain {clean(domain)}" if domain else "")
        message = f"{where} is unsupported in ONNX Runtime {limits.version()}; used by {named(names)}."
        hint = "Export the model without it. The baseline is measured in ONNX Runtime, so a plugin of TensorRT does not help."
        yield Finding("error", "UnsupportedOp", message, hint)


def used_operators(model: ModelProto) -> Iterator[tuple[str, str, str]]:
    """(domain, operator, node) of every node that is no call of the model's own functions; the default domain as empty text."""
    functions = {(_domain(item.domain), item.name) for item in model.functions}
    for node in [*models.nodes(model), *(node for function in model.functions for node in function.node)]:
        key = (_domain(node.domain), node.op_type)
        if key not in functions:
            yield *key, node.name or f"(output {node.output[0] if node.output else '?'})"


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def opset_imports(subject: Subject) -> Iterator[Finding]:
    imported = models.opsets(subject.model)
    missing: dict[str, list[str]] = {}
    for node in models.nodes(subject.model):
        if _domain(node.domain) not in imported:
            missing.setdefault(_domain(node.domain), []).append(node.name or node.op_type)
    for domain, names in sorted(missing.items()):
        message = f"the model imports no opset of domain {clean(domain) or 'ai.onnx'}, which {named(names)} need."
        yield Finding("error", "OpsetMissing", message, "Export the model again; the exporter left out opset_import.")


# ---- the graph ----


def structure(subject: Subject) -> Iterator[Finding]:
    """Names that nobody produces, that two produce, and what leads nowhere; in the main graph."""
    graph = subject.model.graph
    stored = {tensor.name for tensor in graph.initializer} | {item.values.name for item in graph.sparse_initializer}
    produced = Counter(name for node in graph.node for name in node.output if name)
    entering = Counter([item.name for item in graph.input] + [name for name in stored if name not in {item.name for item in graph.input}])
    if not _fed(graph):
        yield Finding("error", "NoInputs", "the model has no input, so nothing can be fed.", "Export it with its inputs.")
    if not graph.output:
        yield Finding("error", "NoOutputs", "the model has no output.", "Export it with its outputs.")
    twice = [name for name, times in (produced + entering).items() if times > 1]
    if twice:
        message = f"{len(twice)} tensors have two sources: {named(twice)}."
        yield Finding("error", "DuplicateTensor", message, "Every tensor needs a name of its own: export the model again.")
    there = produced.keys() | entering.keys()
    lost = [item.name for item in graph.output if item.name not in there]
    if lost:
        message = f"the outputs {named(lost)} are declared and no node produces them."
        yield Finding("error", "OutputMissing", message, "Remove the output, or export the model again.")
    unknown = list(dict.fromkeys(name for node in graph.node for name in _reads(node) if name not in there))
    if unknown:
        users = [node.name or node.op_type for node in graph.node if set(_reads(node)) & set(unknown)]
        message = f"{named(users)} read {named(unknown)}, which nothing produces."
        yield Finding("error", "TensorMissing", message, "The file is damaged or was cut apart: export the model again.")
    elif not twice:
        yield from _order(graph)
    same = [name for name, times in Counter(node.name for node in graph.node if node.name).items() if times > 1]
    if same:
        message = f"{len(same)} names stand for several nodes ({named(same)}); all but the first get a number."
        yield Finding("cured", "DuplicateNodeNames", message)
    unnamed = sum(not node.name for node in graph.node)
    if unnamed:
        message = f"{unnamed} of {len(graph.node)} nodes have no name and get one, so that they can be named in exclusions and reports."
        yield Finding("cured", "NodesUnnamed", message)
    unused = {tensor.name for tensor in graph.initializer} - used(graph)
    if unused:
        message = f"{len(unused)} stored tensors are used by no node ({named(sorted(unused))}) and are left out."
        yield Finding("cured", "UnusedTensors", message)
    idle = [item.name for item in _fed(graph) if item.name not in used(graph)]
    if idle:
        message = f"the inputs {named(idle)} are used by no node, and must be fed all the same."
        yield Finding("warning", "UnusedInput", message, "Export the model without them.")
    dead = _unreachable(graph)
    if dead:
        message = f"{len(dead)} of {len(graph.node)} nodes lead to no output: {named(dead)}."
        yield Finding("warning", "UnreachableNodes", message, "Is an output missing? Else they cost nothing: runtimes leave them out.")


def _order(graph: GraphProto) -> Iterator[Finding]:
    order = sorted_nodes(graph)
    if order is None:
        message = "some nodes read, directly or through others, what they produce themselves."
        yield Finding("error", "GraphCycle", message, "The file is damaged or made up: a loop is written with the operator Loop.")
    elif order != list(range(len(graph.node))):
        late = next(graph.node[index] for place, index in enumerate(order) if place != index)
        message = f"{len(graph.node)} nodes, such as {clean(late.name or late.op_type)}, do not stand in the order that they run in; they are sorted."
        yield Finding("cured", "NodesUnsorted", message)


def sorted_nodes(graph: GraphProto) -> list[int] | None:
    """Indices of the nodes so that each comes after what it reads, else in the order that they have; None where there is a cycle."""
    source = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{source[name] for name in _reads(node) if name in source} for node in graph.node]
    done: set[int] = set()
    order: list[int] = []
    for first in range(len(graph.node)):
        stack = [(first, iter(sorted(needs[first])))] if first not in done else []
        active = {first}
        while stack:
            index, rest = stack[-1]
            following = next((other for other in rest if other not in done), None)
            if following is None:
                stack.pop()
                active.discard(index)
                done.add(index)
                order.append(index)
            elif following in active:
                return None
            else:
                active.add(following)
                stack.append((following, iter(sorted(needs[following]))))
    return order


def _reads(node: NodeProto) -> list[str]:
    """Names that a node reads, in its subgraphs too: those that no node in there produces."""
    found = [name for name in node.input if name]
    pending = [(graph, frozenset[str]()) for graph in models.subgraphs(node)]
    while pending:
        graph, outer = pending.pop()
        inner = {item.name for item in graph.input} | {tensor.name for tensor in graph.initializer}
        known = outer | inner | {name for item in graph.node for name in item.output}
        for item in graph.node:
            found += [name for name in item.input if name and name not in known]
            pending += [(deeper, known) for deeper in models.subgraphs(item)]
        found += [item.name for item in graph.output if item.name not in known]
    return found


def used(graph: GraphProto) -> set[str]:
    """Names that a node reads or that are outputs."""
    return {name for node in graph.node for name in _reads(node)} | {item.name for item in graph.output}


def _unreachable(graph: GraphProto) -> list[str]:
    source = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    pending = [source[item.name] for item in graph.output if item.name in source]
    reached: set[int] = set()
    while pending:
        index = pending.pop()
        if index not in reached:
            reached.add(index)
            pending += [source[name] for name in _reads(graph.node[index]) if name in source]
    return [node.name or node.op_type for index, node in enumerate(graph.node) if index not in reached]


def constant_weights(subject: Subject) -> Iterator[Finding]:
    found = [node.output[0] for node in weight_constants(subject.model.graph)]
    if found:
        message = f"{len(found)} weights are Constant nodes ({named(found)}), which quantizers misread; they become initializers."
        yield Finding("cured", "ConstantWeights", message)


def weight_constants(graph: GraphProto) -> list[NodeProto]:
    """Constant nodes of the main graph that hold a float tensor as large as weights are."""
    return [
        node
        for node in graph.node
        if node.op_type == "Constant"
        and _domain(node.domain) == ""
        and len(node.attribute) == 1
        and node.attribute[0].name == "value"
        and len(node.output) == 1
        and node.attribute[0].t.data_type in FLOATS
        and math.prod(node.attribute[0].t.dims) >= CONSTANT_WEIGHTS
    ]


def default_inputs(subject: Subject) -> Iterator[Finding]:
    """Initializers that are inputs too: IR 3 had no other way, and since then it means that a caller may replace them."""
    stored = {tensor.name for tensor in subject.model.graph.initializer}
    both = [item.name for item in subject.model.graph.input if item.name in stored]
    if both:
        message = f"{len(both)} stored tensors are declared as inputs too ({named(both)}); they are taken out of the inputs."
        yield Finding("cured", "WeightsAsInputs", message)


# ---- inputs ----


def input_types(subject: Subject) -> Iterator[Finding]:
    for spec in models.inputs(subject.model):
        if spec.dtype not in FED:
            message = f"input {clean(spec.name)!r} has the type {spec.dtype}, expected numbers ({', '.join(FED)})."
            yield Finding("error", "InputType", message, "Do this part outside of the model, and export it with numeric inputs.")
        elif spec.dtype == "float64":
            message = f"input {clean(spec.name)!r} is float64: twice the memory, no quantization, and no engine of TensorRT."
            yield Finding("warning", "InputIsDouble", message, "Export the model in float32.")
    for item in _fed(subject.model.graph):
        if item.type.HasField("tensor_type") and not item.type.tensor_type.HasField("shape"):
            message = f"input {clean(item.name)!r} has no shape, not even a number of axes."
            yield Finding("error", "ShapeMissing", message, "Export the model with shapes; an axis may be free.")


def batch_axis(subject: Subject) -> Iterator[Finding]:
    for spec in models.inputs(subject.model):
        size = spec.shape[0] if spec.shape else None
        other = [str(batch) for batch in subject.asked.batch_sizes if batch != size]
        if isinstance(size, int) and size > 0 and other:
            message = f"input {clean(spec.name)!r} has the shape {shape_text(spec)}: the batch axis is fixed to {size}, and {', '.join(other)} is asked for."
            yield Finding("error", "BatchFixed", message, "Export the model with a free batch axis, or ask for that batch size only.")


def profiles(subject: Subject) -> Iterator[Finding]:
    by_name = {spec.name: spec for spec in models.inputs(subject.model)}
    for asked in subject.asked.inputs:
        spec = by_name.get(asked.name)
        if spec is None:
            message = f"spec.inputs names {asked.name!r}, the model's inputs are {[clean(name) for name in sorted(by_name)[:8]]}."
            yield Finding("error", "UnknownInput", message, "Correct the name.")
            continue
        for profile in asked.profiles:
            yield from _profile_findings(spec, profile)
    given = {asked.name for asked in subject.asked.inputs}
    for name, spec in by_name.items():
        # a free batch axis needs no decision in ONNX Runtime; other axes must be pinned to what is calibrated and measured
        if name in given or models.free_axes(spec) in ([], [0]):
            continue
        message = f"input {clean(name)!r} has the shape {shape_text(spec)}, and spec.inputs has no profile for it."
        yield Finding("error", "ProfileMissing", message, "Add a profile with min, opt and max.")


def _profile_findings(spec: TensorSpec, profile: Profile) -> Iterator[Finding]:
    name = clean(spec.name)
    shapes = {"min": profile.min, "opt": profile.opt, "max": profile.max}
    for kind, shape in shapes.items():
        if len(shape) != len(spec.shape):
            message = f"profile {kind} of input {name!r} is {shape}, the model's shape is {shape_text(spec)}: {len(spec.shape)} axes."
            yield Finding("error", "ProfileMismatch", message, "Correct the profile.")
        elif any(isinstance(want, int) and want not in (have, -1) for want, have in zip(spec.shape, shape, strict=True)):
            message = f"profile {kind} of input {name!r} is {shape}, the model's shape is {shape_text(spec)}."
            yield Finding("error", "ProfileMismatch", message, "Fixed axes cannot change: correct the profile or export with dynamic axes.")
    if len({len(shape) for shape in shapes.values()}) == 1 and not all(
        low <= best <= high for low, best, high in zip(profile.min, profile.opt, profile.max, strict=True)
    ):
        message = f"profile of input {name!r} has min {profile.min}, opt {profile.opt}, max {profile.max}, expected min <= opt <= max."
        yield Finding("error", "ProfileMismatch", message, "Correct the profile.")


def shape_text(spec: TensorSpec) -> str:
    return "[" + ", ".join("?" if size in (None, -1) else clean(str(size)) for size in spec.shape) + "]"


# ---- numbers ----


def quantized(subject: Subject) -> Iterator[Finding]:
    found = models.count(subject.model, models.QUANTIZED)
    if not subject.scaled:
        return
    severity: Literal["error", "warning"] = "warning" if subject.asked.best_effort else "error"
    if found and subject.asked.scales == "dataset":
        message = f"int8 is asked for with a calibration set, but the model holds {found} quantizing nodes already."
        yield Finding(severity, "AlreadyQuantized", message, "Set calibration.source to model, or give the model before quantization.")
    if not found and subject.asked.scales == "model":
        message = "calibration.source is model, but the model holds no quantizing nodes."
        yield Finding(severity, "NotQuantized", message, "Give a calibration set, or a model with scales (QAT).")


def numbers(subject: Subject) -> Iterator[Finding]:
    """NaN and infinity in weights; weights that FP16 cannot hold, where it is asked for."""
    bad: list[str] = []
    infinite: list[str] = []
    large: list[str] = []
    halves = bool({"fp16"} & set(subject.asked.precisions))
    folder = subject.path.parent
    for tensor in models.tensors(subject.model):
        if tensor.data_type not in FLOATS or not _readable(tensor, folder):
            continue
        # a copy: reading external data would leave it in the model's memory
        values = onnx.numpy_helper.to_array(_copy(tensor), str(folder))
        if np.isnan(values).any():
            bad.append(tensor.name)
        elif np.isinf(values).any():
            infinite.append(tensor.name)
        elif halves and values.size and float(np.abs(values).max()) > FP16_MAX:
            large.append(tensor.name)
    if bad:
        yield Finding("error", "NonFiniteWeights", f"NaN stands in {named(bad)}.", "The training diverged or the file is damaged.")
    if infinite:
        # attention masks hold -inf on purpose
        yield Finding("warning", "InfiniteWeights", f"infinite values stand in {named(infinite)}.", "Fine for masks, not for weights.")
    if large:
        message = f"values beyond {FP16_MAX:g}, the largest of FP16, stand in {named(large)}."
        yield Finding("warning", "WeightsBeyondFp16", message, "These layers stay in higher precision, or use bf16.")


def _readable(tensor: TensorProto, folder: Path) -> bool:
    """Whether its numbers can be read; a finding of its own says why not."""
    dims = [int(size) for size in tensor.dims]
    if any(not 0 <= size <= LARGEST_SIZE for size in dims) or math.prod(dims) > MOST_ELEMENTS or _size_mismatch(tensor, math.prod(dims)):
        return False
    if tensor.data_location != TensorProto.EXTERNAL:
        return True
    item = models.external_of(tensor)
    if external_finding(folder, item) is not None:
        return False
    # without a length the rest of the file is the tensor
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return item.length is not None or (folder / item.location).stat().st_size - item.offset == math.prod(dims) * itemsize


def _copy(tensor: TensorProto) -> TensorProto:
    copied = TensorProto()
    copied.CopyFrom(tensor)
    return copied


def behaviour(subject: Subject) -> Iterator[Finding]:
    """What makes outputs differ from run to run, or from how the model was judged in training."""
    random = [node.name or node.op_type for node in models.nodes(subject.model) if node.op_type in RANDOM and _domain(node.domain) == ""]
    if random:
        message = f"{named(random)} draw random numbers: outputs of two runs cannot be compared."
        yield Finding("warning", "RandomOutputs", message, "Export the model in evaluation mode.")
    training = [
        node.name or node.op_type
        for node in models.nodes(subject.model)
        if node.op_type == "BatchNormalization" and any(item.name == "training_mode" and item.i for item in node.attribute)
    ]
    if training:
        message = f"{named(training)} are in training mode: they normalise by the batch at hand."
        yield Finding("warning", "TrainingMode", message, "Export the model in evaluation mode (model.eval()).")


CHECKS: Sequence[Callable[[Subject], Iterator[Finding]]] = (
    external_data,
    scratch_space,
    convertible,
    stored_sizes,
    interface_shapes,
    versions,
    opset_imports,
    operators,
    structure,
    input_types,
    batch_axis,
    profiles,
    quantized,
    constant_weights,
    default_inputs,
    alike_dimensions,
    behaviour,
    numbers,
)
