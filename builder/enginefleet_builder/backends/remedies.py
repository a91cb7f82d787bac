"""What a build does about a model that TensorRT stumbles over, instead of giving up: the same model in other words, or a layer in higher precision.

Each remedy is bounded, said in the build's record, and judged like any other engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from ..prepare import model as models
from ..prepare import qdq
from . import texts

CURABLE = ("NoImplementation", "KernelCrashed", "EngineCrashed")
"""Reasons that another precision of one layer may do away with. Memory that does not suffice is none."""
MOST_EXCLUSIONS = 4
"""Layers that are left in higher precision, one more each try; each costs a build, and a network with more of them is not for this precision."""


def separate_dimensions(model: ModelProto, profiles: Sequence[Mapping[str, Any]]) -> list[str]:
    """Give dynamic dimensions of inputs that share a name and differ in a profile names of their own, in place; returns these names.

    TensorRT takes dimensions of one name for equal and refuses such a file while it builds; ONNX Runtime never minds. Exporters write `?` for all.
    """
    ranges = {str(item["name"]): item["profiles"] for item in profiles}
    places: dict[str, list[tuple[str, int, Any]]] = {}
    for tensor in model.graph.input:
        for axis, dim in enumerate(tensor.type.tensor_type.shape.dim):
            if dim.dim_param:
                places.setdefault(dim.dim_param, []).append((tensor.name, axis, dim))

    def sizes(tensor: str, axis: int, number: int) -> tuple[int, ...]:
        """min, opt and max of one dimension in one profile; empty where none is given."""
        given = ranges.get(tensor, [])[number:][:1]
        return tuple(one[name][axis] for one in given for name in ("min", "opt", "max") if axis < len(one[name]))

    count = max((len(given) for given in ranges.values()), default=0)
    unlike = [
        name
        for name, found in places.items()
        if any(len({sizes(tensor, axis, number) for tensor, axis, _ in found} - {()}) > 1 for number in range(count))
    ]
    for name in unlike:
        for tensor, axis, dim in places[name]:
            dim.dim_param = f"{tensor}_d{axis}"
    return unlike


def without_layer(model: ModelProto, layer: str, folder: Path) -> tuple[ModelProto, list[str]] | None:
    """The model with a layer in higher precision that TensorRT names (`a.weight + a_QuantizeLinear + PWN(b, c)`), and its nodes.

    A named node that is not quantized itself and whose result is quantized next was made so by TensorRT, which takes a Q/DQ pair across nodes that
    only move data (a Resize before the first Conv): then those that read the pair are chosen. None when no quantized node is concerned.
    `folder`: where external data lies.
    """
    named = {_bare(name) for name in texts.nodes_of(layer)}
    graph = qdq.Graph(model)
    hit = {
        node.name for node in model.graph.node if named & {node.name, *node.input, *node.output} and node.op_type not in models.QUANTIZING
    }
    hit |= {
        reader.name
        for node in model.graph.node
        if node.name in hit and not graph.quantized(node)
        for reader in graph.quantized_readers(node)
    }
    nodes = {name for one in qdq.layers(model) if hit & set(one.nodes) for name in one.nodes}
    nodes |= {node.name for node in model.graph.node if node.name in hit and graph.quantized(node)}
    chosen = [node.name for node in model.graph.node if node.name in nodes]
    if not chosen:
        return None
    return qdq.keep(model, chosen, dequantized(model, folder)), chosen


def _bare(name: str) -> str:
    """TensorRT's names of Q and DQ layers are those of ONNX nodes, of the weights' the tensors'."""
    return name.removesuffix("_QuantizeLinear").removesuffix("_DequantizeLinear")


def dequantized(model: ModelProto, folder: Path) -> ModelProto:
    """Its nodes, with weights that are stored as integers as the numbers that they stand for: what `qdq.keep` takes weights from."""
    result = ModelProto()
    result.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored and node.input[1] in stored:
            result.graph.initializer.append(_numbers(node, stored, str(folder)))
    return result


def _numbers(node: onnx.NodeProto, stored: Mapping[str, TensorProto], folder: str) -> TensorProto:
    """(integers - zero point) x scale, along the node's axis, in the scale's type."""
    integers, scale = (numpy_helper.to_array(stored[name], folder) for name in node.input[:2])
    zero = numpy_helper.to_array(stored[node.input[2]], folder) if node.input[2:] and node.input[2] in stored else np.zeros((), np.int8)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1) % max(1, integers.ndim)
    shape = [-1 if index == axis else 1 for index in range(integers.ndim)]
    scales, zeros = (one.reshape(shape) if one.size > 1 else one.reshape(()) for one in (scale, zero))
    numbers = ((integers.astype(np.float64) - zeros) * scales.astype(np.float64)).astype(scale.dtype)
    return numpy_helper.from_array(numbers, node.output[0])


def save(model: ModelProto, source: Path, folder: Path) -> Path:
    """The changed model as a file in `folder`, its external data (beside `source`) linked there: a parser looks for it beside the file."""
    target = folder / "changed" / source.name
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(model.SerializeToString())
    for location in {PurePosixPath(item.location) for item in models.external(model) if item.safe}:
        link = target.parent / location
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to((source.parent / location).resolve())
    return target
