"""Tiny models and data sets, made here: a convolutional classifier of 8x8 pictures into 4 classes, and what goes wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

CLASSES = 4
SIDE = 8
Floats = NDArray[np.float32]


def classifier(*, batch: int | str = "batch", outlier: float = 0.0, opset: int = 17, ir: int = 8) -> ModelProto:
    """Conv, Relu, Gemm: each class is a quadrant that is bright.

    `outlier`: a further channel of that size which the last layer ignores. A scale for the whole tensor then has no steps left for the
    others, so INT8 loses what FP32 tells apart.
    """
    weights = np.zeros((CLASSES + 1, 1, SIDE, SIDE), np.float32)
    half = SIDE // 2
    for label in range(CLASSES):
        row, column = divmod(label, 2)
        weights[label, 0, row * half : (row + 1) * half, column * half : (column + 1) * half] = 1 / half**2
    weights[CLASSES, 0] = outlier / SIDE**2
    last = np.concatenate([np.eye(CLASSES, dtype=np.float32), np.zeros((1, CLASSES), np.float32)])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"], "first.conv"),
        helper.make_node("Relu", ["conv"], ["relu"], "first.relu"),
        helper.make_node("Flatten", ["relu"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "v"], ["scores"], "last.gemm"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, CLASSES])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(last, "v")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    helper.set_model_props(model, {"names": "a,b,c,d"})
    return model


def elementwise(op: str, *, domain: str = "", shape: list[Any] | None = None, opset: int = 17) -> ModelProto:
    """One operator from float `x` to float `y`."""
    shape = shape or ["batch", 4]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], "only", domain=domain)],
        "elementwise",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    domains = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def samples(count: int, seed: int = 1) -> tuple[Floats, NDArray[np.int64]]:
    """(pictures (count, 1, 8, 8), labels): dim noise, and one quadrant a little brighter."""
    random = np.random.default_rng(seed)
    pictures = random.uniform(0.2, 0.3, (count, 1, SIDE, SIDE)).astype(np.float32)
    labels = np.arange(count, dtype=np.int64) % CLASSES
    half = SIDE // 2
    for picture, label in zip(pictures, labels, strict=True):
        row, column = divmod(int(label), 2)
        picture[0, row * half : (row + 1) * half, column * half : (column + 1) * half] += 0.15
    return pictures, labels


def save_model(model: ModelProto, path: Path, *, external: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if external is None:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, all_tensors_to_one_file=True, location=external, size_threshold=0)
    return path


def save_data(path: Path, count: int = 400, seed: int = 1, **more: Any) -> Path:
    images, labels = samples(count, seed)
    np.savez(path, images=images, labels=labels, **more)
    return path
