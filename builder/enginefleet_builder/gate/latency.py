"""How fast an engine is on this device: milliseconds a run and samples a second, by batch size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Latency, TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec

from .arrays import Array
from .datasets import Dataset
from .evaluate import batch_bounds

WARM_UP = 20
"""Runs before measuring: caches, thread pools and clocks come up."""
ITERATIONS = 200
"""The p99 of fewer runs would be their maximum."""
LAST_SECONDS = 60.0
"""Of a sustained measurement this much counts, from its end: throttling shows late."""


def require_batch_sizes(batch_sizes: Sequence[int], inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec]) -> None:
    """Raises PermanentError `BatchSizeNotPossible` for sizes that the model or its profiles do not take."""
    low, high = batch_bounds(inputs, profiles)
    wrong = [size for size in batch_sizes if size < low or (high is not None and size > high)]
    if wrong:
        takes = f"exactly {low}" if low == high else f"{low} to {high if high is not None else 'any size'}"
        message = f"benchmark.batchSizes {wrong} cannot be measured: the model takes {takes}."
        raise PermanentError("BatchSizeNotPossible", message, "Change benchmark.batchSizes, or export the model with a dynamic batch axis.")


def benchmark_feeds(batch: int, inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], dataset: Dataset | None) -> dict[str, Array]:
    """`batch` samples of the data set (repeated as needed), or zeros where there is none."""
    if dataset is not None and dataset.size:
        return dataset.feed([index % dataset.size for index in range(batch)], inputs)
    best = {spec.name: spec.profiles[0].opt for spec in profiles}
    return {spec.name: np.zeros([batch, *_sizes(spec, best.get(spec.name))], spec.dtype) for spec in inputs}


def _sizes(spec: TensorSpec, best: Sequence[int] | None) -> list[int]:
    """Sizes of all axes but the first; open ones from the profile's optimum, else 1."""
    return [size if isinstance(size, int) else best[axis] if best else 1 for axis, size in enumerate(spec.shape) if axis > 0]


def summarize(batch: int, times: NDArray[np.float64]) -> Latency:
    """`times`: seconds of each run, float64, in order of time. Percentiles are of single runs, throughput of all of them."""
    ending = np.cumsum(times[::-1])[::-1]
    counted = times[ending <= LAST_SECONDS] if ending[0] > LAST_SECONDS else times
    p50, p95, p99 = (f"{value * 1000:.3f}" for value in np.percentile(counted, [50, 95, 99]))
    rate = batch * len(counted) / float(counted.sum())
    return Latency(batch=batch, p50=p50, p95=p95, p99=p99, throughput=f"{rate:.1f}", iterations=len(counted))
