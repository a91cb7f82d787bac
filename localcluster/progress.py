"""Progress lines: what is being done, and how long it took, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Progress = Callable[[str], None]


def to_stderr() -> Progress:
    """Lines on standard error, each with the seconds since this call."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f}s  {line}", file=sys.stderr, flush=True)

    return say


def silent(_: str) -> None:
    """No progress: for tests and for callers with their own."""
