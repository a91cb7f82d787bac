"""What engine files are, told from their bytes alone: TensorRT plans, TensorRT's archives (timing caches), Ultralytics' header before a plan.

No library is loaded and nothing is run. Offsets of plans: trtexec's `--getPlanVersionOnly` (samples/common/sampleEngines.cpp of TensorRT 10.0 to
11.1) reads the release there; size and devices of TensorRT for RTX were read off plans that its 1.7.1 built for SM75 to SM120, archives off timing
caches of both that were written on real machines.
"""

from __future__ import annotations

import ast
import hashlib
import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from enginefleet_api.errors import PermanentError

HEAD_BYTES = 64
"""What TensorRT for RTX itself wants to see of a plan (Runtime.engine_header_size)."""
MAX_METADATA = 4 << 20
"""Bytes of an Ultralytics header that are read; theirs have one or two thousand."""
MAX_LEVELS = 16
"""Nesting of a header that is taken for one; theirs have three."""
_RTX_DEVICES = {1: "7.5", 2: "8.0", 4: "8.6", 8: "8.9", 16: "12.0"}
_PLANS: dict[bytes, Literal["tensorrt", "tensorrt-rtx"]] = {b"ftrt": "tensorrt", b"vtrt": "tensorrt-rtx"}
_ARCHIVE = b"ptrt"
_TIMING_MARKS = (b"file_format_version", b"CASK_VERSI")
"""Texts at the beginning of the timing caches of TensorRT for RTX 1.7.1."""
_TIMING_RECORD = bytes.fromhex("18800100")
"""What the archive of a timing cache of TensorRT 8.6.0 holds first; the one within its plan holds another."""

ULTRALYTICS_SUFFIX = ".engine"
"""What its users' programs tell a TensorRT engine by."""
_INTEGERS = ("stride", "batch", "channels")
_LITERALS = ("imgsz", "names", "args", "end2end", "kpt_shape", "kpt_names")
"""Keys whose values are Python literals in an ONNX file's metadata, which holds texts only."""
_NEEDED = ("stride", "task", "names", "imgsz", "batch")


@dataclass(frozen=True, slots=True)
class Plan:
    """The head of a TensorRT plan. None is unknown."""

    backend: Literal["tensorrt", "tensorrt-rtx"]
    version: str | None
    """major.minor.patch.build; the build has one byte in the file."""
    size: int | None
    """Bytes that the whole plan has, as the head says."""
    devices: tuple[str, ...] = ()
    """Compute capabilities that a plan of TensorRT for RTX was built for."""


@dataclass(frozen=True, slots=True)
class Archive:
    """TensorRT's older container, in which timing caches still come. `version`: of the format, counted apart for each product."""

    version: int
    size: int
    """Bytes that the whole file has, as the head says."""
    timing_cache: bool
    """Whether it looks like one; else it may be a plan of TensorRT before 8.6, too."""


@dataclass(frozen=True, slots=True)
class Ultralytics:
    """What stands before a plan that Ultralytics exported. `offset`: bytes before the plan."""

    metadata: Mapping[str, Any]
    offset: int


def plan(head: bytes) -> Plan | None:
    """`head`: the first HEAD_BYTES of the file, fewer of a short one. None: no plan."""
    backend = _PLANS.get(head[:4])
    if backend is None:
        return None
    # plans before 8.6 have no release there
    told = len(head) >= 28 and head[4:8] == bytes(4) and any(head[24:28])
    version = ".".join(str(number) for number in head[24:28]) if told else None
    size = int.from_bytes(head[16:24], "little") if told else None
    mask = int.from_bytes(head[32:36], "little") if backend == "tensorrt-rtx" and len(head) >= 36 else 0
    return Plan(backend, version, size or None, tuple(name for bit, name in _RTX_DEVICES.items() if mask & bit))


def archive(head: bytes) -> Archive | None:
    """`head`: the first KB or so. None: no archive."""
    if head[:4] != _ARCHIVE or len(head) < 24:
        return None
    # 8.6 has the version as eight aligned bytes, TensorRT for RTX as four
    wide = head[4:8] == bytes(4)
    version, payload = struct.unpack_from("<QQ", head, 8) if wide else struct.unpack_from("<IQ", head, 4)
    start = 24 if wide else 20
    timing = head[start : start + 4] == _TIMING_RECORD if wide else any(mark in head for mark in _TIMING_MARKS)
    return Archive(version, payload + start, timing)


def ultralytics(path: Path) -> Ultralytics | None:
    """The header of a file that Ultralytics reads as an engine; None when it has none. Raises OSError."""
    total = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(4)
        length = int.from_bytes(start, "little", signed=True)
        if len(start) < 4 or not 0 < length <= min(total - 4, MAX_METADATA):
            return None
        text = file.read(length)
    with suppress(ValueError, RecursionError):
        metadata = json.loads(text)
        if isinstance(metadata, dict) and _levels(metadata) <= MAX_LEVELS:
            return Ultralytics(metadata, 4 + length)
    return None


def _levels(value: Any) -> int:
    """Nesting of parsed JSON, counted without recursion and not far beyond MAX_LEVELS."""
    level, layer = 0, [value]
    while layer and level <= MAX_LEVELS:
        inner = (item.values() if isinstance(item, dict) else item for item in layer if isinstance(item, dict | list))
        level, layer = level + 1, [one for items in inner for one in items]
    return level


def ultralytics_header(metadata: Mapping[str, str]) -> bytes:
    """The header that makes a plan an engine for Ultralytics, from the metadata that its export wrote into the ONNX file.

    Raises PermanentError `NotUltralytics` when keys are missing without which it cannot use the engine.
    """
    if missing := [key for key in _NEEDED if key not in metadata]:
        message = f"the model's metadata lacks {', '.join(missing)}, which Ultralytics writes into the ONNX files that it exports."
        raise PermanentError("NotUltralytics", message, "Export the model with Ultralytics, or use another spec.serving.layout.")
    body = json.dumps({key: _value(key, text) for key, text in metadata.items()}).encode()
    return len(body).to_bytes(4, "little", signed=True) + body


def _value(key: str, text: str) -> Any:
    """As its export writes it: numbers, lists and mappings, not their texts. What is no literal stays text, which its reader takes too."""
    with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        if key in _INTEGERS:
            return int(text)
        if key in _LITERALS and len(text) <= MAX_METADATA:
            found = ast.literal_eval(text)
            json.dumps(found)
            return found
    return text


def sha256_from(path: Path, offset: int) -> str:
    """Hex digest of what stands behind the first `offset` bytes. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe(path: Path) -> dict[str, Any] | None:
    """What an engine file is, as JSON-able facts with a `kind`; None when it is none of ours to tell. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(1024)
    size = path.stat().st_size
    if (found := plan(head)) is not None:
        return _of_plan(found, size)
    if (box := archive(head)) is not None:
        kind = "timing-cache" if box.timing_cache else "tensorrt-archive"
        told = {"kind": kind, "formatVersion": box.version, "expectedSize": box.size, "complete": box.size == size}
        return told if box.timing_cache else told | {"note": "a timing cache, or a plan of TensorRT before 8.6"}
    if (header := ultralytics(path)) is None:
        return None
    with path.open("rb") as file:
        file.seek(header.offset)
        inner = plan(file.read(HEAD_BYTES))
    payload = _of_plan(inner, size - header.offset) if inner is not None else {"kind": "unknown", "size": size - header.offset}
    return {"kind": "ultralytics-engine", "metadata": dict(header.metadata), "payloadOffset": header.offset, "payload": payload}


def _of_plan(found: Plan, size: int) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": "tensorrt-plan", "backend": found.backend, "version": found.version, "size": size}
    if found.backend == "tensorrt-rtx":
        told |= {"computeCapabilities": list(found.devices)}
    # whether plans of TensorRT itself have their size at that place was not seen: only agreement says something there
    agrees = found.size == size
    return told | {"complete": agrees if agrees or found.backend == "tensorrt-rtx" else None}
