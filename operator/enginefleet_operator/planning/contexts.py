"""Contexts: what of a node may change the speed or accuracy of an engine without making another device of it (driver, power mode).

An engine is judged once in each context that nodes of its fingerprint are in. That is read from the nodes and from the EngineBuild every time:
there is no such thing as a change that could be missed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.resources import AttemptState, EngineBuildStatus, JudgedContext, NodeFingerprintSpec

from . import retry

MOST = 20
"""Contexts that an EngineBuild tells of: those that nodes are in, and the newest others."""


@dataclass(frozen=True, slots=True)
class Context:
    """A context that nodes of one fingerprint are in now."""

    key: str
    facts: Mapping[str, str]
    nodes: tuple[str, ...]

    @property
    def words(self) -> str:
        return fingerprint.context_words(self.facts)


def of_node(found: NodeFingerprintSpec | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """`facts`: of the device. Empty where nothing is told."""
    return fingerprint.judged_context(found.host.context, facts) if found is not None and found.host is not None else {}


def common(fingerprints: Mapping[str, NodeFingerprintSpec], nodes: Sequence[str]) -> dict[str, Any]:
    """All that is told of the context of `nodes`, as far as they agree."""
    told = [found.host.context if (found := fingerprints.get(node)) is not None and found.host is not None else {} for node in nodes]
    return {name: value for name, value in told[0].items() if all(one.get(name) == value for one in told)} if told else {}


def present(fingerprints: Mapping[str, NodeFingerprintSpec], nodes: Sequence[str], facts: Mapping[str, Any]) -> list[Context]:
    """The contexts that `nodes` are in, by key; nodes of which nothing is told are in none."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node in nodes:
        alike.setdefault(tuple(of_node(fingerprints.get(node), facts).items()), []).append(node)
    found = [Context(fingerprint.context_key(dict(judged)), dict(judged), tuple(names)) for judged, names in alike.items() if judged]
    return sorted(found, key=lambda context: context.key)


def first(own: Mapping[str, str], told: Mapping[str, str], answer: str, node: str, now: float) -> list[JudgedContext]:
    """The record of an engine that was judged just now: `told` by the verdict, the rest as its node is (`own`)."""
    judged = {**own, **told}
    if not (key := fingerprint.context_key(judged)):
        return []
    return [JudgedContext.model_validate({"key": key, "facts": judged, "answer": answer, "at": retry.timestamp(now), "node": node})]


def assumed(contexts: Sequence[Context], now: float) -> list[JudgedContext]:
    """For an engine that served before contexts were looked at: an upgrade of the operator judges nothing."""
    at = retry.timestamp(now)
    return [JudgedContext.model_validate({"key": c.key, "facts": c.facts, "answer": "Assumed", "at": at}) for c in contexts[:MOST]]


def is_new(context: Context, known: Sequence[JudgedContext], live: Collection[str]) -> bool:
    """Whether a context that is not among the `known` ones is to be judged. `live`: keys of those that nodes are in.

    Not while something is not told that was told before: a driver that is not loaded yet, an agent that has just begun."""
    room = sum(record.key in live for record in known) < MOST
    return room and not any(context.facts.keys() < record.facts.keys() for record in known)


def kept(records: Sequence[JudgedContext], live: Collection[str]) -> list[JudgedContext]:
    """At most MOST, in their order: first go the oldest of those that no node is in."""
    surplus = len(records) - MOST
    gone = [record.key for record in records if record.key not in live][: max(surplus, 0)]
    return [record for record in records if record.key not in gone][:MOST]


def again(records: Sequence[JudgedContext]) -> list[JudgedContext]:
    """For `enginefleet.io/retry`: what did not pass is judged again."""
    return [
        record.model_copy(update={"answer": "", "reasons": [], "attempt": retry.reset(record.attempt)})
        if record.answer not in ("Pass", "Assumed")
        else record
        for record in records
    ]


@dataclass(frozen=True, slots=True)
class Below:
    """An engine that serves in a context in which it does not pass its gate, or could not be judged."""

    context: Context
    reason: str
    message: str


def below(contexts: Sequence[Context], status: EngineBuildStatus) -> list[Below]:
    """What is to be said of an engine that serves in `contexts`."""
    known = {record.key: record for record in status.contexts}
    found: list[Below] = []
    for context in contexts:
        record = known.get(context.key)
        if record is None or record.answer in ("Pass", "Assumed"):
            continue
        last = record.attempt.last_failure if record.attempt is not None and _lasts(record.attempt) else None
        where = f"{context.words} ({_nodes(context.nodes)})"
        if record.answer == "Fail":
            found.append(Below(context, "GateFailed", f"{where}: {'; '.join(record.reasons) or 'no reason given'}"))
        elif record.answer == "Inconclusive":
            found.append(Below(context, "GateInconclusive", f"{where}: {'; '.join(record.reasons) or 'no reason given'}"))
        elif last is not None:
            found.append(Below(context, last.reason, f"{where}: it could not be judged: {last.message} {last.hint}".rstrip()))
    return found


def waiting(contexts: Sequence[Context], status: EngineBuildStatus) -> list[str]:
    """Contexts in which it is still to be judged, and what that waits for."""
    told = {one.context.key for one in below(contexts, status)}
    known = {record.key: record for record in status.contexts}
    open_ = [(c, known[c.key].message) for c in contexts if c.key in known and not known[c.key].answer and c.key not in told]
    return [f"{context.words} ({_nodes(context.nodes)}): {message or 'it is about to be judged.'}" for context, message in open_]


def _lasts(state: AttemptState) -> bool:
    return retry.is_permanent(state) or state.in_a_row >= retry.STALLED_AFTER


def _nodes(nodes: Sequence[str]) -> str:
    return f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}: {', '.join(sorted(nodes)[:3])}{' …' if len(nodes) > 3 else ''}"
