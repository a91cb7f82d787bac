"""What judging holds in memory: a batch of pictures, never the set."""

from __future__ import annotations

from bench.judging_memory import one
from bench.quantizer_memory import SIDE


def test_judging_needs_less_memory_than_half_of_the_set_would_take_as_tensors() -> None:
    samples = 200
    as_tensors = samples * 3 * SIDE * SIDE * 4 / 1e6
    measured = one(samples)
    assert measured["code"] in (0, 1), "0 passed, 1 did not: pictures of noise say nothing"
    assert 50 < measured["peakMb"] < as_tensors / 2, (measured, as_tensors)
