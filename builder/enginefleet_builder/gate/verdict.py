"""The answer of the gate: a pure function of measured numbers and what was asked for.

Fail needs a number beyond its threshold; Pass needs every threshold that was set to be met by known numbers. All else is Inconclusive:
missing or too few data, NaN, a required class that is missing, a threshold that this task cannot be judged by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from enginefleet_api.base import seconds
from enginefleet_api.documents import Answer, Latency, Metric
from enginefleet_api.resources import AccuracyAcceptance, SpeedAcceptance

from .metrics import DISTANCES, number

MIN_CLASS_SAMPLES = 10
"""Below this many samples a class's share says nothing: a required one is inconclusive, others are not judged."""

Finding = tuple[Answer, str]
PASS, FAIL, INCONCLUSIVE = Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE


def decide_verdict(
    baseline: Metric | None,
    candidate: Metric | None,
    acceptance: AccuracyAcceptance,
    min_samples: int,
    *,
    required_classes: Sequence[str] = (),
    latency: Sequence[Latency] = (),
    speed: SpeedAcceptance | None = None,
) -> tuple[Answer, list[str]]:
    """(answer, reasons): one sentence a reason, with the numbers. `baseline` and `candidate` are of the same samples."""
    findings = list(_accuracy(baseline, candidate, acceptance, min_samples, required_classes)) + list(_speed(latency, speed))
    answers = {answer for answer, _ in findings}
    answer = FAIL if FAIL in answers else INCONCLUSIVE if INCONCLUSIVE in answers or PASS not in answers else PASS
    order = {FAIL: 0, INCONCLUSIVE: 1, PASS: 2}
    return answer, [reason for _, reason in sorted(findings, key=lambda finding: order[finding[0]])]


def _accuracy(
    baseline: Metric | None, candidate: Metric | None, acceptance: AccuracyAcceptance, min_samples: int, required: Sequence[str]
) -> Iterator[Finding]:
    if candidate is None:
        yield INCONCLUSIVE, "accuracy was not measured: there is no validation set"
        return
    if baseline is None:
        yield INCONCLUSIVE, "there is no FP32 baseline to compare with"
        return
    name = candidate.name
    value, wanted = number(candidate.value), number(baseline.value)
    if baseline.name != name:
        yield INCONCLUSIVE, f"the baseline measured {baseline.name}, the engine {name}"
    elif candidate.samples != baseline.samples:
        yield INCONCLUSIVE, f"{name} was measured on {candidate.samples} samples, the baseline on {baseline.samples}"
    elif candidate.samples < max(1, min_samples):
        yield INCONCLUSIVE, f"{name} was measured on {candidate.samples} samples, the minimum is {max(1, min_samples)}"
    elif value is None:
        yield INCONCLUSIVE, f"{name} of the engine is {candidate.value}: its outputs hold NaN or infinite values"
    elif wanted is None:
        yield INCONCLUSIVE, f"{name} of the baseline is {baseline.value}"
    elif acceptance.minimum is None and acceptance.max_drop is None:
        yield INCONCLUSIVE, f"no threshold is set: acceptance has neither minimum nor maxDrop for {name} {_short(value)}"
    else:
        yield from _overall(name, value, wanted, acceptance)
        yield from _classes(name, baseline, candidate, acceptance, required)
        if acceptance.operating_point is not None:
            yield INCONCLUSIVE, f"operatingPoint cannot be judged for {name}"


def _overall(name: str, value: Decimal, wanted: Decimal, acceptance: AccuracyAcceptance) -> Iterator[Finding]:
    rises = name == "max_abs_error"
    if (minimum := _threshold(acceptance.minimum)) is not None:
        if rises:
            yield INCONCLUSIVE, f"minimum cannot be judged for {name}, which is better when lower: use maxDrop"
        elif value < minimum:
            yield FAIL, f"{name} {_short(value)} is below the minimum {_short(minimum)}"
        else:
            yield PASS, f"{name} {_short(value)} is at least the minimum {_short(minimum)}"
    if (allowed := _threshold(acceptance.max_drop)) is not None:
        drop, verb = (value - wanted, "rose") if rises else (wanted - value, "fell")
        if drop > allowed:
            yield FAIL, f"{name} {verb} by {_short(drop)}, allowed {_short(allowed)} (baseline {_short(wanted)}, engine {_short(value)})"
        else:
            yield PASS, f"{name} {verb} by {_short(max(drop, Decimal(0)))}, allowed {_short(allowed)}"


def _classes(name: str, baseline: Metric, candidate: Metric, acceptance: AccuracyAcceptance, required: Sequence[str]) -> Iterator[Finding]:
    allowed = _threshold(acceptance.max_drop_per_class)
    if name in DISTANCES:
        if required or allowed is not None:
            yield INCONCLUSIVE, f"classes cannot be judged for {name}"
        return
    enough = [label for label, samples in candidate.class_samples.items() if samples >= MIN_CLASS_SAMPLES]
    for label in required:
        samples = candidate.class_samples.get(label, 0)
        if samples < MIN_CLASS_SAMPLES:
            yield INCONCLUSIVE, f"required class {label} has {samples} samples, the minimum is {MIN_CLASS_SAMPLES}"
    if allowed is None:
        return
    judged = [label for label in required or enough if label in enough]
    if not judged:
        yield INCONCLUSIVE, f"no class has the {MIN_CLASS_SAMPLES} samples that maxDropPerClass needs"
    for label in judged:
        before, after = number(baseline.per_class.get(label)), number(candidate.per_class.get(label))
        if before is None or after is None:
            yield INCONCLUSIVE, f"{name} of class {label} is unknown"
        elif before - after > allowed:
            yield FAIL, f"{name} of class {label} fell by {_short(before - after)}, allowed {_short(allowed)}"


def _speed(latency: Sequence[Latency], speed: SpeedAcceptance | None) -> Iterator[Finding]:
    if speed is None:
        return
    if speed.min_speedup is not None:
        yield INCONCLUSIVE, "minSpeedup was not measured: it needs a partner engine"
    if speed.p95 is None and speed.throughput is None:
        return
    mine = next((item for item in latency if item.batch == speed.batch_size), None)
    if mine is None:
        yield INCONCLUSIVE, f"batch size {speed.batch_size} was not measured (measured: {[item.batch for item in latency]})"
        return
    yield from _p95(mine, speed)
    yield from _throughput(mine, speed)


def _p95(mine: Latency, speed: SpeedAcceptance) -> Iterator[Finding]:
    if speed.p95 is None:
        return
    limit, p95 = Decimal(str(seconds(speed.p95))) * 1000, number(mine.p95)
    if p95 is None or p95 < 0:
        yield INCONCLUSIVE, f"p95 at batch {mine.batch} is {mine.p95}"
    elif p95 > limit:
        yield FAIL, f"p95 {_short(p95)} ms at batch {mine.batch} is above the limit {_short(limit)} ms"
    else:
        yield PASS, f"p95 {_short(p95)} ms at batch {mine.batch} is within {_short(limit)} ms"


def _throughput(mine: Latency, speed: SpeedAcceptance) -> Iterator[Finding]:
    if (floor := _threshold(speed.throughput)) is None:
        return
    rate = number(mine.throughput)
    if rate is None:
        yield INCONCLUSIVE, f"throughput at batch {mine.batch} is {mine.throughput}"
    elif rate < floor:
        yield FAIL, f"throughput {_short(rate)}/s at batch {mine.batch} is below the minimum {_short(floor)}/s"
    else:
        yield PASS, f"throughput {_short(rate)}/s at batch {mine.batch} is at least {_short(floor)}/s"


def _threshold(value: str | None) -> Decimal | None:
    return None if value is None else Decimal(value)


def _short(value: Decimal) -> str:
    """4 to 6 decimals: enough to tell a value from its threshold."""
    whole, _, decimals = f"{value:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(4, '0')}"
