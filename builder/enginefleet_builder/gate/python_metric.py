"""A user's own code, in a process of its own that holds nothing of value: see confinement.py for what it may not do."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.base import quantity, seconds
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import PythonMetric

from ..backends.child import Child
from ..backends.threads import ONE_THREAD
from ..io import Progress
from .arrays import Array, Floats64

CHILD = "enginefleet_builder.gate.python_child"
HINT = "Correct validation.python.code; it runs with numpy, without network and other processes, and cannot change files."
_PR_SET_DUMPABLE = 4


class Deadline(Progress):
    """A Job's progress whose `check` also ends the work when the code's own time is used up: that in which it was asked something."""

    def __init__(self, progress: Progress, timeout: float) -> None:
        super().__init__(progress.cancellation)
        self._timeout, self._used, self._since = timeout, 0.0, math.inf

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._used += time.monotonic() - self._since
            self._since = math.inf

    def check(self) -> None:
        super().check()
        if self._used + max(0.0, time.monotonic() - self._since) > self._timeout:
            raise _failed(f"it was not done after {self._timeout:g} s", "Make it faster, judge fewer samples, or raise python.timeout.")


class Code:
    """The running code. Every error of it is a PermanentError `PythonMetricFailed`."""

    def __init__(self, child: Child, spec: PythonMetric, deadline: Deadline) -> None:
        self._child, self._deadline = child, deadline
        limits = {"memory": int(quantity(spec.memory)), "seconds": math.ceil(seconds(spec.timeout))}
        answer, _ = self._ask({"do": "start", "code": spec.code, **limits})
        self._functions = set(answer["functions"])
        self._kept = 0

    @property
    def has_value(self) -> bool:
        return "value" in self._functions

    def decode(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """What `decode(outputs)` returns: {"boxes", "scores", "classes"}, {"scores"} or {"labels"}, as the task needs."""
        return _Needed(self._ask({"do": "decode", "outputs": list(outputs)}, _named("o", outputs))[1])

    def sample(self, outputs: Mapping[str, Array], truth: Mapping[str, Array]) -> dict[str, Any]:
        """The record that `sample(outputs, truth)` returns; a plain number stands under "value"."""
        header = {"do": "sample", "outputs": list(outputs), "truth": list(truth)}
        answer, _ = self._ask(header, _named("o", outputs) | _named("t", truth))
        record = answer["record"]
        return record if isinstance(record, dict) else {"value": float(record)}

    def keep(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Hands records over once, for `values`; the number that they go by."""
        self._kept += 1
        for start in range(0, len(records), 10):
            self._ask({"do": "keep", "number": self._kept, "records": list(records[start : start + 10])})
        return self._kept

    def values(self, number: int, weights: NDArray[np.int64]) -> Floats64:
        """`value(records)` for each selection of kept records: weights (selections, records) → (selections,); NaN for none."""
        return self._ask({"do": "values", "number": number}, {"weights": weights})[1]["values"].astype(np.float64)

    def _ask(self, header: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
        try:
            with self._deadline.counting():
                answer, found = self._child.ask(header, arrays)
        except PermanentError as error:
            if error.reason == "PythonMetricFailed":
                raise
            raise _failed(error.message.replace("the engine's process", "its process").rstrip(". "), HINT) from error
        if "failed" in answer:
            raise _failed(str(answer["failed"])[:500], HINT)
        return answer, found


class _Needed(dict[str, Array]):
    def __missing__(self, name: str) -> Array:
        raise _failed(f"decode returned {sorted(self)}, expected an array {name!r} among them", HINT)


def _named(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{prefix}{number}": array for number, array in enumerate(arrays.values())}


def _failed(what: str, hint: str) -> PermanentError:
    return PermanentError("PythonMetricFailed", f"validation.python: {what}.", hint)


@contextmanager
def open_code(spec: PythonMetric | None, progress: Progress) -> Iterator[Code | None]:
    """None without code. Raises PermanentError `PythonMetricFailed` for code that does not load."""
    if spec is None:
        yield None
        return
    # no credentials, no proxy, no home: only what is needed to import numpy
    environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", **ONE_THREAD}
    deadline = Deadline(progress, seconds(spec.timeout))
    with unreadable(), Child(CHILD, deadline, environment) as child:
        yield Code(child, spec, deadline)


@contextmanager
def unreadable() -> Iterator[None]:
    """While it lasts, other processes of this user cannot read this one's environment and memory, where credentials are."""
    if not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
