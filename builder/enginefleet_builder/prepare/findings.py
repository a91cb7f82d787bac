"""A finding of preflight: what was found, how bad it is, what to do. Standard library and the contract only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, FailureClass, PermanentError, TransientFault

MOST_NAMED = 5
"""Tensors or nodes that one finding names."""
NAME_LENGTH = 120
"""Names come out of the file and may be of any length."""

_CLASSES: dict[FailureClass, type[EngineFleetError]] = {
    FailureClass.PERMANENT: PermanentError,
    FailureClass.ENVIRONMENT: EnvironmentFault,
    FailureClass.TRANSIENT: TransientFault,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`error` ends the Job; `warning` and `cured` go into the report's notes. `cured`: prepare writes a repaired file."""

    severity: Literal["error", "warning", "cured"]
    reason: str
    message: str
    hint: str = ""
    failure_class: FailureClass = FailureClass.PERMANENT

    @classmethod
    def of(cls, error: EngineFleetError) -> Finding:
        return cls("error", error.reason, error.message, error.hint, error.failure_class)

    def to_json_dict(self) -> dict[str, str]:
        return {"severity": self.severity, "reason": self.reason, "message": self.message, "hint": self.hint}

    @property
    def note(self) -> str:
        return f"{self.reason}: {self.message}"


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise one error for all: the first one's reason, every message and hint. Permanent when any is: no other node would do."""
    found = list(dict.fromkeys(errors(findings)))
    if not found:
        return
    found.sort(key=lambda finding: finding.failure_class != FailureClass.PERMANENT)
    first = found[0]
    if len(found) == 1:
        message, hint = first.message, first.hint
    else:
        text = " ".join(f"({number}) {finding.reason}: {finding.message}" for number, finding in enumerate(found, start=1))
        message = f"{len(found)} findings: {text}"
        hint = " ".join(dict.fromkeys(finding.hint for finding in found if finding.hint))
    raise _CLASSES[first.failure_class](first.reason, message, hint)


def named(names: Sequence[str]) -> str:
    """The first few of `names`, in words."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(clean(name) for name in names[:MOST_NAMED]) + more


def clean(text: str, length: int = NAME_LENGTH) -> str:
    """A name from a hostile file, fit for a terminal: printable, and of bounded length."""
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:length])
    return printable + ("…" if len(text) > length else "")
