"""Reading ONNX files: what a file really is, its tensors wherever they stand, its external data, its inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from enginefleet_api.documents import FileEntry, TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.identity import tree_digest

from ..store.base import sha256_of

QUANTIZING = ("QuantizeLinear", "DequantizeLinear")
QUANTIZED = (*QUANTIZING, "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear")

_BEGINNINGS = [
    (b"version https://git-lfs", "a git-lfs pointer: the file itself was not fetched"),
    (b"<!doctype", "an HTML page: the address leads to a web page, perhaps a log-in"),
    (b"<html", "an HTML page: the address leads to a web page, perhaps a log-in"),
    (b"<?xml", "an XML document, perhaps an error message of a store"),
    (b"{", "a JSON document"),
    (b"pk\x03\x04", "a ZIP archive, perhaps a PyTorch checkpoint"),
    (b"\x80\x02", "a Python pickle, perhaps a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89hdf", "an HDF5 file, perhaps a Keras model"),
    (b"ftrt", "a TensorRT plan"),
]


def what_it_is(path: Path) -> str | None:
    """In words, what a file is that is no ONNX model; None when its beginning tells nothing."""
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        return "an empty file"
    lowered = start.lstrip().lower()
    return next((words for beginning, words in _BEGINNINGS if lowered.startswith(beginning)), None)


def read_model(path: Path) -> ModelProto:
    """The model without its external data. Raises PermanentError `NotAModel` that says what the file is, or `ModelTruncated`."""
    hint = "Give a complete .onnx file."
    if (words := what_it_is(path)) is not None:
        raise PermanentError("NotAModel", f"{path.name} is {words}, expected an ONNX model.", hint)
    try:
        model: ModelProto = onnx.load(path, load_external_data=False)
    # the parser's exception belongs to protobuf, which has no types here
    except Exception as error:
        size = path.stat().st_size
        raise PermanentError("ModelTruncated", f"{path.name} ({size} bytes) is cut off or damaged: {error}.", hint) from error
    if not model.graph.node:
        # protobuf reads many a foreign file as a message without known fields
        raise PermanentError("NotAModel", f"{path.name} has 0 nodes, expected an ONNX model with at least one.", hint)
    return model


def graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and every subgraph, those of functions too."""
    pending = [model.graph]
    pending += [graph for function in model.functions for node in function.node for graph in _subgraphs(node)]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [inner for node in graph.node for inner in _subgraphs(node)]


def _subgraphs(node: NodeProto) -> Iterator[GraphProto]:
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
    """Where a tensor's bytes lie. `length` None: to the end of the file."""

    tensor: str
    location: str
    offset: int
    length: int | None

    @property
    def safe(self) -> bool:
        """A relative path that stays below the model's folder."""
        path = PurePosixPath(self.location)
        return bool(self.location) and "\\" not in self.location and not path.is_absolute() and ".." not in path.parts


def external(model: ModelProto) -> list[External]:
    found = []
    for tensor in tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {item.key: item.value for item in tensor.external_data}
        length = entries.get("length")
        found.append(External(tensor.name, entries.get("location", ""), int(entries.get("offset") or 0), int(length) if length else None))
    return found


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


def count(model: ModelProto, op_types: tuple[str, ...]) -> int:
    return sum(node.op_type in op_types for node in nodes(model))
