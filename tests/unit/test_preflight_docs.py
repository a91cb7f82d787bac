"""docs/preflight.md names every reason that the code can give, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILDER = ROOT / "builder" / "enginefleet_builder"
PREPARE = (
    "baseline",
    "by_hand",
    "checks",
    "cures",
    "export",
    "findings",
    "gather",
    "inspector",
    "model",
    "native_checks",
    "preflight",
    "target_checks",
    "targets",
)
SOURCES = [*(BUILDER / "prepare" / f"{name}.py" for name in PREPARE), BUILDER / "sources.py", BUILDER / "http_source.py"]
RAISED = ("PermanentError", "EnvironmentFault", "TransientFault")


def reasons_in(file: Path) -> Iterator[str]:
    """The literal reasons of findings and errors; in a loop they stand in a tuple beside their texts."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            place = {"Finding": 1, **dict.fromkeys(RAISED, 0)}.get(node.func.id)
            if place is not None and len(node.args) > place and isinstance(node.args[place], ast.Constant):
                yield str(node.args[place].value)  # type: ignore[attr-defined]
            # what a table that is not right is told with
            yield from (str(word.value.value) for word in node.keywords if word.arg == "reason" and isinstance(word.value, ast.Constant))
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple) and "reason" in ast.unparse(node.target):
            yield from (
                str(item.elts[1].value) for item in node.iter.elts if isinstance(item, ast.Tuple) and isinstance(item.elts[1], ast.Constant)
            )


def documented() -> list[str]:
    return re.findall(r"^\| `([A-Z][A-Za-z0-9]+)` ", (ROOT / "docs" / "preflight.md").read_text(), re.MULTILINE)


def test_every_reason_is_documented_once() -> None:
    said = {reason for file in SOURCES for reason in reasons_in(file)}
    assert len(said) > 60
    assert sorted(documented()) == sorted(said)
