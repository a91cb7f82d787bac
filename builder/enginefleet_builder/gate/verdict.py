"""The answer of the gate: a pure function of measured numbers and what was asked for. docs/gate.md explains it with numbers.

A drop passes when the upper end of its 95 % interval is within what is allowed, fails when the drop itself is beyond it, and is Inconclusive in
between: these samples cannot tell it from noise. A minimum is judged by the value alone: it says what must be reached on this data set. All
that is unknown is Inconclusive, never Pass: missing or too few data, a required class that is missing, a threshold that this task cannot be
judged by, a speed that was measured while the device was throttled or shared. Outputs that are NaN where FP32's are not fail, and so do outputs
that depend on what else is in the batch: nothing will cure them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from enginefleet_api.base import seconds
from enginefleet_api.documents import Accuracy, Answer, AtOperatingPoint, Consistency, Latency, Part, Speedup
from enginefleet_api.resources import SpeedAcceptance, Validation

from .conditions import THROTTLED
from .metrics import number

Finding = tuple[Answer, str]
PASS, FAIL, INCONCLUSIVE = Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE
LEAST_ALIKE = Decimal("0.99")
"""Cosine between an output of a sample alone and in a batch: kernels for other batch sizes round otherwise, and stay far above it."""
RISING = ("max_abs_error",)
"""Metrics that are better when lower; so is a user's own when it says so."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`reasons`: one sentence each, with the numbers. `needed`: samples that would tell, where these are too few.

    `lasting`: the samples leave it open, and they will be the same the next time.
    """

    answer: Answer
    reasons: list[str]
    needed: int | None = None
    lasting: bool = False


@dataclass(slots=True)
class _Needs:
    samples: list[int] = field(default_factory=list)


def decide(
    accuracy: Accuracy | None,
    validation: Validation | None,
    *,
    latency: Sequence[Latency] = (),
    speedup: Speedup | None = None,
    speed: SpeedAcceptance | None = None,
) -> Decision:
    needs = _Needs()
    of_samples = list(_accuracy(accuracy, validation, needs))
    findings = [*of_samples, *_speed(latency, speedup, speed)]
    answers = {answer for answer, _ in findings}
    answer = FAIL if FAIL in answers else INCONCLUSIVE if INCONCLUSIVE in answers or PASS not in answers else PASS
    order = {FAIL: 0, INCONCLUSIVE: 1, PASS: 2}
    reasons = [reason for _, reason in sorted(findings, key=lambda finding: order[finding[0]])]
    lasting = answer is INCONCLUSIVE and any(one is INCONCLUSIVE for one, _ in of_samples)
    return Decision(answer, reasons, max(needs.samples, default=None), lasting)


def _accuracy(found: Accuracy | None, validation: Validation | None, needs: _Needs) -> Iterator[Finding]:
    if found is None or validation is None:
        yield INCONCLUSIVE, "accuracy was not measured: there is no validation set"
        return
    if found.baseline is None:
        yield INCONCLUSIVE, "there is no FP32 baseline to compare with"
        return
    name, acceptance = found.metric, validation.acceptance
    value, wanted = number(found.value), number(found.baseline)
    least = max(1, validation.min_samples)
    if found.broken:
        yield FAIL, f"outputs of the engine hold NaN or infinite values for {found.broken} of {found.samples} samples, those of FP32 do not"
    elif found.not_finite:
        name, count = max(found.not_finite.items(), key=lambda item: item[1])
        yield (
            FAIL,
            f"output {name} of the engine holds NaN or infinite values for {count} of {found.samples} samples, that of FP32 does not",
        )
    elif (unlike := _unlike(found.consistency)) is not None:
        yield FAIL, unlike
    elif found.samples < least:
        yield INCONCLUSIVE, f"{name} was measured on {found.samples} samples, the minimum is {least}"
    elif value is None:
        yield INCONCLUSIVE, f"{name} of the engine is {found.value}"
    elif wanted is None:
        yield INCONCLUSIVE, f"{name} of the baseline is {found.baseline}"
    elif acceptance.minimum is None and acceptance.max_drop is None:
        yield INCONCLUSIVE, f"no threshold is set: acceptance has neither minimum nor maxDrop for {name} {_short(value)}"
    else:
        yield from _overall(found, value, validation, needs)
        yield from _parts("class", found.classes, validation.required_classes, validation)
        required = validation.subgroups.required if validation.subgroups else []
        yield from _parts("subgroup", found.groups, required, validation)
        yield from _operating(found.operating_point, validation, found.samples, needs)


def _unlike(found: Consistency | None) -> str | None:
    if found is None:
        return None
    cosine = number(found.cosine_min)
    if cosine is not None and cosine >= LEAST_ALIKE:
        return None
    how = f"has a cosine of {_short(cosine)}" if cosine is not None else "is not finite"
    return f"the same samples give other outputs alone than in a batch: {found.worst} {how} to itself alone, the minimum is {_short(LEAST_ALIKE)}"


def _overall(found: Accuracy, value: Decimal, validation: Validation, needs: _Needs) -> Iterator[Finding]:
    name, acceptance, rises = found.metric, validation.acceptance, _rises(validation)
    if (minimum := _threshold(acceptance.minimum)) is not None:
        if rises:
            yield INCONCLUSIVE, f"minimum cannot be judged for {name}, which is better when lower: use maxDrop"
        else:
            yield _floor(name, value, minimum, found.interval)
    if (allowed := _threshold(acceptance.max_drop)) is not None:
        yield _drop(name, found.drop, found.drop_interval, allowed, found.samples, rises, needs, (found.baseline, found.value))


def _floor(what: str, value: Decimal, minimum: Decimal, interval: Sequence[str] = ()) -> Finding:
    if value < minimum:
        return FAIL, f"{what} {_short(value)} is below the minimum {_short(minimum)}"
    low = number(interval[0]) if interval else None
    but = "" if low is None or low >= minimum else f" (its 95 % interval begins at {_short(low)})"
    return PASS, f"{what} {_short(value)} is at least the minimum {_short(minimum)}{but}"


def _drop(
    what: str,
    drop: str | None,
    interval: Sequence[str],
    allowed: Decimal,
    samples: int,
    rises: bool,
    needs: _Needs,
    values: tuple[str | None, str | None] | None = None,
) -> Finding:
    """The rule for drops, of whatever. `samples`: what more of would narrow the interval."""
    fell, upper = number(drop), number(interval[1]) if len(interval) == 2 else None
    verb = "rose" if rises else "fell"
    if fell is None:
        return INCONCLUSIVE, f"the drop of {what} is unknown"
    limit = f"allowed {_short(allowed)}"
    if fell > allowed:
        shown = f" (baseline {_text(values[0])}, engine {_text(values[1])})" if values else ""
        return FAIL, f"{what} {verb} by {_short(fell)}, {limit}{shown}"
    better = fell < 0
    moved = f"{what} {('fell' if rises else 'rose') if better else verb} by {_short(abs(fell))}"
    fell = max(fell, Decimal(0))
    if upper is None:
        return INCONCLUSIVE, f"{moved}, {limit}, but its interval is unknown: too few of the samples have it"
    if upper <= allowed:
        return PASS, f"{moved}, with 95 % confidence {f'it {verb} ' if better else ''}by at most {_short(max(upper, Decimal(0)))}, {limit}"
    needed = samples_needed(samples, fell, upper, allowed)
    doubt = f"{moved}, {limit}, but {samples} samples leave {_short(upper)} possible"
    if needed is None:
        return INCONCLUSIVE, f"{doubt}: a drop that is as large as what is allowed cannot be told from a larger one"
    needs.samples.append(needed)
    return INCONCLUSIVE, f"{doubt}: about {needed} would tell (set minSamples to it)"


def samples_needed(samples: int, drop: Decimal, upper: Decimal, allowed: Decimal) -> int | None:
    """About how many samples bring the upper end of the drop's interval down to `allowed`, if the drop stays: its distance shrinks with their root.

    Two digits, rounded up. None where no number would do.
    """
    if drop >= allowed or upper <= drop:
        return None
    exact = samples * float((upper - drop) / (allowed - drop)) ** 2
    unit = 10 ** max(0, math.floor(math.log10(exact)) - 1)
    return int(math.ceil(exact / unit) * unit)


def _parts(kind: str, parts: Sequence[Part], required: Sequence[str], validation: Validation) -> Iterator[Finding]:
    acceptance, name = validation.acceptance, validation.metric
    of_class = kind == "class"
    allowed = _threshold(acceptance.max_drop_per_class if of_class else acceptance.max_drop_per_subgroup)
    minimum = _threshold(acceptance.minimum_per_class if of_class else acceptance.minimum_per_subgroup)
    asked = allowed is not None or minimum is not None
    if of_class and not parts and (required or asked) and validation.task == "outputs":
        yield INCONCLUSIVE, f"classes cannot be judged for {name}"
        return
    by_name = {part.name: part for part in parts}
    enough = [part.name for part in parts if part.samples >= validation.min_instances]
    unit = "instances" if of_class else "samples"
    for label in required:
        there = by_name[label].samples if label in by_name else 0
        if there < validation.min_instances:
            yield INCONCLUSIVE, f"required {kind} {label} has {there} {unit}, the minimum is {validation.min_instances}"
    if not asked:
        return
    judged = [label for label in required or enough if label in enough]
    if not judged:
        yield INCONCLUSIVE, f"no {kind} has the {validation.min_instances} {unit} that its threshold needs"
    found = []
    for label in judged:
        part, what = by_name[label], f"{name} of {kind} {label}"
        if minimum is not None:
            value = number(part.value)
            found.append((INCONCLUSIVE, f"{what} is {part.value}") if value is None else _floor(what, value, minimum))
        if allowed is not None:
            found.append(_part_drop(what, part, allowed, unit, validation))
    wrong = [finding for finding in found if finding[0] != PASS]
    yield from wrong
    if judged and not wrong:
        yield PASS, f"{name} of each {kind} that is judged ({len(judged)} of {len(parts)}) is within its thresholds"


def _part_drop(what: str, part: Part, allowed: Decimal, unit: str, validation: Validation) -> Finding:
    own = _Needs()
    answer, reason = _drop(what, part.drop, part.drop_interval, allowed, part.samples, _rises(validation), own)
    if own.samples:
        # more of the part means more of all, in proportion; the caller's number is of all
        reason = reason.replace("samples leave", f"{unit} leave").replace(" (set minSamples to it)", f", or a wider {_field(what)}")
    return answer, reason


def _field(what: str) -> str:
    return "maxDropPerSubgroup" if " of subgroup " in what else "maxDropPerClass"


def _operating(found: AtOperatingPoint | None, validation: Validation, samples: int, needs: _Needs) -> Iterator[Finding]:
    point = validation.acceptance.operating_point
    if point is None:
        return
    if found is None:
        yield INCONCLUSIVE, f"operatingPoint cannot be judged for {validation.metric}"
        return
    what = f"recall at confidence {found.confidence}"
    values = (found.baseline_recall, found.recall)
    answer, reason = _drop(what, found.recall_drop, found.drop_interval, Decimal(point.max_recall_drop), samples, False, needs, values)
    shift = "" if found.score_shift is None else f"; scores moved by {found.score_shift} in the median"
    yield answer, reason + shift


def _rises(validation: Validation) -> bool:
    if validation.metric == "python":
        return validation.python is not None and not validation.python.higher_is_better
    return validation.metric in RISING


# ---- speed ----


def _speed(latency: Sequence[Latency], speedup: Speedup | None, speed: SpeedAcceptance | None) -> Iterator[Finding]:
    if speed is None:
        return
    if (floor := _threshold(speed.min_speedup)) is not None:
        yield _speedup(speedup, floor)
    if speed.p95 is None and speed.throughput is None:
        return
    mine = next((item for item in latency if item.batch == speed.batch_size), None)
    if mine is None:
        yield INCONCLUSIVE, f"batch size {speed.batch_size} was not measured (measured: {[item.batch for item in latency]})"
        return
    if doubt := _doubt(mine.marks, sustained=mine.first is not None):
        what = " and ".join(name for name, limit in (("p95", speed.p95), ("throughput", speed.throughput)) if limit is not None)
        yield INCONCLUSIVE, f"{what} at batch {mine.batch} cannot be judged: {doubt}"
        return
    yield from _p95(mine, speed)
    yield from _throughput(mine, speed)


def _doubt(marks: Sequence[str] | None, *, sustained: bool = False) -> str:
    """Why a figure says little about the engine; empty: it does. A sustained run is there to show what throttling makes of the speed."""
    stops = [mark for mark in marks or [] if not (sustained and mark.partition(":")[0] == THROTTLED)]
    return "; ".join(stops)


def _speedup(found: Speedup | None, floor: Decimal) -> Finding:
    """As for drops: the interval must lie above the floor, and a value below it fails."""
    if found is None:
        return INCONCLUSIVE, "minSpeedup was not measured: it needs the model prepared in FP32 as a partner"
    if doubt := _doubt(found.marks):
        return INCONCLUSIVE, f"minSpeedup at batch {found.batch} cannot be judged: {doubt}"
    value, low = number(found.speedup), number(found.interval[0]) if found.interval else number(found.speedup)
    if value is None or low is None:
        return INCONCLUSIVE, f"the speed-up over FP32 is {found.speedup}"
    what = f"{_short(value)} times as fast as FP32 at batch {found.batch}"
    if value < floor:
        return FAIL, f"{what}, the minimum is {_short(floor)}"
    if low < floor:
        return INCONCLUSIVE, f"{what}, the minimum is {_short(floor)}, but its 95 % interval begins at {_short(low)}: times varied too much"
    return PASS, f"{what}, at least the minimum {_short(floor)}"


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


def _text(value: str | None) -> str:
    parsed = number(value)
    return str(value) if parsed is None else _short(parsed)


def _short(value: Decimal) -> str:
    """4 to 6 decimals: enough to tell a value from its threshold."""
    whole, _, decimals = f"{value:.6f}".partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(4, '0')}"
