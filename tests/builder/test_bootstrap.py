"""Intervals: the same data gives the same ones, identical engines have none, and a pass keeps what it promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from enginefleet_api.documents import Accuracy, Answer
from enginefleet_api.resources import AccuracyAcceptance, Validation
from enginefleet_builder.gate.bootstrap import REPLICATES, draws, interval
from enginefleet_builder.gate.latency import compare_blocks
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.gate.score import Pair, compare, metric, seed_of, value_interval
from enginefleet_builder.gate.tasks.classification import Classification
from enginefleet_builder.gate.verdict import decide

Flags = NDArray[np.bool_]


def validation(max_drop: str = "0.01", **changes: Any) -> Validation:
    return Validation.model_validate({"uri": "s3://b/v.npz", "acceptance": AccuracyAcceptance(max_drop=max_drop), **changes})


def judged(
    before: Flags, after: Flags, labels: NDArray[np.int64] | None = None, groups: list[str] | None = None, seed: int = 1
) -> Accuracy:
    """Of a classifier that was right where `before` and `after` say so."""
    size = len(before)
    known = labels if labels is not None else np.arange(size, dtype=np.int64) % 4
    dataset = Dataset(size, known, ("a", "b", "c", "d"), lambda index: {})
    task = Classification(validation(), dataset, None)
    sides = [task.scores([{"correct": bool(flag)} for flag in flags], range(size)) for flags in (before, after)]
    return compare("top1", Pair(sides[0], sides[1], rises=False), groups, seed).accuracy


def flags(size: int, wrong: int) -> Flags:
    """Right but for the first `wrong`."""
    return np.arange(size) >= wrong


def test_draws_are_as_many_as_there_are_samples_and_the_same_for_a_seed() -> None:
    first, second = (np.concatenate(list(draws(30, seed=5, count=120))) for _ in range(2))
    assert (120, 30) == first.shape
    assert (first.sum(axis=1) == 30).all()
    assert (first == second).all()
    assert not (first == np.concatenate(list(draws(30, seed=6, count=120)))).all()


def test_a_key_gives_the_same_verdict_again() -> None:
    before, after = flags(300, 6), flags(300, 12)
    assert judged(before, after, seed=seed_of("ab" * 32)) == judged(before, after, seed=seed_of("ab" * 32))


def test_an_identical_engine_has_no_drop_however_few_samples_there_are() -> None:
    found = judged(flags(200, 30), flags(200, 30))
    assert ("0.000000", ["0.000000", "0.000000"]) == (found.drop, found.drop_interval)
    assert float(found.interval[0]) < 0.85 < float(found.interval[1]), "the value itself is uncertain all the same"
    assert Answer.PASS == decide(found, validation()).answer


def test_what_is_hard_for_both_does_not_widen_the_interval() -> None:
    """30 % wrong in both and one more in the engine: paired, that is one sample; unpaired it would be noise of several percent."""
    after = flags(1000, 301)
    found = judged(flags(1000, 300), after)
    assert float(found.drop_interval[1]) <= 0.004
    assert float(found.interval[1]) - float(found.interval[0]) > 0.05


def test_classes_and_subgroups_are_drawn_with_the_whole() -> None:
    groups = ["night" if index < 100 else "day" for index in range(400)]
    found = judged(flags(400, 0), flags(400, 20), groups=groups)
    parts = {part.name: part for part in found.groups}
    assert ("0.200000", "0.000000") == (parts["night"].drop, parts["day"].drop)
    assert float(parts["night"].drop_interval[0]) < 0.2 < float(parts["night"].drop_interval[1])
    assert ["0.000000", "0.000000"] == parts["day"].drop_interval
    assert {"a": 100, "b": 100, "c": 100, "d": 100} == {part.name: part.samples for part in found.classes}
    assert {"0.050000"} == {part.drop for part in found.classes}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(20, 400), st.sampled_from(["0", "0.01", "0.05"]), st.integers(1, 20))
def test_more_errors_never_make_the_answer_better(seed: int, size: int, allowed: str, more: int) -> None:
    random = np.random.default_rng(seed)
    before, after = random.random(size) > 0.1, random.random(size) > 0.12
    worse = after.copy()
    worse[random.choice(size, min(more, size), replace=False)] = False
    gate = validation(allowed, min_samples=1)
    rank = {Answer.FAIL: 0, Answer.INCONCLUSIVE: 1, Answer.PASS: 2}
    answers = [decide(judged(before, flags_after), gate).answer for flags_after in (after, worse)]
    assert rank[answers[1]] <= rank[answers[0]]


def test_a_pass_seldom_lets_an_engine_through_that_is_worse_than_allowed() -> None:
    """An engine that truly loses 3 % where 2 % are allowed, on 200 drawings of 500 samples: 95 % confidence at both ends lets few pass."""
    random = np.random.default_rng(11)
    answers = []
    for trial in range(200):
        before = random.random(500) > 0.1
        after = before & (random.random(500) > 0.03 / 0.9)
        answers.append(decide(judged(before, after, seed=trial), validation("0.02")).answer)
    assert answers.count(Answer.PASS) <= 0.05 * len(answers)
    assert answers.count(Answer.FAIL) > 0.8 * len(answers)


def test_with_the_samples_that_were_said_to_be_needed_it_is_told() -> None:
    """Inconclusive on few; on so many more of the same kind it passes."""
    few = decide(judged(flags(300, 30), flags(300, 32)), validation("0.01"))
    assert Answer.INCONCLUSIVE == few.answer
    assert few.needed is not None
    times = -(-few.needed // 300)
    many = judged(np.tile(flags(300, 30), times), np.tile(flags(300, 32), times))
    assert Answer.PASS == decide(many, validation("0.01")).answer


def test_intervals_of_what_is_hardly_known_are_not_given() -> None:
    values = np.full(100, np.nan)
    assert interval(values) is None
    values[:60] = 0.5
    assert (0.5, 0.5) == interval(values)


def test_the_metric_has_value_classes_and_interval() -> None:
    labels = np.array([0] * 60 + [1] * 40, np.int64)
    dataset = Dataset(100, labels, ("a", "b"), lambda index: {})
    records = [{"correct": index % 10 != 0} for index in range(100)]
    scores = Classification(validation(), dataset, None).scores(records, range(100))
    found = metric("top1", scores, value_interval(scores, seed=3))
    assert ("0.900000", {"a": "0.900000", "b": "0.900000"}, {"a": 60, "b": 40}) == (found.value, found.per_class, found.class_samples)
    assert 0.8 < float(found.interval[0]) < 0.9 < float(found.interval[1]) < 1


@pytest.mark.parametrize(("times", "expected"), [(2.0, 2.0), (0.5, 0.5), (1.0, 1.0)])
def test_a_speed_up_is_the_median_over_pairs_of_blocks(times: float, expected: float) -> None:
    """Each pair of blocks ran while the machine was as slow as `load`: their ratio does not see it."""
    random = np.random.default_rng(2)
    load = random.uniform(1, 3, 20)
    engine = [np.full(10, 0.001 * each) for each in load]
    partner = [np.full(10, 0.001 * each * times) for each in load]
    found = compare_blocks(1, engine, partner, seed=1)
    assert (f"{expected:.3f}", 20) == (found.speedup, found.blocks)
    assert [found.speedup] * 2 == found.interval


def test_replicates_are_enough_for_percentiles() -> None:
    assert REPLICATES * 0.025 >= 20
