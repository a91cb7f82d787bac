"""Which variant of a model a fingerprint gets: the remedy ladder and `precision: auto`, as one pure function.

Variants are tried in the order of the ladder. One that fails its gate (or cannot be made) gives way to the next. One that passes ends the search
within its precision; each further precision is built and measured too, and the fastest that passed is taken. All are measured beside FP32, so that
an engine in FP32 is built only where nothing that passed is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Generic, Protocol, TypeVar

from enginefleet_api.errors import FailureClass
from enginefleet_api.resources import EngineBuildStatus
from enginefleet_api.variants import Variant

HYSTERESIS = Decimal("1.05")
"""A variant must be this much faster than the one that serves to take its place: measurements scatter, restarts cost."""
FP32 = Variant(precision="fp32")


class Named(Protocol):
    @property
    def name(self) -> str: ...


W = TypeVar("W", bound=Named)


@dataclass(frozen=True, slots=True)
class Rung(Generic[W]):
    """One variant that was tried or is being tried. `want` None: it could not be prepared, `failure` says why."""

    variant: Variant
    want: W | None
    status: EngineBuildStatus | None = None
    failure: str = ""

    @property
    def state(self) -> str:
        if self.want is None:
            return "Failed"
        return (self.status.phase if self.status is not None else "") or "Waiting"

    @property
    def message(self) -> str:
        return self.failure or (self.status.message if self.status is not None else "")


@dataclass(frozen=True, slots=True)
class Ladder(Generic[W]):
    rungs: tuple[Rung[W], ...]
    """Those that were tried, in order; the last one may be at work."""
    chosen: Rung[W] | None
    """The one whose engine may serve."""
    needs: Variant | None
    """The next one, which prepare has not made yet."""

    @property
    def current(self) -> Rung[W] | None:
        """What stands for the fingerprint: the one that may serve, else the last one tried that has an engine to build."""
        return self.chosen or next((r for r in reversed(self.rungs) if r.want is not None), None)


def climb(
    order: tuple[Variant, ...],
    made: Mapping[str, str],
    want: Callable[[Variant], W],
    statuses: Mapping[str, EngineBuildStatus],
    serving: frozenset[str] = frozenset(),
) -> Ladder[W]:
    """`made`: variant id → why it could not be made, "" where it was. `statuses`, `serving`: by name of what is wanted."""
    rungs: list[Rung[W]] = []
    needs: Variant | None = None
    for variant in order:
        if _beaten(variant, [r for r in rungs if r.state == "Passed"]):
            continue
        if variant.id not in made:
            needs = variant
            break
        if made[variant.id]:
            rungs.append(Rung(variant, None, failure=made[variant.id]))
            continue
        wanted = want(variant)
        rung = Rung(variant, wanted, statuses.get(wanted.name))
        rungs.append(rung)
        if not _gives_way(rung):
            break
    passed = [r for r in rungs if r.state == "Passed"]
    if passed and _is_compared(rungs[-1]) and not any(r.want is not None and r.want.name in serving for r in passed):
        return Ladder(tuple(rungs), None, needs)
    return Ladder(tuple(rungs), _fastest(passed, serving), needs)


def _beaten(variant: Variant, passed: list[Rung[W]]) -> bool:
    """Whether there is nothing to gain from it: its precision has passed already, or what passed is known to be as fast as it."""
    if not passed:
        return False
    speeds = [_speedup(rung) for rung in passed]
    known = [speed for speed in speeds if speed is not None]
    if len(known) < len(speeds) or variant.precision in {rung.variant.precision for rung in passed}:
        return True  # without a speed there is nothing to compare by
    return variant == FP32 and max(known) >= 1


def _is_compared(rung: Rung[W]) -> bool:
    """Whether it is at work, so that in minutes it is known which one is the fastest: pods are not moved twice for that.

    What waits for a device, or for another attempt, may wait for long: it keeps nothing from being served.
    """
    return rung.want is not None and (rung.status is None or rung.status.phase in ("", "Building"))


def _gives_way(rung: Rung[W]) -> bool:
    """Whether the next variant is to be tried."""
    status = rung.status
    if status is None:
        return False
    if status.phase == "Passed":
        return True
    last = status.build.last_failure if status.build is not None else None
    return status.phase == "Failed" and last is not None and last.failure_class == FailureClass.PERMANENT.value


def _fastest(passed: list[Rung[W]], serving: frozenset[str]) -> Rung[W] | None:
    """The first one wins where speeds are not known; the one that serves keeps its place within HYSTERESIS."""
    best: Rung[W] | None = None
    for rung in passed:
        if best is None or (_speedup(rung) or Decimal(0)) > (_speedup(best) or Decimal(0)):
            best = rung
    if best is None:
        return None
    for rung in passed:
        if (
            rung.want is not None
            and rung.want.name in serving
            and (_speedup(rung) or Decimal(0)) * HYSTERESIS >= (_speedup(best) or Decimal(0))
        ):
            return rung
    return best


def _speedup(rung: Rung[W]) -> Decimal | None:
    """Against FP32 beside it; FP32 itself is 1."""
    if rung.variant == FP32:
        return Decimal(1)
    try:
        value = Decimal(rung.status.speedup) if rung.status is not None and rung.status.speedup else None
    except InvalidOperation:
        return None
    return value if value is not None and value.is_finite() else None
