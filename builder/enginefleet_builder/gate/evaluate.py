"""Running a data set through a session, in batches that the model takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec

from .arrays import Array
from .datasets import Dataset

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


def evaluate(
    run: Run, dataset: Dataset, indices: Sequence[int], inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], shown: Shown
) -> Array:
    """The model's first output for each index: shape (len(indices), …). Raises PermanentError `OutputsMismatch`."""
    parts: list[Array] = []
    done = 0
    for chunk, counted in batches(indices, inputs, profiles):
        name, output = next(iter(run(dataset.feed(chunk, inputs)).items()))
        if output.dtype.kind not in "fiub" or output.ndim < 1 or output.shape[0] != len(chunk):
            found = f"output {name!r} is {output.dtype} of shape {list(output.shape)} for {len(chunk)} samples"
            raise PermanentError("OutputsMismatch", f"{found}, expected numbers with the samples as first axis.", "Correct the model.")
        parts.append(output[:counted])
        done += counted
        shown(done, len(indices))
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = sorted({str(list(part.shape[1:])) for part in parts})
        raise PermanentError("OutputsMismatch", f"the first output changes its shape between samples: {shapes}.", "Fix its shape.")
    return np.concatenate(parts)
