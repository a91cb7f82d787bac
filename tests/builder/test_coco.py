"""Average precision is pycocotools', for all pictures and for every selection of them."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from enginefleet_api.resources import Validation
from enginefleet_builder.gate import coco
from enginefleet_builder.gate.readers import coco as reader
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.gate.tasks.detection import Detection
from enginefleet_builder.gate.truth import Boxes

COCO: Any = importlib.import_module("pycocotools.coco").COCO
COCOeval: Any = importlib.import_module("pycocotools.cocoeval").COCOeval

Picture = tuple[Boxes, dict[str, Any]]


def pycocotools_stats(pictures: Sequence[Picture], classes: int) -> tuple[float, float]:
    """(mAP50-95, mAP50) of COCOeval as it stands, with its own parameters: the same pictures, written as COCO files are."""
    ids = list(range(1, len(pictures) + 1))
    objects = [
        {"image_id": number, "category_id": int(label), "bbox": wh(box), "iscrowd": int(crowd), "area": float(area)}
        for number, (truth, _) in zip(ids, pictures, strict=True)
        for box, label, crowd, area in zip(truth.boxes, truth.classes, truth.crowd, truth.area, strict=True)
    ]
    found = [
        {"image_id": number, "category_id": label, "bbox": wh(box), "score": score}
        for number, (_, record) in zip(ids, pictures, strict=True)
        for box, score, label in zip(record["boxes"], record["scores"], record["classes"], strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": number} for number in ids],
            "categories": [{"id": number} for number in range(classes)],
            "annotations": [{"id": number, **item} for number, item in enumerate(objects, start=1)],
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found) if found else COCO(), "bbox")
        if not found:
            evaluation.cocoDt.dataset = truth.dataset | {"annotations": []}
            evaluation.cocoDt.createIndex()
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0]), float(evaluation.stats[1])


def wh(box: Any) -> list[float]:
    left, top, right, bottom = (float(value) for value in box)
    return [left, top, right - left, bottom - top]


def ours(pictures: Sequence[Picture], classes: int, weights: NDArray[np.int64] | None = None) -> tuple[float, float]:
    drawn = np.ones((1, len(pictures)), np.int64) if weights is None else weights[None]
    both = []
    for ious in (coco.IOUS, coco.IOUS[:1]):
        matches = coco.match([truth for truth, _ in pictures], [record for _, record in pictures], classes, ious)
        values = np.array([coco.average_precision(item, drawn)[0] for item in matches])
        both.append(float(np.nanmean(values)) if np.isfinite(values).any() else -1.0)
    return both[0], both[1]


def picture(random: np.random.Generator, classes: int, *, crowds: bool = True, ties: bool = False) -> Picture:
    """Objects, and detections of which many are objects moved a little: hits at some thresholds and misses at others."""
    count = int(random.integers(0, 6))
    corner, extent = random.uniform(0, 80, (count, 2)), random.uniform(5, 40, (count, 2))
    boxes = np.concatenate([corner, corner + extent], axis=1)
    labels = random.integers(0, classes, count)
    crowd = random.random(count) < (0.15 if crowds else 0.0)
    truth = Boxes(boxes, labels.astype(np.int64), crowd, np.prod(extent, axis=1))
    guesses = int(random.integers(0, 12))
    moved = [boxes[random.integers(count)] + random.normal(0, 3, 4) for _ in range(guesses)] if count else []
    strangers = [np.concatenate([at := random.uniform(0, 80, 2), at + random.uniform(5, 40, 2)]) for _ in range(int(random.integers(0, 4)))]
    found = [*moved, *strangers]
    scores = random.integers(1, 5, len(found)) / 5 if ties else random.random(len(found))
    near = [int(labels[random.integers(count)]) if count and random.random() < 0.8 else int(random.integers(classes)) for _ in found]
    return truth, {"boxes": [box.tolist() for box in found], "scores": scores.tolist(), "classes": near}


def pictures_of(seed: int, count: int, classes: int, **options: bool) -> list[Picture]:
    random = np.random.default_rng(seed)
    return [picture(random, classes, **options) for _ in range(count)]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 4), st.booleans())
def test_is_what_pycocotools_says(seed: int, count: int, classes: int, ties: bool) -> None:
    pictures = pictures_of(seed, count, classes, ties=ties)
    assert pytest.approx(pycocotools_stats(pictures, classes), abs=1e-6) == ours(pictures, classes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(1, 3))
def test_a_selection_is_what_pycocotools_says_of_its_pictures(seed: int, count: int, classes: int) -> None:
    """Weights 0, 1, 2, …: pictures left out, and pictures that stand in the list twice."""
    pictures = pictures_of(seed, count, classes)
    weights = np.random.default_rng(seed).integers(0, 3, count)
    drawn = [item for item, times in zip(pictures, weights, strict=True) for _ in range(times)]
    if drawn:
        assert pytest.approx(pycocotools_stats(drawn, classes), abs=1e-6) == ours(pictures, classes, weights)


def test_a_larger_set_and_many_boxes_a_picture() -> None:
    """More than 100 boxes of a class on a picture: COCO counts the best 100."""
    pictures = pictures_of(3, 60, 5)
    random = np.random.default_rng(4)
    truth, _ = pictures[0]
    corner = random.uniform(0, 80, (150, 2))
    many = np.concatenate([corner, corner + random.uniform(5, 40, (150, 2))], axis=1)
    pictures[0] = truth, {"boxes": many.tolist(), "scores": random.random(150).tolist(), "classes": [0] * 150}
    assert pytest.approx(pycocotools_stats(pictures, 5), abs=1e-6) == ours(pictures, 5)


def test_pictures_without_objects_or_without_boxes() -> None:
    nothing = Boxes.of(np.zeros((0, 4)), np.zeros(0, np.int64))
    box = np.array([[10.0, 10.0, 30.0, 30.0]])
    silent: dict[str, Any] = {"boxes": [], "scores": [], "classes": []}
    alarm = {"boxes": box.tolist(), "scores": [0.9], "classes": [0]}
    there = Boxes.of(box, np.zeros(1, np.int64))
    for pictures in ([(nothing, alarm), (there, alarm)], [(there, silent)], [(there, alarm), (there, silent)]):
        assert pytest.approx(pycocotools_stats(pictures, 2), abs=1e-6) == ours(pictures, 2)
    assert (-1.0, -1.0) == ours([(nothing, alarm)], 2)


def test_many_selections_at_a_time_are_each_of_them_alone() -> None:
    pictures = pictures_of(7, 20, 3)
    matches = coco.match([truth for truth, _ in pictures], [record for _, record in pictures], 3)
    weights = np.random.default_rng(1).integers(0, 4, (25, 20))
    for item in matches:
        together = coco.average_precision(item, weights)
        assert together.tolist() == pytest.approx([coco.average_precision(item, row[None])[0] for row in weights], nan_ok=True)


# ---- published labels and boxes, see coco100/README.md ----

COCO100 = Path(__file__).parent / "coco100"


@pytest.mark.parametrize(("metric", "place", "published"), [("map50_95", 0, 0.505), ("map50", 1, 0.697)])
def test_on_pictures_of_coco_the_metric_is_what_pycocotools_says_and_what_its_authors_published(
    metric: str, place: int, published: float
) -> None:
    """From the file through our reader and the task to the metric, against COCOeval on the files themselves."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(COCO100 / "instances.json"))
        evaluation = COCOeval(truth, truth.loadRes(str(COCO100 / "detections.json")), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    labels = reader.read(COCO100 / "instances.json")
    dataset = Dataset(len(labels.images), None, tuple(labels.classes), lambda _: {}, boxes=labels.boxes.__getitem__)
    validation = Validation.model_validate({"uri": "file:///", "task": "detection", "metric": metric})
    whole, classes = Detection(validation, dataset, None).scores(records(labels), range(dataset.size)).whole()
    assert published == round(whole, 3)
    assert pytest.approx(evaluation.stats[place], abs=1e-6) == whole
    precision = evaluation.eval["precision"][slice(None) if place == 0 else slice(1), :, :, 0, -1]
    assert pytest.approx([item.mean() for item in np.moveaxis(precision, 2, 0) if (item > -1).any()], abs=1e-6) == classes.tolist()


def records(labels: reader.Labels) -> list[dict[str, Any]]:
    """The published boxes of each picture, as a detector's records are."""
    places = {image["id"]: place for place, image in enumerate(labels.images)}
    numbers = sorted(category["id"] for category in json.loads((COCO100 / "instances.json").read_text())["categories"])
    made: list[dict[str, Any]] = [{"boxes": [], "scores": [], "classes": []} for _ in labels.images]
    for found in json.loads((COCO100 / "detections.json").read_text()):
        record, (x, y, width, height) = made[places[found["image_id"]]], found["bbox"]
        record["boxes"].append([x, y, x + width, y + height])
        record["scores"].append(found["score"])
        record["classes"].append(numbers.index(found["category_id"]))
    return made
