"""Lowering an opset's number where nothing that a model uses changed in between. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import ModelProto

from enginefleet_api.flavours import TENSORRT_8

from . import model as models

HIGHEST: Mapping[str, int] = {TENSORRT_8: 17}
"""By flavour: the newest opset that models are prepared in; newer ones are converted (convert.py)."""


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
