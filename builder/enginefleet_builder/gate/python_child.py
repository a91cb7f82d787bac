"""The side of a user's own metric: `python -m enginefleet_builder.gate.python_child` serves one parent until its standard input ends.

Before the code is run, the process gives up what it could do harm with (confinement.py): a filter of system calls refuses sockets, new processes,
programs and threads, signals, looking into other processes, and every change of a file; capabilities are dropped; memory, processor time, open
files and the log's size are limited. Frames as in backends/frames.py: JSON and numbers, nothing is unpickled.

start {code, memory, seconds}; decode {outputs}; sample {outputs, truth}; keep {number, records}; values {number}.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..backends.frames import serve
from .arrays import Array
from .confinement import confine

FILE_NAME = "<validation.python.code>"
FUNCTIONS = ("decode", "sample", "value")
MAX_RECORD_BYTES = 1_000_000


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
