"""Frames between a judging parent and its child: a JSON header and raw arrays. Nothing in a frame is executable.

4 bytes length of the header (big endian), the header {…, "arrays": [{"name", "dtype", "shape"}]}, then each array's bytes in C order.
"""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..gate.arrays import Array

MAX_HEADER = 16 * 1024**2
Read = Callable[[int], bytes]
"""Exactly that many bytes, or EOFError."""


def encode(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> Iterator[bytes]:
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    described = [{"name": name, "dtype": array.dtype.str, "shape": list(array.shape)} for name, array in contiguous.items()]
    text = json.dumps({**header, "arrays": described}).encode()
    yield struct.pack(">I", len(text)) + text
    for array in contiguous.values():
        yield array.tobytes()


def decode(read: Read) -> tuple[dict[str, Any], dict[str, Array]]:
    """Raises EOFError when the other side is gone, ValueError for what is no frame."""
    (length,) = struct.unpack(">I", read(4))
    if length > MAX_HEADER:
        raise ValueError(f"a frame's header claims {length} bytes, at most {MAX_HEADER} are read")
    header: dict[str, Any] = json.loads(read(length))
    arrays: dict[str, Array] = {}
    for item in header.pop("arrays"):
        dtype, shape = np.dtype(str(item["dtype"])), tuple(int(size) for size in item["shape"])
        if dtype.kind not in "fiub":
            raise ValueError(f"array {item['name']} has dtype {dtype}, expected numbers")
        arrays[item["name"]] = np.frombuffer(read(dtype.itemsize * math.prod(shape)), dtype).reshape(shape)
    return header, arrays


class ChildEnd:
    """The child's side of the pipe. Frames have a descriptor of their own: whatever a library prints goes to the log."""

    def __init__(self) -> None:
        self._questions = sys.stdin.buffer
        self._answers = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def receive(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """The parent's next frame. Raises EOFError when it is gone."""
        return decode(self._read)

    def _read(self, size: int) -> bytes:
        data = self._questions.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> None:
        for part in encode(header, arrays or {}):
            view = memoryview(part)
            while view:
                view = view[self._answers.write(view) or 0 :]


Answer = Callable[[Mapping[str, Any], Mapping[str, Array]], tuple[dict[str, Any], dict[str, Array]]]


def serve(
    answer: Answer,
    failed: Callable[[BaseException], dict[str, Any]] = lambda error: {"error": f"{type(error).__name__}: {error}"},
    catch: type[BaseException] = Exception,
) -> None:
    """Answer one parent until it is gone. `failed`: what is said of a failure of the kind `catch`; the parent classifies it."""
    end = ChildEnd()
    while True:
        try:
            header, arrays = end.receive()
        except EOFError:
            return
        try:
            reply, results = answer(header, arrays)
        except catch as error:
            reply, results = failed(error), {}
        end.send(reply, results)
