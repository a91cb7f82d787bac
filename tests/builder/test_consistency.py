"""Samples alone and among others in a batch: which batches are compared, and what counts as another output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from enginefleet_api.documents import Consistency, TensorSpec
from enginefleet_api.resources import InputSpec
from enginefleet_builder.gate.arrays import Array
from enginefleet_builder.gate.consistency import LARGEST, SAMPLES, compared_sizes, distance, measure
from enginefleet_builder.gate.samples import SOLE, Dataset

Run = Callable[[Mapping[str, Array]], dict[str, Array]]


def inputs(batch: int | None = None) -> list[TensorSpec]:
    return [TensorSpec(name="x", dtype="float32", shape=[batch, 3])]


def profile(low: int, high: int) -> list[InputSpec]:
    shapes = {"min": [low, 3], "opt": [high, 3], "max": [high, 3]}
    return [InputSpec.model_validate({"name": "x", "profiles": [shapes]})]


@pytest.mark.parametrize(
    ("batch", "profiles", "asked", "expected"),
    [
        (None, [], [1], (1, [16])),
        (None, [], [4, 1, 32], (1, [4, 16, 32])),
        (None, [], [LARGEST, LARGEST + 1], (1, [16, LARGEST])),
        (None, profile(1, 8), [1, 4], (1, [4, 8])),
        (None, profile(2, 8), [1, 4], (2, [4, 8])),
        (None, profile(1, 1), [1], (1, [])),
        (1, [], [1], (1, [])),
        (4, [], [4], (4, [4])),
    ],
    ids=["open", "asked for, too", "not beyond memory", "within the profile", "above its least", "one size", "fixed to 1", "fixed to 4"],
)
def test_sizes_that_are_compared(batch: int | None, profiles: list[InputSpec], asked: list[int], expected: tuple[int, list[int]]) -> None:
    assert expected == compared_sizes(inputs(batch), profiles, asked)


def alone(feeds: Mapping[str, Array]) -> dict[str, Array]:
    return {"y": np.multiply(feeds["x"], 2, dtype=np.float32), "sum": feeds["x"].sum(axis=1)}


def leaning(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Each row less the mean of the whole batch, as a normalization over the wrong axis makes it."""
    return {"y": feeds["x"] - feeds["x"].mean(axis=0), "sum": feeds["x"].sum(axis=1)}


def swapping(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """In a batch rows are sorted the other way round."""
    order = slice(None, None, -1) if len(feeds["x"]) > 1 else slice(None)
    return {"y": np.sort(feeds["x"], axis=1)[:, order]}


def dataset(size: int = 40) -> Dataset:
    samples = np.random.default_rng(5).normal(1, 1, (size, 3)).astype(np.float32)
    return Dataset(size, None, (), lambda index: {SOLE: samples[index]})


def compared(
    run: Run, *, size: int = 40, batch: int | None = None, asked: tuple[int, ...] = (1,), ordered: bool = True
) -> Consistency | None:
    data = dataset(size)
    return measure(run, data, range(size), inputs(batch), [], asked, ordered=ordered)


def test_rows_that_do_not_know_of_each_other_are_alike() -> None:
    found = compared(alone)
    assert found is not None
    assert ([16], SAMPLES, "1.000000", "0.000000") == (found.batches, found.samples, found.cosine_min, found.max_abs_error)


def test_rows_that_lean_on_each_other_are_found_and_the_output_named() -> None:
    found = compared(leaning, asked=(2,))
    assert found is not None
    assert [2, 16] == found.batches
    assert float(found.cosine_min) < 0.9
    assert float(found.max_abs_error) > 0.1
    assert "output y of sample " in found.worst
    assert " in a batch of " in found.worst


def test_a_model_fixed_to_a_batch_is_compared_with_copies_of_one_sample() -> None:
    found = compared(leaning, batch=4)
    assert found is not None
    assert ([4], True) == (found.batches, float(found.cosine_min) < 0.9)


def test_few_samples_are_filled_up() -> None:
    found = compared(alone, size=3)
    assert found is not None
    assert (3, "1.000000") == (found.samples, found.cosine_min)


def test_rows_that_are_sorted_may_change_places_where_a_decoder_sorts() -> None:
    ordered, sorting = compared(swapping), compared(swapping, ordered=False)
    assert ordered is not None
    assert sorting is not None
    assert float(ordered.cosine_min) < 0.9
    assert "1.000000" == sorting.cosine_min


def test_a_row_that_is_finite_only_alone_is_the_worst_of_all() -> None:
    def breaking(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": feeds["x"] if len(feeds["x"]) == 1 else np.full_like(feeds["x"], np.nan)}

    found = compared(breaking)
    assert found is not None
    assert ("NaN", "NaN") == (found.cosine_min, found.max_abs_error)


def test_what_is_not_finite_alone_is_judged_elsewhere() -> None:
    def broken(feeds: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": np.full_like(feeds["x"], np.inf)}

    assert compared(broken) is None


@pytest.mark.parametrize("shape", [(), (7, 6)])
def test_outputs_without_a_batch_axis_cannot_be_compared(shape: tuple[int, ...]) -> None:
    assert compared(lambda _: {"y": np.zeros(shape, np.float32)}) is None


def test_there_is_nothing_to_compare_without_samples_or_with_batches_of_one() -> None:
    assert compared(alone, size=0) is None
    assert compared(alone, batch=1) is None


def test_outputs_of_noise_are_equal_and_unlike_shapes_never_are() -> None:
    one = np.full(4, 1e-8, np.float32)
    assert [1.0, 2e-8] == pytest.approx(list(distance(-one, one)), abs=1e-12)
    assert all(math.isnan(value) for value in distance(np.zeros(3), np.zeros(4)))
