"""What CUDA's driver says of the GPUs here: the driver API by ctypes. Standard library, Python 3.8; run as a script it prints JSON.

    python3 -I -S -B gpus.py

A broken driver may crash or hang inside cuInit(): the caller runs this in a child process. Numbers of attributes: enum CUdevice_attribute of
cuda.h, which never renumbers.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

LIBRARY = "libcuda.so.1"
ATTRIBUTES = {"sms": 16, "integrated": 18, "ecc": 32, "major": 75, "minor": 76}
SIMULATED = "enginefleet_simulated"
"""A stand-in of a test has this symbol, a text: what it says must equal no fact of real hardware."""


class CudaError(Exception):
    """CUDA cannot be used; the text names the call and CUDA's own name of the error."""


def simulated(library: ctypes.CDLL) -> str | None:
    """The text that a stand-in marks itself with; None for a real library."""
    try:
        value = ctypes.c_char_p.in_dll(library, SIMULATED).value
    except ValueError:
        return None
    return (value or b"").decode("utf-8", "replace")


class Driver:
    """The driver library, initialized. Creates no context and allocates nothing on the device. Raises CudaError."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self.library = ctypes.CDLL(library)
        except OSError as error:
            raise CudaError(str(error)) from error
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: Any) -> None:
        """Raises CudaError when the driver lacks the function or the function fails."""
        try:
            function = getattr(self.library, name)
        except AttributeError as error:
            raise CudaError(f"{name}: the driver does not have it") from error
        code = function(*arguments)
        if code:
            raise CudaError(f"{name}: {self.error_name(code)}")

    def error_name(self, code: int) -> str:
        """`CUDA_ERROR_NO_DEVICE (100)`, or the number alone."""
        name = ctypes.c_char_p()
        try:
            failed = self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        except AttributeError:
            failed = 1
        return f"error {code}" if failed or not name.value else f"{name.value.decode('ascii', 'replace')} ({code})"

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_int) -> int | None:
        """The number that a function of form (number *, ...) gives; None when it fails: unknown is a value."""
        found = kind()
        try:
            self.call(name, ctypes.byref(found), *arguments)
        except CudaError:
            return None
        return int(found.value)

    def text(self, name: str, device: ctypes.c_int, size: int = 256) -> str | None:
        """The text that a function of form (char *, int, CUdevice) gives; None when it fails or is empty."""
        found = ctypes.create_string_buffer(size)
        try:
            self.call(name, found, ctypes.c_int(size), device)
        except CudaError:
            return None
        return found.value.decode("utf-8", "replace").strip() or None

    def version(self) -> str | None:
        """The newest CUDA release that the driver can run, like 12.8."""
        number = self.number("cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}" if number else None

    def uuid(self, device: ctypes.c_int) -> str | None:
        found = (ctypes.c_ubyte * 16)()
        for name in ("cuDeviceGetUuid_v2", "cuDeviceGetUuid"):
            try:
                self.call(name, found, device)
            except CudaError:
                continue
            return str(uuid.UUID(bytes=bytes(found)))
        return None

    def gpus(self) -> list[dict[str, Any]]:
        """One mapping a device, in CUDA's order. Raises CudaError when they cannot be counted."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self.gpu(ordinal) for ordinal in range(count.value)]

    def gpu(self, ordinal: int) -> dict[str, Any]:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        found: dict[str, Any] = {
            name: self.number("cuDeviceGetAttribute", ctypes.c_int(number), device) for name, number in ATTRIBUTES.items()
        }
        for flag in ("integrated", "ecc"):
            found[flag] = None if found[flag] is None else bool(found[flag])
        found["name"] = self.text("cuDeviceGetName", device)
        found["memory"] = self.number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t)
        found["pci"] = self.text("cuDeviceGetPCIBusId", device, 32)
        found["uuid"] = self.uuid(device)
        return found


def observe(library: str = LIBRARY) -> dict[str, Any]:
    """{"gpus": [...], "cuda": "12.8" or None, "error": text or None}, and "simulated" for a stand-in.

    A GPU is {name, major, minor, sms, integrated, ecc, memory (bytes), pci, uuid}; what the driver does not tell is None.
    """
    found: dict[str, Any] = {"gpus": [], "cuda": None, "error": None}
    try:
        driver = Driver(library)
        mark = simulated(driver.library)
        if mark is not None:
            found["simulated"] = mark
        found["cuda"] = driver.version()
        found["gpus"] = driver.gpus()
    except CudaError as error:
        found["error"] = str(error)
    return found


if __name__ == "__main__":
    json.dump(observe(*sys.argv[1:2]), sys.stdout)
