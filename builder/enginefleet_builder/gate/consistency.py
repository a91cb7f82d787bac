"""The same samples alone and among others in a batch.

Accuracy is measured in batches; a camera sends one picture. An engine whose rows lean on each other (a reshape with a batch size in it, a
scale over the whole batch) would have an accuracy that nobody sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from enginefleet_api.documents import Consistency, TensorSpec
from enginefleet_api.resources import InputSpec

from .arrays import Array
from .evaluate import Run, batch_bounds, batch_size
from .metrics import apart, text
from .samples import Dataset

SAMPLES = 8
LARGEST = 64
"""Batches above it are not compared: memory for them is the benchmark's."""
NOISE = 1e-6
"""Outputs that differ by no more are equal, however small they are."""


def compared_sizes(inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], asked: Sequence[int]) -> tuple[int, list[int]]:
    """(smallest batch, larger ones to compare with it): the one that accuracy is measured in, and those that are asked for.

    A model of one fixed size above 1 is compared with itself: a batch of copies against a batch of others.
    """
    low, high = batch_bounds(inputs, profiles)
    if low == high:
        return low, [low] if low > 1 else []
    sizes = {size for size in (batch_size(inputs, profiles), *asked) if low < size <= min(high or LARGEST, LARGEST)}
    return low, sorted(sizes)


def measure(
    run: Run, dataset: Dataset, indices: Sequence[int], inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], asked: Sequence[int],
    *, ordered: bool = True,
) -> Consistency | None:  # fmt: skip
    """None where there is nothing to compare: see Consistency. `ordered`: False where rows of an output may change places (see `distance`)."""
    low, sizes = compared_sizes(inputs, profiles, asked)
    if not sizes or not indices:
        return None
    chosen = [indices[place * len(indices) // SAMPLES] for place in range(SAMPLES)] if len(indices) > SAMPLES else list(indices)
    single = {}
    for index in chosen:
        if (rows := _rows(run(dataset.feed([index] * low, inputs)), low)) is None:
            return None
        single[index] = rows[0]
    found: list[tuple[float, float, str]] = []
    # others fill a batch up, so that a sample never stands among copies of itself
    others = [index for index in indices if index not in single] or chosen
    for size in sizes:
        for start in range(0, len(chosen), size):
            part = chosen[start : start + size]
            rows = _rows(run(dataset.feed([*part, *(others[at % len(others)] for at in range(size - len(part)))], inputs)), size)
            if rows is None:
                return None
            for index, row in zip(part, rows, strict=False):
                where = f"sample {dataset.identity(index)} in a batch of {size}"
                wanted = {name: array for name, array in single[index].items() if np.isfinite(array).all()}
                found += [(*distance(row[name], array, ordered), f"output {name} of {where}") for name, array in wanted.items()]
    if not found:
        return None
    least, _, worst = min(found, key=lambda item: -math.inf if math.isnan(item[0]) else item[0])
    largest = max((error for _, error, _ in found), key=lambda error: math.inf if math.isnan(error) else error)
    return Consistency(batches=sizes, samples=len(chosen), cosine_min=text(least), max_abs_error=text(largest), worst=worst)


def distance(output: Array, wanted: Array, ordered: bool = True) -> tuple[float, float]:
    """(cosine, largest error). Not `ordered`: a model that sorts its boxes by score may swap two of equal ones, so sorted values are compared."""
    if output.shape != wanted.shape:
        return math.nan, math.nan
    a, b = (np.ravel(array).astype(np.float64) for array in (output, wanted))
    cosine, error = apart(a, b) if ordered else apart(np.sort(a), np.sort(b))
    return (1.0, error) if error <= NOISE else (cosine, error)


def _rows(outputs: Mapping[str, Array], size: int) -> list[dict[str, Array]] | None:
    """Outputs of each sample; None where an output has no batch axis of that size."""
    if any(output.ndim < 1 or len(output) != size for output in outputs.values()):
        return None
    return [{name: output[place] for name, output in outputs.items()} for place in range(size)]
