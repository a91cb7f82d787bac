"""The work queue against client-go's promises, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from enginefleet_operator.kube.errors import ApiUnavailable
from enginefleet_operator.kube.workqueue import FIRST_BACKOFF, LONGEST_BACKOFF, QueueClosed, WorkQueue, work


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def queue_with(clock: Clock, jitter: float = 0.5) -> WorkQueue[str]:
    return WorkQueue(clock=clock, jitter=lambda: jitter)


def test_a_key_added_twice_before_a_worker_takes_it_is_processed_once() -> None:
    queue = queue_with(Clock())
    queue.add("a")
    queue.add("a")
    assert [queue.take(), queue.take()] == ["a", None]


def test_a_key_added_while_it_is_processed_comes_again_when_that_is_done() -> None:
    queue = queue_with(Clock())
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"


def test_a_key_rests_after_it_was_done_and_what_is_added_meanwhile_comes_once_then() -> None:
    clock = Clock()
    queue = WorkQueue[str](clock=clock)
    queue.add("slow")
    assert queue.take() == "slow"
    queue.add("slow")
    queue.done("slow", rest=3.0)
    queue.add("slow")
    queue.add("other")
    assert (queue.take(), queue.take()) == ("other", None)
    clock.now += 2.9
    assert queue.take() is None
    clock.now += 0.2
    assert (queue.take(), queue.take()) == ("slow", None)
    queue.done("slow")
    queue.add("slow")
    assert queue.take() == "slow"


def test_of_two_delays_the_earlier_counts_and_the_later_does_not_come_too() -> None:
    clock = Clock()
    queue = queue_with(clock)
    queue.add_after("a", 50)
    queue.add_after("a", 10)
    queue.add_after("a", 90)
    clock.now += 10
    assert queue.take() == "a"
    queue.done("a")
    clock.now += 100
    assert queue.take() is None


def test_back_off_doubles_up_to_a_minute_and_starts_over_after_forget() -> None:
    queue = queue_with(Clock())
    delays = [queue.add_failed("a") for _ in range(12)]
    assert delays[:3] == pytest.approx([0.2, 0.4, 0.8])
    assert delays[-1] == LONGEST_BACKOFF
    queue.forget("a")
    assert queue.add_failed("a") == pytest.approx(FIRST_BACKOFF)


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 40))
def test_no_jitter_leaves_the_range_of_the_back_off(jitter: float, failures: int) -> None:
    queue = queue_with(Clock(), jitter)
    assert all(FIRST_BACKOFF <= queue.add_failed("a") <= LONGEST_BACKOFF for _ in range(failures))


def test_a_key_that_nobody_takes_makes_the_queue_stuck_and_taking_one_ends_that() -> None:
    clock = Clock()
    queue = queue_with(clock)
    assert queue.stuck_for() == 0
    queue.add("a")
    queue.add("b")
    clock.now += 61
    assert queue.stuck_for() == 61
    queue.take()
    assert queue.stuck_for() == 0


def test_a_key_that_waits_for_its_time_does_not_make_the_queue_stuck() -> None:
    clock = Clock()
    queue = queue_with(clock)
    queue.add_after("a", 100)
    clock.now += 99
    assert queue.stuck_for() == 0


class Promises(RuleBasedStateMachine):
    """Any order of calls: no key at two workers, and whatever was added is processed after its last add."""

    keys = st.sampled_from("abc")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = queue_with(self.clock)
        self.working: Counter[str] = Counter()
        self.owed: set[str] = set()
        self.owed_later: dict[str, float] = {}

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.owed.add(key)

    @rule(key=keys, delay=st.sampled_from([0.0, 1.0, 5.0]))
    def add_after(self, key: str, delay: float) -> None:
        self.queue.add_after(key, delay)
        if delay == 0:
            self.owed.add(key)
        else:
            self.owed_later[key] = min(self.clock.now + delay, self.owed_later.get(key, float("inf")))

    @rule(key=keys)
    def fail(self, key: str) -> None:
        due = self.clock.now + self.queue.add_failed(key)
        self.owed_later[key] = min(due, self.owed_later.get(key, float("inf")))

    @rule(seconds=st.sampled_from([0.5, 1.0, 7.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def take(self) -> None:
        self._settle()
        key = self.queue.take()
        if key is not None:
            assert key in self.owed
            self.owed.discard(key)
            self.working[key] += 1

    @rule(key=keys)
    def finish(self, key: str) -> None:
        if self.working[key]:
            self.working[key] -= 1
            self.queue.done(key)

    @invariant()
    def one_worker_a_key(self) -> None:
        assert max(self.working.values(), default=0) <= 1

    def teardown(self) -> None:
        for key in self.working.elements():
            self.queue.done(key)
        self.clock.now += 1000
        self._settle()
        processed = set()
        while (taken := self.queue.take()) is not None:
            processed.add(taken)
            self.queue.done(taken)
        assert processed == self.owed

    def _settle(self) -> None:
        for key in [key for key, due in self.owed_later.items() if due <= self.clock.now]:
            del self.owed_later[key]
            self.owed.add(key)


TestPromises = Promises.TestCase
TestPromises.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


async def _drain(queue: WorkQueue[str], reconcile: object, workers: int = 2, outcome: object = None) -> None:
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work(queue, reconcile, outcome=outcome))  # type: ignore[arg-type]


def test_workers_retry_what_crashed_and_go_on_with_the_rest() -> None:
    async def scenario() -> tuple[list[str], list[str]]:
        queue: WorkQueue[str] = WorkQueue(jitter=lambda: 0.0)
        seen: list[str] = []
        failures: list[str] = []

        async def reconcile(key: str) -> float | None:
            seen.append(key)
            await asyncio.sleep(0)
            if key == "bad" and seen.count("bad") == 1:
                raise ValueError("first visit")
            if key == "bad":
                queue.close()
            return None

        queue.add("bad")
        queue.add("good")
        await _drain(queue, reconcile, outcome=lambda _, failure: failures.append(type(failure).__name__))
        return seen, failures

    assert asyncio.run(scenario()) == (["bad", "good", "bad"], ["ValueError", "NoneType", "NoneType"])


def test_a_reconcile_names_when_it_wants_to_come_back_and_the_api_server_may_too() -> None:
    async def scenario() -> list[str]:
        queue: WorkQueue[str] = WorkQueue()
        seen: list[str] = []

        async def reconcile(key: str) -> float | None:
            seen.append(key)
            if len(seen) == 1:
                return 0.01
            if len(seen) == 2:
                raise ApiUnavailable("busy", code=429, retry_after=0.01)
            queue.close()
            return None

        queue.add("a")
        await _drain(queue, reconcile, workers=1)
        return seen

    assert asyncio.run(scenario()) == ["a", "a", "a"]


def test_of_requests_that_went_out_together_the_api_server_s_word_counts_as_if_it_had_been_one() -> None:
    async def scenario() -> list[str]:
        queue: WorkQueue[str] = WorkQueue()
        failures: list[str] = []

        async def refused() -> None:
            raise ApiUnavailable("busy", code=429, retry_after=0.01)

        async def reconcile(key: str) -> float | None:
            if not failures:
                async with asyncio.TaskGroup() as group:
                    group.create_task(refused())
                    group.create_task(refused())
            queue.close()
            return None

        queue.add("a")
        await _drain(queue, reconcile, workers=1, outcome=lambda _, failure: failures.append(type(failure).__name__))
        return failures

    assert asyncio.run(scenario()) == ["ApiUnavailable", "NoneType"]


def test_a_reconcile_that_hangs_is_cut_off_and_its_key_comes_back() -> None:
    async def scenario() -> int:
        queue: WorkQueue[str] = WorkQueue()
        visits = 0

        async def reconcile(_: str) -> float | None:
            nonlocal visits
            visits += 1
            if visits == 1:
                await asyncio.Event().wait()
            queue.close()
            return None

        queue.add("a")
        async with asyncio.timeout(5):
            await work(queue, reconcile, limit=0.02)
        return visits

    assert asyncio.run(scenario()) == 2


def test_get_after_close_ends_the_worker_whatever_still_waits() -> None:
    queue = queue_with(Clock())
    queue.add("a")
    queue.close()
    with pytest.raises(QueueClosed):
        asyncio.run(queue.get())
