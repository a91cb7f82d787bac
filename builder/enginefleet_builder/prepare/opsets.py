"""Lowering an opset's number where nothing that a model uses changed in between. Pure."""

from __future__ import annotations

import onnx
from onnx import ModelProto

from . import model as models


def lowered_opset(model: ModelProto, ceiling: int) -> int | None:
    """`ceiling` when every operator of the model means the same there as in the opset that it has, else None.

    Opset 11 and up only: before, exporters relied on quirks. Models with functions import opsets of their own and are left alone.
    """
    have = models.opsets(model).get("", 0)
    if model.functions or not 11 <= ceiling < have or have > onnx.defs.onnx_opset_version():
        return None
    for node in models.nodes(model):
        if node.domain not in ("", "ai.onnx"):
            continue
        try:
            now, then = (onnx.defs.get_schema(node.op_type, version, "").since_version for version in (have, ceiling))
        except onnx.defs.SchemaError:
            return None
        if now != then:
            return None
    return ceiling
