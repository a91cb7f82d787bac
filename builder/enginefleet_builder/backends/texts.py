"""From what TensorRT logs to a reason, a class and words: the table in failures.json, applied.

TensorRT gives its reasons to a logger only and answers None; and an early failure brings later ones, so that the earliest line that says
something is the cause. A mounted ConfigMap or ENGINEFLEET_FAILURES gives another table, so that a new text needs no release of ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from pydantic import Field

from enginefleet_api.base import Contract
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, FailureClass, PermanentError, TransientFault

from ..tables import DatedTable, Replaceable, without
from .classify import crashed

FAILURES_VARIABLE = "ENGINEFLEET_FAILURES"
MOST_LINES = 20_000
"""Log lines that are looked at, the first ones: a cause stands early."""
LINE_LENGTH = 400
LAST_LINES = 3
OWN_WORDS = ("library",)
"""What a sentence may name besides the groups of its pattern."""

Doing = Literal["start", "parse", "build", "load", "run", "timings", "inspect"]

CLASSES: dict[FailureClass, type[EngineFleetError]] = {
    FailureClass.PERMANENT: PermanentError,
    FailureClass.ENVIRONMENT: EnvironmentFault,
    FailureClass.TRANSIENT: TransientFault,
}
_UNKNOWN = {
    "start": "NotStarted",
    "parse": "ParseFailed",
    "build": "BuildFailed",
    "load": "NotLoadable",
}
_LEVELS = re.compile(
    r"^\W*(?:[\d/:.\- ]+\W+)?(?:TRT\W+)?(?P<level>INTERNAL[_ ]ERROR|ERROR|WARNING|INFO|VERBOSE|[FEWIV])(?:\]|:|\b)", re.IGNORECASE
)
"""`[E] …`, `ERROR: …`, `[12/02/2026-10:00:00] [E] …`, `[TRT] [E] …`"""


class After(Contract):
    """What a failure is when an earlier line, of any level, says `pattern`."""

    pattern: str
    reason: str
    what: str
    hint: str


class Failure(Contract):
    """A line that `pattern` is found in. `what` and `hint` may name its groups, and `library`."""

    pattern: str
    reason: str = Field(pattern=r"^[A-Z][A-Za-z0-9]+$")
    failure_class: FailureClass = Field(alias="class")
    severity: Literal["error", "warning"] = "error"
    """A warning is kept in the record and never the cause of a failure."""
    what: str
    hint: str
    after: list[After] = Field(default_factory=list)
    references: list[str] = Field(default_factory=list)
    """Public threads, owner/repository#number."""


class Table(DatedTable):
    """In order: of two that one line has, the first decides."""

    failures: list[Failure]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`error`: to raise. `layer`: the layer without an implementation, as TensorRT calls it; empty when none is named."""

    error: EngineFleetError
    line: str = ""
    layer: str = ""


def _check(table: Table) -> None:
    for entry in table.failures:
        _check_entry(entry)


def _check_entry(entry: Failure) -> None:
    groups = {*re.compile(entry.pattern).groupindex, *OWN_WORDS}
    for later in entry.after:
        re.compile(later.pattern)
    for text in (entry.what, entry.hint, *(words for later in entry.after for words in (later.what, later.hint))):
        if unknown := {name for _, name, _, _ in Formatter().parse(text) if name is not None} - groups:
            raise ValueError(f"{entry.reason}: {sorted(unknown)} in {text!r} is no group of its pattern")


_TABLE = Replaceable(
    Path(__file__).with_name("failures.json"), Table, _check, of="failures", reason="FailuresInvalid", variable=FAILURES_VARIABLE
)
load, chosen = _TABLE.load, _TABLE.chosen


def left_aside() -> list[str]:
    """Warnings of tables that are not used."""
    return [f"{problem.reason}: {without(problem)}" for problem in chosen().problems]


def classify(lines: Sequence[str], *, doing: str, facts: Mapping[str, Any]) -> EngineFleetError:
    """What failed while `doing` (start, parse, build, load, run, timings, inspect), from the log. Never raises for a strange log.

    `facts`, each optional: `library` ("TensorRT 8.6.0"); `exitCode` of a process that ended without an answer, as subprocess gives it;
    `oomKilled`, whether the kernel killed it for memory; `memoryLimit` and `memoryAvailable`, bytes; `gpu`, whether there is one;
    `opset` of the model and `parserOpset`, the newest that the parser's documentation names.
    """
    return diagnose(lines, doing=doing, facts=facts).error


def diagnose(lines: Sequence[str], *, doing: str, facts: Mapping[str, Any]) -> Diagnosis:
    """As `classify`, with what a remedy needs."""
    log = [_clean(line) for line in lines[:MOST_LINES] if line.strip()]
    spoken = _errors(log)
    words = {"library": _clean(str(facts.get("library") or "TensorRT"))}
    layer = _layer(log)
    code = facts.get("exitCode")
    if isinstance(code, int) and facts.get("oomKilled"):
        return Diagnosis(_killed_for_memory(facts), layer=layer)
    found = _cause(log, spoken, words)
    opset, takes = facts.get("opset"), facts.get("parserOpset")
    # above its opset a parser fails with words that name something else; only a cause outside of the model goes before
    newer = isinstance(opset, int) and isinstance(takes, int) and opset > takes
    if doing == "parse" and newer and (found is None or found.error.failure_class is FailureClass.PERMANENT):
        said = f" It said: {_sentence(spoken[0])}" if spoken else ""
        message = f"the model has opset {opset}, the parser of {words['library']} takes {takes} as far as is documented.{said}"
        return Diagnosis(PermanentError("OpsetTooNew", message, f"Export the model with opset {takes} or lower."))
    if found is not None:
        return Diagnosis(found.error, found.line, layer)
    if isinstance(code, int):
        if facts.get("gpu") is False:
            message = (
                f"{words['library']} ended with {'signal' if code < 0 else 'exit code'} {abs(code)}, and there is no GPU that it may use."
            )
            return Diagnosis(
                EnvironmentFault("NoGPU", message, "Check the node's driver and the HardwareClass's runtimeClassName and resources.")
            )
        # a shell reports signal n as 128 + n
        return Diagnosis(crashed(128 - code if 128 < code < 160 else code, "\n".join(spoken or log)), layer=layer)
    reason = _UNKNOWN.get(doing, "InferenceFailed")
    said = " … ".join(_sentence(line) for line in _first_and_last(spoken or log)) or "It logged nothing."
    hint = "The log has more; try the model with trtexec of the same release." if doing in ("parse", "build") else "The log has more."
    # a text that is not known here may be known to the table that was to be used
    hint = " ".join([hint, *left_aside()])
    return Diagnosis(PermanentError(reason, f"{words['library']} failed to {doing}. {said}", hint), (spoken or [""])[0], layer)


def warnings(lines: Sequence[str], *, library: str = "TensorRT") -> list[str]:
    """`Reason: sentence` for each warning of the table that the log has, each once: for the build's record."""
    words, table = {"library": library}, load().failures
    found = (
        f"{entry.reason}: {_said(entry.what, match, words)}."
        for line in lines[:MOST_LINES]
        for entry in table
        if entry.severity == "warning" and (match := re.search(entry.pattern, line))
    )
    return list(dict.fromkeys(found))


def nodes_of(layer: str) -> list[str]:
    """The names of ONNX nodes and weights that a fused layer's name is made of: `a.weight + /a/QuantizeLinear + PWN(/b/Sigmoid, /b/Mul)`."""
    bare = re.sub(r"\b(?:PWN|ForeignNode|COPY|Myelin\w*)\s*(?=[(\[{])|[(){}\[\]]", " ", layer)
    parts = re.split(r"\s*(?:\+|\|\||,|\.{3}|…)\s*", bare)
    return list(dict.fromkeys(part.strip() for part in parts if part.strip()))


# ---- lines ----


def _clean(line: str) -> str:
    """Names in a log come out of the model: printable and of bounded length."""
    text = "".join(character if character.isprintable() else " " for character in line[: 4 * LINE_LENGTH])
    return " ".join(text.split())[:LINE_LENGTH]


def _errors(log: Sequence[str]) -> list[str]:
    """Lines that say to be errors; where none does, those that do not say to be less."""
    levels = [(line, match["level"].upper() if (match := _LEVELS.match(line)) else "") for line in log]
    marked = [line for line, level in levels if level in ("F", "E", "ERROR", "INTERNAL_ERROR", "INTERNAL ERROR")]
    return marked or [line for line, level in levels if not level]


def _cause(log: Sequence[str], spoken: Sequence[str], words: Mapping[str, str]) -> Diagnosis | None:
    for line in spoken:
        for entry in load().failures:
            match = re.search(entry.pattern, line) if entry.severity == "error" else None
            if match is None:
                continue
            earlier = log[: log.index(line)]
            for after in entry.after:
                if memory := next((other for other in earlier if re.search(after.pattern, other)), None):
                    message = f"{_said(after.what, match, words)}. Before that: {_sentence(memory)}"
                    return Diagnosis(CLASSES[entry.failure_class](after.reason, message, _said(after.hint, match, words)), line)
            first = "" if line == spoken[0] else f" Before that: {_sentence(spoken[0])}"
            message = f"{_said(entry.what, match, words)}. It said: {_sentence(line)}{first}"
            return Diagnosis(CLASSES[entry.failure_class](entry.reason, message, _said(entry.hint, match, words)), line)
    return None


def _layer(log: Sequence[str]) -> str:
    for line in log:
        for entry in load().failures:
            if "(?P<layer>" in entry.pattern and (match := re.search(entry.pattern, line)):
                layer = match["layer"]
                # a pattern takes a bracket at the end for that of the sentence
                return layer + ")" * (layer.count("(") - layer.count(")"))
    return ""


def _said(text: str, match: re.Match[str], words: Mapping[str, str]) -> str:
    return text.format_map({name: (value or "?")[:200] for name, value in match.groupdict().items()} | dict(words))


def _sentence(line: str) -> str:
    return line.rstrip(". ") + "."


def _first_and_last(lines: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*lines[:1], *lines[-LAST_LINES:]]))


def _killed_for_memory(facts: Mapping[str, Any]) -> PermanentError:
    limit, available = facts.get("memoryLimit"), facts.get("memoryAvailable")
    have = f"; its limit is {limit} bytes" if isinstance(limit, int) else ""
    have += f"; {available} bytes were available" if isinstance(available, int) else ""
    message = f"the kernel killed the engine's process because memory ran out{have}."
    return PermanentError("OutOfMemory", message, "Raise the class's memory limit, lower spec.build.workspace, or use a smaller batch.")
