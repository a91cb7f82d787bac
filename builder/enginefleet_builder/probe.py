"""What a pod can say of itself: the runtime that it loads, the GPUs that CUDA finds, and the host as the pod sees it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginefleet_api import fingerprint, hostfiles
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError
from enginefleet_api.jobs import ProbeReport, ProbeRequest

from . import device
from .backends import openvino
from .backends.providers import PROVIDERS
from .device.files import HostFiles
from .io import Progress


def probe(request: ProbeRequest, progress: Progress) -> ProbeReport:
    """Raises EnvironmentFault `NoGPU`, `RuntimeMissing`, `ExecutionProviderMissing`; PermanentError `BackendUnknown`."""
    progress(f"probe {request.backend}")
    runtime = runtime_facts(request.backend, request.execution_provider, request.python, cross=request.compute_capability or None)
    looks = fingerprint.runs_on_gpu(runtime) and fingerprint.cross_capability(runtime) is None
    return ProbeReport(runtime=runtime, host=host_facts(), context=device.context() if looks else {})


def runtime_facts(backend: str, execution_provider: str, python: str, *, cross: str | None = None) -> dict[str, Any]:
    """What the loaded library says of itself, and the GPUs where it runs on one; see fingerprint.combine.

    `python`: the interpreter that owns TensorRT's bindings. `cross`: see device.facts.
    """
    if backend in fingerprint.BACKEND_MODULES:
        return device.facts(python, fingerprint.BACKEND_MODULES[backend], cross=cross)
    if backend != "onnxruntime":
        hint = "Use a HardwareClass with another backend, or a builder image that has this one."
        raise PermanentError(
            "BackendUnknown",
            f"this builder knows no backend {backend!r}, only onnxruntime, {', '.join(fingerprint.BACKEND_MODULES)}.",
            hint,
        )
    runtime = onnxruntime_facts(execution_provider)
    return runtime | gpu_facts() if fingerprint.runs_on_gpu(runtime) else runtime


def gpu_facts() -> dict[str, Any]:
    """What ONNX Runtime's providers on a GPU hang on: {gpus, cudaMajor}, and jetson or simulated where they are. EnvironmentFault `NoGPU`."""
    import onnxruntime

    seen = device.cuda()
    linked = str(getattr(onnxruntime, "cuda_version", "")).partition(".")[0]
    found: dict[str, Any] = {"gpus": device.gpus(seen), "cudaMajor": int(linked) if linked.isdigit() else None}
    if (jetson := hostfiles.jetson(HostFiles())) is not None:
        found["jetson"] = jetson
    if "simulated" in seen:
        found["simulated"] = seen["simulated"]
    return found


def by_hand(backend: str | None, execution_provider: str, python: str, progress: Progress) -> dict[str, Any]:
    """{host, now, runtimes: [{fingerprint, summary, unknown, facts}], missing: {backend: why}} of the machine that a person sits at.

    Without a backend all are looked for, and what is not there is no failure.
    """
    host = host_facts()
    runtimes, missing = [], {}
    for name in (backend,) if backend is not None else ("onnxruntime", *fingerprint.BACKEND_MODULES):
        progress(f"probe {name}")
        try:
            facts = here(runtime_facts(name, execution_provider, python))
        except EngineFleetError as error:
            if backend is not None:
                raise
            missing[name] = f"{error.reason}: {error.message}"
            continue
        found = {"fingerprint": fingerprint.identify(facts), "summary": fingerprint.summary(facts)}
        unknown = fingerprint.unknowns(facts)
        runtimes.append(found | ({"unknown": unknown} if unknown else {}) | {"facts": facts})
    context = hostfiles.context(HostFiles())
    return {"runtimes": runtimes, "missing": missing, "host": host, "now": {**context, **device.context()}}


def here(runtime: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of this machine under a runtime, as its user sees them who has no node agent."""
    return fingerprint.of_node(fingerprint.combine(host_facts(), runtime), platform.node())


def lines(found: Mapping[str, Any]) -> list[str]:
    """What by_hand() found, for people."""
    told: list[str] = []
    for runtime in found["runtimes"]:
        told += [runtime["summary"], f"  fingerprint  {runtime['fingerprint']}"]
        told += [f"  {name} is unknown: an engine made here is for this node only" for name in runtime.get("unknown", [])]
    told += [f"{backend} is not here\n  {why}" for backend, why in found["missing"].items()]
    told.append("now")
    width = max(map(len, found["now"]), default=0)
    return told + [f"  {name:{width}}  {value}" for name, value in found["now"].items()]


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
    facts: dict[str, Any] = {
        "backend": "onnxruntime",
        "backendVersion": str(onnxruntime.__version__),
        "executionProvider": execution_provider,
    }
    if execution_provider == "OpenVINO":
        facts["libraries"] = {"openvino": openvino.version(Path(onnxruntime.__file__).parent / "capi")}
    return facts


def host_facts(files: HostFiles | None = None) -> dict[str, Any]:
    """Hard facts of the host as far as a pod sees them; see hostfiles.observe."""
    return dict(hostfiles.observe(files or HostFiles(), os=platform.system().lower(), machine=platform.machine()))


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


def check_gpu(facts: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
    """Raise EnvironmentFault `WrongDevice` when the GPU of `facts` is not the first of those `seen` by CUDA here.

    Unknown facts (null), on either side, are not compared. Nor is ECC: it can differ within a hardware group, and costs memory, not correctness.
    """
    wanted, found = fingerprint.first_gpu(facts), fingerprint.first_gpu(seen)
    if wanted is None:
        return
    if found is None:
        raise EnvironmentFault("NoGPU", "no GPU is seen here, and the engine is for one.", device.NO_GPU_HINT)
    names = [name for name in ("name", "computeCapability", "sms") if wanted.get(name) is not None and found.get(name) is not None]
    wrong = [name for name in (*names, "mig") if wanted.get(name) != found.get(name)]
    if wrong:
        words = {"name": "GPU", "computeCapability": "compute capability", "sms": "number of SMs", "mig": "MIG profile"}
        differences = "; ".join(
            f"{words[name]} is {found.get(name, 'none')} here, the engine is for {wanted.get(name, 'none')}" for name in wrong
        )
        hint = "The node's GPUs are unlike or were changed (MIG, power mode): give the class a resource of one kind, or wait for the next probe."
        raise EnvironmentFault("WrongDevice", f"{differences}.", hint)
