"""What a pod can say of itself: the runtime that it loads, and the host as the pod sees it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_api.jobs import ProbeReport, ProbeRequest

from .backends import openvino
from .backends.providers import PROVIDERS
from .io import Progress

CPUINFO = Path("/proc/cpuinfo")


def probe(request: ProbeRequest, progress: Progress) -> ProbeReport:
    """Raises EnvironmentFault `RuntimeMissing`, `ExecutionProviderMissing`; PermanentError `BackendUnknown`."""
    progress(f"probe {request.backend}")
    if request.backend != "onnxruntime":
        hint = "Use a HardwareClass with backend onnxruntime, or a builder image that has this backend."
        raise PermanentError("BackendUnknown", f"this builder cannot probe {request.backend!r}, only onnxruntime.", hint)
    return ProbeReport(runtime=onnxruntime_facts(request.execution_provider), host=host_facts())


def onnxruntime_facts(execution_provider: str) -> dict[str, Any]:
    """Facts of ONNX Runtime as loaded into this process."""
    try:
        import onnxruntime
    except ImportError as error:
        hint = "Name an image with onnxruntime in HardwareClass runtime.image."
        raise EnvironmentFault("RuntimeMissing", f"onnxruntime cannot be loaded: {error}.", hint) from error
    provider = PROVIDERS.get(execution_provider)
    available: list[str] = onnxruntime.get_available_providers()  # type: ignore[attr-defined]
    if provider is None or provider.called not in available:
        raise EnvironmentFault(
            "ExecutionProviderMissing",
            f"ONNX Runtime {onnxruntime.__version__} has {', '.join(available)}, expected {provider.called if provider else execution_provider}.",
            "Use an image whose ONNX Runtime has it, or another executionProvider.",
        )
    facts: dict[str, Any] = {"backend": "onnxruntime", "backendVersion": str(onnxruntime.__version__), "executionProvider": execution_provider}
    if execution_provider == "OpenVINO":
        facts["libraries"] = {"openvino": openvino.version(Path(onnxruntime.__file__).parent / "capi")}
    return facts


def host_facts() -> dict[str, Any]:
    """Hard facts of the host as far as a pod sees them; see fingerprint.host_facts."""
    cpuinfo = CPUINFO.read_text(errors="replace") if CPUINFO.exists() else ""
    return dict(fingerprint.host_facts(os=platform.system().lower(), machine=platform.machine(), cpuinfo=cpuinfo))


def check_device(facts: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Raise EnvironmentFault `WrongDevice` when an engine for `facts` is not for the host that this pod sees.

    Unknown facts (null) are not compared. Facts of simulated hardware exist in an agent's fact files only; a pod sees the real host.
    """
    if "simulated" in facts and "simulated" not in seen:
        return
    hint = "The node's fingerprint is out of date or the pod was scheduled by hand; the operator observes the node again."
    for name in ("os", "arch", "simulated"):
        if facts.get(name) is not None and facts[name] != seen.get(name):
            raise EnvironmentFault("WrongDevice", f"{name} is {seen.get(name)!r} here, the engine is for {facts[name]!r}.", hint)
    wanted, found = (cpu.get("isa") if isinstance(cpu := side.get("cpu"), Mapping) else None for side in (facts, seen))
    if wanted is None or found is None or set(wanted) == set(found):
        return
    missing, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    difference = "; ".join(text for text in (missing and "lacks " + ", ".join(missing), more and "has also " + ", ".join(more)) if text)
    raise EnvironmentFault("WrongDevice", f"the CPU here {difference}, compared with the one that the engine is for.", hint)
