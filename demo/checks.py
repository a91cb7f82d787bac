"""What the demo asserts: recorded as it goes, shown as a table at the end."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    expected: str
    found: str
    ok: bool


@dataclass(slots=True)
class Checks:
    """Checks and steps of one run. `began` is a monotonic time."""

    began: float = field(default_factory=time.monotonic)
    checks: list[Check] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)

    def check(self, name: str, expected: object, found: object, ok: bool | None = None) -> bool:
        """Record and show one assertion; without `ok` it holds when found equals expected."""
        held = expected == found if ok is None else ok
        self.checks.append(Check(name, str(expected), str(found), held))
        print(f"  {'✓' if held else '✗'} {name}: {found}" + ("" if held else f" (expected {expected})"), flush=True)
        return held

    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]

    def write(self, path: Path, **more: Any) -> None:
        """All of it as JSON."""
        document = {"ok": not self.failed(), "steps": self.steps, "checks": [asdict(check) for check in self.checks], **more}
        path.write_text(json.dumps(document, indent=1) + "\n")

    def table(self) -> str:
        """The closing table: what was asserted, expected and found."""
        rows = [("", "what", "expected", "found")]
        rows += [("ok" if c.ok else "FAILED", _cut(c.name, 66), _cut(c.expected, 34), _cut(c.found, 60)) for c in self.checks]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]).rstrip() for row in rows]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _cut(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
