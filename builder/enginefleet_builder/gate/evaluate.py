"""Running a data set through a session, in batches that the model takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec

from .arrays import Array
from .samples import Dataset

PREFERRED_BATCH = 16
"""Samples a run where the model leaves it open: calibrating one by one takes three times as long."""

Run = Callable[[Mapping[str, Array]], dict[str, Array]]
Shown = Callable[[int, int], None]
"""Called with (samples done, samples in all)."""


def fixed_batch(inputs: Sequence[TensorSpec]) -> int | None:
    """The batch size that the model is fixed to; None when every first axis is open."""
    return next((spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], int)), None)


def batch_bounds(inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec]) -> tuple[int, int | None]:
    """Smallest and largest batch size that the model and its profiles take; None: no upper bound."""
    if (fixed := fixed_batch(inputs)) is not None:
        return fixed, fixed
    ranges = [(profile.min[0], profile.max[0]) for spec in profiles for profile in spec.profiles if profile.min and profile.max]
    return min((low for low, _ in ranges), default=1), max((high for _, high in ranges), default=None)


def batch_size(inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec]) -> int:
    low, high = batch_bounds(inputs, profiles)
    return max(low, min(PREFERRED_BATCH, high or PREFERRED_BATCH))


def batches(indices: Sequence[int], inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec]) -> list[tuple[list[int], int]]:
    """(indices, how many of them count): the last batch is filled up with its last sample where the model needs whole batches."""
    size, (low, _) = batch_size(inputs, profiles), batch_bounds(inputs, profiles)
    chunks = [list(indices[start : start + size]) for start in range(0, len(indices), size)]
    return [(chunk + [chunk[-1]] * (low - len(chunk)), len(chunk)) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One sample's outputs by name, without the batch axis, and the shape of its first input."""

    index: int
    outputs: Mapping[str, Array]
    shape: tuple[int, ...]


def evaluate(
    run: Run, dataset: Dataset, indices: Sequence[int], inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], shown: Shown
) -> Iterator[Evaluated]:
    """Each sample of `indices` in turn: no more than a batch is held. Raises PermanentError `OutputsMismatch`.

    Outputs of some detectors have no batch axis but one of boxes: such a model is run sample by sample.
    """
    singly, done = False, 0
    for chunk, counted in batches(indices, inputs, profiles):
        feeds = dataset.feed(chunk, inputs)
        parts = _apart(feeds) if singly else [feeds]
        results = [run(part) for part in parts]
        if len(parts) == 1 < len(chunk) and any(output.ndim < 1 or len(output) != len(chunk) for output in results[0].values()):
            if batch_bounds(inputs, profiles)[0] > 1:
                shapes = {name: list(output.shape) for name, output in results[0].items()}
                message = f"outputs {shapes} do not have the {len(chunk)} samples as first axis, and the model takes no single ones."
                raise PermanentError("OutputsMismatch", message, "Export the model with batch size 1.")
            singly, parts = True, _apart(feeds)
            results = [run(part) for part in parts]
        size = len(chunk) // len(parts)
        for place, index in enumerate(chunk[:counted]):
            result = results[place // size]
            rows = {name: _row(name, output, place % size, size) for name, output in result.items()}
            yield Evaluated(index, rows, next(iter(feeds.values())).shape[1:])
        done += counted
        shown(done, len(indices))


def _apart(feeds: Mapping[str, Array]) -> list[dict[str, Array]]:
    return [{name: feed[row : row + 1] for name, feed in feeds.items()} for row in range(len(next(iter(feeds.values()))))]


def _row(name: str, output: Array, place: int, size: int) -> Array:
    if output.dtype.kind not in "fiub":
        raise PermanentError("OutputsMismatch", f"output {name!r} is {output.dtype}, expected numbers.", "Correct the model.")
    if size == 1 and (output.ndim < 1 or len(output) != 1):
        return output
    row: Array = output[place]
    return row
