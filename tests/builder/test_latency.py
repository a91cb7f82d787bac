"""What counts of a measurement, and in which order runs are made. Times come from a list here; tests/builder/test_benchmark.py has real ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from enginefleet_api.documents import TensorSpec
from enginefleet_builder.backends.base import Timed
from enginefleet_builder.gate import end_to_end, latency
from enginefleet_builder.gate.arrays import Array
from enginefleet_builder.gate.bootstrap import Scores
from enginefleet_builder.gate.latency import bound, compare_blocks, late, settled, summarize
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.gate.tasks import Record

Times = NDArray[np.float64]


def test_of_a_sustained_measurement_the_last_minute_counts_where_throttling_shows() -> None:
    cool, hot = np.full(10_000, 0.01), np.full(2_500, 0.03)
    found = summarize(4, np.concatenate([cool, hot]))
    assert (found.p50, found.p95, found.p99) == ("30.000", "30.000", "30.000")
    assert found.throughput == f"{4 / 0.03:.1f}"
    assert 1_999 <= found.iterations <= 2_000
    assert found.first is not None
    assert (found.first.p50, found.first.p99) == ("10.000", "10.000")
    assert 5_999 <= found.first.iterations <= 6_001


def test_a_short_measurement_counts_whole() -> None:
    found = summarize(1, np.array([0.001] * 99 + [0.1]))
    assert (found.iterations, found.p50, found.first) == (100, "1.000", None)


def test_one_run_longer_than_a_minute_is_all_there_is() -> None:
    found = summarize(1, np.array([100.0]))
    assert (found.iterations, found.p50, found.throughput) == (1, "100000.000", "0.0")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([], False),
        ([1.0] * 4, False),
        ([1.0] * 5, True),
        ([3.0, 1.0, 1.0, 1.0, 1.0], False),
        ([3.0, 1.0, 1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 0.99, 0.99, 0.99, 0.99], True),
        ([1.0, 1.0, 1.0, 1.0, 0.97], False),
        ([1.0, 1.5, 1.5, 1.5, 1.5], True),
    ],
    ids=["none", "too few", "equal", "one gain within the last", "a gain before", "less than a gain", "still gaining", "slower"],
)
def test_times_are_settled_when_the_last_blocks_gained_nothing(blocks: list[float], expected: bool) -> None:
    assert expected is settled(blocks)


def test_the_host_is_the_limit_where_enqueueing_takes_as_long_as_the_run() -> None:
    run = np.full(10, 0.010)
    assert ["host", "host", "device"] == [bound(run * share, run) for share in (1.0, 0.9, 0.89)]


def test_a_run_is_late_when_the_next_pictures_are_there_before_it_is_done() -> None:
    assert 2 == late(np.array([0.01, 0.033, 0.034, 0.5]), 1 / 30)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_speed_up_is_the_median_over_pairs_of_blocks(noise: float) -> None:
    random = np.random.default_rng(3)
    blocks = [np.full(10, 0.010) * (1 + noise * random.random()) for _ in range(20)]
    found = compare_blocks(2, blocks, [np.full(10, 0.025)] * 20, seed=1)
    low, high = (float(value) for value in found.interval)
    assert (2, 20, "25.000") == (found.batch, found.blocks, found.partner.p50)
    if noise:
        assert low < float(found.speedup) < high < 2.5
    else:
        assert (2.5, 2.5, 2.5) == (low, float(found.speedup), high)
    assert found == compare_blocks(2, blocks, [np.full(10, 0.025)] * 20, seed=1)


# ---- the order of runs, and stages around the model


@dataclass
class Clockwork:
    """An engine whose runs take what `times` says: always the same, or one after another."""

    times: Iterator[float] | float
    log: list[str] = field(default_factory=list)
    name: str = "engine"
    inputs: Sequence[TensorSpec] = ()
    outputs: Sequence[TensorSpec] = ()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        raise NotImplementedError

    def timings(self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float) -> Times:
        self.log.append(self.name)
        return np.array([self.times if isinstance(self.times, float) else next(self.times) for _ in range(iterations)])


@dataclass
class OnDevice(Clockwork):
    """The same on an accelerator: a tenth of each run is copying, and enqueueing takes `enqueue`."""

    enqueue: float = 0.001
    device_memory: int | None = None

    def timed(
        self, feeds: Mapping[str, Array], *, warm_up: int, iterations: int, seconds: float, transfers: bool, cuda_graph: bool
    ) -> Timed:
        times = self.timings(feeds, warm_up=warm_up, iterations=iterations, seconds=seconds)
        return Timed(times if transfers else times * 0.9, None if transfers else np.full(iterations, self.enqueue), cuda_graph)


def test_warm_up_ends_when_times_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Clockwork(iter([0.5, 0.2, *[0.1] * 100]))
    assert latency.warm_up(engine, {}).settled
    assert 3 + latency.STEADY_BLOCKS == len(engine.log)
    monkeypatch.setattr(latency, "LONGEST_WARM_UP", 0.02)
    endless = latency.warm_up(Clockwork(0.5**number for number in range(10**6)), {})
    assert not endless.settled
    assert ["unsettled"] == [mark.partition(":")[0] for mark in endless.marks()]


def test_on_an_accelerator_the_devices_own_time_stands_beside_that_with_copies() -> None:
    found = latency.measure(OnDevice(0.010), 1, {}, cuda_graph=True)
    assert found.device is not None
    assert ("10.000", "9.000", "1.000", "device", True, True) == (
        found.p50, found.device.p50, found.enqueue, found.bound, found.transfers, found.cuda_graph,
    )  # fmt: skip
    assert "host" == latency.measure(OnDevice(0.010, enqueue=0.0085), 1, {}).bound
    plain = latency.measure(Clockwork(0.010), 1, {})
    assert (None, None, None, None) == (plain.device, plain.enqueue, plain.bound, plain.transfers)


def test_paced_runs_begin_when_pictures_come() -> None:
    """Two pictures each half second for five: ten runs, each asked to wait until its own time has come. This clock waits for nobody."""
    waits: list[float] = []
    found = latency.measure_paced(Clockwork(iter([0.1] * 8 + [0.6] * 2)), 2, {}, "4", 5.0, waits.append)
    assert ("4", 10, 2, "100.000") == (found.rate, found.iterations, found.late, found.p50)
    assert [number * 0.5 for number in range(10)] == pytest.approx(waits, abs=0.4)
    assert waits == sorted(waits)


def test_one_paced_run_is_made_however_slow_the_rate() -> None:
    assert 1 == latency.measure_paced(Clockwork(0.1), 1, {}, "0.01", 1.0, lambda _: None).iterations


def test_engine_and_partner_take_turns_at_beginning() -> None:
    log: list[str] = []
    found = latency.measure_in_turns(1, Clockwork(0.01, log), Clockwork(0.02, log, "partner"), {}, {}, seed=7)
    assert "2.000" == found.speedup
    assert ["engine", "partner", "partner", "engine"] == log[:4]
    assert 2 * latency.BLOCKS == len(log)


def test_a_partner_that_is_the_engine_itself_is_as_fast() -> None:
    marked = summarize(4, np.full(10, 0.01)).model_copy(update={"marks": ["shared: others"]})
    found = latency.itself(marked)
    assert ("1.000", ["1.000", "1.000"], 4, None) == (found.speedup, found.interval, found.batch, found.engine.marks)


@pytest.mark.parametrize(("shape", "measured"), [((3, 4), True), ((7, 6), False), ((), False)])
def test_stages_of_a_batch_need_outputs_with_a_batch_axis(shape: tuple[int, ...], measured: bool) -> None:
    """Three pictures a batch: their predictions are read one by one, from the data set's beginning again when it ends."""

    class Answering(Clockwork):
        def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
            assert (3, 4) == feeds["x"].shape
            return {"y": np.zeros(shape, np.float32)}

    read: list[int] = []

    class Reading:
        rises = False

        def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:
            assert ((4,), (4,)) == (outputs["y"].shape, tuple(shape))
            read.append(index)
            return {}

        def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:
            raise NotImplementedError

        def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:
            raise NotImplementedError

    dataset = Dataset(4, None, (), lambda _: {"": np.zeros(4, np.float32)})
    engine = Answering(0.010, inputs=[TensorSpec(name="x", dtype="float32", shape=[None, 4])])
    found = end_to_end.measure(engine, dataset, Reading(), Preprocessor.of(None), 3, lambda: None)
    assert measured is (found is not None)
    if found is not None:
        assert ("10.000", None, end_to_end.ROUNDS) == (found.infer.p50, found.decode, found.whole.iterations)
        assert [0, 1, 2, 3, 0, 1] == read[:6]
