"""Devices as this process sees them: facts for the fingerprint, and the state that speed hangs on.

Drivers and libraries are asked in children: one that crashes or hangs ends the child, and the answer says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enginefleet_api import fingerprint, hostfiles
from enginefleet_api.errors import EnvironmentFault

from .files import HostFiles, jetson_state

SECONDS = 60.0
"""Loading TensorRT from a cold disk takes 20 s on a Jetson; a driver that has lost its GPU takes for ever."""
WORKER = Path(__file__).parent.parent / "worker"
NVML = Path(__file__).with_name("nvml.py")
NO_GPU_HINT = "Check that the pod gets a GPU: runtimeClassName and resources of the HardwareClass, and the node's driver."

CLOCK_REASONS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal", 0x40: "thermal (hardware)", 0x80: "power brake"}
"""Bits of NVML's clock reasons that slow a run down against the GPU's will; idle (0x1) and clocks that somebody set (0x2) are none."""
MIB = 2**20


def ask(argv: list[str]) -> dict[str, Any]:
    """The JSON object that a child prints; {"error": text} when it prints none, crashes or takes longer than SECONDS."""
    # variables of our own interpreter are not for another one
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False, env=variables)
    except subprocess.TimeoutExpired:
        return {"error": f"{Path(argv[-1]).name} does not answer within {SECONDS:.0f} s: the driver hangs"}
    except OSError as error:
        return {"error": f"{argv[0]} cannot be started: {error.strerror}"}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if done.returncode == 0 and isinstance(answer, dict):
        return answer
    last = (done.stderr.decode(errors="replace").strip().splitlines() or ["without a word"])[-1]
    ended = f"was killed by signal {-done.returncode}" if done.returncode < 0 else f"ended with exit code {done.returncode}"
    return {"error": f"{Path(argv[-1]).name} {ended}: {last[:300]}"}


def cuda() -> dict[str, Any]:
    """What CUDA's driver tells; see worker/gpus.observe. A crash or a hang is its "error"."""
    return {"gpus": [], "cuda": None} | ask([sys.executable, "-I", "-S", "-B", str(WORKER / "gpus.py")])


def gpus(seen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Facts of the GPUs in CUDA's order, each kind once. Raises EnvironmentFault `NoGPU` when there is none."""
    if not seen["gpus"]:
        why = seen.get("error") or "CUDA counts 0 devices"
        raise EnvironmentFault("NoGPU", f"no GPU can be used here: {why}.", NO_GPU_HINT)
    kinds: list[dict[str, Any]] = []
    for gpu in seen["gpus"]:
        facts = fingerprint.gpu_facts(gpu)
        if facts not in kinds:
            kinds.append(facts)
    return kinds


def facts(python: str, module: str, *, cross: str | None = None, files: HostFiles | None = None) -> dict[str, Any]:
    """Runtime facts of TensorRT: {backend, backendVersion, cudaMajor, libraries, gpus}, and jetson or simulated where they are.

    `python`: the interpreter that owns `module`. `cross`: a compute capability that an engine is built for without such a GPU; then no GPU is looked
    for. Raises EnvironmentFault `NoGPU`, `RuntimeMissing`.
    """
    # before GPUs: what a person typed wrongly is told on a machine without one, too
    if shutil.which(python) is None:
        raise _no_runtime(f"{python} cannot be started: there is no such program, or it may not be run")
    seen = {} if cross else cuda()
    found: dict[str, Any] = {"gpus": [fingerprint.cross_gpu(cross)] if cross else gpus(seen)}
    library = ask([python, "-s", "-B", str(WORKER / "libraries.py"), module])
    if library.get("error"):
        raise _no_runtime(library["error"])
    backend = "tensorrt-rtx" if module.startswith("tensorrt_rtx") else "tensorrt"
    found |= {"backend": backend, "backendVersion": library["version"], "cudaMajor": library["cudaMajor"]}
    if library["libraries"]:
        found["libraries"] = library["libraries"]
    if (jetson := hostfiles.jetson(files or HostFiles())) is not None and not cross:
        found["jetson"] = jetson
    marks = [mark for mark in (seen.get("simulated"), library.get("simulated")) if mark]
    if marks:
        found["simulated"] = ", ".join(dict.fromkeys(marks))
    return found


def _no_runtime(why: str) -> EnvironmentFault:
    hint = "Name an image that has it in HardwareClass runtime.image, and its interpreter in runtime.python; by hand the interpreter in --python."
    return EnvironmentFault("RuntimeMissing", f"{why}.", hint)


@dataclass(frozen=True, slots=True)
class State:
    """A GPU and its machine at one moment; None is what nobody tells. Clocks in MHz, temperature in °C, power in W, memory in MiB, load in percent."""

    driver: str | None = None
    cuda: str | None = None
    """Newest CUDA release that the driver runs."""
    kernel: str | None = None
    power_mode: str | None = None
    """Of nvpmodel; seen by hand only, a pod has it from the node agent."""
    sm_clock: int | None = None
    sm_clock_min: int | None = None
    sm_clock_max: int | None = None
    memory_clock: int | None = None
    memory_clock_max: int | None = None
    temperature: int | None = None
    power: int | None = None
    power_limit: int | None = None
    throttled: tuple[str, ...] | None = None
    """Why clocks are held down now; empty: they are not."""
    load: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    """Of the GPU by all processes; on a Jetson, of the memory that CPU and GPU share."""
    processes: tuple[int, ...] | None = None
    """Ids of processes that hold the GPU, as the host counts them: a container sees its own under other ids. None before JetPack 7."""

    def text(self) -> dict[str, str]:
        """For verdicts and people: what is known, as text with its unit."""
        units = {"sm_clock": "MHz", "sm_clock_min": "MHz", "sm_clock_max": "MHz", "memory_clock": "MHz", "memory_clock_max": "MHz"}
        units |= {"temperature": "°C", "power": "W", "power_limit": "W", "load": "%", "memory_total": "MiB", "memory_used": "MiB"}
        found: dict[str, str] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, tuple):
                value = len(value) if name == "processes" else ", ".join(value) or "no"
            head, *rest = name.split("_")
            found[head + "".join(part.capitalize() for part in rest)] = f"{value} {units[name]}" if name in units else str(value)
        if "processes" in found:
            found["gpuProcesses"] = found.pop("processes")
        if "load" in found:
            found["gpuLoad"] = found.pop("load")
        return found


def state(seen: Mapping[str, Any] | None = None, files: HostFiles | None = None) -> State:
    """The first GPU (as CUDA counts) and its machine now. Never fails: what cannot be told is None. `seen`: what cuda() told before."""
    files = files or HostFiles()
    seen = cuda() if seen is None else seen
    first = seen["gpus"][0] if seen["gpus"] else {}
    told: dict[str, Any] = {}
    if first:
        told = ask([sys.executable, "-I", "-S", "-B", str(NVML), first.get("pci") or ""])
    jetson = hostfiles.jetson(files) is not None or (first.get("integrated") and "smClock" not in told)
    if jetson:
        told = {name: value for name, value in told.items() if value is not None} | dict(jetson_state(files))
    total, used = told.get("memoryTotal"), told.get("memoryUsed")
    if total is None and (first.get("integrated") or jetson):
        total, used = shared_memory(files)
    reasons = told.get("reasons")
    processes = told.get("processes")
    context = hostfiles.context(files)
    mode = context.get("powerMode")
    return State(
        driver=told.get("driver") or (str(context["nvidiaDriver"]) if "nvidiaDriver" in context else None),
        cuda=seen.get("cuda"),
        kernel=str(context.get("kernel", os.uname().release)),
        power_mode=str(mode) if mode is not None else None,
        sm_clock=told.get("smClock"),
        sm_clock_min=told.get("smClockMin"),
        sm_clock_max=told.get("smClockMax"),
        memory_clock=told.get("memoryClock"),
        memory_clock_max=told.get("memoryClockMax"),
        temperature=told.get("temperature"),
        power=None if told.get("power") is None else told["power"] // 1000,
        power_limit=None if told.get("powerLimit") is None else told["powerLimit"] // 1000,
        throttled=None if reasons is None else tuple(name for bit, name in CLOCK_REASONS.items() if reasons & bit),
        load=told.get("load"),
        memory_total=None if total is None else total // MIB,
        memory_used=None if used is None else used // MIB,
        processes=None if processes is None else tuple(processes),
    )


def shared_memory(files: HostFiles) -> tuple[int | None, int | None]:
    """(total, used) bytes of the memory that CPU and GPU of a Jetson share; what can be had at once counts as free."""
    lines = dict(line.split(":", 1) for line in (files.text("proc/meminfo") or "").splitlines() if ":" in line)
    sizes = [int(lines[name].split()[0]) * 1024 if lines.get(name, "").split() else None for name in ("MemTotal", "MemAvailable")]
    total, available = sizes
    return total, None if total is None or available is None else total - available


def context() -> dict[str, str]:
    """state() as text."""
    return state().text()
