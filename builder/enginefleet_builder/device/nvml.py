"""What NVIDIA's management library says of one GPU at this moment, by ctypes. Standard library; run as a script it prints JSON.

    python3 -I -S -B nvml.py 00000000:01:00.0       (the PCI address, as CUDA tells it; without one the first GPU)

It exists beside discrete GPUs and since JetPack 7; there much of it is not supported, and what it does not tell is None. Run in a child process: a
broken driver may hang. Numbers and structures: nvml.h of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any, ClassVar

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK, MEMORY_CLOCK = 1, 2
INSUFFICIENT_SIZE = 7


class Memory(ctypes.Structure):
    _fields_: ClassVar = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilization(ctypes.Structure):
    _fields_: ClassVar = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t of the functions that end in _v2 and _v3."""

    _fields_: ClassVar = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class NvmlError(Exception):
    """The library is missing, or cannot be used; the text says why."""


class Nvml:
    """The library, initialized. Raises NvmlError."""

    def __init__(self, library: str) -> None:
        try:
            self.library = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(str(error)) from error
        if code := self.call("nvmlInit_v2"):
            raise NvmlError(f"nvmlInit_v2: {self.error_text(code)}")

    def call(self, name: str, *arguments: Any) -> int:
        """NVML's code; 13 (function not found) when the library does not have it."""
        function = getattr(self.library, name, None)
        return 13 if function is None else int(function(*arguments))

    def error_text(self, code: int) -> str:
        function = getattr(self.library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return f"{(function(code) or b'').decode('utf-8', 'replace')} ({code})"

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        found = kind()
        return None if self.call(name, *arguments, ctypes.byref(found)) else int(found.value)

    def driver(self) -> str | None:
        found = ctypes.create_string_buffer(96)
        failed = self.call("nvmlSystemGetDriverVersion", found, ctypes.c_uint(len(found)))
        return None if failed else found.value.decode("utf-8", "replace")

    def device(self, pci: str | None) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if pci:
            code = self.call("nvmlDeviceGetHandleByPciBusId_v2", ctypes.c_char_p(pci.encode()), ctypes.byref(handle))
        else:
            code = self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(handle))
        if code:
            raise NvmlError(f"GPU {pci or 0}: {self.error_text(code)}")
        return handle

    def processes(self, device: ctypes.c_void_p) -> list[int] | None:
        """Ids of the processes that hold a context, as the host counts them; None when the library cannot tell."""
        found: set[int] = set()
        told = False
        for kind in ("Compute", "Graphics"):
            for version in ("_v3", "_v2"):
                name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
                # asked twice, as more may have come between counting and telling
                for room in (64, 1024):
                    count, table = ctypes.c_uint(room), (Process * room)()
                    code = self.call(name, device, ctypes.byref(count), table)
                    if code != INSUFFICIENT_SIZE:
                        break
                if code == 0:
                    told = True
                    found |= {table[index].pid for index in range(count.value)}
                    break
        return sorted(found) if told else None

    def state(self, device: ctypes.c_void_p) -> dict[str, Any]:
        memory, utilization = Memory(), Utilization()
        has_memory = self.call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)) == 0
        has_load = self.call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(utilization)) == 0
        throttle = "nvmlDeviceGetCurrentClocks{}Reasons"
        reasons = self.number(throttle.format("Event"), device, kind=ctypes.c_ulonglong)
        if reasons is None:
            reasons = self.number(throttle.format("Throttle"), device, kind=ctypes.c_ulonglong)
        return {
            "smClock": self.number("nvmlDeviceGetClockInfo", device, SM_CLOCK),
            "smClockMax": self.number("nvmlDeviceGetMaxClockInfo", device, SM_CLOCK),
            "memoryClock": self.number("nvmlDeviceGetClockInfo", device, MEMORY_CLOCK),
            "memoryClockMax": self.number("nvmlDeviceGetMaxClockInfo", device, MEMORY_CLOCK),
            "temperature": self.number("nvmlDeviceGetTemperature", device, ctypes.c_uint(0)),
            "power": self.number("nvmlDeviceGetPowerUsage", device),
            "powerLimit": self.number("nvmlDeviceGetEnforcedPowerLimit", device),
            "reasons": reasons,
            "load": utilization.gpu if has_load else None,
            "memoryTotal": memory.total if has_memory else None,
            "memoryUsed": memory.used if has_memory else None,
            "processes": self.processes(device),
        }


def observe(pci: str | None = None, library: str = LIBRARY) -> dict[str, Any]:
    """{"driver", "error"} and what state() tells: clocks in MHz, temperature in °C, power in mW, memory in bytes, load in percent, reasons as
    NVML's bit mask of clock reasons."""
    found: dict[str, Any] = {"driver": None, "error": None}
    try:
        nvml = Nvml(library)
        found["driver"] = nvml.driver()
        found |= nvml.state(nvml.device(pci))
    except NvmlError as error:
        found["error"] = str(error)
    return found


if __name__ == "__main__":
    json.dump(observe(*sys.argv[1:2]), sys.stdout)
