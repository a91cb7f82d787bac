"""Models with Q/DQ nodes as graphs: which layers are quantized, how many, and the same model with some of its nodes in higher precision.

A *layer* is a Conv, ConvTranspose, Gemm or MatMul that reads quantized values, with the quantized nodes between it and the layers before it
(activations, pooling, additions): everything that stands between those layers' results and this one's is then in one precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError

from . import model as models

WORTHWHILE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that gain from integers, and whose share of quantized nodes is reported."""


@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    """Of the node that gives the layer its name."""
    nodes: tuple[str, ...]
    """All its quantized nodes, in the graph's order."""


class Graph:
    """The main graph of a model by name: who makes a tensor, who reads it."""

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.producer = {output: node for node in model.graph.node for output in node.output if output}
        self.outputs = {output.name for output in model.graph.output}

    @cached_property
    def consumers(self) -> dict[str, list[NodeProto]]:
        found: dict[str, list[NodeProto]] = {}
        for node in self.model.graph.node:
            for name in dict.fromkeys(node.input):
                found.setdefault(name, []).append(node)
        return found

    def dequantized(self, tensor: str) -> NodeProto | None:
        """The DequantizeLinear that makes it."""
        node = self.producer.get(tensor)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def quantized(self, node: NodeProto) -> bool:
        """Whether it reads values that were quantized."""
        return node.op_type not in models.QUANTIZING and any(self.dequantized(name) for name in node.input)

    def quantized_readers(self, node: NodeProto) -> list[NodeProto]:
        """Those that read what it makes through Q and DQ."""
        pairs = [
            dequantize
            for output in node.output
            for quantize in self.consumers.get(output, [])
            if quantize.op_type == "QuantizeLinear"
            for dequantize in self.consumers.get(quantize.output[0], [])
        ]
        return [reader for pair in pairs for reader in self.consumers.get(pair.output[0], [])]

    def before(self, tensor: str) -> str | None:
        """The tensor that Q and DQ made `tensor` from; None where only a quantized weight stands before the DQ."""
        found = tensor
        while (dequantize := self.dequantized(found)) is not None:
            quantize = self.producer.get(dequantize.input[0])
            if quantize is None or quantize.op_type != "QuantizeLinear":
                return None
            found = quantize.input[0]
        return found


def layers(model: ModelProto) -> list[Layer]:
    """In the graph's order. Quantized nodes after the last layer belong to it."""
    graph = Graph(model)
    heads = [node.name for node in model.graph.node if node.op_type in WORTHWHILE and graph.dequantized(node.input[0]) is not None]
    if not heads:
        return []
    place = {name: index for index, name in enumerate(heads)}
    wanted: dict[str, int] = {}  # tensor -> the first layer that needs it
    members: list[list[str]] = [[] for _ in heads]
    for node in reversed(model.graph.node):
        needed = [wanted[output] for output in node.output if output in wanted]
        own = place.get(node.name, min(needed, default=len(heads) - 1))
        if graph.quantized(node):
            members[own].append(node.name)
        if needed or node.name in place:
            wanted.update((name, min(own, wanted.get(name, own))) for name in node.input)
    return [Layer(name, tuple(reversed(nodes))) for name, nodes in zip(heads, members, strict=True)]


def keep(model: ModelProto, names: Collection[str], original: ModelProto) -> ModelProto:
    """`model` with the named nodes in higher precision: they read what stood before Q/DQ, and weights from `original`.

    `original`: the model before it was quantized, with the same node names and with its weights in memory. Q/DQ nodes that nobody needs any
    more are left out. No scale changes, so the same names give the same file however they were found.
    """
    result = ModelProto()
    result.CopyFrom(model)
    if not names:
        return result
    chosen = set(names)
    graph = Graph(result)
    source = {node.name: node for node in original.graph.node}
    weights = {tensor.name: tensor for tensor in original.graph.initializer}
    stored = {tensor.name for tensor in result.graph.initializer}
    for node in result.graph.node:
        if node.op_type in models.QUANTIZING:
            continue
        for index, name in enumerate(node.input):
            if graph.dequantized(name) is None:
                continue
            if node.name in chosen:
                replaced = graph.before(name)
                if replaced is None:
                    weight = source[node.name].input[index]
                    # the quantizer may have given the weight's own name to what it dequantizes it to
                    replaced = f"{weight}_unquantized" if weight in graph.producer else weight
                    if replaced not in stored:
                        result.graph.initializer.append(weights[weight])
                        result.graph.initializer[-1].name = replaced
                        stored.add(replaced)
                node.input[index] = replaced
            elif _pointless(graph, node, name, chosen) and (replaced := graph.before(name)) is not None:
                node.input[index] = replaced
    _free_outputs(graph, chosen)
    _sweep(result)
    return result


def _pointless(graph: Graph, node: NodeProto, tensor: str, chosen: set[str]) -> bool:
    """A node that is not quantized itself reads a quantized result only because its maker was quantized: not when that one is kept."""
    before = graph.before(tensor)
    maker = graph.producer.get(before) if before is not None else None
    if maker is None or maker.name not in chosen or node.op_type in WORTHWHILE:
        return False
    readers = [reader for output in node.output for reader in graph.consumers.get(output, [])]
    return not any(reader.op_type == "QuantizeLinear" for reader in readers)


def _free_outputs(graph: Graph, chosen: set[str]) -> None:
    """Outputs of the model that are quantized only because a kept node makes them."""
    for output in graph.outputs:
        before = graph.before(output)
        if before is None or before == output or before not in graph.producer or graph.producer[before].name not in chosen:
            continue
        graph.producer[output].output[0] = quantized = f"{output}_dequantized"
        graph.producer[before].output[:] = [output if name == before else name for name in graph.producer[before].output]
        renamed = {before: output, output: quantized}
        for node in graph.model.graph.node:
            node.input[:] = [renamed.get(name, name) for name in node.input]


def _sweep(model: ModelProto) -> None:
    """Leave out Q/DQ nodes whose results nobody reads, and initializers that nobody reads any more."""
    graph = model.graph
    used = Counter(name for one in models.graphs(model) for node in one.node for name in node.input)
    used.update(output.name for output in graph.output)
    dead = True
    while dead:
        dead = False
        for index in range(len(graph.node) - 1, -1, -1):
            node = graph.node[index]
            if node.op_type in models.QUANTIZING and not any(used[output] for output in node.output):
                used.subtract(node.input)
                del graph.node[index]
                dead = True
    kept = [tensor for tensor in graph.initializer if used[tensor.name]]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    made = {output for node in graph.node for output in node.output}
    known = [info for info in graph.value_info if info.name in made]
    del graph.value_info[:]
    graph.value_info.extend(known)


def share(model: ModelProto) -> tuple[int, int]:
    """(Conv, Gemm, MatMul and ConvTranspose nodes that read quantized values, all of them)."""
    graph = Graph(model)
    worthwhile = [node for node in model.graph.node if node.op_type in WORTHWHILE]
    return sum(bool(node.input) and graph.dequantized(node.input[0]) is not None for node in worthwhile), len(worthwhile)


def check_scales(model: ModelProto) -> int:
    """The number of Q/DQ nodes. Raises PermanentError `NothingQuantized`, `BadScales`."""
    qdq = [node for node in models.nodes(model) if node.op_type in models.QUANTIZING]
    if not qdq:
        message = f"0 Q/DQ nodes came out of {len(model.graph.node)} nodes."
        raise PermanentError("NothingQuantized", message, "Does the model have Conv, Gemm or MatMul outside the exclusions?")
    stored = {tensor.name: tensor for tensor in models.tensors(model) if tensor.name}
    stored |= _constants(model)
    for name in sorted({node.input[1] for node in qdq if len(node.input) > 1}):
        if name not in stored:
            continue  # computed in the graph (QAT)
        scale = onnx.numpy_helper.to_array(stored[name]).astype(np.float64)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            message = f"scale {name} has the values {scale.ravel()[:4].tolist()}, expected finite and positive ones."
            raise PermanentError("BadScales", message, "Look for NaN or constant samples in the calibration set, or for a dead layer.")
    return len(qdq)


def _constants(model: ModelProto) -> dict[str, TensorProto]:
    """Results of Constant nodes: exporters of QAT models write scales so."""
    return {
        node.output[0]: attribute.t
        for node in models.nodes(model)
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }


def restore_interface(source: ModelProto, result: ModelProto) -> None:
    """Give inputs and outputs the shapes as the source names them, and copy its metadata: converters rename dimensions and drop metadata.

    Raises PermanentError `InterfaceChanged` when names, types, ranks or sizes differ, also when an open dimension got a size.
    """
    for what, read, before, after in (
        ("inputs", models.inputs, source.graph.input, result.graph.input),
        ("outputs", models.outputs, source.graph.output, result.graph.output),
    ):
        given, found = read(source), read(result)
        if len(given) != len(found) or not all(map(_same, given, found)):
            message = f"{what} were {_words(given)} and are {_words(found)} after the conversion."
            raise PermanentError("InterfaceChanged", message, "Please report it with the model.")
        infos = {info.name: info for info in before}
        for info in after:
            if info.name in infos:
                info.CopyFrom(infos[info.name])
    onnx.helper.set_model_props(result, models.metadata(result) | models.metadata(source))


def _same(given: TensorSpec, found: TensorSpec) -> bool:
    sizes = zip(given.shape, found.shape, strict=False)
    return (given.name, given.dtype, len(given.shape)) == (found.name, found.dtype, len(found.shape)) and all(
        new == old if isinstance(old, int) else old is None or not isinstance(new, int) for old, new in sizes
    )


def _words(specs: Iterable[TensorSpec]) -> str:
    return ", ".join(f"{one.name} {one.dtype} [{', '.join('?' if size is None else str(size) for size in one.shape)}]" for one in specs)
