"""What ONNX's own checker and shape inference say of a file. They are C++ and may crash on a hostile one: only ever in the child process."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import onnx
from onnx import ModelProto

from . import model as models
from . import runtime_limits as limits
from .checks import Subject, sorted_nodes
from .findings import Finding, clean

LARGEST_TENSOR = 16 << 30
"""Bytes of one intermediate tensor; devices have less memory."""


def check(subject: Subject) -> list[Finding]:
    model = _in_order(subject.model)
    found = list(_graph(model))
    if not any(finding.severity == "error" for finding in found):
        found += _shapes(model)
    return found


def _in_order(model: ModelProto) -> ModelProto:
    """The model with its nodes sorted, which is a cure of its own: it itself where they are."""
    order = sorted_nodes(model.graph)
    if order is None or order == list(range(len(order))):
        return model
    copied = ModelProto()
    copied.CopyFrom(model)
    del copied.graph.node[:]
    copied.graph.node.extend(model.graph.node[index] for index in order)
    return copied


def _graph(model: ModelProto) -> Iterator[Finding]:
    opset = models.opsets(model).get("", 0)
    if opset > onnx.defs.onnx_opset_version() or model.ir_version > onnx.IR_VERSION or opset > limits.newest_opset():
        return  # a finding of its own, and the checker would say no more
    copied = ModelProto()
    copied.CopyFrom(model)
    for tensor in models.tensors(copied):
        # external data was checked by ourselves; the checker looks for it in the working directory
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.ClearField("raw_data")
            tensor.dims[:] = [0]
            tensor.raw_data = b""
    try:
        onnx.checker.check_model(copied, full_check=False)
    except onnx.checker.ValidationError as error:
        yield Finding("error", "InvalidGraph", f"ONNX's checker refuses the model: {_line(error)}.", "Export the model again.")


def _shapes(model: ModelProto) -> Iterator[Finding]:
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
        message = f"shapes do not follow from the graph as it is declared: {_line(error)}."
        yield Finding("warning", "ShapesInconsistent", message, "Runtimes may refuse it; correct the declared shapes or export again.")
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return
    for item in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = item.type.tensor_type
        sizes = [int(dim.dim_value) if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
        if any(size < 0 for size in sizes):
            continue
        try:
            itemsize = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
        except KeyError:
            continue
        if (taken := math.prod(sizes) * itemsize) > LARGEST_TENSOR:
            message = f"tensor {clean(item.name)} has the shape {sizes} and {taken} bytes, at most {LARGEST_TENSOR} are taken."
            yield Finding("error", "TensorTooLarge", message, "No device holds it: export the model with smaller sizes.")


def _line(error: Exception) -> str:
    """The first sentence of a C++ text, without its lists of the whole node."""
    text = re.split(r"==> Context|\n\n", str(error))[0]
    return clean(" ".join(text.split()), 300).rstrip(". ") if text.strip() else type(error).__name__
