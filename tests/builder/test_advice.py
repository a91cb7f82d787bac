"""How many samples prepare advises, and that the gate agrees with it."""

from __future__ import annotations

import numpy as np
import pytest

from enginefleet_api.documents import Answer, Metric
from enginefleet_api.resources import AccuracyAcceptance, OnDevice, Validation
from enginefleet_builder.gate import score
from enginefleet_builder.gate.advice import Advice, advise
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.gate.tasks.classification import Classification
from enginefleet_builder.gate.verdict import decide
from tests.builder.support import Bench


def gate(drop: str | None = "0.01", **changes: object) -> Validation:
    return Validation(uri="s3://b/v.npz", acceptance=AccuracyAcceptance(minimum="0.5", max_drop=drop)).model_copy(update=changes)


def fp32(samples: int, low: str, high: str, name: str = "top1") -> Metric:
    return Metric(name=name, value="0.95", samples=samples, interval=[low, high])


@pytest.mark.parametrize(
    ("baseline", "drop", "needed", "words"),
    [
        (fp32(200, "1.000000", "1.000000"), "0.01", 300, "one sample that is lost leaves a drop of 0.015 possible"),
        (fp32(200, "0.920000", "0.980000"), "0.01", 450, "known to ±0.0300"),
        (fp32(200, "0.400000", "0.540000"), "0.01", 2500, "known to ±0.0700"),
        (fp32(200, "0.920000", "0.980000"), "0.05", 60, ""),
        (fp32(1000, "0.940000", "0.960000"), "0.01", 300, ""),
        (fp32(100, "0.400000", "0.480000", "map50"), "0.02", 100, ""),
        (fp32(100, "0.400000", "0.480000", "map50"), "0.01", 400, "add samples, up to about 400, and set minSamples to it"),
    ],
)
def test_what_is_advised_of_the_baselines_interval(baseline: Metric, drop: str, needed: int, words: str) -> None:
    found = advise(baseline, gate(drop), baseline.samples)
    assert found is not None
    assert found.samples == needed
    assert words in found.note
    assert bool(words) == bool(found.note)


def test_a_limit_on_the_device_counts_too() -> None:
    found = advise(fp32(5000, "0.940000", "0.960000"), gate(on_device=OnDevice(max_samples=100)), 5000)
    assert found == Advice(
        1300,
        "100 samples are few for maxDrop 0.01 of top1: FP32's top1 itself is known to ±0.0100, and a drop is seldom known better than to half"
        " of that; raise onDevice.maxSamples to about 1300, and set minSamples to it",
    )


@pytest.mark.parametrize(
    ("baseline", "validation"),
    [
        (fp32(200, "0.9", "1.0"), gate(None)),
        (fp32(200, "0.9", "1.0"), gate("0")),
        (fp32(200, "0.9", "NaN"), gate()),
        (Metric(name="top1", value="1", samples=200), gate()),
        (fp32(200, "0.9", "1.0", "cosine"), gate(task="outputs", metric="cosine")),
    ],
    ids=["no maxDrop", "no drop at all", "NaN", "no interval", "the worst sample"],
)
def test_nothing_is_advised_where_nothing_is_known(baseline: Metric, validation: Validation) -> None:
    assert advise(baseline, validation, 200) is None


@pytest.mark.parametrize(("share", "answer"), [(1.0, Answer.PASS), (0.6, Answer.INCONCLUSIVE)])
def test_the_gate_agrees_about_one_lost_sample(share: float, answer: Answer) -> None:
    """A perfect FP32 model, and an engine that loses one sample: of as many as advised, and of fewer."""
    found = advise(fp32(100, "1.000000", "1.000000"), gate("0.02"), 100)
    assert found is not None
    samples = round(found.samples * share)
    task = Classification(gate("0.02"), Dataset(samples, np.zeros(samples, np.int64), ("all",), lambda _: {}), None)
    right = [{"correct": True}] * samples
    sides = [task.scores(records, range(samples)) for records in (right, [*right[:-1], {"correct": False}])]
    accuracy = score.compare("top1", score.Pair(sides[0], sides[1], rises=False), None, 1).accuracy
    assert decide(accuracy, gate("0.02", min_samples=1)).answer == answer


def test_prepare_says_so_and_keeps_the_number(bench: Bench) -> None:
    report = bench.prepare(validation=bench.gate(acceptance=AccuracyAcceptance(max_drop="0.001")))
    assert report.advised_samples is not None
    assert report.advised_samples >= 3000
    assert report.notes[0].startswith("400 samples are few for maxDrop 0.001 of top1: ")
    again = bench.prepare(validation=bench.gate(acceptance=AccuracyAcceptance(max_drop="0.05")))
    assert again.advised_samples is not None
    assert again.advised_samples <= 400
    assert not any("are few" in note for note in again.notes)
