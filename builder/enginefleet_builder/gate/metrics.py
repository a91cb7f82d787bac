"""Accuracy of classifiers and distance between outputs, as decimal text with what it was computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Metric
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from .arrays import Array

DIGITS = 6
"""Decimals of every metric's text: thresholds are compared as decimals, so that a drop of exactly the allowed 0.01 passes."""
TOP = {"top1": 1, "top5": 5}
DISTANCES = ("cosine", "max_abs_error")


def require_supported(validation: Validation) -> None:
    """Raises PermanentError `NotYetSupported` for tasks, metrics and decoders that this version does not judge."""
    metrics = {"classification": tuple(TOP), "outputs": DISTANCES}.get(validation.task, ())
    if validation.metric not in metrics or validation.decoder.kind != "logits":
        asked = f"task {validation.task} with metric {validation.metric} and decoder {validation.decoder.kind}"
        known = "classification (top1, top5) and outputs (cosine, max_abs_error), both with decoder logits"
        raise PermanentError("NotYetSupported", f"{asked} is not supported yet; supported are {known}.", "Change spec.validation.")


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


def scores(outputs: Array) -> NDArray[np.float64]:
    """A classifier's output (N, C), or (N, C, 1, 1), as float64 (N, C). Raises PermanentError `OutputsMismatch`."""
    if outputs.ndim < 2 or math.prod(outputs.shape[2:]) != 1:
        found = f"the first output has shape {list(outputs.shape)}, expected [samples, classes]"
        raise PermanentError("OutputsMismatch", f"{found}.", "Use a classifier whose first output holds one score a class.")
    return outputs.reshape(outputs.shape[0], outputs.shape[1]).astype(np.float64)


def top_k(logits: NDArray[np.float64], labels: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Which samples have their label among the k highest scores; of equal scores the lower class counts first. Shape (N,)."""
    if len(labels) and int(labels.max()) >= logits.shape[1]:
        found = f"labels go up to {int(labels.max())}, the model has {logits.shape[1]} classes"
        raise PermanentError("DataSetMismatch", f"{found}.", "Use the validation set that belongs to this model.")
    best = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    return np.asarray((best == labels[:, None]).any(axis=1))


def classification(name: str, correct: NDArray[np.bool_], labels: NDArray[np.int64], classes: Sequence[str], finite: bool = True) -> Metric:
    """Share of correct samples, in all and by class. `finite` False: an output was NaN or infinite, and so is the value."""
    samples = len(correct)
    hits = int(correct.sum())
    per_class, class_samples = {}, {}
    for label in np.unique(labels):
        mine = labels == label
        class_name = classes[label] if label < len(classes) else str(label)
        per_class[class_name] = text(float(correct[mine].mean()))
        class_samples[class_name] = int(mine.sum())
    value = text(hits / samples) if samples and finite else "NaN"
    interval = [text(bound) for bound in wilson(hits, samples)] if samples and finite else []
    return Metric(name=name, value=value, samples=samples, per_class=per_class, class_samples=class_samples, interval=interval)


def wilson(hits: int, samples: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % Wilson score interval of a share."""
    share = hits / samples
    centre = share + z * z / (2 * samples)
    spread = z * math.sqrt(share * (1 - share) / samples + z * z / (4 * samples * samples))
    scale = 1 + z * z / samples
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far outputs lie from the baseline's: the worst sample counts."""

    cosine_min: float
    max_abs_error: float
    samples: int

    def metric(self, name: str) -> Metric:
        return Metric(name=name, value=text(self.cosine_min if name == "cosine" else self.max_abs_error), samples=self.samples)


def distance(outputs: Sequence[Array], reference: Sequence[Sequence[float]]) -> Distance | None:
    """Distance of each output (flattened) to its reference; None without samples; NaN when sizes differ or a value is not finite."""
    if not outputs or len(outputs) != len(reference):
        return None
    cosines, errors = [], []
    for output, wanted in zip(outputs, reference, strict=True):
        a, b = np.ravel(output).astype(np.float64), np.asarray(wanted, np.float64)
        if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return Distance(math.nan, math.nan, len(outputs))
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        # Two zero outputs agree; a zero output against another has no direction in common.
        cosines.append(float(a @ b) / lengths if lengths else float(np.array_equal(a, b)))
        errors.append(float(np.abs(a - b).max(initial=0.0)))
    return Distance(min(cosines), max(errors), len(outputs))
