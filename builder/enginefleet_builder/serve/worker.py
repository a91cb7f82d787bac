"""An engine that runs in a process of its own, for a server: one run at a time, and the end of that process is a fault, not an exception."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from enginefleet_api.errors import EngineFleetError, TransientFault
from enginefleet_builder.backends.base import Session
from enginefleet_builder.io import Progress

PATIENCE = 60.0
"""Seconds that one run may take; a GPU that hangs answers no more."""
SENDERS_FAULT = "ShapeRefused"
"""The one reason of a failed run after which the process is as good as before. After others a CUDA context may be lost."""


class _Patience(Progress):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds, self._until = seconds, math.inf

    def begin(self) -> None:
        self._until = time.monotonic() + self._seconds

    def check(self) -> None:
        super().check()
        if time.monotonic() > self._until:
            raise TransientFault(
                "InferenceHung", f"a run took longer than {self._seconds:g} s.", "Start the server again, where no kubelet does."
            )


class WorkerSession:
    """`run` may be called from several threads; they wait for each other. Raises EngineFleetError, and the same again once there is a `fault`."""

    def __init__(self, load: Callable[[Progress], AbstractContextManager[Session]], patience: float = PATIENCE) -> None:
        self._patience = _Patience(patience)
        self._lock = threading.Lock()
        self._open = ExitStack()
        self._session = self._open.enter_context(load(self._patience))
        self.inputs, self.outputs = self._session.inputs, self._session.outputs
        self.fault: EngineFleetError | None = None

    def run(self, outputs: list[str], feeds: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        with self._lock:
            if self.fault is not None:
                raise self.fault
            self._patience.begin()
            try:
                found = self._session.run(feeds)
            except EngineFleetError as error:
                if error.reason != SENDERS_FAULT:
                    self.fault = error
                raise
            return [found[name] for name in outputs]

    def close(self) -> None:
        """End the process. A run in another thread ends first."""
        with self._lock:
            fault, self.fault = self.fault, self.fault or TransientFault("Closed", "the server is ending.", "")
            # a process that is at fault may not read its input's end
            self._open.__exit__(type(fault) if fault else None, fault, None)
