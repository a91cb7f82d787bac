"""Under which conditions a figure was measured, and what of them makes it doubtful. Pure: build/watch.py reads, this decides.

A mark is `kind: sentence`. A figure that is `throttled` or `shared` says little about the engine, so that a speed gate on it is Inconclusive; one
that is `unsettled` was still changing when it was taken, and is Inconclusive too. Only a sustained run may be throttled: it is there to show that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

THROTTLED, SHARED, UNSETTLED = "throttled", "shared", "unsettled"
NO = "no"
"""What device.State says of clocks that are not held down."""

MOST_WAITED = 0.10
"""Share of their time that the engine's threads may wait for a CPU that others hold: the scheduler's own share is far below it."""
MOST_LIMITED = 0.02
"""Share of the time in which the container's CPU limit may hold it back."""
MOST_LOAD = 10.0
"""Percent of load that an idle device may have: its display, and the error of a load file that is an average."""
CLOCK_MOVES = 0.05
"""Share by which the device's clocks may differ between beginning and end."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at machine and engine. Times are seconds; None: this machine does not tell.

    `ran`, `waited`: of the engine's threads so far, on a CPU and ready for one. `limited`: how long the container's CPU limit held it back so
    far. `context`: texts by name, as device.State.text() gives them.
    """

    at: float
    ran: float | None = None
    waited: float | None = None
    limited: float | None = None
    context: Mapping[str, str] = field(default_factory=dict)


def marks(idle: Reading, before: Reading, after: Reading, *, engines: int = 1) -> list[str]:
    """Of what was measured between `before` and `after`. `idle`: before any of our `engines` was loaded, so what runs there is others'."""
    return [
        *_limited(before, after),
        *_waited(before, after),
        *_throttled(before, after),
        *_clocks(before, after),
        *_others(idle, after, engines),
    ]


def kinds(found: Sequence[str]) -> set[str]:
    return {mark.partition(":")[0] for mark in found}


def _limited(before: Reading, after: Reading) -> list[str]:
    if before.limited is None or after.limited is None or after.at <= before.at:
        return []
    share = (after.limited - before.limited) / (after.at - before.at)
    return [f"{THROTTLED}: the container's CPU limit held it back for {share:.0%} of the time"] if share > MOST_LIMITED else []


def _waited(before: Reading, after: Reading) -> list[str]:
    if before.ran is None or after.ran is None or before.waited is None or after.waited is None:
        return []
    ran, waited = after.ran - before.ran, after.waited - before.waited
    share = waited / (ran + waited) if waited > 0 and ran + waited > 0 else 0.0
    return [f"{SHARED}: the engine's threads waited {share:.0%} of their time for a CPU"] if share > MOST_WAITED else []


def _throttled(before: Reading, after: Reading) -> list[str]:
    named = (reading.context.get("throttled", NO) for reading in (before, after))
    found = list(dict.fromkeys(reason for text in named if text != NO for reason in text.split(", ")))
    return [f"{THROTTLED}: the GPU's clocks were held down ({', '.join(found)})"] if found else []


def _clocks(before: Reading, after: Reading) -> list[str]:
    first, last = (_number(reading.context.get("smClock")) for reading in (before, after))
    if not first or last is None or abs(last - first) <= CLOCK_MOVES * first:
        return []
    kind = THROTTLED if last < first else UNSETTLED
    return [f"{kind}: the GPU's clock went from {before.context['smClock']} to {after.context['smClock']} while it was measured"]


def _others(idle: Reading, after: Reading, engines: int) -> list[str]:
    """Processes where they can be counted; JetPack up to 6 cannot list them, but its load file tells that there are some."""
    there, then = (_number(reading.context.get("gpuProcesses")) for reading in (idle, after))
    if there:
        return [f"{SHARED}: other processes on the GPU before the engine was loaded: {there:g}"]
    if there is not None and then is not None and then > engines:
        return [f"{SHARED}: {then:g} processes on the GPU after measuring, {engines} of them our own"]
    load = _number(idle.context.get("gpuLoad"))
    if there is None and load is not None and load > MOST_LOAD:
        return [f"{SHARED}: the GPU had {load:g} % of load before the engine was loaded"]
    return []


def _number(text: str | None) -> float | None:
    """The first number of a text such as `1980 MHz`."""
    found = re.search(r"\d+(\.\d+)?", text or "")
    return float(found[0]) if found else None
