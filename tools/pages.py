"""A page that is written from other files, or compared with them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path


def put(page: Path, new: str, arguments: Sequence[str], source: str) -> int:
    """Write `page`; with `--check` among the arguments say how it differs instead. Exit code 0; 1 when it does. `source`: for people."""
    if "--check" not in arguments:
        page.write_text(new)
        return 0
    old = page.read_text() if page.exists() else ""
    if old != new:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), page.name, source))
        sys.stderr.write(f"docs/{page.name} is out of date: run `make generate` and commit the result\n")
    return int(old != new)


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])
