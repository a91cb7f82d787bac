"""The FP32 baseline: how the model as given does on the validation set, in ONNX Runtime on a CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np

from enginefleet_api.documents import Baseline, KeptOutput, Metric
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec, Validation

from ..backends.onnxruntime import open_session
from ..gate import metrics, score
from ..gate.arrays import Array
from ..gate.datasets import Dataset, stratified
from ..gate.evaluate import evaluate
from ..io import Progress

KEPT_SAMPLES = 32
"""Samples whose outputs are kept, to tell how far an engine's lie from them."""
KEPT_SAMPLES_OUTPUTS = 1000
"""The same for task `outputs`, which is judged by nothing else."""
KEPT_NUMBERS = 500_000
"""Bound of all kept outputs: about 10 MB of JSON."""


def compute(
    model: Path,
    key: str,
    digests: tuple[str, str],
    validation: Validation,
    dataset: Dataset,
    profiles: Sequence[InputSpec],
    progress: Progress,
) -> Baseline:
    """`digests`: of the model and of the validation set. Raises PermanentError `NonFiniteOutputs`."""
    indices = list(range(dataset.size))
    # `basic` leaves out what differs between machines: a baseline serves the whole fleet
    with open_session(model, "auto", progress, level="basic") as session:
        outputs = evaluate(session.run, dataset, indices, session.inputs, profiles, lambda done, total: progress("baseline", done, total))
    require_finite(outputs)
    records: list[dict[str, object]] = []
    if validation.task == "classification":
        metric, hits = score.classify(validation, outputs, dataset, indices)
        records = [{"correct": bool(hit)} for hit in hits]
    else:
        metric = Metric(name=validation.metric, value=metrics.text(1.0 if validation.metric == "cosine" else 0.0), samples=dataset.size)
    kept = kept_indices(validation, dataset, int(outputs[0].size))
    return Baseline(
        baseline_key=key,
        model=digests[0],
        validation=digests[1],
        metric=metric,
        outputs_digest="sha256:" + hashlib.sha256(np.ascontiguousarray(outputs, np.float32).tobytes()).hexdigest(),
        sample_indices=kept,
        sample_outputs=[
            KeptOutput(name="", size=int(outputs[0].size), values=[np.ravel(outputs[index]).astype(np.float64).tolist() for index in kept])
        ],
        records=records,
    )


def require_finite(outputs: Array) -> None:
    bad = int((~np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)).sum())
    if bad:
        message = f"the model as given has NaN or infinite outputs for {bad} of {len(outputs)} validation samples."
        raise PermanentError("NonFiniteOutputs", message, "Check spec.preprocessing and the model; nothing can be compared with NaN.")


def kept_indices(validation: Validation, dataset: Dataset, output_size: int) -> list[int]:
    wanted = KEPT_SAMPLES_OUTPUTS if validation.task == "outputs" else KEPT_SAMPLES
    return stratified(dataset.labels, dataset.size, min(wanted, KEPT_NUMBERS // max(1, output_size)))


def require_expected(metric: Metric, validation: Validation) -> None:
    """Raises PermanentError `BaselineNotReproduced` when the figure of the training is not met within its tolerance."""
    if validation.baseline is None:
        return
    expected, tolerance = Decimal(validation.baseline.expected), Decimal(validation.baseline.tolerance)
    value = metrics.number(metric.value)
    if value is None or abs(value - expected) > tolerance:
        message = f"FP32 {metric.name} is {metric.value} on {metric.samples} samples, expected {expected} within {tolerance}."
        hint = "Most often spec.preprocessing differs from the training's (scale, mean, colour order, layout, resize), or the labels do."
        raise PermanentError("BaselineNotReproduced", message, hint)
