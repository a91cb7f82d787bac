"""Classification: whether the label is among the highest scores. Record: {"correct", "predicted", "margin"}."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from ..arrays import Array, Floats64
from ..bootstrap import Scores
from ..metrics import chosen
from ..python_metric import Code
from ..samples import Dataset
from . import BROKEN, Record

TOP = {"top1": 1, "top5": 5}


class Classification:
    rises = False

    def __init__(self, validation: Validation, dataset: Dataset, code: Code | None) -> None:
        assert dataset.labels is not None
        self._labels, self._dataset, self._code = dataset.labels, dataset, code
        self._top = TOP[validation.metric]
        self._names = validation.decoder.outputs

    def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:  # noqa: ARG002
        scores = _scores(self._code.decode(outputs)["scores"] if self._code else chosen(outputs, self._names))
        if not np.isfinite(scores).all():
            return dict(BROKEN)
        label = int(self._labels[index])
        if label >= len(scores):
            message = f"labels go up to {int(self._labels.max())}, the model has {len(scores)} classes."
            raise PermanentError("DataSetMismatch", message, "Use the validation set that belongs to this model.")
        best = np.argsort(-scores, kind="stable")
        others = np.delete(scores, label)
        margin = float(scores[label] - others.max()) if len(others) else 0.0
        return {"correct": bool(label in best[: self._top]), "predicted": int(best[0]), "margin": round(margin, 6)}

    def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:
        correct = np.array([record.get("correct") is True for record in records], np.int64)
        labels = self._labels[list(indices)]
        order = np.argsort(labels, kind="stable")
        present, starts, instances = np.unique(labels[order], return_index=True, return_counts=True)

        def values(weights: NDArray[np.int64]) -> tuple[Floats64, Floats64]:
            with np.errstate(invalid="ignore", divide="ignore"):
                overall = (weights @ correct) / weights.sum(axis=1)
                sorted_weights = weights[:, order]
                right = np.add.reduceat(sorted_weights * correct[order], starts, axis=1)
                return overall, right / np.add.reduceat(sorted_weights, starts, axis=1)

        return Scores(
            len(records),
            values,
            {self._dataset.class_name(int(label)): int(count) for label, count in zip(present, instances, strict=True)},
            {"correct": int(correct.sum())},
            sum("broken" in record for record in records),
        )

    def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:
        label = self._dataset.class_name(int(self._labels[index]))
        if "broken" in after:
            return math.inf, "outputs hold NaN or infinite values"
        fell = float(before.get("margin", 0.0)) - float(after.get("margin", 0.0))
        if before.get("correct") and not after.get("correct"):
            return 1.0 + max(
                0.0, math.tanh(fell)
            ), f"{label} was right in FP32, the engine says {self._dataset.class_name(after['predicted'])}"
        if before.get("correct") == after.get("correct"):
            return max(0.0, math.tanh(fell)), f"{label}: its score came closer to the others', or fell further below"
        return 0.0, ""


def _scores(output: Array) -> Floats64:
    """A classifier's output for one sample (C,), or (C, 1, 1), as float64 (C,). Raises PermanentError `OutputsMismatch`."""
    if output.ndim < 1 or output.size != output.shape[0] or output.dtype.kind not in "fiub":
        found = f"the output has shape {list(output.shape)} for one sample, expected one score a class"
        raise PermanentError("OutputsMismatch", f"{found}.", "Use a classifier whose output holds one score a class.")
    return output.reshape(-1).astype(np.float64)
