"""Which prepared form of a model a backend takes, and in which precisions: the rules, for the operator, prepare and backends alike. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .fingerprint import BACKEND_NAMES

ONNXRUNTIME, TENSORRT_8, TENSORRT_10 = "onnxruntime", "tensorrt-8", "tensorrt-10"

PRECISIONS: Mapping[str, tuple[str, ...]] = {
    ONNXRUNTIME: ("fp32", "fp16", "int8"),
    TENSORRT_10: ("fp32", "tf32", "fp16", "bf16", "int8", "fp8"),
    TENSORRT_8: ("fp32", "tf32", "fp16", "int8"),
}
"""Precisions that each flavour can be prepared in."""
FLAVOURS_OF: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": (ONNXRUNTIME,),
    "tensorrt": (TENSORRT_8, TENSORRT_10),
    "tensorrt-rtx": (TENSORRT_10,),
}
"""By the backend of a HardwareClass, of whatever version."""
ON_DLA = ("fp16", "int8")
"""Precisions that a DLA computes in."""
OLDEST_TENSORRT = "8.5"
SINCE: Mapping[str, str] = {"int8": "6.1", "tf32": "8.0", "bf16": "8.0", "fp8": "8.9"}
"""The compute capability that brought a precision."""
WITHOUT = frozenset({("fp16", "6.1"), ("int8", "6.2")})
"""GPUs that lack a precision which older or less capable ones have."""


def release(text: str | None) -> tuple[int, ...]:
    """The numbers of a version, `10.3.0.30` as (10, 3, 0, 30); () when it is unknown."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", text or "")[:4])


def flavour_of(backend: str, version: str | None) -> str | None:
    """The flavour for a backend (of a HardwareClass) in the version that its probe found.

    None: a TensorRT of unknown version, or of one that engines are not built with (release_refused).
    """
    if backend != "tensorrt":
        return FLAVOURS_OF[backend][0]
    if not version or release_refused(backend, version):
        return None
    # 8.x has opsets to 17 and flags for low precision; since 10.0 types stand in the model, and 11 knows nothing else
    return TENSORRT_8 if release(version)[0] == 8 else TENSORRT_10


def release_refused(backend: str, version: str | None) -> str:
    """Why no engine is built with this release, for people; "" when it is, or when it is not known."""
    if backend != "tensorrt" or not version:
        return ""
    found = release(version)
    if found < release(OLDEST_TENSORRT):
        return f"TensorRT {version} is older than {OLDEST_TENSORRT}, the first release that is supported (JetPack 4 ends at 8.2, JetPack 5.1 has 8.5)"
    if found[0] == 9:
        return f"TensorRT {version} is none of the releases that are supported: 8.5, 8.6, and 10.0 and newer"
    return ""


def precision_refused(precision: str, backend: str, version: str | None, compute_capability: str | None = None) -> str:
    """Why an engine of this precision is not to be had there, for people; "" when it is, or when what decides is not known.

    `compute_capability`: of the GPU that it runs on, like 8.7.
    """
    flavour = flavour_of(backend, version)
    if flavour is None:
        return release_refused(backend, version)
    have = PRECISIONS[flavour]
    if precision not in have:
        return f"{_called(backend, version)} takes {', '.join(have)}"
    if flavour != ONNXRUNTIME and compute_capability:
        on_gpu = tuple(one for one in have if _runs(one, compute_capability))
        if precision not in on_gpu:
            return f"compute capability {compute_capability} has {', '.join(on_gpu)}"
    return ""


def _runs(precision: str, compute_capability: str) -> bool:
    return release(compute_capability) >= release(SINCE.get(precision)) and (precision, compute_capability) not in WITHOUT


def _called(backend: str, version: str | None) -> str:
    return f"{BACKEND_NAMES[backend]} {version}" if version else BACKEND_NAMES[backend]
