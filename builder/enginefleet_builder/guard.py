"""Ends the work in time: SIGTERM and the deadline interrupt it, and a message is left even when it does not react.

The kubelet sends SIGTERM, waits for the grace period and kills; a Job's deadline does the same. `Interrupted` is raised in the main thread once,
like KeyboardInterrupt, so that waiting in a socket ends too and `finally` clauses (claims) run. Where the interpreter does not come to that, inside
a long call of a library, a watching thread writes the termination message and ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Self

from enginefleet_api.errors import EXIT_TRANSIENT

from .io import Cancellation, deadline_exceeded, failed, terminated, termination_log, write_termination

GRACE = 5.0
"""Seconds for the work to end by itself; pods have 30 s by default, and serving nodes less."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)


class Interrupted(BaseException):
    """The work must end; `Cancellation.fault` says why. Not an Exception, so that no library takes it for an error of its own."""


class Guard:
    """A context manager for the main thread. `timeout_seconds`: None is no deadline."""

    def __init__(self, cancellation: Cancellation, timeout_seconds: float | None) -> None:
        self._cancellation = cancellation
        self._timeout = timeout_seconds
        self._finished = threading.Event()
        self._before: dict[signal.Signals, object] = {}
        self._reader, self._writer = os.pipe()

    def __enter__(self) -> Self:
        os.set_blocking(self._writer, False)
        # The interpreter's C handler writes into the pipe at once, also while the main thread is inside a library.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._interrupt)
        if self._timeout is not None:
            signal.setitimer(signal.ITIMER_REAL, self._timeout)
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._finished.set()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def finish(self) -> None:
        """The work is done: signals that come now interrupt nothing."""
        self._finished.set()

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        first = self._cancellation.fault is None or number == signal.SIGALRM
        self._note(signal.Signals(number))
        if first and not self._finished.is_set():
            # once: a second one would interrupt the cleaning up
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise Interrupted

    def _note(self, number: signal.Signals) -> None:
        fault = deadline_exceeded(self._timeout or 0.0) if number == signal.SIGALRM else terminated(number.name)
        self._cancellation.cancel(fault)

    def _watch(self) -> None:
        """Wait for a signal or for the end (the pipe is closed); after a signal, give the work its grace."""
        select.select([self._reader], [], [])
        numbers = os.read(self._reader, 1)
        if not numbers or numbers[0] not in SIGNALS:
            return
        if not self._finished.wait(GRACE):
            self._note(signal.Signals(numbers[0]))
            fault = self._cancellation.fault
            assert fault is not None
            write_termination(failed(fault, [f"the work did not react within {GRACE:g} s"]), termination_log())
            print(fault, file=sys.stderr, flush=True)
            os._exit(EXIT_TRANSIENT)
