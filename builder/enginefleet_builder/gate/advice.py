"""Before anything is built: whether the validation set can tell a drop as small as the gate allows. Pure; docs/gate.md says what is taken for granted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

from enginefleet_api.documents import Metric
from enginefleet_api.resources import Validation

from .metrics import number
from .verdict import samples_needed

SHARE = Decimal("0.5")
"""Width of a drop's interval by that of FP32's own value, which is all that is known so far. Quantized networks had 0.3 to 1 (docs/benchmarks/accuracy.md)."""
COUNTED = ("top1", "top5")
"""Metrics of which each sample is worth 1 / n."""
ONE_LOST = 3
"""Of n samples one is lost: the upper end of the drop's interval is about 3 / n (the 97.5th percentile of a Poisson distribution of mean 1)."""


@dataclass(frozen=True, slots=True)
class Advice:
    samples: int
    """About how many an engine that is as good as FP32 needs to pass."""
    note: str
    """One sentence; empty where the set has as many."""


def advise(baseline: Metric, validation: Validation, available: int) -> Advice | None:
    """`baseline`: FP32's metric of all samples; `available`: samples of the set. None where maxDrop is not set, or nothing can be said of the metric."""
    allowed = number(validation.acceptance.max_drop)
    low, high = (number(bound) for bound in baseline.interval) if len(baseline.interval) == 2 else (None, None)
    # the worst sample's distance does not get better known with more samples
    if allowed is None or allowed <= 0 or low is None or high is None or validation.task == "outputs":
        return None
    half = (high - low) / 2
    for_spread = samples_needed(baseline.samples, Decimal(0), half * SHARE, allowed) or 1
    for_one = math.ceil(ONE_LOST / allowed) if baseline.name in COUNTED else 1
    needed = max(for_spread, for_one)
    return Advice(needed, _note(baseline, validation, available, allowed, half, needed, for_one >= for_spread))


def _note(baseline: Metric, validation: Validation, available: int, allowed: Decimal, half: Decimal, needed: int, by_one: bool) -> str:
    limit = validation.on_device.max_samples
    judged = min(available, limit)
    if judged >= needed:
        return ""
    name = baseline.name
    if by_one:
        largest = Decimal(math.ceil(ONE_LOST * 1000 / judged)) / 1000
        why = f"one sample that is lost leaves a drop of {largest} possible, so that only an engine that loses none can pass"
    else:
        why = f"FP32's {name} itself is known to ±{half:.4f}, and a drop is seldom known better than to half of that"
    do = f"add samples, up to about {needed}" if available < needed else f"raise onDevice.maxSamples to about {needed}"
    return f"{judged} samples are few for maxDrop {allowed} of {name}: {why}; {do}, and set minSamples to it"
