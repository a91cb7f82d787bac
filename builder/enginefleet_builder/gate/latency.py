"""How fast an engine is on this device: milliseconds a run and samples a second, by batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Latency, Speedup, TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec

from ..backends.base import Session
from .arrays import Array
from .bootstrap import REPLICATES, interval
from .evaluate import batch_bounds
from .samples import Dataset

Feeds: TypeAlias = Mapping[str, Array]

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


BLOCKS = 20
"""Pairs of blocks in which two engines are measured in turns: what heats up or is busy slows both."""
BLOCK_RUNS = 10


def measure_in_turns(batch: int, engine: Session, partner: Session, feeds: Feeds, partner_feeds: Feeds, seed: int) -> Speedup:
    """How much faster the engine is than its partner: who begins changes with each pair of blocks."""
    runs: dict[str, list[NDArray[np.float64]]] = {"engine": [], "partner": []}
    sides = [("engine", engine, feeds), ("partner", partner, partner_feeds)]
    for _, session, arrays in sides:
        session.timings(arrays, warm_up=WARM_UP, iterations=1, seconds=0)
    for block in range(BLOCKS):
        for name, session, arrays in sides if block % 2 == 0 else reversed(sides):
            # the first run after a pause finds cold caches
            runs[name].append(session.timings(arrays, warm_up=1, iterations=BLOCK_RUNS, seconds=0))
    return compare_blocks(batch, runs["engine"], runs["partner"], seed)


def compare_blocks(batch: int, engine: Sequence[NDArray[np.float64]], partner: Sequence[NDArray[np.float64]], seed: int) -> Speedup:
    """`engine`, `partner`: seconds of each run, by block; blocks of the same number belong together. Their ratios are bootstrapped."""
    ratios = np.array([np.median(theirs) / np.median(mine) for mine, theirs in zip(engine, partner, strict=True)])
    drawn = np.random.default_rng(seed).integers(len(ratios), size=(REPLICATES, len(ratios)))
    bounds = interval(np.median(ratios[drawn], axis=1))
    return Speedup(
        batch=batch,
        speedup=f"{np.median(ratios):.3f}",
        interval=[] if bounds is None else [f"{bound:.3f}" for bound in bounds],
        partner=summarize(batch, np.concatenate(partner)),
        engine=summarize(batch, np.concatenate(engine)),
        blocks=len(ratios),
    )


def itself(latency: Latency) -> Speedup:
    """Of an engine that is its own partner: the model in FP32."""
    return Speedup(batch=latency.batch, speedup="1.000", interval=["1.000", "1.000"], partner=latency, engine=latency, blocks=0)
