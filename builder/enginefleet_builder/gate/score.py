"""What outputs are worth, for baseline and candidate alike, and which samples both are measured on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Accuracy, Baseline, Metric
from enginefleet_api.resources import Validation

from . import metrics
from .arrays import Array
from .datasets import Dataset, stratified


def device_indices(validation: Validation, dataset: Dataset, baseline: Baseline | None) -> list[int]:
    """The samples that a candidate is judged on: at most onDevice.maxSamples, evenly over classes; for outputs those that the baseline kept."""
    limit = validation.on_device.max_samples
    if validation.task == "outputs":
        return [index for index in (baseline.sample_indices if baseline else []) if index < dataset.size][:limit]
    return stratified(dataset.labels, dataset.size, limit)


def classify(validation: Validation, outputs: Array, dataset: Dataset, indices: Sequence[int]) -> tuple[Metric, NDArray[np.bool_]]:
    """(metric, which samples are correct) of a classifier's outputs for `indices`; the data set has labels."""
    assert dataset.labels is not None
    labels = dataset.labels[list(indices)]
    finite = bool(np.isfinite(outputs).all())
    correct = metrics.top_k(metrics.scores(outputs), labels, metrics.TOP[validation.metric])
    return metrics.classification(validation.metric, correct, labels, dataset.classes, finite), correct


def candidate(validation: Validation, outputs: Array, dataset: Dataset, indices: Sequence[int], baseline: Baseline | None) -> Metric | None:
    """The engine's metric; None when there is nothing to measure against."""
    if validation.task == "classification":
        return classify(validation, outputs, dataset, indices)[0]
    found = _distance(outputs, indices, baseline)
    return None if found is None else found.metric(validation.metric)


def paired_baseline(validation: Validation, baseline: Baseline | None, dataset: Dataset, indices: Sequence[int]) -> Metric | None:
    """The baseline's metric on the same samples as the candidate; None when the baseline does not tell."""
    if baseline is None:
        return None
    if validation.task != "classification":
        value = 1.0 if validation.metric == "cosine" else 0.0
        return Metric(name=validation.metric, value=metrics.text(value), samples=len(indices))
    if dataset.labels is None or len(baseline.records) != dataset.size or baseline.metric.name != validation.metric:
        return None
    correct = np.array([baseline.records[index].get("correct") is True for index in indices], np.bool_)
    return metrics.classification(validation.metric, correct, dataset.labels[list(indices)], dataset.classes)


def accuracy(
    validation: Validation,
    baseline: Baseline | None,
    paired: Metric | None,
    measured: Metric | None,
    outputs: Array,
    indices: Sequence[int],
) -> Accuracy:
    """What status and verdict show. A drop is positive when the engine is worse."""
    before, after = metrics.number(paired.value if paired else None), metrics.number(measured.value if measured else None)
    drop = None if before is None or after is None else before - after
    if drop is not None and validation.metric == "max_abs_error":
        drop = -drop
    worst = _worst_class(paired, measured)
    far = _distance(outputs, indices, baseline)
    return Accuracy(
        metric=validation.metric,
        baseline=paired.value if paired else None,
        value=measured.value if measured else None,
        drop=None if drop is None else f"{drop:.{metrics.DIGITS}f}",
        samples=measured.samples if measured else 0,
        interval=measured.interval if measured else [],
        worst_class=worst[0] if worst else None,
        worst_class_drop=worst[1] if worst else None,
        cosine_min=metrics.text(far.cosine_min) if far else None,
        max_abs_error=metrics.text(far.max_abs_error) if far else None,
    )


def _worst_class(paired: Metric | None, measured: Metric | None) -> tuple[str, str] | None:
    if paired is None or measured is None:
        return None
    drops = []
    for name, value in measured.per_class.items():
        before, after = metrics.number(paired.per_class.get(name)), metrics.number(value)
        if before is not None and after is not None:
            drops.append((before - after, name))
    if not drops:
        return None
    drop, name = max(drops)
    return name, f"{drop:.{metrics.DIGITS}f}"


def _distance(outputs: Array, indices: Sequence[int], baseline: Baseline | None) -> metrics.Distance | None:
    """Over those of `indices` whose outputs the baseline kept."""
    if baseline is None:
        return None
    kept = dict(zip(baseline.sample_indices, baseline.sample_outputs[0].values if baseline.sample_outputs else [], strict=False))
    rows = [(outputs[row], kept[index]) for row, index in enumerate(indices) if index in kept]
    return metrics.distance([output for output, _ in rows], [reference for _, reference in rows])
