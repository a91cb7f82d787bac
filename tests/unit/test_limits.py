"""The token bucket before the API server, against a clock that only moves when somebody sleeps."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from enginefleet_operator.kube.limits import TokenBucket


class Time:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def sent(rate: float, burst: float, pauses: list[float]) -> list[float]:
    """When each request goes out, with a pause before it."""
    clock = Time()
    bucket = TokenBucket(rate, burst, clock=clock, sleep=clock.sleep)
    times = []
    for pause in pauses:
        clock.now += pause
        asyncio.run(bucket.take())
        times.append(clock.now)
    return times


def test_a_burst_goes_at_once_and_the_rest_at_the_rate() -> None:
    assert [round(at, 6) for at in sent(10, 5, [0.0] * 8)] == [50.0] * 5 + [50.1, 50.2, 50.3]


def test_after_a_rest_the_burst_is_there_again_and_no_more() -> None:
    times = sent(10, 2, [0.0] * 4 + [100.0] + [0.0] * 2)
    assert times[4] == times[5]
    assert round(times[6] - times[5], 6) == 0.1


def test_without_a_rate_nothing_waits() -> None:
    assert sent(0, 0, [0.0] * 100) == [50.0] * 100


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=60), st.integers(1, 50), st.integers(1, 20))
def test_no_stretch_of_time_has_more_than_the_burst_and_the_rate(pauses: list[float], rate: int, burst: int) -> None:
    times = sent(rate, burst, pauses)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + (times[last] - times[first]) * rate + 1e-6
