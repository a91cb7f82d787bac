"""The gate's answer: a table of sentences, and what holds for all numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api.documents import Answer, Latency, Metric
from enginefleet_api.resources import AccuracyAcceptance, OperatingPoint, SpeedAcceptance
from enginefleet_builder.gate.verdict import decide_verdict

PASS, FAIL, INCONCLUSIVE = Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE


def metric(value: str, samples: int = 1000, **changes: Any) -> Metric:
    classes = {"per_class": {"a": value, "b": value}, "class_samples": {"a": samples // 2, "b": samples // 2}}
    return Metric.model_validate({"name": "top1", "value": value, "samples": samples} | classes | changes)


def speed(p95: str = "5.000", throughput: str = "200.0", batch: int = 1) -> list[Latency]:
    return [Latency(batch=batch, p50="4.000", p95=p95, p99="9.000", throughput=throughput, iterations=200)]


BOTH = AccuracyAcceptance(minimum="0.95", max_drop="0.01")
GOOD: dict[str, Any] = {"baseline": metric("0.970000"), "candidate": metric("0.965000"), "acceptance": BOTH, "min_samples": 200}

TABLE: list[tuple[str, dict[str, Any], Answer, str]] = [
    ("passes when every threshold is met", {}, PASS, "top1 0.9650 is at least the minimum 0.9500"),
    (
        "passes at exactly the allowed drop",
        {"candidate": metric("0.960000")},
        PASS,
        "top1 fell by 0.0100, allowed 0.0100",
    ),
    ("passes at exactly the minimum", {"candidate": metric("0.950000"), "baseline": metric("0.950000")}, PASS, "at least the minimum"),
    (
        "fails below the minimum",
        {"candidate": metric("0.912000"), "baseline": metric("0.912000")},
        FAIL,
        "top1 0.9120 is below the minimum 0.9500",
    ),
    (
        "fails when it fell too far",
        {"candidate": metric("0.957000"), "baseline": metric("0.988000")},
        FAIL,
        "top1 fell by 0.0310, allowed 0.0100 (baseline 0.9880, engine 0.9570)",
    ),
    ("a better engine passes", {"candidate": metric("0.990000")}, PASS, "top1 fell by 0.0000"),
    ("is inconclusive without a validation set", {"candidate": None}, INCONCLUSIVE, "accuracy was not measured"),
    ("is inconclusive without a baseline", {"baseline": None}, INCONCLUSIVE, "there is no FP32 baseline"),
    (
        "is inconclusive with too few samples, however good",
        {"candidate": metric("1.000000", 199), "baseline": metric("1.000000", 199)},
        INCONCLUSIVE,
        "199 samples, the minimum is 200",
    ),
    ("is inconclusive with NaN outputs", {"candidate": metric("NaN")}, INCONCLUSIVE, "top1 of the engine is NaN"),
    ("is inconclusive with a NaN baseline", {"baseline": metric("NaN")}, INCONCLUSIVE, "top1 of the baseline is NaN"),
    ("is inconclusive with infinite numbers", {"candidate": metric("Infinity")}, INCONCLUSIVE, "Infinity"),
    ("is inconclusive with a number that is none", {"candidate": metric("high")}, INCONCLUSIVE, "high"),
    (
        "is inconclusive when both were measured on unlike samples",
        {"candidate": metric("0.97", 500)},
        INCONCLUSIVE,
        "measured on 500 samples, the baseline on 1000",
    ),
    ("is inconclusive for unlike metrics", {"baseline": metric("0.97", name="top5")}, INCONCLUSIVE, "the baseline measured top5"),
    ("is inconclusive without any threshold", {"acceptance": AccuracyAcceptance()}, INCONCLUSIVE, "no threshold is set"),
    (
        "is inconclusive when a required class is missing",
        {"required_classes": ["a", "scratch"]},
        INCONCLUSIVE,
        "required class scratch has 0 samples, the minimum is 10",
    ),
    (
        "fails when a required class fell too far",
        {
            "acceptance": AccuracyAcceptance(minimum="0.9", max_drop_per_class="0.05"),
            "candidate": metric("0.965000", per_class={"a": "0.900000", "b": "0.970000"}),
            "required_classes": ["a"],
        },
        FAIL,
        "top1 of class a fell by 0.0700, allowed 0.0500",
    ),
    (
        "only reports a class that is not required",
        {
            "acceptance": AccuracyAcceptance(minimum="0.9", max_drop_per_class="0.05"),
            "candidate": metric("0.965000", per_class={"a": "0.500000", "b": "0.970000"}),
            "required_classes": ["b"],
        },
        PASS,
        "at least the minimum",
    ),
    (
        "does not judge classes of a handful of samples, and says so when there are no others",
        {
            "acceptance": AccuracyAcceptance(minimum="0.9", max_drop_per_class="0.05"),
            "candidate": metric("0.965000", class_samples={"a": 9, "b": 3}),
        },
        INCONCLUSIVE,
        "no class has the 10 samples",
    ),
    (
        "cannot judge an operating point of a classifier",
        {"acceptance": AccuracyAcceptance(minimum="0.9", operating_point=OperatingPoint(confidence="0.5"))},
        INCONCLUSIVE,
        "operatingPoint",
    ),
    (
        "passes within the speed limit",
        {"latency": speed(), "speed": SpeedAcceptance(p95="12ms", throughput="96")},
        PASS,
        "p95 5.0000 ms at batch 1 is within 12.0000 ms",
    ),
    (
        "fails above the latency limit",
        {"latency": speed("12.500"), "speed": SpeedAcceptance(p95="12ms")},
        FAIL,
        "p95 12.5000 ms at batch 1 is above the limit 12.0000 ms",
    ),
    (
        "fails below the throughput",
        {"latency": speed(throughput="95.0"), "speed": SpeedAcceptance(throughput="96")},
        FAIL,
        "throughput 95.0000/s at batch 1 is below the minimum 96.0000/s",
    ),
    (
        "is inconclusive when that batch size was not measured",
        {"latency": speed(batch=4), "speed": SpeedAcceptance(p95="12ms")},
        INCONCLUSIVE,
        "batch size 1 was not measured",
    ),
    (
        "is inconclusive when the latency is unknown",
        {"latency": speed("NaN"), "speed": SpeedAcceptance(p95="12ms")},
        INCONCLUSIVE,
        "p95 at batch 1 is NaN",
    ),
    ("cannot judge a speed-up alone", {"speed": SpeedAcceptance(min_speedup="1.5")}, INCONCLUSIVE, "minSpeedup was not measured"),
    (
        "too slow fails even when accuracy is unknown",
        {"candidate": None, "latency": speed("50.0"), "speed": SpeedAcceptance(p95="12ms")},
        FAIL,
        "above the limit",
    ),
    (
        "an error that rose too far fails",
        {
            "baseline": metric("0.000000", name="max_abs_error"),
            "candidate": metric("0.200000", name="max_abs_error"),
            "acceptance": AccuracyAcceptance(max_drop="0.1"),
        },
        FAIL,
        "max_abs_error rose by 0.2000, allowed 0.1000",
    ),
    (
        "a minimum has no meaning for an error",
        {
            "baseline": metric("0.000000", name="max_abs_error"),
            "candidate": metric("0.200000", name="max_abs_error"),
            "acceptance": AccuracyAcceptance(minimum="0.1"),
        },
        INCONCLUSIVE,
        "use maxDrop",
    ),
]


@pytest.mark.parametrize(("changes", "answer", "text"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_verdict(changes: dict[str, Any], answer: Answer, text: str) -> None:
    found, reasons = decide_verdict(**(GOOD | changes))
    assert answer == found, reasons
    assert any(text in reason for reason in reasons), reasons


values = st.one_of(st.decimals(0, 1, places=6).map(str), st.sampled_from(["NaN", "Infinity", "-Infinity", "", "x"]))
metrics = st.one_of(st.none(), st.builds(metric, values, st.integers(0, 2000)))
thresholds = st.one_of(st.none(), st.decimals(0, 1, places=3).map(str))
acceptances = st.builds(AccuracyAcceptance, minimum=thresholds, max_drop=thresholds, max_drop_per_class=thresholds)


@given(metrics, metrics, acceptances, st.integers(1, 1000))
def test_a_pass_is_always_proven(baseline: Metric | None, candidate: Metric | None, acceptance: AccuracyAcceptance, minimum: int) -> None:
    """Whatever comes in, Pass means: finite numbers, enough samples, the same samples, every threshold met; and every answer has a reason."""
    answer, reasons = decide_verdict(baseline, candidate, acceptance, minimum)
    assert reasons
    if answer != PASS:
        return
    assert baseline is not None
    assert candidate is not None
    assert minimum <= candidate.samples == baseline.samples
    value, before = float(candidate.value), float(baseline.value)
    assert acceptance.minimum is not None or acceptance.max_drop is not None
    assert acceptance.minimum is None or value >= float(acceptance.minimum)
    assert acceptance.max_drop is None or before - value <= float(acceptance.max_drop) + 1e-9


@given(st.decimals(0, 1, places=6), st.decimals(0, 1, places=6))
def test_a_worse_engine_never_gets_a_better_answer(first: Any, second: Any) -> None:
    rank = {FAIL: 0, INCONCLUSIVE: 1, PASS: 2}
    low, high = sorted((first, second))
    answers = [decide_verdict(metric("0.970000"), metric(str(value)), BOTH, 200)[0] for value in (low, high)]
    assert rank[answers[0]] <= rank[answers[1]]
