"""Calibration samples as batches, one in memory at a time: a thousand pictures of 640 x 640 are 5 GB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from enginefleet_api.documents import TensorSpec
from enginefleet_api.resources import InputSpec

from ..gate.arrays import Array
from ..gate.datasets import Dataset
from ..gate.evaluate import PREFERRED_BATCH, batch_bounds

BATCH_BYTES = 4_000_000
"""Input bytes of one batch. What a quantizer looks at are all tensors of the model, easily a hundred times that."""
FEW = 32
"""Samples that closeness and sensitivity are measured on."""

Feed = Mapping[str, Array]


class Feeds:
    """Batches of a data set in order, of one size but for the last; with a fixed batch the last sample fills up the last one."""

    def __init__(self, dataset: Dataset, inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec]) -> None:
        self._dataset, self._inputs = dataset, inputs
        self._low, high = batch_bounds(inputs, profiles)
        sample = sum(array.nbytes for array in dataset.feed([0] * self._low, inputs).values()) // self._low
        self._size = max(self._low, min(high or PREFERRED_BATCH, PREFERRED_BATCH, BATCH_BYTES // max(1, sample)))
        self._batches = self._chunks(range(dataset.size))

    def _chunks(self, indices: Sequence[int]) -> list[list[int]]:
        chunks = [list(indices[start : start + self._size]) for start in range(0, len(indices), self._size)]
        return [chunk + [chunk[-1]] * (self._low - len(chunk)) for chunk in chunks]

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Feed:
        return self._dataset.feed(self._batches[index], self._inputs)

    def few(self, count: int = FEW) -> Iterator[Feed]:
        """Batches of some samples, spread evenly over the data set: neighbours are often alike."""
        wanted = min(count, self._dataset.size)
        for chunk in self._chunks([index * self._dataset.size // wanted for index in range(wanted)]):
            yield self._dataset.feed(chunk, self._inputs)


def invented(inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], count: int = 2) -> list[Feed]:
    """Numbers between 0 and 1 in the shapes of the first profile (open dimensions without one: 1), for models without a calibration set."""
    random = np.random.default_rng(0)
    shapes = {spec.name: spec.profiles[0].opt for spec in profiles}
    feeds: list[Feed] = []
    for _ in range(count):
        feed: dict[str, Array] = {}
        for spec in inputs:
            shape = shapes.get(spec.name) or [size if isinstance(size, int) else 1 for size in spec.shape]
            feed[spec.name] = random.uniform(size=shape).astype(spec.dtype)
        feeds.append(feed)
    return feeds
