"""What an engine's records are worth against the baseline's: values, drops and their intervals, for all samples and for every part of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import Accuracy, AtOperatingPoint, Baseline, Metric, Part, WorstSample
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from .arrays import Floats64
from .bootstrap import Scores, draws, interval
from .metrics import text
from .samples import Dataset
from .tasks import Record, Task

WORST = 12
"""Samples that a verdict shows."""


def seed_of(key: str) -> int:
    """Of a key's hex digits: the same key draws the same samples."""
    return int(key[:16], 16)


def groups_of(validation: Validation, dataset: Dataset) -> Sequence[str] | None:
    """Each sample's subgroup; None where none are asked for. Raises PermanentError `SubgroupsMissing`."""
    if validation.subgroups is None:
        return None
    column = validation.subgroups.column
    if column not in dataset.groups:
        message = f"the data set has no column {column!r}, it has {sorted(dataset.groups) or 'none'}."
        raise PermanentError("SubgroupsMissing", message, "Correct validation.subgroups.column, or add the column to the labels.")
    return dataset.groups[column]


def require_metric(validation: Validation, baseline: Baseline) -> None:
    """Raises PermanentError `BaselineMismatch` when the baseline was taken with another metric: its records say nothing of the one asked for."""
    have, wanted = baseline.metric.name, validation.metric
    if have != wanted:
        message = f"the baseline {baseline.baseline_key[:12]}… is of the metric {have}, expected {wanted}."
        hint = f"Prepare with the metric {wanted} and give the baseline key of that report, or judge by {have}."
        raise PermanentError("BaselineMismatch", message, hint)


def device_indices(validation: Validation, dataset: Dataset, baseline: Baseline | None) -> list[int]:
    """The samples that a candidate is judged on, ascending: at most onDevice.maxSamples, of which classes and subgroups keep their shares.

    For task outputs they are of those whose outputs the baseline kept.
    """
    limit = validation.on_device.max_samples
    if validation.task == "outputs" and validation.metric != "python":
        there = [index for index in (baseline.sample_indices if baseline else []) if index < dataset.size]
    else:
        there = list(range(dataset.size))
    if len(there) <= limit:
        return there
    groups = groups_of(validation, dataset)
    strata = {index: ("" if groups is None else groups[index], stratum) for index, stratum in _strata(validation, dataset, there).items()}
    ordered = sorted(there, key=lambda index: (strata[index], index))
    # every k-th of the list: a stratum gets its share, give or take one
    return sorted(ordered[place * len(ordered) // limit] for place in range(limit))


def _strata(validation: Validation, dataset: Dataset, there: Sequence[int]) -> dict[int, int]:
    """A class that stands for each sample: its label; of a picture with boxes the class that is rarest in the whole set; -1 for none."""
    if dataset.labels is not None:
        return {index: int(dataset.labels[index]) for index in there}
    if validation.task != "detection":
        return dict.fromkeys(there, -1)
    classes_of = dataset.box_classes or (lambda index: dataset.boxes(index).classes)
    shown = {index: np.unique(classes_of(index)) for index in there}
    pictures = np.bincount(np.concatenate([*shown.values(), np.zeros(0, np.int64)])) if shown else np.zeros(0, np.int64)
    return {index: int(classes[np.argmin(pictures[classes])]) if len(classes) else -1 for index, classes in shown.items()}


def value_interval(scores: Scores, seed: int) -> list[str]:
    """The 95 % interval of the metric of all samples, as text; empty where it is not known."""
    return _bounds(interval(np.concatenate([scores.values(weights)[0] for weights in draws(scores.size, seed, scores.replicates)])))


def metric(name: str, scores: Scores, bounds: list[str]) -> Metric:
    """The metric of all samples, with its interval."""
    overall, classes = scores.whole()
    return Metric(
        name=name,
        value="NaN" if scores.broken else text(overall),
        samples=scores.size,
        per_class={label: text(value) for label, value in zip(scores.instances, classes.tolist(), strict=True)},
        class_samples=dict(scores.instances),
        interval=bounds,
        counts=dict(scores.counts) | ({"broken": scores.broken} if scores.broken else {}),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """Baseline and engine on the same samples."""

    before: Scores
    after: Scores
    rises: bool


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Replicates of both: (replicates,) of the metric, (replicates, classes), (replicates, groups), (replicates,) of recall."""

    overall: tuple[Floats64, Floats64]
    classes: tuple[Floats64, Floats64]
    groups: tuple[Floats64, Floats64]
    recall: tuple[Floats64, Floats64]


@dataclass(frozen=True, slots=True)
class Compared:
    """What is said of the engine, and the metrics of both on the same samples."""

    accuracy: Accuracy
    baseline: Metric
    engine: Metric


def compare(name: str, pair: Pair, groups: Sequence[str] | None, seed: int, confidence: str | None = None) -> Compared:
    """Both are drawn once, for everything. `groups`: the subgroup of each sample; `confidence`: the operating point's."""
    masks = {} if groups is None else {label: np.array([item == label for item in groups], np.int64) for label in sorted(set(groups))}
    drawn = _draw(pair, list(masks.values()), seed)
    (value, after), (wanted, before) = pair.after.whole(), pair.before.whole()
    drop = _drop(pair, wanted, value)
    columns = [{label: number for number, label in enumerate(side.instances)} for side in (pair.before, pair.after)]
    classes = []
    for label, samples in pair.after.instances.items():
        if label in columns[0]:
            first, second = columns[0][label], columns[1][label]
            replicates = drawn.classes[0][:, first], drawn.classes[1][:, second]
            classes.append(_part(pair, label, samples, (before[first], after[second]), replicates))
    parts = []
    for number, (label, mask) in enumerate(masks.items()):
        values = float(pair.before.values(mask[None])[0][0]), float(pair.after.values(mask[None])[0][0])
        parts.append(_part(pair, label, int(mask.sum()), values, (drawn.groups[0][:, number], drawn.groups[1][:, number])))
    worst = max((part for part in classes if part.drop is not None), key=lambda part: float(part.drop or 0), default=None)
    baseline, engine = (
        metric(name, scores, _bounds(interval(values))) for scores, values in zip((pair.before, pair.after), drawn.overall, strict=True)
    )
    accuracy = Accuracy(
        metric=name,
        baseline=text(wanted),
        value=engine.value,
        drop=None if pair.after.broken or not np.isfinite(drop) else text(drop),
        samples=pair.after.size,
        broken=pair.after.broken or None,
        interval=engine.interval,
        drop_interval=_bounds(interval(_drops(pair, *drawn.overall))),
        worst_class=worst.name if worst else None,
        worst_class_drop=worst.drop if worst else None,
        classes=classes,
        groups=parts,
        operating_point=None if confidence is None else _operating(pair, confidence, drawn.recall),
    )
    return Compared(accuracy, baseline, engine)


def _draw(pair: Pair, masks: Sequence[NDArray[np.int64]], seed: int) -> _Drawn:
    rows: list[list[Floats64]] = [[] for _ in range(8)]
    for weights in draws(pair.before.size, seed, min(pair.before.replicates, pair.after.replicates)):
        for side, scores in enumerate((pair.before, pair.after)):
            overall, classes = scores.values(weights)
            grouped = [scores.values(weights * mask)[0] for mask in masks]
            recall = scores.operating.recall(weights) if scores.operating else np.full(len(weights), np.nan)
            rows[side].append(overall)
            rows[2 + side].append(classes)
            rows[4 + side].append(np.stack(grouped, axis=1) if grouped else np.zeros((len(weights), 0)))
            rows[6 + side].append(recall)
    joined = [np.concatenate(parts) for parts in rows]
    return _Drawn((joined[0], joined[1]), (joined[2], joined[3]), (joined[4], joined[5]), (joined[6], joined[7]))


def _drop(pair: Pair, before: float, after: float) -> float:
    return after - before if pair.rises else before - after


def _drops(pair: Pair, before: Floats64, after: Floats64) -> Floats64:
    return after - before if pair.rises else before - after


def _part(pair: Pair, name: str, samples: int, values: tuple[float, float], drawn: tuple[Floats64, Floats64]) -> Part:
    before, after = float(values[0]), float(values[1])
    drop = _drop(pair, before, after)
    return Part(
        name=name,
        samples=samples,
        baseline=text(before),
        value=text(after),
        drop=text(drop) if np.isfinite(drop) else None,
        drop_interval=_bounds(interval(_drops(pair, *drawn))),
    )


def _operating(pair: Pair, confidence: str, drawn: tuple[Floats64, Floats64]) -> AtOperatingPoint | None:
    before, after = pair.before.operating, pair.after.operating
    if before is None or after is None or not before.truths.sum():
        return None
    truths = int(before.truths.sum())
    recalls = [int(side.found.sum()) / truths for side in (before, after)]
    both = before.object_scores.keys() & after.object_scores.keys()
    shift = np.median([after.object_scores[key] - before.object_scores[key] for key in both]) if both else None
    precisions = [text(int(side.found.sum()) / int(side.detections.sum())) if side.detections.sum() else None for side in (before, after)]
    return AtOperatingPoint(
        confidence=confidence,
        baseline_recall=text(recalls[0]),
        recall=text(recalls[1]),
        recall_drop=text(recalls[0] - recalls[1]),
        drop_interval=_bounds(interval(drawn[0] - drawn[1])),
        baseline_precision=precisions[0],
        precision=precisions[1],
        score_shift=None if shift is None else text(float(shift)),
        truths=truths,
    )


def _bounds(found: tuple[float, float] | None) -> list[str]:
    return [] if found is None else [text(bound) for bound in found]


def worst_samples(
    task: Task, dataset: Dataset, indices: Sequence[int], before: Sequence[Record], after: Sequence[Record], limit: int = WORST
) -> list[WorstSample]:
    """Where the engine lost most, the worst first."""
    losses = [(*task.loss(mine, theirs, index), index, mine, theirs) for index, mine, theirs in zip(indices, before, after, strict=True)]
    losses.sort(key=lambda item: (-item[0], item[2]))
    return [
        WorstSample(
            index=index, identity=dataset.identity(index), loss=f"{loss:.6g}", why=why, baseline=_short(mine), engine=_short(theirs)
        )
        for loss, why, index, mine, theirs in losses[:limit]
        if loss > 0
    ]


def _short(record: Record, limit: int = 100) -> Mapping[str, object]:
    """A record without the long tail of its lists: the boxes of a picture are sorted by score."""
    return {key: value[:limit] if isinstance(value, list) else value for key, value in record.items()}
