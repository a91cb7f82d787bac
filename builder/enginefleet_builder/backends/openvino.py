"""Which OpenVINO does ONNX Runtime's execution provider run on? The library itself is asked, not the name of a package."""

from __future__ import annotations

import ctypes
from pathlib import Path

LIBRARY = "libopenvino_c.so"


class _Version(ctypes.Structure):
    """`ov_version` of OpenVINO's C API (ov_core.h)."""

    _fields_ = (("build_number", ctypes.c_char_p), ("description", ctypes.c_char_p))


def version(beside: Path) -> str | None:
    """Like `2025.4.1-20426-82bbf0292c5`; None when it cannot be told. `beside`: the folder of ONNX Runtime's own libraries."""
    # the wheel brings OpenVINO in that folder; a build from source runs on the one that the loader finds
    for name in (str(beside / LIBRARY), LIBRARY):
        try:
            library = ctypes.CDLL(name)
            found = _Version()
            if library.ov_get_openvino_version(ctypes.byref(found)) == 0 and found.build_number:
                text: str = found.build_number.decode(errors="replace")
                library.ov_version_free(ctypes.byref(found))
                return text
        except (OSError, AttributeError):
            continue
    return None
