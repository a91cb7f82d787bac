"""The search for the fewest layers to keep: pure, on networks whose noise is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_builder.prepare.qdq import Layer
from enginefleet_builder.prepare.sensitivity import BLOCKS, MOST_KEPT, TARGET_DB, Budget, Cosines, Found, Measure, decibels, ratio, search

TARGET = ratio(TARGET_DB)


def network(noise: Mapping[str, float]) -> tuple[list[Layer], Measure]:
    """Layers `name` with one node `name`; noise adds up over the layers that are quantized."""

    def measure(kept: Iterable[str]) -> float:
        left = set(noise) - set(kept)
        return sum(noise[name] for name in left)

    return [Layer(name, (name,)) for name in noise], measure


def found(noise: Mapping[str, float], **budget: float) -> Found:
    layers, measure = network(noise)
    limits = {name: value for name, value in budget.items() if name in ("runs", "seconds")}
    return search(layers, measure, Budget(**limits))  # type: ignore[arg-type]


def names(result: Found) -> list[str]:
    return [layer.name for layer in result.kept]


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ({"a": 1e-5, "b": 0.5, "c": 1e-5, "d": 1e-5}, ["b"]),
        ({"a": 0.2, "b": 1e-5, "c": 0.5, "d": 1e-5}, ["a", "c"]),
        ({"a": 0.2, "b": 0.3}, ["b"]),  # half of the layers at most
        ({"a": 0.3}, ["a"]),
        ({"a": 1e-4, "b": 1e-5, "c": 1e-5, "d": 1e-5}, ["a"]),  # plain is close already: but its gate failed, so it must get better
    ],
)
def test_the_fewest_layers_are_kept(noise: dict[str, float], expected: list[str]) -> None:
    assert expected == names(found(noise))


def test_one_loud_layer_among_a_hundred_is_found_in_few_runs() -> None:
    noise = {f"l{number}": 1e-6 for number in range(90)} | {"loud": 1.0}
    layers, measure = network(noise)
    budget = Budget()
    assert names(search(layers, measure, budget)) == ["loud"]
    assert budget.used < 91 + 12


def test_very_many_layers_are_measured_in_blocks_and_given_back_one_by_one() -> None:
    noise = {f"l{number}": 1e-7 for number in range(300)} | {"loud": 1.0}
    result = found(noise)
    assert len(result.alone) <= BLOCKS
    assert names(result) == ["loud"]


def test_a_spent_budget_ends_the_search_with_the_best_so_far() -> None:
    noise = {"a": 0.2, "b": 1e-5, "c": 0.5, "d": 1e-5}
    result = found(noise, runs=6)
    assert result.spent == "6 runs"
    assert result.noise <= result.plain
    assert names(found(noise, runs=1)) == []


def test_seconds_end_it_too() -> None:
    times = iter(range(1000))
    layers, measure = network({"a": 0.2, "b": 0.1, "c": 0.5, "d": 1e-5})
    assert search(layers, measure, Budget(seconds=3, clock=lambda: float(next(times)))).spent == "3 s"


def test_what_cannot_be_repaired_is_said_so() -> None:
    result = found(dict.fromkeys("abcd", 0.5))
    assert not result.reached
    assert len(result.kept) == 2


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.floats(1e-9, 10), min_size=1, max_size=30))
def test_never_more_than_the_share_never_worse_than_plain_and_always_the_same(noise: dict[str, float]) -> None:
    result = found(noise)
    assert len(result.kept) <= max(1, int(len(noise) * MOST_KEPT))
    assert result.noise <= result.plain
    assert names(result) == [name for name in noise if name in names(result)]
    assert result == found(noise)
    # with noise that adds up, whatever can be met by freeing the loudest is met
    loudest = sorted(noise.values(), reverse=True)[: max(1, int(len(noise) * MOST_KEPT))]
    if sum(noise.values()) - sum(loudest) < result.target * 0.999:
        assert result.reached


def test_decibels() -> None:
    assert ["20.0", "-3.0", "inf"] == [decibels(0.01), decibels(2.0), decibels(0.0)]


def test_cosines_look_at_every_floating_point_output() -> None:
    one = Cosines()
    a, b = np.array([1.0, 0.0]), np.array([[3.0, 4.0]])
    one.add({"a": a, "b": b, "n": np.array([7])}, {"a": a, "b": b * 1.0, "n": np.array([8])})
    assert one.smallest == pytest.approx(1.0)
    one.add({"a": a, "b": b}, {"a": a, "b": b[:, ::-1]})
    assert one.smallest == pytest.approx((25 + 24) / 50)
    one.add({"a": a, "b": b}, {"a": a * np.nan, "b": b})
    assert np.isnan(one.smallest)
