"""A small engine with its manifest, as fetch leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper

from enginefleet_api.jobs import EngineManifest
from enginefleet_builder.store.base import sha256_of


def write_engine(folder: Path, **changes: Any) -> EngineManifest:
    """Adds two inputs: `x` FP32 [N, 3] and `y` FP32 [1, 3]; `count` INT64 [1] goes through to `same`."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [helper.make_node("Add", ["x", "y"], ["sum"]), helper.make_node("Identity", ["count"], ["same"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]),
        helper.make_tensor_value_info("count", TensorProto.INT64, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["N", 3]),
        helper.make_tensor_value_info("same", TensorProto.INT64, [1]),
    ]
    graph = helper.make_graph(nodes, "add", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "model.onnx"))
    return _manifest(folder, "adder", **changes)


def write_picture_engine(folder: Path, **changes: Any) -> EngineManifest:
    """`images` FP32 [N, 3, 8, 8] goes through to `same`."""
    folder.mkdir(parents=True, exist_ok=True)
    shape: list[str | int | None] = ["N", 3, 8, 8]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("images", "same"))
    graph = helper.make_graph([helper.make_node("Identity", ["images"], ["same"])], "pictures", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "model.onnx"))
    return _manifest(folder, "pictures", **changes)


def _manifest(folder: Path, name: str, **changes: Any) -> EngineManifest:
    facts = {"backend": "onnxruntime", "backendVersion": onnxruntime.__version__, "executionProvider": "CPU"}
    manifest = EngineManifest(
        model_name=name, engine_key="e" * 64, blob="sha256:" + sha256_of(folder / "model.onnx"),
        size=(folder / "model.onnx").stat().st_size, fingerprint="fp-1", file="model.onnx", facts=facts,
    ).model_copy(update=changes)  # fmt: skip
    (folder / "engine.json").write_text(manifest.model_dump_json(by_alias=True))
    return manifest


REQUEST: dict[str, Any] = {
    "id": "7",
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]},
        {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [[0.5, 0.5, 0.5]]},
        {"name": "count", "datatype": "INT64", "shape": [1], "data": [9]},
    ],
}
