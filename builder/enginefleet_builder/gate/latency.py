"""How fast an engine is on this device: milliseconds a run and samples a second, by batch size.

What is measured: runs as a server sees them, on an accelerator also without transfers; runs at a camera's rate; engine and partner in turns.
What is told: percentiles, throughput, whether the times settled, and whether the host or the device is the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Latency, Paced, Speedup, Spread, TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec

from ..backends.base import DeviceSession, Session, Timed
from .arrays import Array
from .bootstrap import REPLICATES, interval
from .conditions import UNSETTLED
from .evaluate import batch_bounds
from .samples import Dataset

Feeds: TypeAlias = Mapping[str, Array]
Times: TypeAlias = NDArray[np.float64]
"""Seconds of single runs, in order of time."""
Wait: TypeAlias = Callable[[float], None]
"""Waits so many seconds, ending early (by raising) when the work must end."""

ITERATIONS = 200
"""The p99 of fewer runs would be their maximum."""
MEASURED_SECONDS = 0.3
"""Of an engine that is fast: hundreds of runs in a few milliseconds would see one pause of the machine, or none."""
LAST_SECONDS = 60.0
"""Of a sustained measurement this much counts, from its end: throttling shows late."""

WARM_BLOCK = 0.05
"""Seconds of a block of warm-up."""
STEADY_BLOCKS = 4
"""So many blocks in a row without a gain: caches and thread pools are warm, and clocks are up."""
GAIN = 0.02
"""Share by which a block must be faster than all before it to count as a gain."""
LONGEST_WARM_UP = 20.0
"""Seconds. Times that still fall then are measured, and marked."""
ENQUEUE_SHARE = 0.9
"""Share of a run from which on enqueueing is its limit."""


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
        return dataset.feed([dataset.at(number) for number in range(batch)], inputs)
    best = {spec.name: spec.profiles[0].opt for spec in profiles}
    return {spec.name: np.zeros([batch, *_sizes(spec, best.get(spec.name))], spec.dtype) for spec in inputs}


def _sizes(spec: TensorSpec, best: Sequence[int] | None) -> list[int]:
    """Sizes of all axes but the first; open ones from the profile's optimum, else 1."""
    return [size if isinstance(size, int) else best[axis] if best else 1 for axis, size in enumerate(spec.shape) if axis > 0]


# ---- what times say ----


def settled(blocks: Sequence[float]) -> bool:
    """`blocks`: the median of each block of warm-up so far. Whether the last ones gained nothing over those before."""
    if len(blocks) <= STEADY_BLOCKS:
        return False
    return min(blocks[-STEADY_BLOCKS:]) >= min(blocks[:-STEADY_BLOCKS]) * (1 - GAIN)


def spread(times: Times) -> Spread:
    p50, p95, p99 = (f"{value * 1000:.3f}" for value in np.percentile(times, [50, 95, 99]))
    return Spread(p50=p50, p95=p95, p99=p99, iterations=len(times))


def summarize(batch: int, times: Times) -> Latency:
    """Percentiles are of single runs, throughput of all of them; of a run longer than `LAST_SECONDS` the last ones, with the first beside."""
    ending = np.cumsum(times[::-1])[::-1]
    long = ending[0] > LAST_SECONDS
    counted = times[ending <= LAST_SECONDS] if long else times
    if not len(counted):
        counted = times[-1:]
    first = spread(times[: max(1, int(np.searchsorted(np.cumsum(times), LAST_SECONDS)))]) if long else None
    rate = batch * len(counted) / float(counted.sum())
    return Latency(batch=batch, throughput=f"{rate:.1f}", first=first, **spread(counted).model_dump())


def bound(enqueue: Times, device: Times) -> str:
    """`host` where enqueueing a run takes about as long as the device needs for it: the device waits between its kernels."""
    return "host" if float(np.median(enqueue)) >= ENQUEUE_SHARE * float(np.median(device)) else "device"


def late(times: Times, period: float) -> int:
    """Runs that were not done when the next pictures came."""
    return int((times > period).sum())


# ---- measuring ----


@dataclass(frozen=True, slots=True)
class WarmUp:
    seconds: float
    settled: bool

    def marks(self) -> list[str]:
        return [] if self.settled else [f"{UNSETTLED}: after {self.seconds:.0f} s of warm-up runs were still getting faster"]


def runs(session: Session, feeds: Feeds, *, iterations: int, seconds: float, warm_up: int = 0, cuda_graph: bool = False) -> Timed:
    """As a server sees them."""
    if isinstance(session, DeviceSession):
        return session.timed(feeds, warm_up=warm_up, iterations=iterations, seconds=seconds, transfers=True, cuda_graph=cuda_graph)
    return Timed(session.timings(feeds, warm_up=warm_up, iterations=iterations, seconds=seconds))


def warm_up(session: Session, feeds: Feeds, *, cuda_graph: bool = False) -> WarmUp:
    """Run until the times settle: caches are filled, threads started, clocks up."""
    began, blocks = time.monotonic(), list[float]()
    while not settled(blocks) and time.monotonic() - began < LONGEST_WARM_UP:
        blocks.append(float(np.median(runs(session, feeds, iterations=1, seconds=WARM_BLOCK, cuda_graph=cuda_graph).seconds)))
    return WarmUp(time.monotonic() - began, settled(blocks))


def measure(session: Session, batch: int, feeds: Feeds, *, sustained: float = 0.0, cuda_graph: bool = False) -> Latency:
    """After warm-up. On an accelerator with transfers, then without them. `sustained`: seconds of load."""
    whole = runs(session, feeds, iterations=ITERATIONS, seconds=max(MEASURED_SECONDS, sustained), cuda_graph=cuda_graph)
    found = summarize(batch, whole.seconds)
    if not isinstance(session, DeviceSession):
        return found
    alone = session.timed(feeds, warm_up=1, iterations=ITERATIONS, seconds=MEASURED_SECONDS, transfers=False, cuda_graph=cuda_graph)
    changes: dict[str, object] = {"transfers": True, "device": spread(alone.seconds), "cuda_graph": whole.cuda_graph}
    if alone.enqueue is not None:
        changes |= {"enqueue": f"{np.median(alone.enqueue) * 1000:.3f}", "bound": bound(alone.enqueue, alone.seconds)}
    return found.model_copy(update=changes)


def measure_paced(session: Session, batch: int, feeds: Feeds, rate: str, seconds: float, wait: Wait, *, cuda_graph: bool = False) -> Paced:
    """A batch each `batch / rate` seconds for so long: single runs after a pause, as a camera makes them. `rate`: decimal text."""
    period = batch / float(rate)
    count = max(1, round(seconds / period))
    began, times = time.monotonic(), list[Times]()
    for number in range(count):
        wait(max(0.0, began + number * period - time.monotonic()))
        times.append(runs(session, feeds, iterations=1, seconds=0, cuda_graph=cuda_graph).seconds[:1])
        if time.monotonic() - began > 2 * seconds:
            break
    found = np.concatenate(times)
    return Paced(rate=rate, late=late(found, period), **spread(found).model_dump())


BLOCKS = 20
"""Pairs of blocks in which two engines are measured in turns: what heats up or is busy slows both."""
BLOCK_RUNS = 10


def measure_in_turns(
    batch: int, engine: Session, partner: Session, feeds: Feeds, partner_feeds: Feeds, seed: int, *, cuda_graph: bool = False
) -> Speedup:
    """How much faster the engine is than its partner: who begins changes with each pair of blocks. Both are warm."""
    times: dict[str, list[Times]] = {"engine": [], "partner": []}
    sides = [("engine", engine, feeds), ("partner", partner, partner_feeds)]
    for block in range(BLOCKS):
        for name, session, arrays in sides if block % 2 == 0 else reversed(sides):
            # the first run after a pause finds cold caches
            timed = runs(session, arrays, warm_up=1, iterations=BLOCK_RUNS, seconds=0, cuda_graph=cuda_graph)
            times[name].append(timed.seconds)
    return compare_blocks(batch, times["engine"], times["partner"], seed)


def compare_blocks(batch: int, engine: Sequence[Times], partner: Sequence[Times], seed: int) -> Speedup:
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
    alone = Latency(**latency.headline().model_dump(exclude={"marks"}))
    return Speedup(batch=latency.batch, speedup="1.000", interval=["1.000", "1.000"], partner=alone, engine=alone, blocks=0)
