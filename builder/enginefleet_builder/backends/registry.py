"""Which backend a HardwareClass names."""

from __future__ import annotations

from enginefleet_api.errors import PermanentError

from .base import Backend
from .onnxruntime import OnnxRuntime
from .providers import PROVIDERS


def backend_for(name: str, execution_provider: str = "CPU") -> Backend:
    """The backend of a HardwareClass. Raises PermanentError `BackendNotSupported`."""
    if name == "onnxruntime" and execution_provider in PROVIDERS:
        return OnnxRuntime(PROVIDERS[execution_provider])
    raise PermanentError(
        "BackendNotSupported",
        f"backend {name} with execution provider {execution_provider} is not supported by this version, expected onnxruntime with one of"
        f" {', '.join(PROVIDERS)}.",
        "Change the HardwareClass.",
    )
