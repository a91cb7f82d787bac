"""Reading ONNX files: what a file really is, its tensors wherever they stand, its external data, its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from enginefleet_api.documents import FileEntry, TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.identity import tree_digest

from ..store.base import sha256_of
from . import wire

QUANTIZING = ("QuantizeLinear", "DequantizeLinear")
QUANTIZED = (*QUANTIZING, "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")

_BEGINNINGS = [
    (b"version https://git-lfs", "a git-lfs pointer: the file itself was not fetched"),
    (b"<!doctype", "an HTML page: the address leads to a web page, perhaps a log-in"),
    (b"<html", "an HTML page: the address leads to a web page, perhaps a log-in"),
    (b"<?xml", "an XML document, perhaps an error message of a store"),
    (b"{", "a JSON document"),
    (b"pk\x03\x04", "a ZIP archive, perhaps a PyTorch checkpoint"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"bzh", "a bzip2 archive"),
    (b"\xfd7zxz", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89hdf", "an HDF5 file, perhaps a Keras model"),
    (b"\x93numpy", "a NumPy array"),
    (b"ftrt", "a TensorRT plan"),
    (b"vtrt", "a plan of TensorRT for RTX"),
    (b"ptrt", "a timing cache of TensorRT, or a plan from before 8.6"),
    (b"\x7felf", "a program or shared library"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89png", "a PNG picture"),
    (b"%pdf", "a PDF document"),
]
_INSIDE = [(4, b"TFL3", "a TensorFlow Lite model"), (4, b"ORTM", "an ONNX Runtime model (.ort)"), (257, b"ustar", "a tar archive")]
"""(offset, bytes, what it is)"""
MAX_MESSAGE = 2**31 - 1
"""Bytes that one protobuf message may have."""
MAX_METADATA = 60_000
CONVERTIBLE_BYTES = 1_900_000_000
"""Of a model that is converted, external data included: what comes out is one protobuf message, which ends at 2 GiB."""
MAX_SUBGRAPHS = 16
"""Levels of subgraphs that are followed. Protobuf parsers end at 100 messages, which is 33 levels; exporters write two or three."""


def too_large_to_convert(size: int) -> PermanentError:
    return PermanentError("ModelTooLarge", f"the model has {size} bytes, at most {CONVERTIBLE_BYTES} can be converted.", "Use fp32.")


def what_it_is(path: Path) -> str | None:
    """In words, what a file is that is no ONNX model; None when its beginning tells nothing."""
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        return "an empty file"
    lowered = start.lstrip().lower()
    known = next((words for beginning, words in _BEGINNINGS if lowered.startswith(beginning)), None)
    known = known or next((words for offset, inside, words in _INSIDE if start[offset : offset + len(inside)] == inside), None)
    if known is None and start[4:5] == b"{" and int.from_bytes(start[:4], "little") < MAX_MESSAGE and b'"' in start[5:16]:
        return "a TensorRT plan with the header of Ultralytics"
    return known or (f"{len(start)} zero bytes and more" if not start.strip(b"\0") else None)


def read_model(path: Path) -> ModelProto:
    """The model without its external data.

    Raises PermanentError `ModelNotFound`, `NotAModel` (says what the file is), `ModelTooLarge`, `ModelTooDeep`, `ModelTruncated`.
    """
    hint = "Give a complete .onnx file."
    if not path.is_file():
        # opening a pipe or a device would wait for ever
        message = f"{path.name} is {'no ordinary file' if path.exists() else 'not there'}."
        raise PermanentError("ModelNotFound", message, hint)
    size = path.stat().st_size
    try:
        words = what_it_is(path)
        if words is not None:
            raise PermanentError("NotAModel", f"{path.name} is {words}, expected an ONNX model.", hint)
        if size > MAX_MESSAGE:
            message = f"{path.name} has {size} bytes, an .onnx file has at most {MAX_MESSAGE}."
            raise PermanentError("ModelTooLarge", message, "Save it with external data (onnx.save with save_as_external_data=True).")
        data = path.read_bytes()
    except OSError as error:
        raise PermanentError("ModelNotFound", f"{path.name} cannot be read: {error.strerror}.", "Correct its permissions.") from error
    return parse(path.name, data)


def parse(name: str, data: bytes) -> ModelProto:
    """The model in the bytes of an .onnx file. Raises what `read_model` raises for its content."""
    hint = "Give a complete .onnx file."
    try:
        model: ModelProto = onnx.load_model_from_string(data)
        levels = subgraph_levels(model)
        broken_name = _no_text(model)
    except MemoryError:
        raise
    # the parser's exception belongs to protobuf, which has no types here
    except Exception as error:
        found = wire.damage(data)
        levels = 0 if found else wire.depth(data, MAX_SUBGRAPHS + 1)
        if levels <= MAX_SUBGRAPHS:
            if found == wire.NO_MODEL:
                raise PermanentError("NotAModel", f"{name} is no ONNX model: {found}.", hint) from error
            found = found or "what stands inside it cannot be parsed"
            raise PermanentError("ModelTruncated", f"{name} ({len(data)} bytes) is cut off or damaged: {found}.", hint) from error
        broken_name = None
    if broken_name is not None:
        found = f"the name {broken_name[:40]!r} in it is no UTF-8"
        raise PermanentError("ModelTruncated", f"{name} ({len(data)} bytes) is cut off or damaged: {found}.", hint)
    if levels > MAX_SUBGRAPHS:
        message = f"{name} nests subgraphs {levels} levels deep or deeper, at most {MAX_SUBGRAPHS} are followed."
        raise PermanentError("ModelTooDeep", message, "Export it without subgraphs inside subgraphs.")
    if not model.graph.node:
        # protobuf reads many a foreign file as a message without known fields
        raise PermanentError("NotAModel", f"{name} has 0 nodes, expected an ONNX model with at least one.", hint)
    return model


def _no_text(model: ModelProto) -> bytes | None:
    """A name that is not UTF-8: protobuf hands it out as bytes, and everything that reads names would stumble over it."""
    pending: list[Any] = [model]
    while pending:
        for kind, value in pending.pop().ListFields():
            repeated = isinstance(value, Sized) and not isinstance(value, str | bytes) and not hasattr(value, "ListFields")
            if kind.type == kind.TYPE_MESSAGE:
                pending += value if repeated else [value]
            elif kind.type == kind.TYPE_STRING:
                for text in value if repeated else [value]:
                    if isinstance(text, bytes):
                        return text
    return None


def subgraph_levels(model: ModelProto) -> int:
    """Levels of subgraphs, functions' too, counted to one beyond the limit."""
    level, graphs_here = 0, [model.graph, *(graph for function in model.functions for node in function.node for graph in subgraphs(node))]
    while level <= MAX_SUBGRAPHS and (inner := [found for graph in graphs_here for node in graph.node for found in subgraphs(node)]):
        level, graphs_here = level + 1, inner
    return level


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and every subgraph, those of functions too."""
    pending = [model.graph]
    pending += [graph for function in model.functions for node in function.node for graph in subgraphs(node)]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [inner for node in graph.node for inner in subgraphs(node)]


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds in its attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def nodes(model: ModelProto) -> Iterator[NodeProto]:
    for graph in graphs(model):
        yield from graph.node


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor: initializers and attributes, in all graphs and functions."""
    for graph in graphs(model):
        yield from graph.initializer
    for node in [*nodes(model), *(node for function in model.functions for node in function.node)]:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors


@dataclass(frozen=True, slots=True)
class External:
    """Where a tensor's bytes lie. `length` None: to the end of the file. `offset` -1: what stands there is no number."""

    tensor: str
    location: str
    offset: int
    length: int | None

    @property
    def safe(self) -> bool:
        """A relative path that stays below the model's folder."""
        path = PurePosixPath(self.location)
        plain = "\\" not in self.location and "\0" not in self.location and "\n" not in self.location and "\r" not in self.location
        return bool(self.location) and plain and not path.is_absolute() and ".." not in path.parts and path.name != ""


def external(model: ModelProto) -> list[External]:
    return [external_of(tensor) for tensor in tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def external_of(tensor: TensorProto) -> External:
    entries = {item.key: item.value for item in tensor.external_data}
    length = entries.get("length")
    return External(tensor.name, entries.get("location", ""), _number(entries.get("offset") or "0"), _number(length) if length else None)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def model_files(path: Path, model: ModelProto) -> list[FileEntry]:
    """The .onnx file and every external data file that it names, relative to its folder. The external data must be there."""
    names = [path.name, *sorted({PurePosixPath(item.location).as_posix() for item in external(model)})]
    return [FileEntry(path=name, sha256=sha256_of(path.parent / name), size=(path.parent / name).stat().st_size) for name in names]


def digest_of(files: list[FileEntry]) -> str:
    return tree_digest((entry.path, entry.sha256) for entry in files)


def inputs(model: ModelProto) -> list[TensorSpec]:
    """Inputs that a caller feeds: without those that have an initializer as default."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return [_spec(item) for item in model.graph.input if item.name not in stored]


def outputs(model: ModelProto) -> list[TensorSpec]:
    return [_spec(item) for item in model.graph.output]


def free_axes(spec: TensorSpec) -> list[int]:
    return [axis for axis, size in enumerate(spec.shape) if not isinstance(size, int) or size < 0]


def _spec(item: ValueInfoProto) -> TensorSpec:
    tensor = item.type.tensor_type
    shape: list[int | str | None] = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]
    if not item.type.HasField("tensor_type"):
        return TensorSpec(name=item.name, dtype=item.type.WhichOneof("value") or "unknown", shape=shape)
    return TensorSpec(name=item.name, dtype=_dtype(tensor.elem_type), shape=shape)


def _dtype(elem_type: int) -> str:
    try:
        return "string" if elem_type == TensorProto.STRING else str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type)))
    except (KeyError, TypeError):
        return "unknown"


def opsets(model: ModelProto) -> dict[str, int]:
    """Version by domain; the default domain is the empty text."""
    return {"" if item.domain == "ai.onnx" else item.domain: int(item.version) for item in model.opset_import}


def metadata(model: ModelProto) -> dict[str, str]:
    return {item.key: item.value for item in model.metadata_props}


def kept_metadata(model: ModelProto) -> dict[str, str]:
    """What a manifest keeps of it: the smallest entries that come to MAX_METADATA characters. Class names of a thousand classes have 25,000."""
    kept: dict[str, str] = {}
    left = MAX_METADATA
    for key, value in sorted(metadata(model).items(), key=lambda item: len(item[0]) + len(item[1])):
        left -= len(key) + len(value)
        if left < 0:
            break
        kept[key] = value
    return kept


def count(model: ModelProto, op_types: tuple[str, ...]) -> int:
    return sum(node.op_type in op_types for node in nodes(model))
