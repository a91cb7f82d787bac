"""Detection: COCO's mean average precision. Record: {"boxes", "scores", "classes"} after suppression, in pixels of the original picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from .. import coco
from ..arrays import Array, Floats64
from ..bootstrap import AtConfidence, Scores
from ..decoders import Detections, decode, input_size, suppress
from ..python_metric import Code
from ..samples import Dataset
from ..truth import Boxes
from . import BROKEN, Record

SHOWN_CONFIDENCE = 0.25
"""Where no operating point is given: the confidence at which lost objects are counted to find the worst samples."""
FOUND_IOU = 0.5


class Detection:
    rises = False

    def __init__(self, validation: Validation, dataset: Dataset, code: Code | None) -> None:
        self._decoder, self._dataset, self._code = validation.decoder, dataset, code
        self._ious = coco.IOUS[:1] if validation.metric == "map50" else coco.IOUS
        point = validation.acceptance.operating_point
        self._confidence = SHOWN_CONFIDENCE if point is None else float(point.confidence)

    def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:
        classes = len(self._dataset.classes)
        found = self._own(outputs) if self._code else decode(outputs, self._decoder, input_size(shape), classes)
        if not (np.isfinite(found.scores).all() and np.isfinite(found.boxes).all()):
            return dict(BROKEN)
        geometry = self._dataset.geometry(index)
        boxes = found.boxes if geometry is None else geometry.to_original(found.boxes)
        # a hundredth of a pixel and a millionth of a score: a third of the bytes
        return {"boxes": np.round(boxes, 2).tolist(), "scores": np.round(found.scores, 6).tolist(), "classes": found.classes.tolist()}

    def _own(self, outputs: Mapping[str, Array]) -> Detections:
        """What the user's code decoded: boxes x1 y1 x2 y2 in pixels of the input, scores, classes from 0."""
        assert self._code is not None
        given = self._code.decode(outputs)
        boxes, scores, classes = (given[name] for name in ("boxes", "scores", "classes"))
        count = len(scores)
        if boxes.reshape(-1).shape != (4 * count,) or classes.shape != (count,):
            shapes = f"boxes {list(boxes.shape)}, scores {list(scores.shape)}, classes {list(classes.shape)}"
            raise PermanentError("PythonMetricFailed", f"decode gave {shapes}.", "Return boxes (n, 4), scores (n,) and classes (n,).")
        found = Detections(boxes.reshape(-1, 4).astype(np.float64), scores.astype(np.float64), classes.astype(np.int64))
        return suppress(found, 1.0, self._decoder.max_detections)

    def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:
        truths = [self._dataset.boxes(index) for index in indices]
        kept = [{"boxes": [], "scores": [], "classes": []} if "broken" in record else record for record in records]
        labels = [int(label) for truth in truths for label in truth.classes]
        count = max([len(self._dataset.classes), *(label + 1 for label in labels)])
        matches = coco.match(truths, kept, count, self._ious)
        counted = [number for number, item in enumerate(matches) if item.truths.any()]
        instances = {self._dataset.class_name(number): int(matches[number].truths.sum()) for number in counted}

        def values(weights: NDArray[np.int64]) -> tuple[Floats64, Floats64]:
            if not counted:
                return np.full(len(weights), np.nan), np.zeros((len(weights), 0))
            classes = np.stack([coco.average_precision(matches[number], weights) for number in counted], axis=1)
            known = np.isfinite(classes)
            there = known.sum(axis=1)
            overall = np.divide(np.where(known, classes, 0).sum(axis=1), there, out=np.full(len(there), np.nan), where=there > 0)
            return overall, classes

        operating = self._at_confidence(matches, len(records))
        counts = {"truths": sum(instances.values()), "detections": sum(len(record["scores"]) for record in kept)}
        counts |= {"confident": int(operating.detections.sum()), "found": int(operating.found.sum())}
        return Scores(len(records), values, instances, counts, sum("broken" in record for record in records), operating)

    def _at_confidence(self, matches: Sequence[coco.ClassMatches], size: int) -> AtConfidence:
        found, truths, detections = (np.zeros(size, np.int64) for _ in range(3))
        scores: dict[tuple[int, int], float] = {}
        for item in matches:
            confident = item.scores >= self._confidence
            truths += item.truths
            found += np.bincount(item.picture[confident & item.hits[0]], minlength=size)
            detections += np.bincount(item.picture[confident & ~item.ignored[0]], minlength=size)
            for at in np.flatnonzero(item.hits[0]):
                scores[int(item.picture[at]), int(item.found[at])] = float(item.scores[at])
        return AtConfidence(found, truths, detections, scores)

    def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:
        if "broken" in after:
            return math.inf, "outputs hold NaN or infinite values"
        truth = self._dataset.boxes(index)
        found, false = (np.array(pair) for pair in zip(*(self._confident(record, truth) for record in (before, after)), strict=True))
        lost, more = int(found[0] - found[1]), int(false[1] - false[0])
        objects = int((~truth.crowd).sum())
        why = f"finds {found[1]} of {objects} objects (FP32 {found[0]}), {false[1]} false alarms (FP32 {false[0]})"
        return lost + 0.5 * more, f"{why} at confidence {self._confidence:g}"

    def _confident(self, record: Record, truth: Boxes) -> tuple[int, int]:
        """(objects found, false alarms) of one picture, greedily by score: for a ranking, so crowds are left out."""
        free = ~truth.crowd
        found = false = 0
        for box, score, label in zip(record.get("boxes", []), record.get("scores", []), record.get("classes", []), strict=True):
            if score < self._confidence:
                continue
            overlap = np.where(free & (truth.classes == label), _iou(np.asarray(box, np.float64), truth.boxes), 0.0)
            if len(overlap) and overlap.max() >= FOUND_IOU:
                free[int(overlap.argmax())] = False
                found += 1
            else:
                false += 1
        return found, false


def _iou(box: Floats64, others: Floats64) -> Floats64:
    inner = np.prod(np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0), axis=1)
    areas = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - inner
    return np.asarray(inner / np.maximum(areas, 1e-12))
