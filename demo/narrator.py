"""Tells what happens while it happens: headings, commands, events of the operator, changes of a summary."""

from __future__ import annotations

import threading
import time
from typing import Any

from demo.checks import Checks
from demo.world import Object


class Narrator:
    """Prints to standard output, each line with the seconds since the start."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._events: set[str] = set()
        self._step: tuple[str, float] | None = None

    def say(self, line: str) -> None:
        with self._lock:
            for part in line.splitlines() or [""]:
                print(f"  {time.monotonic() - self._checks.began:6.1f}s  {part}".rstrip(), flush=True)

    def step(self, title: str) -> None:
        """Begin a step; the one before it ends, and its seconds are kept."""
        self.end_step()
        self._step = (title, time.monotonic())
        print(f"\n── {len(self._checks.steps) + 1}. {title} " + "─" * max(3, 96 - len(title)), flush=True)

    def end_step(self) -> None:
        if self._step is not None:
            title, began = self._step
            self._checks.steps.append({"step": title, "seconds": round(time.monotonic() - began, 1)})
            self._step = None

    def command(self, text: str, output: str = "") -> None:
        """A command as the reader would type it, and what it said."""
        self.say(f"$ {text}")
        for line in output.splitlines():
            self.say(f"  {line}")

    def on_change(self, kind: str, type_: str, item: Object, before: Object | None) -> None:
        """For World: what of a change is worth a line."""
        if kind == "event" and "enginefleet" in _reporter(item):
            self._event(item)
        elif kind == "mdep" and type_ != "DELETED":
            summary, old = _summary(item), _summary(before or {})
            if summary and summary != old:
                self.say(f"{item['metadata']['name']}: {summary}")

    def _event(self, item: Object) -> None:
        about = item.get("regarding") or {}
        line = f"event {item.get('reason')} ({about.get('kind')}/{about.get('name')}): {item.get('note', '')}"
        key = f"{item['metadata']['name']} {line}"
        if key not in self._events:
            self._events.add(key)
            self.say(line)


def _reporter(item: Object) -> str:
    source: dict[str, Any] = item.get("deprecatedSource") or {}
    return f"{item.get('reportingController', '')} {source.get('component', '')}"


def _summary(item: Object) -> str:
    return str(item.get("status", {}).get("summary", ""))
