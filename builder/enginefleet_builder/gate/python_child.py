"""The side of a user's own metric: `python -m enginefleet_builder.gate.python_child` serves one parent until its standard input ends.

Before the code is run, the process gives up what it could do harm with: a filter of system calls (seccomp, which needs no privileges) refuses
sockets, new processes, programs and threads, signals and looking into other processes; capabilities are dropped; memory, processor time, files
and their sizes are limited. Frames as in backends/frames.py: JSON and numbers, nothing is unpickled.

start {code, memory, seconds}; decode {outputs}; sample {outputs, truth}; keep {number, records}; values {number}.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..backends.frames import serve
from .arrays import Array

FILE_NAME = "<validation.python.code>"
FUNCTIONS = ("decode", "sample", "value")
MAX_RECORD_BYTES = 1_000_000
MAX_LOG_BYTES = 1_000_000
"""What the code prints goes into a file of the parent."""
SPARE_SECONDS = 60

# ---- confinement ----

_EPERM = 1
_RETURN_ERRNO, _ALLOW, _KILL = 0x00050000, 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_CALLS = {
    # socket, socketpair, connect; clone, fork, vfork, clone3; execve, execveat; kill, tkill, tgkill; ptrace, process_vm_readv, process_vm_writev,
    # pidfd_getfd; unshare, setns, mount; keyctl, bpf, io_uring_setup (which opens sockets of its own), open_by_handle_at
    "x86_64": (
        0xC000003E,
        (41, 53, 42, 56, 57, 58, 435, 59, 322, 62, 200, 234, 101, 310, 311, 438, 272, 308, 165, 250, 321, 425, 304),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199, 203, 220, 435, 221, 281, 129, 130, 131, 117, 270, 271, 438, 97, 268, 40, 219, 280, 425, 265),
    ),
}
"""Architecture → its number in audit.h, and the refused system calls by number (syscall tables of Linux)."""
_X32 = 0x40000000
"""Numbers from here on are the same calls in another guise, on x86-64."""
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_CAPABILITIES_V3 = 0x20080522


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def confine(memory: int, seconds: int) -> None:
    """Raises OSError where the kernel cannot: code is then not run."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    now = pages * os.sysconf("SC_PAGE_SIZE")
    limits = {
        resource.RLIMIT_AS: now + memory,
        # a backstop: the parent keeps time, and takes only that in which it asks
        resource.RLIMIT_CPU: seconds + SPARE_SECONDS,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: MAX_LOG_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (least, least))
    libc = ctypes.CDLL(None, use_errno=True)
    _drop_capabilities(libc)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "privileges cannot be given up")
    machine = platform.machine()
    if machine not in _CALLS:
        raise OSError(0, f"no list of system calls is known for {machine}")
    architecture, calls = _CALLS[machine]
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _RETURN_ERRNO | _EPERM)] if machine == "x86_64" else []
    for call in calls:
        steps += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _RETURN_ERRNO | _EPERM)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    array = (_Instruction * len(steps))(*(_Instruction(*step) for step in steps))
    program = _Program(len(steps), array)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "system calls cannot be filtered")


def _drop_capabilities(libc: Any) -> None:
    header = (ctypes.c_uint * 2)(_CAPABILITIES_V3, 0)
    nothing = (ctypes.c_uint * 6)()
    if libc.capset(ctypes.byref(header), ctypes.byref(nothing)) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


# ---- service ----


class Failed(Exception):
    """What the code did wrong, as a person reads it."""


class Server:
    def __init__(self) -> None:
        self._names: dict[str, Any] = {}
        self._kept: dict[int, list[Any]] = {}

    def answer(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
        match header["do"]:
            case "start":
                return self._start(header)
            case "decode":
                return {}, self._decode(_by_name(header["outputs"], "o", arrays))
            case "sample":
                outputs, truth = _by_name(header["outputs"], "o", arrays), _by_name(header["truth"], "t", arrays)
                return {"record": self._sample(outputs, truth)}, {}
            case "keep":
                self._kept.setdefault(header["number"], []).extend(header["records"])
                return {}, {}
            case "values":
                return {}, {"values": self._values(self._kept[header["number"]], arrays["weights"])}
            case other:
                raise Failed(f"unknown request {other!r}")

    def _start(self, header: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
        try:
            confine(header["memory"], header["seconds"])
        except OSError as error:
            raise Failed(f"this machine cannot confine it: {error.strerror}") from error
        self._names = {"__name__": "metric", "np": np, "numpy": np}
        exec(compile(header["code"], FILE_NAME, "exec"), self._names)  # noqa: S102  # what this process is for
        functions = [name for name in FUNCTIONS if callable(self._names.get(name))]
        if not {"decode", "sample"} & set(functions):
            raise Failed("it defines neither decode(outputs) nor sample(outputs, truth)")
        return {"functions": functions}, {}

    def _function(self, name: str) -> Any:
        if not callable(function := self._names.get(name)):
            raise Failed(f"it does not define {name}")
        return function

    def _decode(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        found = self._function("decode")(outputs)
        if not isinstance(found, Mapping):
            raise Failed(f"decode returned {type(found).__name__}, expected a dict of arrays")
        arrays = {str(name): np.asarray(array) for name, array in found.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise Failed(f"decode returned {name!r} of dtype {array.dtype}, expected numbers")
        return arrays

    def _sample(self, outputs: Mapping[str, Array], truth: Mapping[str, Array]) -> Any:
        found = self._function("sample")(outputs, truth)
        if isinstance(found, np.ndarray | np.generic) and found.size == 1:
            found = found.item()
        if not isinstance(found, int | float | dict):
            raise Failed(f"sample returned {type(found).__name__}, expected a number or a dict")
        if isinstance(found, int | float) and "value" not in self._names:
            return float(found)
        if isinstance(found, dict) and not callable(self._names.get("value")) and not isinstance(found.get("value"), int | float):
            raise Failed("sample returned a dict without a number under 'value', and there is no function value(records)")
        try:
            size = len(json.dumps(found))
        except (TypeError, ValueError) as error:
            raise Failed(f"sample returned what is no JSON: {error}") from error
        if size > MAX_RECORD_BYTES:
            raise Failed(f"sample returned {size} bytes of JSON, at most {MAX_RECORD_BYTES} are kept")
        return found

    def _values(self, records: list[Any], weights: Array) -> Array:
        value = self._function("value")
        plain = [record["value"] if isinstance(record, dict) and set(record) == {"value"} else record for record in records]
        found = []
        for row in weights:
            drawn = [plain[index] for index in np.repeat(np.arange(len(plain)), row)]
            found.append(float(value(drawn)) if drawn else np.nan)
        return np.array(found, np.float64)


def _by_name(names: list[str], prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: arrays[f"{prefix}{number}"] for number, name in enumerate(names)}


def said(error: BaseException) -> str:
    """An error of the user's code in one line, with the line of their code where it happened."""
    if isinstance(error, Failed):
        return str(error)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE_NAME]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}{f' in line {line}' if line else ''}{f': {text}' if text else ''}"


def main() -> None:
    # SystemExit and KeyboardInterrupt of the user's code are errors too
    serve(Server().answer, lambda error: {"failed": said(error)}, BaseException)


if __name__ == "__main__":
    main()
