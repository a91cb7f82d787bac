"""What the installed ONNX Runtime takes, asked of the library itself: newest opset and IR version, known operators."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from onnx import TensorProto, helper

from ..backends.ort_session import load

FIRST_OPSET, FIRST_IR = 15, 8
"""Every ONNX Runtime that this distribution allows takes these."""
BEYOND = 20
"""How far the search goes."""


@cache
def newest_opset() -> int:
    return max(version for version in range(FIRST_OPSET, FIRST_OPSET + BEYOND) if _takes(version, FIRST_IR))


@cache
def newest_ir() -> int:
    return max(version for version in range(FIRST_IR, FIRST_IR + BEYOND) if _takes(FIRST_OPSET, version))


def _takes(opset: int, ir: int) -> bool:
    tensor = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", tensor[:1], tensor[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    try:
        load(model.SerializeToString(), threads=1)
    # the binding's own exception types are private; whatever it raises, it does not take the model
    except Exception:  # noqa: BLE001
        return False
    return True


@cache
def known_operators() -> frozenset[tuple[str, str]]:
    """(domain, operator), the default domain as empty text."""
    state: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    return frozenset((schema.domain, schema.name) for schema in state.get_all_operator_schema())


def version() -> str:
    return str(importlib.import_module("onnxruntime").__version__)
