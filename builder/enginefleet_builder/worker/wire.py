"""Frames between the driver and this worker, as the driver's backends/frames.py has them: a JSON header and raw arrays.

4 bytes length of the header (big endian), the header {..., "arrays": [{"name", "dtype", "shape"}]}, then each array's bytes in C order.
Standard library and NumPy, Python 3.8.
"""

import json
import os
import struct
import sys
import threading

import numpy as np

MAX_HEADER = 16 * 1024**2
KINDS = "fiub"


def encode(header, arrays):
    """The frame's parts, bytes each."""
    solid = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    described = [{"name": name, "dtype": array.dtype.str, "shape": list(array.shape)} for name, array in solid.items()]
    text = json.dumps(dict(header, arrays=described)).encode()
    yield struct.pack(">I", len(text)) + text
    for array in solid.values():
        yield array.tobytes()


def decode(read):
    """(header, arrays) of one frame. `read(n)` gives exactly n bytes or raises EOFError. Raises ValueError for what is no frame."""
    (length,) = struct.unpack(">I", read(4))
    if length > MAX_HEADER:
        raise ValueError(f"a frame's header claims {length} bytes, at most {MAX_HEADER} are read")
    header = json.loads(read(length))
    arrays = {}
    for item in header.pop("arrays"):
        dtype, shape = np.dtype(str(item["dtype"])), tuple(int(size) for size in item["shape"])
        if dtype.kind not in KINDS:
            raise ValueError("array {} has dtype {}, expected numbers".format(item["name"], dtype))
        size = dtype.itemsize
        for length in shape:
            size *= length
        arrays[item["name"]] = np.frombuffer(read(size), dtype).reshape(shape)
    return header, arrays


class End:
    """This side of the pipe. Frames have a descriptor of their own: what a library prints goes to standard error. Threads may send."""

    def __init__(self):
        self._questions = sys.stdin.buffer
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def receive(self):
        """The driver's next frame. Raises EOFError when it is gone."""
        return decode(self._read)

    def _read(self, size):
        data = self._questions.read(size)
        if len(data) < size:
            raise EOFError
        return data

    def send(self, header, arrays=None):
        with self._lock:
            for part in encode(header, arrays or {}):
                view = memoryview(part)
                while view:
                    view = view[os.write(self._answers, view) :]
