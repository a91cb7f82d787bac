"""From observed facts to a fingerprint: pure functions, standard library only.

Two observers add up to one observation: the node agent knows the host (CPU, board, operating system), the probe Job knows what the runtime
image holds (backend and its version as the loaded library reports it, the GPUs as CUDA in it sees them). A build Job sees both and must come to the
same id. Which of them count follows from what runs: see combine().
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .identity import Json, canonical_json, fingerprint_id, sha256_hex
from .jetsons import MODULES

HOST_FACT_NAMES = ("os", "arch", "cpu", "gpus", "jetson", "simulated")
RUNTIME_FACT_NAMES = ("backend", "backendVersion", "executionProvider", "cudaMajor", "libraries")
DEVICE_FACT_NAMES = ("name", "computeCapability", "sms", "ecc", "mig", "cross")
GPU_PROVIDERS = frozenset({"CUDA", "TensorRT"})
TEGRA_CAPABILITIES = frozenset({"5.3", "6.2", "7.2", "8.7", "11.0"})
"""Compute capabilities that only the GPUs inside Jetson modules have. CUDA calls several unlike ones \"Orin\"."""

ISA_OF_INTEREST = {
    "x86_64": {
        "avx2": "avx2",
        "fma": "fma",
        "avx512f": "avx512f",
        "avx512_vnni": "avx512_vnni",
        "avx_vnni": "avx_vnni",
        "avx512_bf16": "avx512_bf16",
        "amx_tile": "amx_tile",
        "amx_int8": "amx_int8",
        "amx_bf16": "amx_bf16",
    },
    "aarch64": {"asimd": "neon", "asimdhp": "fp16", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "sve": "sve"},
}
"""Flags of /proc/cpuinfo that ONNX Runtime's kernels dispatch on, by machine, with the name that goes into the fingerprint."""

SIMULATED_MARK = "EngineFleet simulated"
"""A CPU model name that starts like this comes from a test's fact files; it enters the facts, so it can equal no real fingerprint."""


def parse_cpuinfo(text: str, machine: str) -> dict[str, Json]:
    """Facts of the CPU from the text of /proc/cpuinfo: {"isa": sorted names} or {"isa": None} when no flags line is there.

    Flags are the intersection over all processors (big.LITTLE boards differ): a thread may run on any of them.
    """
    wanted = ISA_OF_INTEREST.get(machine, {})
    common: set[str] | None = None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(value.split())
            common = flags if common is None else common & flags
    isa: Json = None if common is None else [*sorted(wanted[flag] for flag in common & wanted.keys())]
    return {"isa": isa}


def cpu_model(text: str) -> str | None:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model") and value.strip():
            return value.strip()
    return None


def host_facts(
    *,
    os: str,
    machine: str,
    cpuinfo: str,
    gpus: Sequence[Mapping[str, Json]] = (),
    jetson: Mapping[str, Json] | None = None,
    simulated: str | None = None,
) -> dict[str, Json]:
    """The hard facts of a host (schema version 1). `jetson` is there only for a Jetson, `simulated` only for simulated hardware.

    `gpus`: what the host's files tell of them (hostfiles.gpus); they part hardware groups, and CUDA in the runtime image says the rest.
    """
    facts: dict[str, Json] = {"os": os, "arch": machine, "cpu": parse_cpuinfo(cpuinfo, machine), "gpus": [*gpus]}
    model = cpu_model(cpuinfo)
    if simulated is None and model and model.startswith(SIMULATED_MARK):
        simulated = model
    if jetson is not None:
        facts["jetson"] = jetson
    if simulated is not None:
        facts["simulated"] = simulated
    return facts


def gpu_name(text: str) -> tuple[str, str | None]:
    """(product name, MIG profile) of a GPU's name: `NVIDIA A100-SXM4-40GB MIG 1g.5gb` is (`A100-SXM4-40GB`, `1g.5gb`).

    Drivers wrote the vendor before the name since 465 only: a new driver makes no other device.
    """
    words = re.sub(r"^NVIDIA (?=\S)", "", " ".join(text.split()))
    name, cut, profile = words.partition(" MIG ")
    return name, profile if cut else None


def gpu_facts(seen: Mapping[str, Json]) -> dict[str, Json]:
    """Facts of one GPU as CUDA's driver tells it: {name, major, minor, sms, integrated, ecc}, None where it does not tell.

    A Jetson's GPU is known by its module, not by CUDA's name, and has neither ECC nor a name here; `mig` is there only for a slice.
    """
    major, minor, name = seen.get("major"), seen.get("minor"), seen.get("name")
    capability = f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None
    facts: dict[str, Json] = {"computeCapability": capability, "sms": seen.get("sms") or None}
    product, profile = gpu_name(name) if isinstance(name, str) else (None, None)
    if not (seen.get("integrated") and capability in TEGRA_CAPABILITIES):
        facts |= {"name": product, "ecc": seen.get("ecc")}
    if profile is not None:
        facts["mig"] = profile
    return facts


def cross_gpu(capability: str) -> dict[str, Json]:
    """Facts of a GPU that is not here: an engine is built for its compute capability alone, and can run nowhere by itself."""
    return {"computeCapability": capability, "sms": None, "cross": True}


def runs_on_gpu(facts: Mapping[str, Json]) -> bool:
    return facts.get("backend") in ("tensorrt", "tensorrt-rtx") or facts.get("executionProvider") in GPU_PROVIDERS


def host_digest(facts: Mapping[str, Json]) -> str:
    """`host-<16 hex>`: nodes with the same digest are one hardware group, of which one is probed for all."""
    return "host-" + sha256_hex(canonical_json({"schema": 1, "host": facts}))[:16]


def combine(host: Mapping[str, Json], runtime: Mapping[str, Json], threads: str = "auto") -> dict[str, Json]:
    """The facts of one device under one runtime image.

    What runs on a GPU hangs on the GPU (of several, the one that CUDA names first) and, on a Jetson, on the module and L4T; TensorRT does not hang
    on the CPU beside it. What runs on the CPU hangs on nothing of the GPU.
    """
    names: set[str] = {*HOST_FACT_NAMES} - {"gpus", "jetson"}
    gpu = runs_on_gpu(runtime)
    if gpu and runtime.get("backend") != "onnxruntime":
        names.remove("cpu")
    facts: dict[str, Json] = {name: host[name] for name in HOST_FACT_NAMES if name in names and name in host and host[name] not in ([], {})}
    if gpu:
        facts |= _gpu_part(host, runtime)
    if "simulated" in runtime:
        facts["simulated"] = runtime["simulated"] if "simulated" not in host else f"{host['simulated']}, {runtime['simulated']}"
    facts |= {name: runtime[name] for name in RUNTIME_FACT_NAMES if name in runtime and runtime[name] not in ([], {})}
    if threads != "auto":
        facts["threads"] = threads
    return facts


def _gpu_part(host: Mapping[str, Json], runtime: Mapping[str, Json]) -> dict[str, Json]:
    seen = first_gpu(runtime)
    part: dict[str, Json] = {"gpus": None if seen is None else [{name: seen[name] for name in DEVICE_FACT_NAMES if name in seen}]}
    tegra = seen is not None and seen.get("computeCapability") in TEGRA_CAPABILITIES and "cross" not in seen
    if isinstance(host.get("jetson"), Mapping) or isinstance(runtime.get("jetson"), Mapping) or tegra:
        # the agent's answer counts: a pod does not see the module, and a release file in an image is the image's
        views = [view for view in (host.get("jetson"), runtime.get("jetson")) if isinstance(view, Mapping)]
        part["jetson"] = {name: next((view[name] for view in views if view.get(name) is not None), None) for name in ("module", "l4t")}
    return part


def first_gpu(facts: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """The GPU of a device's facts, or the first of a runtime's; None when there is none or it is unknown."""
    gpus = facts.get("gpus")
    gpu = gpus[0] if isinstance(gpus, list | tuple) and gpus else None
    return gpu if isinstance(gpu, Mapping) else None


def cross_capability(facts: Mapping[str, Json]) -> str | None:
    """The compute capability of the GPU elsewhere that an engine for these facts is built for; None for a device that is here."""
    gpu = first_gpu(facts) or {}
    return str(gpu["computeCapability"]) if "cross" in gpu else None


def identify(facts: Mapping[str, Json]) -> str:
    return fingerprint_id(facts)


def judged_context(context: Mapping[str, Json], facts: Mapping[str, Json]) -> dict[str, str]:
    """What of a host's context an engine is judged anew for when it changes, as far as it is told.

    `facts`: of the device. The driver computes what runs on a GPU, and a power mode clocks all of a board; of a kernel's or an operating
    system's patch release neither is known, and they come every few weeks.
    """
    names = ("nvidiaDriver", "powerMode") if runs_on_gpu(facts) else ("powerMode",)
    return {name: str(context[name]) for name in names if context.get(name) is not None}


def context_key(judged: Mapping[str, str]) -> str:
    """`ctx-<10 hex>` of what judged_context tells; "" of nothing."""
    return "ctx-" + sha256_hex(canonical_json({"schema": 1, "context": judged}))[:10] if judged else ""


CONTEXT_WORDS = {"nvidiaDriver": "NVIDIA driver", "powerMode": "power mode"}


def context_words(judged: Mapping[str, str]) -> str:
    """`NVIDIA driver 550.54.14, power mode 2 (MAXN)`."""
    return ", ".join(f"{CONTEXT_WORDS.get(name, name)} {value}" for name, value in judged.items())


def unknowns(facts: Json, path: str = "") -> list[str]:
    """Paths of the facts that are unknown (null), like jetson.module."""
    if isinstance(facts, Mapping):
        return [found for name, value in facts.items() for found in unknowns(value, f"{path}.{name}" if path else name)]
    if isinstance(facts, list | tuple):
        return [found for index, value in enumerate(facts) for found in unknowns(value, f"{path}[{index}]")]
    return [path] if facts is None else []


def has_unknown(facts: Json) -> bool:
    """Whether any hard fact is unknown (null) at any depth; such an engine is for that one node only."""
    return bool(unknowns(facts))


def of_node(facts: Mapping[str, Json], node: str) -> dict[str, Json]:
    """The facts, with the node's name among them where one is unknown: two nodes that both do not know may be unlike."""
    return {**facts, "node": node} if has_unknown(facts) else dict(facts)


BACKEND_NAMES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT for RTX"}
BACKEND_MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
"""Backends whose bindings belong to an interpreter that a HardwareClass names: the module to import there."""


def summary(facts: Mapping[str, Json]) -> str:
    """One line for people, e.g. `x86_64 CPU (avx2, fma, avx512_vnni), ONNX Runtime 1.24.4 CPU` or
    `Orin NX 16GB (p3767-0000), SM 8.7 x8, TensorRT 10.3.0.30, L4T 36.4.3`."""
    parts: list[str] = []
    if runs_on_gpu(facts):
        parts.append(_gpu_words(facts))
    else:
        parts.append(_cpu_words(facts))
        parts += [_module(facts)] if "jetson" in facts else [str(gpu.get("name") or "unknown GPU") for gpu in _gpus(facts)]
    if backend := BACKEND_NAMES.get(str(facts.get("backend")), ""):
        provider = facts.get("executionProvider")
        parts.append(f"{backend} {facts.get('backendVersion') or 'of unknown version'}" + (f" {provider}" if provider else ""))
    jetson = facts.get("jetson")
    if isinstance(jetson, Mapping):
        parts.append(f"L4T {jetson.get('l4t') or 'unknown'}")
    if threads := facts.get("threads"):
        parts.append(f"{threads} threads")
    if node := facts.get("node"):
        parts.append(f"node {node} only")
    return ("SIMULATED " if "simulated" in facts else "") + ", ".join(parts)


def _cpu_words(facts: Mapping[str, Json]) -> str:
    cpu = facts.get("cpu")
    isa = cpu.get("isa") if isinstance(cpu, Mapping) else None
    flags = ", ".join(str(flag) for flag in isa) if isinstance(isa, list | tuple) else "instruction sets unknown"
    return f"{facts.get('arch') or 'unknown machine'} CPU ({flags or 'baseline'})"


def _gpu_words(facts: Mapping[str, Json]) -> str:
    gpu = first_gpu(facts)
    if gpu is None:
        return "unknown GPU"
    sm = f"SM {gpu.get('computeCapability') or 'unknown'}"
    if "cross" in gpu:
        return f"built for {sm} on another machine"
    name = _module(facts) if "jetson" in facts and "name" not in gpu else str(gpu.get("name") or "unknown GPU")
    profile = f" MIG {gpu['mig']}" if gpu.get("mig") else ""
    return f"{name}{profile}, {sm} x{gpu.get('sms') or '?'}"


def _module(facts: Mapping[str, Json]) -> str:
    jetson = facts["jetson"]
    part = jetson.get("module") if isinstance(jetson, Mapping) else None
    return f"{MODULES.get(str(part), 'Jetson')} ({part})" if part else "unknown Jetson"


def _gpus(facts: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    gpus = facts.get("gpus")
    return [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list | tuple) else []
