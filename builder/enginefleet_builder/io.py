"""What a Job's code says to the outside: progress, cancellation, and the termination message.

Long-running code takes a `Progress`. It calls it to show where it is and thereby gives cancellation a place to act: when SIGTERM came or the
deadline passed, the next call raises TransientFault.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from enginefleet_api.errors import EngineFleetError, PermanentError, TransientFault
from enginefleet_api.jobs import TERMINATION_LOG, JobFailure, Termination

TERMINATION_LOG_VARIABLE = "ENGINEFLEET_TERMINATION_LOG"
LOG_LINES = 20
"""Last log lines that a failure carries."""
AGAIN = "Run the command again: what it had published is not done twice."
PLAIN_INTERVAL = 10.0
"""Seconds between two plain progress lines of the same stage: a build's log must stay readable after six hours."""


class Cancellation:
    """Whether the work must end, and why: the first reason stays. Safe to use from threads."""

    def __init__(self, timeout_seconds: float | None = None) -> None:
        self._timeout = timeout_seconds
        self._deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        self._event = threading.Event()
        self._fault: TransientFault | None = None

    def cancel(self, fault: TransientFault) -> None:
        if self._fault is None:
            self._fault = fault
        self._event.set()

    @property
    def fault(self) -> TransientFault | None:
        """The reason to end, or None: go on."""
        if self._fault is None and self._deadline is not None and time.monotonic() >= self._deadline:
            self.cancel(deadline_exceeded(self._timeout or 0.0))
        return self._fault

    def check(self) -> None:
        """Raise TransientFault (`Terminated`, `DeadlineExceeded`) when the work must end."""
        if (fault := self.fault) is not None:
            raise fault

    def remaining(self) -> float:
        """Seconds to the deadline; infinity without one."""
        return float("inf") if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Wait that long, or until the work must end, which raises."""
        self._event.wait(min(seconds, self.remaining()))
        self.check()


def terminated(signal_name: str) -> TransientFault:
    return TransientFault("Terminated", f"the process got {signal_name} before it was done.")


def deadline_exceeded(seconds: float) -> TransientFault:
    return TransientFault(
        "DeadlineExceeded",
        f"not done within the timeout of {seconds:g} s.",
        "Raise the timeout when this is known to take longer.",
    )


class Progress:
    """Takes progress and log lines; this base shows nothing. Subclasses override `show` and `show_line`.

    A call `progress(stage, done, total)` names what is going on, in the words of a person ("quantize: 12 of 100 samples" is stage
    "quantize", done 12, total 100); without numbers the stage has just begun.
    """

    def __init__(self, cancellation: Cancellation | None = None) -> None:
        self.cancellation = cancellation or Cancellation()
        self.log_tail: deque[str] = deque(maxlen=LOG_LINES)

    def __call__(self, stage: str, done: float | None = None, total: float | None = None) -> None:
        self.check()
        self.show(stage, done, total)

    def check(self) -> None:
        """Raise TransientFault when SIGTERM came or the deadline passed."""
        self.cancellation.check()

    def remaining(self) -> float:
        """Seconds to the deadline."""
        return self.cancellation.remaining()

    def wait(self, seconds: float) -> None:
        """Wait, ending early (by raising) when the work must end."""
        self.cancellation.wait(seconds)

    def log(self, line: str) -> None:
        """Show a line and keep it: the last ones go into the failure's `log_tail`."""
        self.log_tail.append(line)
        self.show_line(line)

    def show(self, stage: str, done: float | None, total: float | None) -> None:
        pass

    def show_line(self, line: str) -> None:
        pass

    def close(self) -> None:
        pass


class PlainProgress(Progress):
    """One line a stage, and one every ten seconds within it: for logs."""

    def __init__(self, cancellation: Cancellation | None = None, stream: TextIO | None = None) -> None:
        super().__init__(cancellation)
        self._stream = stream or sys.stderr
        self._stage = ""
        self._shown_at = 0.0

    def show(self, stage: str, done: float | None, total: float | None) -> None:
        now = time.monotonic()
        finished = done is not None and total is not None and done >= total
        if stage == self._stage and not finished and now - self._shown_at < PLAIN_INTERVAL:
            return
        self._stage, self._shown_at = stage, now
        self.show_line(stage + amount(done, total))

    def show_line(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class BarProgress(Progress):
    """A rich bar: for a person at a terminal."""

    def __init__(self, cancellation: Cancellation | None = None) -> None:
        # Imported here: `enginefleet fetch` runs in every serving pod and must start fast.
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        super().__init__(cancellation)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=Console(stderr=True))
        self._bars.start()
        self._task: TaskID | None = None
        self._stage = ""

    def show(self, stage: str, done: float | None, total: float | None) -> None:
        if self._task is None or stage != self._stage:
            if self._task is not None:
                finished = self._bars.tasks[-1].total or 1
                self._bars.update(self._task, completed=finished, total=finished)
            self._task, self._stage = self._bars.add_task(stage, total=total), stage
        self._bars.update(self._task, completed=done or 0, total=total)

    def show_line(self, line: str) -> None:
        self._bars.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self._bars.stop()


def amount(done: float | None, total: float | None) -> str:
    if done is None:
        return ""
    return f": {done:g}" if total is None else f": {done:g} of {total:g}"


def progress_for(stream: TextIO, cancellation: Cancellation | None = None) -> Progress:
    return BarProgress(cancellation) if stream.isatty() else PlainProgress(cancellation, stream)


def as_failure(error: Exception, log_tail: deque[str]) -> EngineFleetError:
    """What to report for `error`: itself when it is one of ours, else `Unexpected` with its type and text.

    An unknown exception counts as permanent: a bug meets the same inputs again in the same way.
    """
    if isinstance(error, EngineFleetError):
        return error
    if isinstance(error, MemoryError):
        return PermanentError(
            "OutOfMemory", "the process could not allocate memory.", "Give the class more memory, or a smaller model or batch."
        )
    text = (str(error).strip() or "no message").replace("\n", " ")[:600]
    log_tail.append(f"{type(error).__name__}: {text}")
    return PermanentError("Unexpected", f"{type(error).__name__}: {text}.", "The container's log has the traceback; please report it.")


def failed(error: EngineFleetError, log_tail: Iterable[str]) -> Termination:
    return Termination(failure=JobFailure.of(error, list(log_tail)))


def hint_by_hand(error: EngineFleetError) -> str:
    """The hint for a person at a terminal. Hints do not say that something is tried again: in a cluster the operator does so, and says when;
    by hand nobody does but that person.
    """
    return f"{error.hint} {AGAIN}".lstrip() if isinstance(error, TransientFault) else error.hint


def termination_log() -> Path | None:
    """Where the termination message goes; None outside a container."""
    if given := os.environ.get(TERMINATION_LOG_VARIABLE):
        return Path(given)
    path = Path(TERMINATION_LOG)
    return path if path.exists() else None


def write_termination(termination: Termination, path: Path | None) -> None:
    """Write the message in one write. The kubelet mounts the file itself, so it cannot be replaced by a rename."""
    if path is None:
        return
    with path.open("wb", buffering=0) as file:
        file.write(termination.to_message().encode())
