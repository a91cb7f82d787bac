"""Confidence intervals by bootstrap on samples: how much of a number is the choice of pictures.

A replicate draws as many samples as there are, with repetition; baseline and candidate are measured on the same draws (paired), so that
what is hard for both does not widen the interval of their difference. Draws come from a seed, so the same data gives the same answer.
A bootstrap cannot see what never happened: where no sample differs, every replicate's drop is 0 and so is the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .arrays import Floats64

REPLICATES = 1000
CHUNK = 50
"""Replicates at a time: bounds memory for large sets."""
LOW, HIGH = 0.025, 0.975

Values = Callable[[NDArray[np.int64]], tuple[Floats64, Floats64]]
"""Weights (replicates, samples) → the metric (replicates,) and that of each class (replicates, classes); NaN where nothing is to be measured."""


@dataclass(frozen=True, slots=True)
class AtConfidence:
    """What a detector does at one confidence, sample by sample (n,): objects that it finds, objects there are, boxes that it gives."""

    found: NDArray[np.int64]
    truths: NDArray[np.int64]
    detections: NDArray[np.int64]
    object_scores: Mapping[tuple[int, int], float]
    """(sample, object) → score of the box that found it, at any confidence."""

    def recall(self, weights: NDArray[np.int64]) -> Floats64:
        with np.errstate(invalid="ignore"):
            return np.asarray((weights @ self.found) / (weights @ self.truths))


@dataclass(frozen=True, slots=True)
class Scores:
    """Records of n samples, brought into a form in which any selection of them is measured quickly."""

    size: int
    values: Values
    instances: Mapping[str, int] = field(default_factory=dict)
    """Class → its instances in all samples, in the order of the columns of `values`."""
    counts: Mapping[str, int] = field(default_factory=dict)
    broken: int = 0
    """Samples whose outputs hold NaN or infinite values."""
    operating: AtConfidence | None = None
    replicates: int = REPLICATES

    def whole(self) -> tuple[float, Floats64]:
        """(metric, that of each class) of all samples, each once."""
        overall, classes = self.values(np.ones((1, self.size), np.int64))
        return float(overall[0]), classes[0]


def draws(size: int, seed: int, count: int = REPLICATES) -> Iterator[NDArray[np.int64]]:
    """How often each sample was drawn, (at most CHUNK, size) at a time, `count` in all."""
    random = np.random.default_rng(seed)
    for start in range(0, count, CHUNK):
        rows = min(CHUNK, count - start)
        drawn = random.integers(size, size=(rows, size)) + np.arange(rows)[:, None] * size
        yield np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)


def interval(values: Floats64) -> tuple[float, float] | None:
    """The 95 % interval of replicates (count,): 2.5th and 97.5th percentile, each rounded away from the middle. None: too few are numbers."""
    known = values[np.isfinite(values)]
    if len(known) < max(1, len(values) // 2):
        return None
    return float(np.quantile(known, LOW, method="lower")), float(np.quantile(known, HIGH, method="higher"))
