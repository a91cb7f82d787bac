"""Outputs against those of FP32, for what has no labels: embeddings, regressions. The worst sample counts. Record: {"cosine", "error"}."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Baseline
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from ..arrays import Array, Floats64
from ..bootstrap import Scores
from ..metrics import Reference
from ..python_metric import Code
from . import BROKEN, Record

EXACT: Record = {"cosine": 1.0, "error": 0.0}


class Outputs:
    def __init__(self, validation: Validation, baseline: Baseline | None, code: Code | None) -> None:
        assert code is None or validation.decoder.kind == "python"
        self.rises = validation.metric == "max_abs_error"
        self._names = validation.decoder.outputs
        self._reference = None if baseline is None else Reference.of(baseline)

    def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:  # noqa: ARG002
        if missing := [name for name in self._names if name not in outputs]:
            message = f"the model has no outputs {missing}, it has {sorted(outputs)}."
            raise PermanentError("OutputsMismatch", message, "Correct validation.decoder.outputs.")
        if self._reference is None:
            judged = [outputs[name] for name in self._names or outputs]
            return dict(EXACT if all(np.isfinite(output).all() for output in judged) else BROKEN)
        found = self._reference.distance(outputs, index, self._names)
        if found is None or not all(map(math.isfinite, found)):
            return dict(BROKEN)
        return {"cosine": found[0], "error": found[1]}

    def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:  # noqa: ARG002
        name, worst = ("error", np.max) if self.rises else ("cosine", np.min)
        numbers = np.array([float(record.get(name, math.nan)) for record in records])

        def values(weights: NDArray[np.int64]) -> tuple[Floats64, Floats64]:
            none = -np.inf if self.rises else np.inf
            drawn = np.where(weights > 0, numbers, none)
            found = np.asarray(worst(drawn, axis=1), np.float64)
            return np.where(np.isinf(found), np.nan, found), np.zeros((len(weights), 0))

        return Scores(len(records), values, broken=sum("broken" in record for record in records))

    def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:  # noqa: ARG002
        if "broken" in after:
            return math.inf, "outputs hold NaN or infinite values"
        lost = float(after["error"]) if self.rises else 1 - float(after["cosine"])
        return lost, f"cosine {after['cosine']:.6f} to FP32's outputs, largest error {after['error']:.6g}"
