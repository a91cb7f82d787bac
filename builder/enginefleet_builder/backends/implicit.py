"""A model with Q/DQ nodes as one without them, and its scales beside it: what a DLA takes for int8, which knows no explicit quantization.

TensorRT reads such scales from a calibration cache, as if it had found them itself.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper

from ..prepare import model as models
from ..prepare import qdq
from .remedies import dequantized

SAME_RANGE = ("Relu", "Clip", "MaxPool", "Reshape", "Flatten", "Transpose", "Identity", "Squeeze", "Unsqueeze")
"""Operators whose results lie within their input's range: TensorRT fuses them into what stands before, which has no scale of its own then."""


def implicit(model: ModelProto, folder: Path) -> tuple[ModelProto, dict[str, float]]:
    """(the model without Q/DQ nodes, scale of each tensor that was quantized). Weights get the numbers that they stand for.

    `folder`: where external data lies.
    """
    graph = qdq.Graph(model)
    quantizing = [node for node in model.graph.node if node.op_type == "QuantizeLinear"]
    plain = qdq.keep(model, [node.name for node in model.graph.node if graph.quantized(node)], dequantized(model, folder))
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    scales: dict[str, float] = {}
    for node in quantizing:
        # a vector of scales is that of a weight, which TensorRT finds scales for by itself
        if node.input[0] not in stored and node.input[1] in stored:
            scale = numpy_helper.to_array(stored[node.input[1]], str(folder))
            if scale.size == 1:
                scales.setdefault(node.input[0], float(scale.reshape(-1)[0]))
    for node in reversed(plain.graph.node):
        if node.op_type in SAME_RANGE and node.output[0] in scales:
            scales.setdefault(node.input[0], scales[node.output[0]])
    return plain, {name: scale for name, scale in scales.items() if np.isfinite(scale) and scale > 0}


def is_plain(model: ModelProto) -> bool:
    return models.count(model, models.QUANTIZING) == 0
