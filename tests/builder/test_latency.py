"""What counts of a measurement."""

from __future__ import annotations

import numpy as np

from enginefleet_builder.gate.latency import summarize


def test_of_a_sustained_measurement_the_last_minute_counts_where_throttling_shows() -> None:
    cool, hot = np.full(10_000, 0.01), np.full(2_500, 0.03)
    found = summarize(4, np.concatenate([cool, hot]))
    assert (found.p50, found.p95, found.p99) == ("30.000", "30.000", "30.000")
    assert found.throughput == f"{4 / 0.03:.1f}"
    assert 1_999 <= found.iterations <= 2_000


def test_a_short_measurement_counts_whole() -> None:
    found = summarize(1, np.array([0.001] * 99 + [0.1]))
    assert (found.iterations, found.p50) == (100, "1.000")
