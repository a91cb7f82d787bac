"""Which TensorRT does this interpreter load, and with which CUDA libraries? Standard library, Python 3.8; run as a script it prints JSON.

    python3 -I -B libraries.py tensorrt            (or tensorrt_rtx, tensorrt_lean …)

The library itself is asked (getInferLib*Version), not the name of a package: images are patched and bind-mounted. Run in a child process.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import mmap
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = {"tensorrt_rtx": "libtensorrt_rtx", "tensorrt_lean": "libnvinfer_lean", "tensorrt_dispatch": "libnvinfer_dispatch"}
"""By module; every other is libnvinfer."""
DPKG_STATUS = Path("/var/lib/dpkg/status")
SIMULATED = "enginefleet_simulated"


def mapped() -> list[str]:
    """Paths of the shared libraries that this process has loaded."""
    text = Path("/proc/self/maps").read_text()
    return list(dict.fromkeys(re.findall(r"\s(/.+\.so(?:\.[^/\s]+)?)$", text, re.MULTILINE)))


def loaded_as(name: str, paths: Iterable[str]) -> str | None:
    """The path of `<name>.so…` among `paths`; None when it is not loaded."""
    return next((path for path in paths if re.match(re.escape(name) + r"\.so(\.|$)", Path(path).name)), None)


def number(library: ctypes.CDLL, function: str, kind: Any = ctypes.c_int32) -> int | None:
    """What a function without arguments answers; None when the library does not have it."""
    try:
        call = getattr(library, function)
    except AttributeError:
        return None
    call.restype = kind
    return int(call())


def tensorrt_version(library: ctypes.CDLL, longer: Sequence[str] = ()) -> str | None:
    """All parts that the library tells: `10.3.0.30`; None when it tells nothing.

    A library without a function for the build number (8.x) tells three; the fourth comes from a text in `longer` that begins like it.
    """
    parts = [number(library, f"getInferLib{part}Version") for part in ("Major", "Minor", "Patch", "Build")]
    if parts[0] is None:
        whole = number(library, "getInferLibVersion")
        if not whole:
            return None
        # one integer: 8.6.1 is 8601 and 10.3.0 is 100300, as 10.0 gave each part two digits (NvInferVersion.h)
        base = 10000 if whole >= 100000 else 1000
        parts = [whole // base, whole % base // 100, whole % 100]
    text = ".".join(str(part) for part in parts if part is not None)
    return next((more for more in longer if more.startswith(text + ".")), text)


def cuda_major(paths: Iterable[str], wheels: Iterable[str], package: str | None, library: str) -> int | None:
    """Of the CUDA that `library` was made with: what its package says, else a CUDA library that is loaded, else the compiler named in the file."""
    found = next((found for text in wheels for found in re.findall(r"[-_]cu(\d\d)(?!\d)", text)), None)
    if found is None and package is not None:
        found = next(iter(re.findall(r"\+cuda(\d+)\.", package)), None)
    if found is None:
        names = (re.match(r"lib(?:cudart|cublas|cublasLt|nvrtc)\.so\.(\d+)", Path(path).name) for path in paths)
        found = next((name.group(1) for name in names if name), None)
    return compiled_with(library) if found is None else int(found)


def compiled_with(library: str) -> int | None:
    """Major version of the compiler that CUDA's tools left their name of in the file; None when they left none."""
    try:
        with Path(library).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            found = re.search(rb"Cuda compilation tools, release (\d+)\.\d", content)
            return int(found.group(1)) if found else None
    except (OSError, ValueError):
        return None


def dpkg_version(name: str, status: Path = DPKG_STATUS) -> str | None:
    """Version of the Debian package `<name><digits>`, like 10.3.0.30-1+cuda12.5; None when there is none."""
    try:
        text = status.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^Package: {re.escape(name)}\d+\n(?:.+\n)*?Version: (\S+)$", text, re.MULTILINE)
    return found.group(1) if found else None


def wheels_beside(library: str) -> list[str]:
    """Names of the Python packages that share the folder of the library's package: `tensorrt_cu12_libs-10.3.0.dist-info` …"""
    try:
        return sorted(path.name for path in Path(library).parent.parent.glob("tensorrt*.dist-info"))
    except OSError:
        return []


def companions(version: str | None) -> dict[str, str | None]:
    """cuDNN and cuBLAS, which TensorRT 8 takes kernels from: {"cudnn": "8.9.0"}. One that is not installed is left out; None is unknown."""
    found: dict[str, str | None] = {}
    if not version or not version.startswith("8."):
        return found
    for name, soname in (
        ("cudnn", "libcudnn.so.8"),
        ("cublas", "libcublas.so.12"),
        ("cublas", "libcublas.so.11"),
        ("cublas", "libcublas.so.10"),
    ):
        if name in found:
            continue
        with suppress(OSError):
            library = ctypes.CDLL(soname)
            found[name] = cudnn_version(library) if name == "cudnn" else cublas_version(library)
    return found


def cudnn_version(library: ctypes.CDLL) -> str | None:
    whole = number(library, "cudnnGetVersion", ctypes.c_size_t)
    return f"{whole // 1000}.{whole // 100 % 10}.{whole % 100}" if whole else None


def cublas_version(library: ctypes.CDLL) -> str | None:
    """By cublasGetProperty, which needs no device: MAJOR_VERSION 0, MINOR_VERSION 1, PATCH_LEVEL 2 of libraryPropertyType."""
    parts = []
    for kind in range(3):
        value = ctypes.c_int()
        try:
            failed = library.cublasGetProperty(ctypes.c_int(kind), ctypes.byref(value))
        except AttributeError:
            return None
        if failed:
            return None
        parts.append(str(value.value))
    return ".".join(parts)


def load(module: str) -> ModuleType:
    """The bindings: the module, or `<module>_bindings` where only that wheel is installed. Raises ImportError, OSError."""
    base = re.sub("_bindings$", "", module)
    # wheels keep the library in a package of its own, which is imported first
    with suppress(ImportError):
        importlib.import_module(base + "_libs")
    if importlib.util.find_spec(module) is None and importlib.util.find_spec(base + "_bindings") is not None:
        return importlib.import_module(base + "_bindings")
    return importlib.import_module(module)


def observe(module: str) -> dict[str, Any]:
    """{"version", "bindings", "cudaMajor", "libraries", "path"} of the loaded library, and "simulated" for a stand-in; {"error"} when there is none."""
    try:
        bindings = str(getattr(load(module), "__version__", "") or "")
    except (ImportError, OSError) as error:
        return {"error": f"{module} cannot be loaded: {error}"}
    name = LIBRARIES.get(re.sub("_bindings$", "", module), "libnvinfer")
    path = loaded_as(name, mapped())
    if path is None:
        return {"error": f"{module} is loaded without {name}.so"}
    library = ctypes.CDLL(path)
    package = dpkg_version(name) if path.startswith("/usr/lib/") else None
    version = tensorrt_version(library, [bindings, (package or "").partition("-")[0]])
    libraries = companions(version)
    major = cuda_major(mapped(), wheels_beside(path), package, path)
    found = {"version": version, "bindings": bindings or None, "cudaMajor": major, "libraries": libraries, "path": path}
    with suppress(ValueError):
        found["simulated"] = (ctypes.c_char_p.in_dll(library, SIMULATED).value or b"").decode("utf-8", "replace")
    return found


if __name__ == "__main__":
    # what a library prints while it loads goes to standard error, so that the answer stands alone
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(answer, "w") as out:
        json.dump(observe(sys.argv[1]), out)
