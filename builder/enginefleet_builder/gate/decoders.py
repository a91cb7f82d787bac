"""From a detector's raw outputs for one picture to boxes: the forms that exporters write, and non-maximum suppression.

All arrays are of one sample, without the batch axis. What cannot be read as boxes is refused by name: oriented boxes, poses and instance masks
have more columns than boxes and classes need, and would give plausible nonsense.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Decoder

from .arrays import Array, Floats64

POINTS = 17
"""Joints of a person in COCO: three numbers each in a pose model's output."""
MASK_COEFFICIENTS = 32
STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
"""Pyramids of grids that YOLOX models have."""
MAX_CANDIDATES = 30_000
"""Boxes of one picture that go into suppression, the highest scores: as Ultralytics has it."""
REFUSED_TASKS = {"obb": "oriented boxes", "pose": "a pose model", "segment": "instance masks"}
"""Values of Ultralytics' metadata `task` whose outputs hold boxes too, but are judged by more."""


@dataclass(frozen=True, slots=True)
class Detections:
    """n boxes: (n, 4) x1 y1 x2 y2 in pixels of the input, scores (n,), class numbers (n,)."""

    boxes: Floats64
    scores: Floats64
    classes: NDArray[np.int64]

    def take(self, chosen: NDArray[np.int64]) -> Detections:
        return Detections(self.boxes[chosen], self.scores[chosen], self.classes[chosen])


def require_task(metadata: Mapping[str, str]) -> None:
    """Raises PermanentError `NotYetSupported` for models whose metadata say that they are no plain detectors."""
    if (what := REFUSED_TASKS.get(metadata.get("task", ""))) is not None:
        _refuse(f"the model's metadata say task {metadata['task']}: {what}")


def decode(outputs: Mapping[str, Array], spec: Decoder, size: tuple[int, int], classes: int) -> Detections:
    """Boxes of one picture, the best `spec.max_detections` first. `size`: height and width of the input; `classes`: 0 where unknown.

    Scores that are NaN stay: the caller must see them. Raises PermanentError `OutputsMismatch`, `NotYetSupported`.
    """
    match spec.kind:
        case "yolo":
            found = _yolo(_matrix(outputs, spec), spec, size, classes, objectness=False)
        case "yolov5":
            found = _yolo(_matrix(outputs, spec), spec, size, classes, objectness=True)
        case "yolox":
            found = _yolox(_matrix(outputs, spec), spec, size, classes)
        case "yolo_end2end":
            return _best(_end2end(_matrix(outputs, spec), spec, size), spec)
        case "boxes_scores_labels":
            found, final = _named(outputs, spec, size)
            if final:
                return _best(found, spec)
        case "detr":
            return _best(_detr(outputs, spec, size, classes), spec)
        case _:
            raise AssertionError(f"{spec.kind} has no boxes")
    return suppress(found, float(spec.nms_iou), spec.max_detections)


# ---- suppression ----


def suppress(found: Detections, iou: float, limit: int) -> Detections:
    """Greedy non-maximum suppression within each class: the best box stays, those that overlap it by more than `iou` go; at most `limit`.

    Of equal scores the earlier box is the better one. Boxes whose score is NaN come first and stay.
    """
    order = _by_score(found.scores)[:MAX_CANDIDATES]
    ordered = found.take(order)
    boxes, classes = ordered.boxes, ordered.classes
    area = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1)
    left = np.arange(len(order))
    kept: list[int] = []
    while len(left) and len(kept) < limit:
        best, left = left[0], left[1:]
        kept.append(int(best))
        overlap = np.prod(
            np.maximum(np.minimum(boxes[best, 2:], boxes[left, 2:]) - np.maximum(boxes[best, :2], boxes[left, :2]), 0), axis=1
        )
        union = area[best] + area[left] - overlap
        left = left[(overlap <= iou * union) | (classes[left] != classes[best])]
    return ordered.take(np.array(kept, np.int64))


def _by_score(scores: Floats64) -> NDArray[np.int64]:
    return np.argsort(-np.where(np.isnan(scores), np.inf, scores), kind="stable")


def _best(found: Detections, spec: Decoder) -> Detections:
    return found.take(_by_score(found.scores)[: spec.max_detections])


def _confident(boxes: Floats64, scores: Floats64, floor: float) -> Detections:
    """A box for each class whose score reaches `floor`; scores (n, classes)."""
    rows, classes = np.nonzero(~(scores < floor))
    return Detections(boxes[rows], scores[rows, classes], classes.astype(np.int64))


# ---- forms of boxes and scores ----


def _corners(boxes: Floats64, spec: Decoder, usual: str, size: tuple[int, int], normalized: bool) -> Floats64:
    """Boxes of the spec's format (auto: the `usual` one) as x1 y1 x2 y2 in pixels."""
    form = usual if spec.box_format == "auto" else spec.box_format
    first, second = boxes[:, :2], boxes[:, 2:4]
    match form:
        case "cxcywh":
            corners = np.concatenate([first - second / 2, first + second / 2], axis=1)
        case "xywh":
            corners = np.concatenate([first, first + second], axis=1)
        case _:
            corners = boxes[:, :4]
    if normalized if spec.normalized is None else spec.normalized:
        height, width = size
        corners = corners * np.array([width, height, width, height], np.float64)
    return np.asarray(corners, np.float64)


def _activated(values: Floats64, spec: Decoder, usual: str = "none") -> Floats64:
    match usual if spec.activation == "auto" else spec.activation:
        case "sigmoid":
            return np.asarray(1 / (1 + np.exp(-np.clip(values, -500, 500))))
        case "softmax":
            exponents = np.exp(values - values.max(axis=1, keepdims=True, initial=-np.inf))
            return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))
        case _:
            return values


# ---- which output is what ----


def _matrix(outputs: Mapping[str, Array], spec: Decoder) -> Floats64:
    """The one output that holds boxes, classes and scores in one matrix, float64 of two axes."""
    chosen = _chosen(outputs, spec, 1)
    if chosen is not None:
        name, array = chosen[0]
    else:
        masks = [name for name, array in outputs.items() if array.ndim == 3 and array.shape[0] == MASK_COEFFICIENTS]
        flat = [(name, array) for name, array in outputs.items() if array.ndim == 2]
        if masks and flat:
            _refuse(f"output {masks[0]!r} of shape {list(outputs[masks[0]].shape)} holds prototypes: instance masks")
        if len(flat) != 1:
            _mismatch(outputs, f"{spec.kind} needs one output of boxes and scores as a matrix")
        name, array = flat[0]
    if array.ndim != 2 or array.dtype.kind != "f":
        _mismatch({name: array}, f"{spec.kind} needs floats of two axes")
    return array.astype(np.float64)


def _chosen(outputs: Mapping[str, Array], spec: Decoder, count: int) -> list[tuple[str, Array]] | None:
    """The outputs that the spec names; None when it names none."""
    if not spec.outputs:
        return None
    missing = [name for name in spec.outputs if name not in outputs]
    if missing or len(spec.outputs) < count:
        _mismatch(outputs, f"decoder.outputs {spec.outputs} should name {count} of them" if not missing else f"{missing} are not there")
    return [(name, outputs[name]) for name in spec.outputs]


def _yolo(values: Floats64, spec: Decoder, size: tuple[int, int], classes: int, *, objectness: bool) -> Detections:
    values = _upright(values, 5 + classes if objectness else 4 + classes, classes, spec)
    boxes = _corners(values, spec, "cxcywh", size, False)
    scores = _activated(values[:, 5 if objectness else 4 :], spec)
    if objectness:
        scores = scores * _activated(values[:, 4:5], spec)
    return _confident(boxes, scores, float(spec.confidence))


def _upright(values: Floats64, columns: int, classes: int, spec: Decoder) -> Floats64:
    """(boxes, columns), whichever way round it came. There are more boxes than columns, unless the number of classes tells otherwise."""
    if classes:
        if values.shape[1] == columns and (values.shape[0] != columns or values.shape[0] >= values.shape[1]):
            return values
        if values.shape[0] == columns:
            return values.T
    upright = values if values.shape[0] >= values.shape[1] else values.T
    found = upright.shape[1]
    if not classes and found > columns:
        return upright
    what = f"the output has {found} columns a box, {spec.kind} with the data set's {classes} classes has {columns}"
    if not classes:
        pass
    elif found - columns == 1:
        what += ": oriented boxes have one more (the angle), yolov5 has one more (objectness), or the model has one class more"
    elif found - columns == 3 * POINTS:
        _refuse(f"{what}: {POINTS} joints of a pose model")
    elif found - columns == MASK_COEFFICIENTS:
        _refuse(f"{what}: {MASK_COEFFICIENTS} coefficients of instance masks")
    hint = "Choose the decoder.kind of this model, and let the data set name the classes that the model knows, in its order."
    raise PermanentError("OutputsMismatch", f"{what}.", hint)


def _yolox(values: Floats64, spec: Decoder, size: tuple[int, int], classes: int) -> Detections:
    """Offsets in grid cells and logarithms of sizes, for grids of several strides one after the other; objectness and class scores beside them."""
    values = _upright(values, 5 + classes, classes, spec)
    for strides in STRIDES:
        shapes = [(size[0] // stride, size[1] // stride) for stride in strides]
        if sum(rows * columns for rows, columns in shapes) == len(values):
            break
    else:
        what = f"{len(values)} boxes are not the cells of grids of strides {', '.join(str(list(strides)) for strides in STRIDES)}"
        hint = "Export with the grid decoded and write decoder.kind: yolov5, or check spec.preprocessing.size."
        raise PermanentError("OutputsMismatch", f"{what} over an input of {size[0]} x {size[1]}.", hint)
    corners, steps = [], []
    for stride, (rows, columns) in zip(strides, shapes, strict=True):
        y, x = np.mgrid[:rows, :columns]
        corners.append(np.stack([x.ravel(), y.ravel()], axis=1))
        steps.append(np.full((rows * columns, 1), stride))
    cell, step = np.concatenate(corners), np.concatenate(steps)
    centre, extent = (values[:, :2] + cell) * step, np.exp(np.clip(values[:, 2:4], None, 30)) * step
    boxes = np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)
    scores = _activated(values[:, 5:], spec) * _activated(values[:, 4:5], spec)
    return _confident(boxes, scores, float(spec.confidence))


def _end2end(values: Floats64, spec: Decoder, size: tuple[int, int]) -> Detections:
    columns = values.shape[1]
    if columns != 6:
        extra = columns - 6
        if extra == 1:
            _refuse(f"the output has {columns} columns, boxes with score and class have 6: an angle, so oriented boxes")
        if extra > 0 and extra % 3 == 0 and extra != MASK_COEFFICIENTS:
            _refuse(f"the output has {columns} columns, boxes with score and class have 6: {extra // 3} joints of a pose model")
        if extra == MASK_COEFFICIENTS:
            _refuse(f"the output has {columns} columns, boxes with score and class have 6: coefficients of instance masks")
        _mismatch({"output": values}, "yolo_end2end needs rows of x1 y1 x2 y2 score class")
    keep = ~(values[:, 4] < float(spec.confidence))
    values = values[keep]
    return Detections(_corners(values, spec, "xyxy", size, False), values[:, 4], _labels(values[:, 5], spec))


def _named(outputs: Mapping[str, Array], spec: Decoder, size: tuple[int, int]) -> tuple[Detections, bool]:
    """(detections, whether they are final): where the model gives labels it has suppressed already; scores of all classes are raw."""
    arrays = {name: array for name, array in outputs.items() if array.size or array.ndim}
    chosen = _chosen(outputs, spec, 2)
    if chosen is not None:
        boxes, scores = chosen[0][1], chosen[1][1]
        labels = chosen[2][1] if len(chosen) > 2 else None
        count = chosen[3][1] if len(chosen) > 3 else None
    else:
        boxes_found, scores_found, labels, count = _guess(arrays)
        if boxes_found is None or scores_found is None:
            _mismatch(outputs, "boxes_scores_labels needs outputs of boxes, scores and labels: name them in decoder.outputs")
        boxes, scores = boxes_found, scores_found
    four, many = boxes.astype(np.float64).reshape(-1, 4), scores.astype(np.float64)
    if labels is None:
        many = many.reshape(len(four), -1) if len(four) else many.reshape(0, 1)
        corners = _corners(four, spec, "xyxy", size, False)
        many = _activated(many, spec)[:, spec.first_label :]
        return _confident(corners, many, float(spec.confidence)), False
    many, numbers = many.reshape(-1), labels.reshape(-1).astype(np.float64)
    if not len(four) == len(many) == len(numbers):
        _mismatch(outputs, "boxes, scores and labels differ in number")
    valid = int(count.reshape(-1)[0].item()) if count is not None and count.size else len(four)
    keep = ~(many < float(spec.confidence)) & (np.arange(len(four)) < valid)
    return Detections(_corners(four[keep], spec, "xyxy", size, False), many[keep], _labels(numbers[keep], spec)), True


def _guess(arrays: Mapping[str, Array]) -> tuple[Array | None, Array | None, Array | None, Array | None]:
    """(boxes, scores, labels, count) by name, else by shape and type."""
    boxes = scores = labels = count = None
    for name, array in arrays.items():
        lower = name.lower()
        if "num" in lower and array.size == 1:
            count = array
        elif "box" in lower and array.shape[-1:] == (4,):
            boxes = array
        elif "score" in lower or "conf" in lower or "prob" in lower:
            scores = array
        elif "label" in lower or "class" in lower or lower.endswith("cls"):
            labels = array
    if boxes is not None and scores is not None:
        return boxes, scores, labels, count
    for array in arrays.values():
        if array.ndim == 2 and array.shape[1] == 4 and array.dtype.kind == "f":
            boxes = array
        elif array.ndim == 1 and array.dtype.kind in "iu" and array.size:
            labels = array
        elif array.ndim in (1, 2) and array.dtype.kind == "f":
            scores = array
    return boxes, scores, labels, count


def _detr(outputs: Mapping[str, Array], spec: Decoder, size: tuple[int, int], classes: int) -> Detections:
    """Logits (queries, classes + 1), of which softmax's last is "nothing", or (queries, classes) by sigmoid; boxes as shares of the input."""
    chosen = _chosen(outputs, spec, 2)
    pair = [(name, array) for name, array in (chosen or outputs.items()) if array.ndim == 2]
    boxes = next((array for name, array in pair if array.shape[1] == 4 and ("box" in name.lower() or chosen is not None)), None)
    if boxes is None:
        boxes = next((array for _, array in pair if array.shape[1] == 4), None)
    logits = next((array for _, array in pair if array is not boxes and boxes is not None and len(array) == len(boxes)), None)
    if boxes is None or logits is None:
        _mismatch(outputs, "detr needs logits (queries, classes) and boxes (queries, 4)")
    scores = _activated(logits.astype(np.float64), spec, "softmax")
    if spec.activation in ("auto", "softmax"):
        scores = scores[:, :-1]
    if classes and scores.shape[1] < classes:
        what = f"the model tells {scores.shape[1]} classes apart, the data set has {classes}"
        raise PermanentError("OutputsMismatch", f"{what}.", "Write decoder.activation: sigmoid for models without a class for nothing.")
    return _confident(_corners(boxes.astype(np.float64), spec, "cxcywh", size, True), scores, float(spec.confidence))


def _labels(numbers: Floats64, spec: Decoder) -> NDArray[np.int64]:
    """Class numbers as floats or integers, from 0; what is no number is class -1."""
    return np.asarray(np.where(np.isfinite(numbers), np.round(numbers), -1).astype(np.int64) - spec.first_label)


def _refuse(what: str) -> NoReturn:
    hint = "Judge its plain outputs with task: outputs, or write your own metric (metric: python)."
    raise PermanentError("NotYetSupported", f"{what}, which cannot be judged yet.", hint)


def _mismatch(outputs: Mapping[str, Array], what: str) -> NoReturn:
    found = ", ".join(f"{name} {list(array.shape)} {array.dtype}" for name, array in list(outputs.items())[:8])
    hint = "Choose the decoder.kind that fits the model, and name its outputs in decoder.outputs."
    raise PermanentError("OutputsMismatch", f"{what}; one picture gives {found}.", hint)


def input_size(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of an input of one sample: channels stand first or last, and there are few of them."""
    if len(shape) == 3:
        return (shape[1], shape[2]) if shape[0] <= 4 < max(shape[1:]) or shape[2] > 4 else (shape[0], shape[1])
    return (shape[-2], shape[-1]) if len(shape) == 2 else (1, math.prod(shape) or 1)
