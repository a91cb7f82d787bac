"""Segmentation: mean over the classes of intersection by union, of pixels. Record: {"classes", "both", "truth", "found"}, pixels by class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from ..arrays import Array, Floats64
from ..bootstrap import Scores
from ..metrics import chosen
from ..python_metric import Code
from ..samples import Dataset
from ..truth import IGNORED
from . import BROKEN, Record


class Segmentation:
    rises = False

    def __init__(self, validation: Validation, dataset: Dataset, code: Code | None) -> None:
        self._dataset, self._code, self._names = dataset, code, validation.decoder.outputs

    def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:  # noqa: ARG002
        output = self._code.decode(outputs)["labels"] if self._code else chosen(outputs, self._names)
        if output.dtype.kind == "f" and not np.isfinite(output).all():
            return dict(BROKEN)
        truth = self._dataset.mask(index)
        found = _label_map(output, (truth.shape[0], truth.shape[1]))
        counts = truth != IGNORED
        size = int(max(truth[counts].max(initial=0), found.max(initial=0))) + 1
        both, there, said = (
            np.bincount(values, minlength=size) for values in (truth[counts & (truth == found)], truth[counts], found[counts])
        )
        shown = np.flatnonzero(there + said)
        return {"classes": shown.tolist(), "both": both[shown].tolist(), "truth": there[shown].tolist(), "found": said[shown].tolist()}

    def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:  # noqa: ARG002
        shown = sorted({label for record in records for label in record.get("classes", [])})
        column = {label: number for number, label in enumerate(shown)}
        both, union, there = (np.zeros((len(records), len(shown)), np.float64) for _ in range(3))
        for row, record in enumerate(records):
            for number, label in enumerate(record.get("classes", [])):
                at = (row, column[label])
                both[at], there[at] = record["both"][number], record["truth"][number]
                union[at] = record["truth"][number] + record["found"][number] - record["both"][number]

        def values(weights: NDArray[np.int64]) -> tuple[Floats64, Floats64]:
            drawn = weights.astype(np.float64)
            area = drawn @ union
            share = np.divide(drawn @ both, area, out=np.full(area.shape, np.nan), where=area > 0)
            known = np.isfinite(share)
            count = known.sum(axis=1)
            overall = np.divide(np.where(known, share, 0).sum(axis=1), count, out=np.full(len(count), np.nan), where=count > 0)
            return overall, share

        instances = {self._dataset.class_name(label): int((there[:, number] > 0).sum()) for number, label in enumerate(shown)}
        return Scores(len(records), values, instances, {"pixels": int(there.sum())}, sum("broken" in record for record in records))

    def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:
        if "broken" in after:
            return math.inf, "outputs hold NaN or infinite values"
        shares = [self.scores([record], [index]).whole()[0] for record in (before, after)]
        fell = shares[0] - shares[1]
        return (fell, f"mIoU of the picture fell from {shares[0]:.3f} to {shares[1]:.3f}") if fell > 0 else (0.0, "")


def _label_map(output: Array, size: tuple[int, int]) -> NDArray[np.int64]:
    """(H, W) of class numbers from scores (C, H, W) or (H, W, C) or from a label map, in the truth's size: nearest neighbour, as labels have no mean."""
    if output.ndim == 3 and 1 in (output.shape[0], output.shape[2]):
        output = output[0] if output.shape[0] == 1 else output[:, :, 0]
    if output.ndim == 3:
        # classes are on the axis whose removal leaves the truth's proportions; first where both would do
        first = abs(output.shape[1] * size[1] - output.shape[2] * size[0])
        last = abs(output.shape[0] * size[1] - output.shape[1] * size[0])
        labels = np.asarray(output.argmax(axis=0 if first <= last else 2))
    elif output.ndim == 2:
        labels = np.round(output.astype(np.float64)).astype(np.int64)
    else:
        found = f"the output has shape {list(output.shape)} for one picture, expected [classes, height, width] or [height, width]"
        raise PermanentError("OutputsMismatch", f"{found}.", "Name the right output in decoder.outputs.")
    labels = np.asarray(labels, np.int64)
    if labels.min(initial=0) < 0 or labels.max(initial=0) > IGNORED:
        raise PermanentError("OutputsMismatch", f"the label map holds {int(labels.min())} to {int(labels.max())}.", "Expected 0 to 254.")
    if labels.shape != size:
        image = Image.fromarray(labels.astype(np.uint8)).resize((size[1], size[0]), Image.Resampling.NEAREST)
        labels = np.asarray(image).astype(np.int64)
    return labels
