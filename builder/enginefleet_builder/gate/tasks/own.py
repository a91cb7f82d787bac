"""A user's own metric: code that makes a record of a sample, and may make a value of records. Record: {"value": number}, or what the code gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.resources import Validation

from ..arrays import Array, Floats64
from ..bootstrap import REPLICATES, Scores
from ..python_metric import Code
from ..samples import Dataset
from . import BROKEN, Record

OWN_REPLICATES = 200
"""Fewer than usual where the value is the user's function: each calls it once."""


class Own:
    def __init__(self, code: Code, validation: Validation, dataset: Dataset) -> None:
        assert validation.python is not None
        self.rises = not validation.python.higher_is_better
        self._code, self._task, self._dataset = code, validation.task, dataset

    def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:  # noqa: ARG002
        found = self._code.sample(outputs, self._truth(index))
        value = found.get("value")
        return dict(BROKEN) if isinstance(value, float) and not math.isfinite(value) else found

    def _truth(self, index: int) -> dict[str, Array]:
        match self._task:
            case "classification":
                assert self._dataset.labels is not None
                return {"label": np.asarray(self._dataset.labels[index])}
            case "detection":
                truth = self._dataset.boxes(index)
                return {"boxes": truth.boxes, "classes": truth.classes, "crowd": truth.crowd, "area": truth.area}
            case "segmentation":
                return {"mask": self._dataset.mask(index)}
            case _:
                return {}

    def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:  # noqa: ARG002
        broken = sum("broken" in record for record in records)
        if self._code.has_value:
            whole = self._code.keep(records)

            def values(weights: NDArray[np.int64]) -> tuple[Floats64, Floats64]:
                return self._code.values(whole, weights), np.zeros((len(weights), 0))

            return Scores(len(records), values, broken=broken, replicates=OWN_REPLICATES)
        numbers = np.array([float(record.get("value", 0.0)) for record in records])

        def means(weights: NDArray[np.int64]) -> tuple[Floats64, Floats64]:
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray((weights @ numbers) / weights.sum(axis=1)), np.zeros((len(weights), 0))

        return Scores(len(records), means, broken=broken, replicates=REPLICATES)

    def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:  # noqa: ARG002
        if "broken" in after:
            return math.inf, "the value is NaN or infinite"
        pair = before.get("value"), after.get("value")
        if not all(isinstance(value, int | float) for value in pair):
            return 0.0, ""
        lost = (float(pair[0]) - float(pair[1])) * (-1 if self.rises else 1)  # type: ignore[arg-type]
        return lost, f"the value went from {pair[0]:.6g} to {pair[1]:.6g}"
