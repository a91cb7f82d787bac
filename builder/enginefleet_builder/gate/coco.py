"""COCO's average precision: pycocotools matches boxes to objects, once; any selection of pictures is then summed up here.

`average_precision` gives what `COCOeval.accumulate` gives for the same pictures (all areas, 100 boxes a class and picture), for many selections
at a time: pycocotools takes a second for one, a bootstrap wants a thousand. tests/builder/test_coco.py holds the two together.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Floats64
from .truth import Boxes

MAX_DETECTIONS = 100
"""Boxes a class and picture that count, as COCO has it."""
IOUS = np.linspace(0.5, 0.95, 10)
"""The first alone for map50."""
RECALLS = np.linspace(0.0, 1.0, 101)


@dataclass(frozen=True, slots=True)
class ClassMatches:
    """Boxes of one class in all pictures, highest score first: d boxes, t thresholds of overlap, n pictures."""

    scores: Floats64
    picture: NDArray[np.int64]
    """(d,): position of the picture."""
    hits: NDArray[np.bool_]
    """(t, d): found an object that counts."""
    ignored: NDArray[np.bool_]
    """(t, d): lies in a crowd, and is neither right nor wrong."""
    found: NDArray[np.int64]
    """(d,): number of the object found at the first threshold, unique over all pictures; 0 for none."""
    truths: NDArray[np.int64]
    """(n,): objects that count."""


def match(truths: Sequence[Boxes], records: Sequence[Mapping[str, Any]], classes: int, ious: Floats64 = IOUS) -> list[ClassMatches]:
    """Matches by class. `records`: {"boxes": (n, 4) x1 y1 x2 y2, "scores": (n,), "classes": (n,)} of each picture."""
    # it comes without types, and only detection needs it
    new_side: Any = importlib.import_module("pycocotools.coco").COCO
    new_evaluation: Any = importlib.import_module("pycocotools.cocoeval").COCOeval
    pictures = [{"id": number} for number in range(1, len(truths) + 1)]
    categories = [{"id": number, "name": str(number)} for number in range(classes)]
    objects = [
        {"image_id": picture, "category_id": int(label), "bbox": _extent(box), "iscrowd": int(crowd), "area": float(area)}
        for picture, truth in enumerate(truths, start=1)
        for box, label, crowd, area in zip(truth.boxes, truth.classes, truth.crowd, truth.area, strict=True)
    ]
    boxes = [
        {"image_id": picture, "category_id": int(label), "bbox": _extent(box), "iscrowd": 0, "area": _area(box), "score": float(score)}
        for picture, record in enumerate(records, start=1)
        for box, score, label in zip(record["boxes"], record["scores"], record["classes"], strict=True)
        if 0 <= label < classes
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        sides = []
        for annotations in (objects, boxes):
            side = new_side()
            side.dataset = {
                "images": pictures,
                "categories": categories,
                "annotations": [{"id": number, **item} for number, item in enumerate(annotations, start=1)],
            }
            side.createIndex()
            sides.append(side)
        evaluation = new_evaluation(*sides, "bbox")
        evaluation.params.iouThrs = ious
        evaluation.params.maxDets = [MAX_DETECTIONS]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.evaluate()
    found = evaluation.evalImgs
    return [_of_class(found[number * len(pictures) : (number + 1) * len(pictures)], len(ious)) for number in range(classes)]


def _extent(box: Any) -> list[float]:
    left, top, right, bottom = (float(value) for value in box)
    return [left, top, right - left, bottom - top]


def _area(box: Any) -> float:
    _, _, width, height = _extent(box)
    return width * height


def _of_class(pictures: Sequence[Mapping[str, Any] | None], thresholds: int) -> ClassMatches:
    truths = np.zeros(len(pictures), np.int64)
    columns: list[tuple[Any, ...]] = []
    for number, item in enumerate(pictures):
        if item is None:
            continue
        truths[number] = int(np.count_nonzero(np.asarray(item["gtIgnore"]) == 0))
        count = len(item["dtScores"])
        columns.append((np.asarray(item["dtScores"]), np.full(count, number), item["dtMatches"], np.asarray(item["dtIgnore"], bool)))
    if not columns:
        empty = np.zeros((thresholds, 0), bool)
        return ClassMatches(np.zeros(0), np.zeros(0, np.int64), empty, empty, np.zeros(0, np.int64), truths)
    scores, picture = (np.concatenate([column[axis] for column in columns]) for axis in (0, 1))
    matches, ignored = (np.concatenate([column[axis] for column in columns], axis=1) for axis in (2, 3))
    order = np.argsort(-scores, kind="mergesort")
    matches, ignored = matches[:, order], ignored[:, order]
    hits = (matches != 0) & ~ignored
    found = np.where(hits[0], matches[0], 0).astype(np.int64)
    return ClassMatches(scores[order], picture[order].astype(np.int64), hits, ignored, found, truths)


def average_precision(matches: ClassMatches, weights: NDArray[np.int64]) -> Floats64:
    """(replicates,): AP, averaged over the thresholds of overlap; NaN where no object counts. `weights`: (replicates, n).

    A picture that is drawn twice stands twice in the list, next to itself: that is what a weight of 2 adds to the running sums. Only hits raise
    recall, so precision is only looked up there.
    """
    there = weights @ matches.truths
    answer = np.full(len(weights), np.nan)
    known = there > 0
    weights, there = weights[known], there[known]
    total = np.zeros(len(weights))
    drawn = np.cumsum(weights[:, matches.picture], axis=1)
    for hits, ignored in zip(matches.hits, matches.ignored, strict=True):
        at = np.flatnonzero(hits)
        if not len(at):
            continue
        right = np.cumsum(weights[:, matches.picture[at]], axis=1)
        seen = drawn[:, at]
        if ignored.any():
            seen = seen - np.cumsum(weights[:, matches.picture] * ignored, axis=1)[:, at]
        precision = right / (seen + np.spacing(1))
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        reached = np.searchsorted(RECALLS, right / there[:, None], side="right")
        total += (envelope * np.diff(reached, axis=1, prepend=0)).sum(axis=1)
    answer[known] = total / (len(matches.hits) * len(RECALLS))
    return answer
