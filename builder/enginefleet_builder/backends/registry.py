"""Which backend a HardwareClass names."""

from __future__ import annotations

from enginefleet_api.errors import PermanentError
from enginefleet_api.fingerprint import BACKEND_MODULES

from .base import Backend
from .onnxruntime import OnnxRuntime
from .providers import PROVIDERS


def backend_for(name: str, execution_provider: str = "CPU", python: str = "python3", reserve: int = 0) -> Backend:
    """The backend of a HardwareClass. Raises PermanentError `BackendNotSupported`.

    `python`: the interpreter that owns TensorRT's bindings; `reserve`: bytes of memory that a build leaves free. Both for TensorRT alone.
    """
    if name in BACKEND_MODULES:
        # not at the top: building takes onnx along, which a server of another backend must not load
        from .tensorrt import TensorRt

        return TensorRt(name, python, reserve=reserve)
    if name == "onnxruntime" and execution_provider in PROVIDERS:
        return OnnxRuntime(PROVIDERS[execution_provider])
    raise PermanentError(
        "BackendNotSupported",
        f"backend {name} with execution provider {execution_provider} is not supported by this version, expected onnxruntime with one of"
        f" {', '.join(PROVIDERS)}.",
        "Change the HardwareClass.",
    )
