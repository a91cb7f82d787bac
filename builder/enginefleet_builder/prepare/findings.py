"""A finding of preflight: what was found, how bad it is, what to do. Standard library and the contract only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, FailureClass, PermanentError, TransientFault
from enginefleet_api.resources import RefusedTarget
from enginefleet_api.variants import Variant

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
    """`error` ends the Job, or what it makes for one target; `warning` and `cured` go into the report's notes.

    `cured`: prepare writes a repaired file. `target`: the one that an error is about, "" for all. `precisions`: those that it is about, of that
    target; none named: all.
    """

    severity: Literal["error", "warning", "cured"]
    reason: str
    message: str
    hint: str = ""
    failure_class: FailureClass = FailureClass.PERMANENT
    target: str = ""
    precisions: tuple[str, ...] = ()

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


def fatal(findings: Iterable[Finding]) -> list[Finding]:
    """Errors after which nothing is made for anyone."""
    return [finding for finding in errors(findings) if not finding.target]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise one error for all when there is a fatal one: the first such one's reason, every message and hint.

    Permanent when any fatal one is: no other node would do.
    """
    found = errors(findings)
    if not fatal(found):
        return
    found.sort(key=lambda finding: (bool(finding.target), finding.failure_class != FailureClass.PERMANENT))
    message, hint = _together(found)
    raise _CLASSES[found[0].failure_class](found[0].reason, message, hint)


def refused_targets(findings: Iterable[Finding], variants: Sequence[Variant]) -> list[RefusedTarget]:
    """What is wrong with single targets; those that are refused alike stand in one entry. `variants`: all that are asked for."""
    of_target: dict[tuple[str, tuple[str, ...]], list[Finding]] = {}
    for finding in errors(findings):
        if finding.target:
            of_target.setdefault((finding.target, finding.precisions), []).append(finding)
    alike: dict[tuple[tuple[str, ...], str, str, str], list[str]] = {}
    for (target, precisions), found in of_target.items():
        concerned = tuple(variant.id for variant in variants if variant.precision in precisions)
        alike.setdefault((concerned, found[0].reason, *_together(found)), []).append(target)
    return [
        RefusedTarget(targets=targets, variants=list(concerned), reason=reason, message=message, hint=hint)
        for (concerned, reason, message, hint), targets in alike.items()
    ]


def _together(found: Iterable[Finding]) -> tuple[str, str]:
    """(message, hint) of all of them."""
    told = list({(finding.reason, finding.message): finding for finding in found}.values())
    if len(told) == 1:
        return told[0].message, told[0].hint
    text = " ".join(f"({number}) {finding.reason}: {finding.message}" for number, finding in enumerate(told, start=1))
    return f"{len(told)} findings: {text}", " ".join(dict.fromkeys(finding.hint for finding in told if finding.hint))


def named(names: Sequence[str]) -> str:
    """The first few of `names`, in words."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(clean(name) for name in names[:MOST_NAMED]) + more


def clean(text: str, length: int = NAME_LENGTH) -> str:
    """A name from a hostile file, fit for a terminal: printable, and of bounded length."""
    printable = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text[:length])
    return printable + ("…" if len(text) > length else "")
