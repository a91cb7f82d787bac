"""Which backends' engines can lie in which layout (spec.serving.layout): the rules, for the operator and the init container alike. Pure."""

from __future__ import annotations

from typing import Literal

from .fingerprint import BACKEND_NAMES

Layout = Literal["plain", "triton", "ultralytics"]


def layout_refused(layout: str, backend: str) -> str:
    """Why engines of this backend cannot be served in it, for people; "" when they can."""
    if layout == "triton" and backend not in ("tensorrt", "onnxruntime"):
        return f"Triton has no backend for engines of {BACKEND_NAMES[backend]}, only for TensorRT and ONNX Runtime"
    if layout == "ultralytics" and backend != "tensorrt":
        return f"Ultralytics reads a header before plans of TensorRT only, not before engines of {BACKEND_NAMES[backend]}"
    return ""
