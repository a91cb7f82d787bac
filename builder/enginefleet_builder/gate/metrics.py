"""Numbers as decimal text, and how far outputs lie from the baseline's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Baseline, KeptOutput
from enginefleet_api.errors import PermanentError

from .arrays import Array, Floats64

DIGITS = 6
"""Decimals of every metric's text: thresholds are compared as decimals, so that a drop of exactly the allowed 0.01 passes."""
COMPARED = 64
"""Samples whose outputs are compared with the baseline's number by number: for people, and cheap on small boards."""
KEPT_NUMBERS = 2_000_000
"""Bound of all kept outputs of a baseline: about 20 MB of JSON."""


def text(value: float) -> str:
    """Decimal text of DIGITS decimals; `NaN` when it is not finite."""
    return f"{value:.{DIGITS}f}" if math.isfinite(value) else "NaN"


def number(value: str | None) -> Decimal | None:
    """The decimal behind a metric's text; None when it is missing, no number, or not finite."""
    try:
        parsed = Decimal(value) if value is not None else None
    except ArithmeticError:
        return None
    return parsed if parsed is not None and parsed.is_finite() else None


def chosen(outputs: Mapping[str, Array], names: Sequence[str]) -> Array:
    """The output that is judged: the one that decoder.outputs names, else the first. Raises PermanentError `OutputsMismatch`."""
    name = names[0] if names else next(iter(outputs))
    if name not in outputs:
        raise PermanentError("OutputsMismatch", f"the model has no output {name!r}, it has {sorted(outputs)}.", "Correct decoder.outputs.")
    return outputs[name]


def keep(rows: Sequence[Mapping[str, Array]]) -> list[KeptOutput]:
    """Outputs of some samples for a baseline: all that have the same shape in each, thinned evenly where they are too many."""
    kept = [name for name in (rows[0] if rows else {}) if rows[0][name].size and len({row[name].shape for row in rows}) == 1]
    numbers = sum(rows[0][name].size for name in kept) * len(rows)
    step = max(1, math.ceil(numbers / KEPT_NUMBERS))
    return [
        KeptOutput(name=name, size=rows[0][name].size, step=step, values=[_exact(np.ravel(row[name])[::step]) for row in rows])
        for name in kept
    ]


def _exact(values: Array) -> list[float]:
    """Float32 numbers in their shortest form that reads back the same."""
    return [float(str(value)) for value in values.astype(np.float32)]


@dataclass(frozen=True, slots=True)
class Reference:
    """The baseline's outputs, by sample and name."""

    rows: Mapping[int, Mapping[str, NDArray[np.float32]]]
    steps: Mapping[str, tuple[int, int]]
    """Name → (numbers a sample, step)."""

    @classmethod
    def of(cls, baseline: Baseline) -> Reference:
        rows = {
            index: {output.name: np.array(output.values[row], np.float32) for output in baseline.sample_outputs}
            for row, index in enumerate(baseline.sample_indices)
        }
        return cls(rows, {output.name: (output.size, output.step) for output in baseline.sample_outputs})

    def finite(self) -> dict[str, bool]:
        """Whether an output is finite in all that was kept of it."""
        return {name: all(bool(np.isfinite(row[name]).all()) for row in self.rows.values()) for name in self.steps}

    def distance(self, outputs: Mapping[str, Array], index: int, names: Sequence[str] = ()) -> tuple[float, float] | None:
        """(least cosine, largest error) over the outputs, of all or of `names`; NaN where shapes differ or a value is not finite.

        None: nothing was kept of this sample.
        """
        wanted = {name: row for name, row in self.rows.get(index, {}).items() if not names or name in names}
        if not wanted:
            return None
        pairs = [self._distance(outputs.get(name), row, *self.steps[name]) for name, row in wanted.items()]
        if any(map(math.isnan, (number for pair in pairs for number in pair))):
            return math.nan, math.nan
        return min(cosine for cosine, _ in pairs), max(error for _, error in pairs)

    @staticmethod
    def _distance(output: Array | None, wanted: NDArray[np.float32], size: int, step: int) -> tuple[float, float]:
        if output is None or output.size != size:
            return math.nan, math.nan
        a, b = np.ravel(output)[::step].astype(np.float32).astype(np.float64), wanted.astype(np.float64)
        return apart(a, b)


def apart(a: Floats64, b: Floats64) -> tuple[float, float]:
    """(cosine, largest error) of two vectors of one length; NaN where a value is not finite."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan, math.nan
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    # two zero outputs agree; a zero output against another has no direction in common
    cosine = min(1.0, float(a @ b) / lengths) if lengths else float(np.array_equal(a, b))
    return cosine, float(np.abs(a - b).max(initial=0.0))


class OutputChecks:
    """What is looked at in all outputs of an engine, whatever the task judges: are they finite, and how far from FP32's are they?"""

    def __init__(self, reference: Reference | None, names: Sequence[str]) -> None:
        self._reference, self._names = reference, names
        self._distances: list[tuple[float, float]] = []
        self._not_finite: Counter[str] = Counter()

    def add(self, outputs: Mapping[str, Array], index: int) -> None:
        """One sample's, without the batch axis."""
        self._not_finite.update(name for name, output in outputs.items() if output.dtype.kind == "f" and not np.isfinite(output).all())
        if self._reference is not None and len(self._distances) < COMPARED:
            far = self._reference.distance(outputs, index, self._names)
            self._distances += [] if far is None else [far]

    def found(self) -> dict[str, object]:
        """Fields of an Accuracy. An output that is not finite in FP32 either may be so; of one that no baseline has kept nothing is known."""
        finite = {} if self._reference is None else self._reference.finite()
        broken = {name: count for name, count in sorted(self._not_finite.items()) if finite.get(name)}
        known: dict[str, object] = {"not_finite": broken or None}
        if self._distances:
            known["compared"] = len(self._distances)
            known["cosine_min"] = text(_worst(min, [cosine for cosine, _ in self._distances]))
            known["max_abs_error"] = text(_worst(max, [error for _, error in self._distances]))
        return known


def _worst(of: Callable[[list[float]], float], values: list[float]) -> float:
    """NaN is worse than any number, whatever min and max make of it."""
    return math.nan if any(map(math.isnan, values)) else of(values)
