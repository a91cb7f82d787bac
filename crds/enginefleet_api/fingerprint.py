"""From observed facts to a fingerprint: pure functions, standard library only.

Two observers add up to one observation: the node agent knows the host (CPU, board, operating system), the probe Job knows what the runtime
image holds (backend and its version as the loaded library reports it). A build Job sees both and must come to the same id.
"""

from __future__ import annotations

from collections.abc import Mapping

from .identity import Json, canonical_json, fingerprint_id, sha256_hex

HOST_FACT_NAMES = ("os", "arch", "cpu", "gpus", "jetson", "simulated")
RUNTIME_FACT_NAMES = ("backend", "backendVersion", "executionProvider", "cudaMajor", "libraries")

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


def host_facts(*, os: str, machine: str, cpuinfo: str) -> dict[str, Json]:
    """The hard facts of a host without accelerators (schema version 1). `simulated` is there only for simulated hardware."""
    facts: dict[str, Json] = {"os": os, "arch": machine, "cpu": parse_cpuinfo(cpuinfo, machine), "gpus": []}
    model = cpu_model(cpuinfo)
    if model and model.startswith(SIMULATED_MARK):
        facts["simulated"] = model
    return facts


def host_digest(facts: Mapping[str, Json]) -> str:
    """`host-<16 hex>`: nodes with the same digest are one hardware group, of which one is probed for all."""
    return "host-" + sha256_hex(canonical_json({"schema": 1, "host": facts}))[:16]


def combine(host: Mapping[str, Json], runtime: Mapping[str, Json], threads: str = "auto") -> dict[str, Json]:
    """The facts of one device under one runtime image."""
    facts: dict[str, Json] = {name: host[name] for name in HOST_FACT_NAMES if name in host and host[name] not in ([], {})}
    facts |= {name: runtime[name] for name in RUNTIME_FACT_NAMES if name in runtime}
    if threads != "auto":
        facts["threads"] = threads
    return facts


def identify(facts: Mapping[str, Json]) -> str:
    return fingerprint_id(facts)


def has_unknown(facts: Json) -> bool:
    """Whether any hard fact is unknown (null) at any depth; such an engine is for that one node only."""
    if isinstance(facts, Mapping):
        return any(has_unknown(value) for value in facts.values())
    if isinstance(facts, list | tuple):
        return any(has_unknown(value) for value in facts)
    return facts is None


def summary(facts: Mapping[str, Json]) -> str:
    """One line for people, e.g. `x86_64 CPU (avx2, fma, avx512_vnni), ONNX Runtime 1.24.4 CPU`."""
    cpu = facts.get("cpu")
    isa = cpu.get("isa") if isinstance(cpu, Mapping) else None
    flags = ", ".join(str(flag) for flag in isa) if isinstance(isa, list | tuple) else "instruction sets unknown"
    backend = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT for RTX"}.get(str(facts.get("backend")), "")
    version = facts.get("backendVersion")
    provider = facts.get("executionProvider")
    text = f"{facts.get('arch') or 'unknown machine'} CPU ({flags or 'baseline'})"
    if backend:
        text += f", {backend} {version or 'of unknown version'}" + (f" {provider}" if provider else "")
    if threads := facts.get("threads"):
        text += f", {threads} threads"
    return ("SIMULATED " if "simulated" in facts else "") + text
