"""The gate's answer: a table of sentences, and what holds for all numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api.documents import Accuracy, Answer, AtOperatingPoint, Latency, Part, Speedup, Spread
from enginefleet_api.resources import AccuracyAcceptance, OperatingPoint, PythonMetric, SpeedAcceptance, Subgroups, Validation
from enginefleet_builder.gate.verdict import decide, samples_needed

PASS, FAIL, INCONCLUSIVE = Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE


def part(name: str, drop: str, upper: str | None = None, samples: int = 500, value: str = "0.960000") -> Part:
    return Part(name=name, samples=samples, baseline="0.970000", value=value, drop=drop, drop_interval=bounds(drop, upper))


def bounds(drop: str, upper: str | None) -> list[str]:
    return [drop, drop if upper is None else upper]


def accuracy(drop: str = "0.005000", upper: str | None = "0.008000", **changes: Any) -> Accuracy:
    """Of an engine whose top1 fell by `drop` from 0.97, by at most `upper`."""
    value = str(Decimal("0.970000") - Decimal(drop))
    given = {"metric": "top1", "baseline": "0.970000", "value": value, "drop": drop, "samples": 1000}
    return Accuracy.model_validate(given | {"drop_interval": bounds(drop, upper), "classes": [part("a", drop), part("b", drop)]} | changes)


def gate(minimum: str | None = "0.95", max_drop: str | None = "0.01", *, of: dict[str, Any] | None = None, **changes: Any) -> Validation:
    acceptance = AccuracyAcceptance.model_validate({"minimum": minimum, "max_drop": max_drop, **(of or {})})
    return Validation.model_validate({"uri": "s3://b/v.npz", "acceptance": acceptance} | changes)


def detector(drop: str, upper: str, shift: str | None = "-0.200000") -> Accuracy:
    point = AtOperatingPoint(
        confidence="0.35", baseline_recall="0.900000", recall="0.850000", recall_drop=drop, drop_interval=[drop, upper], score_shift=shift
    )
    return accuracy(metric="map50", operating_point=point)


def speed(p95: str = "5.000", throughput: str = "200.0", batch: int = 1) -> list[Latency]:
    return [Latency(batch=batch, p50="4.000", p95=p95, p99="9.000", throughput=throughput, iterations=200)]


def faster(speedup: str, low: str) -> Speedup:
    return Speedup(batch=1, speedup=speedup, interval=[low, "9.000"], partner=speed()[0], engine=speed()[0], blocks=20)


def marked(*marks: str, p95: str = "5.000", sustained: bool = False) -> list[Latency]:
    """Within 12 ms and 96/s unless `p95` says otherwise; `sustained`: of a run that lasted longer than a minute."""
    (plain,) = speed(p95)
    first = Spread(p50="3.000", p95="3.500", p99="4.000", iterations=10_000) if sustained else None
    return [plain.model_copy(update={"marks": list(marks) or None, "first": first})]


HOT = "throttled: the GPU's clocks were held down (thermal)"
OTHERS = "shared: other processes on the GPU before the engine was loaded: 2"
COLD = "unsettled: after 20 s of warm-up runs were still getting faster"
LIMITS = SpeedAcceptance(p95="12ms", throughput="96")
NIGHT = Subgroups(column="scene", required=["night"])
POINT = {"operating_point": OperatingPoint(confidence="0.35", max_recall_drop="0.01")}
DETECTION: dict[str, Any] = {"task": "detection", "metric": "map50"}
ONLY_CLASSES: dict[str, Any] = {"max_drop": None, "of": {"max_drop_per_class": "0.05"}}

TABLE: list[tuple[str, dict[str, Any], Answer, str]] = [
    ("passes when every threshold is met", {}, PASS, "top1 0.9650 is at least the minimum 0.9500"),
    (
        "passes when the interval is within what is allowed",
        {},
        PASS,
        "fell by 0.0050, with 95 % confidence by at most 0.0080, allowed 0.0100",
    ),
    ("passes at exactly the allowed upper end", {"accuracy": accuracy(upper="0.010000")}, PASS, "at most 0.0100, allowed 0.0100"),
    ("passes without any doubt when nothing differs", {"accuracy": accuracy("0.000000", "0.000000")}, PASS, "fell by 0.0000"),
    ("passes at exactly the minimum", {"accuracy": accuracy("0.000000", "0.000000", value="0.950000")}, PASS, "at least the minimum"),
    (
        "says when the interval of the value begins below the minimum",
        {"accuracy": accuracy(interval=["0.944000", "0.980000"])},
        PASS,
        "is at least the minimum 0.9500 (its 95 % interval begins at 0.9440)",
    ),
    ("fails below the minimum", {"accuracy": accuracy(value="0.912000")}, FAIL, "top1 0.9120 is below the minimum 0.9500"),
    (
        "fails when it fell too far",
        {"accuracy": accuracy("0.031000", "0.040000", value="0.957000", baseline="0.988000")},
        FAIL,
        "top1 fell by 0.0310, allowed 0.0100 (baseline 0.9880, engine 0.9570)",
    ),
    (
        "is inconclusive when more than is allowed is possible, and says how many samples would tell",
        {"accuracy": accuracy("0.005000", "0.015000", samples=400)},
        INCONCLUSIVE,
        "but 400 samples leave 0.0150 possible: about 1600 would tell (set minSamples to it)",
    ),
    (
        "is inconclusive for a drop of exactly what is allowed, which no number of samples tells from a larger one",
        {"accuracy": accuracy("0.010000", "0.015000")},
        INCONCLUSIVE,
        "cannot be told from a larger one",
    ),
    ("is inconclusive when the interval is unknown", {"accuracy": accuracy(drop_interval=[])}, INCONCLUSIVE, "its interval is unknown"),
    (
        "a better engine passes",
        {"accuracy": accuracy("-0.020000", "0.001000")},
        PASS,
        "top1 rose by 0.0200, with 95 % confidence it fell by at most 0.0010, allowed 0.0100",
    ),
    ("is inconclusive without a validation set", {"accuracy": None}, INCONCLUSIVE, "accuracy was not measured"),
    ("is inconclusive without a baseline", {"accuracy": accuracy(baseline=None)}, INCONCLUSIVE, "there is no FP32 baseline"),
    (
        "is inconclusive with too few samples, however good",
        {"accuracy": accuracy("0.000000", samples=199)},
        INCONCLUSIVE,
        "199 samples, the minimum is 200",
    ),
    (
        "fails with NaN outputs where FP32 has none",
        {"accuracy": accuracy(value="NaN", broken=3)},
        FAIL,
        "NaN or infinite values for 3 of 1000 samples, those of FP32 do not",
    ),
    ("is inconclusive when the value is unknown", {"accuracy": accuracy(value="NaN")}, INCONCLUSIVE, "top1 of the engine is NaN"),
    ("is inconclusive with a NaN baseline", {"accuracy": accuracy(baseline="NaN")}, INCONCLUSIVE, "top1 of the baseline is NaN"),
    ("is inconclusive with a number that is none", {"accuracy": accuracy(value="high")}, INCONCLUSIVE, "high"),
    ("is inconclusive without any threshold", {"validation": gate(None, None)}, INCONCLUSIVE, "no threshold is set"),
    (
        "is inconclusive when a required class is missing",
        {"validation": gate(required_classes=["a", "scratch"])},
        INCONCLUSIVE,
        "required class scratch has 0 instances, the minimum is 10",
    ),
    (
        "asks for as many instances of a required class as the spec says",
        {"validation": gate(required_classes=["a"], min_instances=501)},
        INCONCLUSIVE,
        "required class a has 500 instances, the minimum is 501",
    ),
    (
        "fails when a required class fell too far",
        {"validation": gate(required_classes=["a"], **ONLY_CLASSES), "accuracy": accuracy(classes=[part("a", "0.070000"), part("b", "0")])},
        FAIL,
        "top1 of class a fell by 0.0700, allowed 0.0500",
    ),
    (
        "is inconclusive when a class may have fallen too far",
        {"validation": gate(**ONLY_CLASSES), "accuracy": accuracy(classes=[part("a", "0.020000", "0.080000", 100), part("b", "0")])},
        INCONCLUSIVE,
        "class a fell by 0.0200, allowed 0.0500, but 100 instances leave 0.0800 possible: about 400 would tell, or a wider maxDropPerClass",
    ),
    (
        "only reports a class that is not required",
        {"validation": gate(required_classes=["b"], **ONLY_CLASSES), "accuracy": accuracy(classes=[part("a", "0.4"), part("b", "0")])},
        PASS,
        "top1 of each class that is judged (1 of 2) is within its thresholds",
    ),
    (
        "does not judge classes of a handful of samples, and says so when there are no others",
        {"validation": gate(**ONLY_CLASSES), "accuracy": accuracy(classes=[part("a", "0", samples=9), part("b", "0", samples=3)])},
        INCONCLUSIVE,
        "no class has the 10 instances",
    ),
    (
        "fails when a class is below its minimum",
        {"validation": gate(of={"minimum_per_class": "0.9"}), "accuracy": accuracy(classes=[part("a", "0", value="0.880000")])},
        FAIL,
        "top1 of class a 0.8800 is below the minimum 0.9000",
    ),
    (
        "fails when a subgroup fell too far, whatever the whole did",
        {
            "validation": gate(of={"max_drop_per_subgroup": "0.02"}, subgroups=NIGHT),
            "accuracy": accuracy(groups=[part("day", "0"), part("night", "0.050000")]),
        },
        FAIL,
        "top1 of subgroup night fell by 0.0500, allowed 0.0200",
    ),
    (
        "fails when a subgroup is below its minimum",
        {
            "validation": gate(of={"minimum_per_subgroup": "0.9"}, subgroups=NIGHT),
            "accuracy": accuracy(groups=[part("night", "0", value="0.700000")]),
        },
        FAIL,
        "top1 of subgroup night 0.7000 is below the minimum 0.9000",
    ),
    (
        "is inconclusive when a required subgroup has too few samples",
        {"validation": gate(subgroups=NIGHT), "accuracy": accuracy(groups=[part("night", "0", samples=4)])},
        INCONCLUSIVE,
        "required subgroup night has 4 samples, the minimum is 10",
    ),
    (
        "fails when recall fell at the operating point, though mAP did not",
        {"validation": gate(of=POINT, **DETECTION), "accuracy": detector("0.050000", "0.060000")},
        FAIL,
        "recall at confidence 0.35 fell by 0.0500, allowed 0.0100 (baseline 0.9000, engine 0.8500); scores moved by -0.200000 in the median",
    ),
    (
        "passes when recall at the operating point stays",
        {"validation": gate(of=POINT, **DETECTION), "accuracy": detector("0.000000", "0.004000")},
        PASS,
        "recall at confidence 0.35 fell by 0.0000",
    ),
    (
        "is inconclusive when the samples are too few for the operating point",
        {"validation": gate(of=POINT, **DETECTION), "accuracy": detector("0.004000", "0.030000")},
        INCONCLUSIVE,
        "leave 0.0300 possible",
    ),
    (
        "cannot judge an operating point of a classifier",
        {"validation": gate(of=POINT)},
        INCONCLUSIVE,
        "operatingPoint cannot be judged for top1",
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
    *(
        (
            f"is inconclusive when times within the limits were {mark.partition(':')[0]}",
            {"latency": marked(mark), "speed": LIMITS},
            INCONCLUSIVE,
            f"p95 and throughput at batch 1 cannot be judged: {mark}",
        )
        for mark in (HOT, OTHERS, COLD)
    ),
    (
        "is inconclusive, not failed, when times above the limit were taken beside others",
        {"latency": marked(OTHERS, p95="50.000"), "speed": SpeedAcceptance(p95="12ms")},
        INCONCLUSIVE,
        f"p95 at batch 1 cannot be judged: {OTHERS}",
    ),
    ("tells every doubt", {"latency": marked(HOT, OTHERS), "speed": LIMITS}, INCONCLUSIVE, f"cannot be judged: {HOT}; {OTHERS}"),
    ("asks nothing of times that nobody limits", {"latency": marked(HOT, OTHERS, COLD)}, PASS, "top1 0.9650 is at least"),
    (
        "fails for accuracy, however doubtful its times",
        {"accuracy": accuracy(value="0.912000"), "latency": marked(HOT), "speed": LIMITS},
        FAIL,
        "below the minimum",
    ),
    (
        "passes throttled times of a sustained run, which is there to show them",
        {"latency": marked(HOT, sustained=True), "speed": LIMITS},
        PASS,
        "p95 5.0000 ms at batch 1 is within 12.0000 ms",
    ),
    (
        "fails throttled times of a sustained run that are too slow",
        {"latency": marked(HOT, p95="50.000", sustained=True), "speed": LIMITS},
        FAIL,
        "p95 50.0000 ms at batch 1 is above the limit 12.0000 ms",
    ),
    (
        "is inconclusive when somebody else ran beside a sustained run",
        {"latency": marked(HOT, OTHERS, sustained=True), "speed": LIMITS},
        INCONCLUSIVE,
        f"p95 and throughput at batch 1 cannot be judged: {OTHERS}",
    ),
    (
        "is inconclusive for a speed-up of throttled engines, sustained or not",
        {
            "speed": SpeedAcceptance(min_speedup="1.5"),
            "latency": marked(sustained=True),
            "speedup": faster("1.800", "1.700").model_copy(update={"marks": [HOT]}),
        },
        INCONCLUSIVE,
        f"minSpeedup at batch 1 cannot be judged: {HOT}",
    ),
    ("cannot judge a speed-up alone", {"speed": SpeedAcceptance(min_speedup="1.5")}, INCONCLUSIVE, "minSpeedup was not measured"),
    (
        "passes when it is surely fast enough",
        {"speed": SpeedAcceptance(min_speedup="1.5"), "speedup": faster("1.800", "1.700")},
        PASS,
        "1.8000 times as fast as FP32 at batch 1, at least the minimum 1.5000",
    ),
    (
        "fails when it is not faster",
        {"speed": SpeedAcceptance(min_speedup="1.5"), "speedup": faster("0.900", "0.800")},
        FAIL,
        "0.9000 times as fast as FP32 at batch 1, the minimum is 1.5000",
    ),
    (
        "is inconclusive when times varied too much to tell",
        {"speed": SpeedAcceptance(min_speedup="1.5"), "speedup": faster("1.600", "1.100")},
        INCONCLUSIVE,
        "but its 95 % interval begins at 1.1000",
    ),
    (
        "too slow fails even when accuracy is unknown",
        {"accuracy": None, "latency": speed("50.0"), "speed": SpeedAcceptance(p95="12ms")},
        FAIL,
        "above the limit",
    ),
    (
        "an error that rose too far fails",
        {
            "accuracy": accuracy("0.200000", "0.200000", metric="max_abs_error", baseline="0.000000", value="0.200000"),
            "validation": gate(None, "0.1", task="outputs", metric="max_abs_error"),
        },
        FAIL,
        "max_abs_error rose by 0.2000, allowed 0.1000",
    ),
    (
        "a minimum of an error cannot be judged",
        {"accuracy": accuracy(metric="max_abs_error"), "validation": gate("0.1", None, task="outputs", metric="max_abs_error")},
        INCONCLUSIVE,
        "use maxDrop",
    ),
    (
        "a metric of one's own rises where the spec says that lower is better",
        {
            "accuracy": accuracy("0.500000", "0.600000", metric="python"),
            "validation": gate(None, "0.1", metric="python", python=PythonMetric(code="x", higher_is_better=False)),
        },
        FAIL,
        "python rose by 0.5000",
    ),
]


@pytest.mark.parametrize(("changes", "answer", "text"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_verdict(changes: dict[str, Any], answer: Answer, text: str) -> None:
    given = {"accuracy": accuracy(), "validation": gate()} | changes
    found = decide(given.pop("accuracy"), given.pop("validation"), **given)
    assert answer == found.answer, found.reasons
    assert any(text in reason for reason in found.reasons), found.reasons


def test_only_what_the_samples_leave_open_lasts() -> None:
    few = accuracy("0.005000", "0.015000", samples=400)
    assert decide(few, gate()).lasting
    assert decide(None, gate()).lasting
    assert not decide(accuracy(), gate()).lasting
    # at another moment the machine may be quiet
    unsteady = decide(accuracy(), gate(), speed=SpeedAcceptance(min_speedup="1.5"), speedup=faster("1.600", "1.100"))
    assert (unsteady.answer, unsteady.lasting) == (INCONCLUSIVE, False)
    # and a failure is one, whatever else is open
    assert not decide(few, gate(), latency=speed("50.0"), speed=SpeedAcceptance(p95="12ms")).lasting


def test_the_samples_that_are_needed_stand_beside_the_answer() -> None:
    found = decide(accuracy("0.005000", "0.015000", samples=400), gate())
    assert 1600 == found.needed
    assert decide(accuracy(), gate()).needed is None


NUMBERS = st.decimals(0, 1, places=6)
values = st.one_of(NUMBERS.map(str), st.sampled_from(["NaN", "Infinity", "-Infinity", "", "x"]))
intervals: st.SearchStrategy[list[str]] = st.one_of(st.just([]), st.lists(values, min_size=2, max_size=2))
thresholds = st.one_of(st.none(), st.decimals(0, 1, places=3).map(str))
accuracies = st.one_of(
    st.none(),
    st.builds(
        Accuracy,
        metric=st.just("top1"),
        baseline=st.none() | values,
        value=values,
        drop=st.none() | values,
        samples=st.integers(0, 2000),
        drop_interval=intervals,
        broken=st.none() | st.integers(1, 3),
    ),
)


@given(accuracies, thresholds, thresholds, thresholds, st.integers(1, 1000))
def test_a_pass_is_always_proven(
    found: Accuracy | None, minimum: str | None, max_drop: str | None, per_class: str | None, least: int
) -> None:
    """Whatever comes in, Pass means: finite numbers, enough samples, every threshold met; and every answer has a reason."""
    decision = decide(found, gate(minimum, max_drop, of={"max_drop_per_class": per_class}, min_samples=least))
    assert decision.reasons
    if decision.answer != PASS:
        return
    assert found is not None
    assert found.value is not None
    assert found.baseline is not None
    assert not found.broken
    assert least <= found.samples
    assert per_class is None, "there are no classes to meet it"
    assert minimum is not None or max_drop is not None
    assert minimum is None or float(found.value) >= float(minimum)
    if max_drop is not None:
        assert found.drop is not None
        assert float(found.drop) <= float(max_drop)
        assert float(found.drop_interval[1]) <= float(max_drop)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_worse_engine_never_gets_a_better_answer(first: Decimal, second: Decimal, width: Decimal, more: Decimal) -> None:
    """A greater drop, a lower value and a wider interval: none makes the answer better."""
    rank = {FAIL: 0, INCONCLUSIVE: 1, PASS: 2}
    low, high = sorted((first, second))
    better = decide(accuracy(str(low), str(low + width)), gate())
    worse = decide(accuracy(str(high), str(high + width + more)), gate())
    assert rank[worse.answer] <= rank[better.answer]


@given(st.integers(10, 10**6), NUMBERS, NUMBERS, NUMBERS)
def test_more_samples_are_needed_than_there_are(samples: int, drop: Decimal, width: Decimal, allowed: Decimal) -> None:
    upper = drop + width
    needed = samples_needed(samples, drop, upper, allowed)
    if drop < allowed < upper:
        assert needed is not None
        assert needed >= samples
        # with that many the interval's upper end would lie within what is allowed
        assert float(drop) + float(upper - drop) * (samples / needed) ** 0.5 <= float(allowed) + 1e-9
    elif drop >= allowed:
        assert needed is None
