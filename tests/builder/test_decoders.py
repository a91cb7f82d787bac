"""Each form of a detector's outputs, written by hand; suppression against a plain reference; what has no form here is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Decoder
from enginefleet_builder.gate.decoders import Detections, decode, input_size, require_task, suppress

SIZE = (64, 96)
"""Height and width of the input: unequal, so that what confuses the two is seen."""
BOXES = [[10.0, 20.0, 30.0, 40.0], [50.0, 10.0, 90.0, 50.0]]
CENTRES = [[20.0, 30.0, 20.0, 20.0], [70.0, 30.0, 40.0, 40.0]]
Outputs = dict[str, NDArray[Any]]


def floats(rows: Any) -> NDArray[np.float32]:
    return np.array(rows, np.float32)


def padded(rows: Any, count: int = 40) -> NDArray[np.float32]:
    """The rows, and more that no confidence reaches: raw outputs have more boxes than columns."""
    array = floats(rows)
    return np.concatenate([array, np.zeros((count - len(array), array.shape[1]), np.float32)])


YOLO = padded([[*CENTRES[0], 0.9, 0.1], [*CENTRES[1], 0.0, 0.8]])
YOLOV5 = padded([[*CENTRES[0], 0.9, 1.0, 0.1], [*CENTRES[1], 1.0, 0.0, 0.8]])
END2END = floats([[*BOXES[0], 0.9, 0], [*BOXES[1], 0.8, 1], [0, 0, 0, 0, 0, 0]])
SHARES = floats(CENTRES) / floats([SIZE[1], SIZE[0], SIZE[1], SIZE[0]])
LOGITS = np.log(floats([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.0005, 0.0005, 0.999]]))


def yolox() -> NDArray[np.float32]:
    """Offsets from cells in units of strides and logarithms of sizes, so that CENTRES come out of cells of strides 8 and 16."""
    rows = np.zeros((12 * 8 + 6 * 4 + 3 * 2, 7), np.float32)
    rows[3 * 12 + 2] = [20 / 8 - 2, 30 / 8 - 3, np.log(20 / 8), np.log(20 / 8), 0.9, 1.0, 0.1]
    rows[96 + 1 * 6 + 4] = [70 / 16 - 4, 30 / 16 - 1, np.log(40 / 16), np.log(40 / 16), 1.0, 0.0, 0.8]
    return rows


FORMS: list[tuple[str, dict[str, Any], Outputs]] = [
    ("YOLO as Ultralytics exports it", {"kind": "yolo"}, {"output0": YOLO.T}),
    ("YOLO transposed", {"kind": "yolo"}, {"output0": YOLO}),
    ("YOLO beside another output, by name", {"kind": "yolo", "outputs": ["boxes"]}, {"aux": YOLO * 0, "boxes": YOLO}),
    ("YOLOv5 with objectness", {"kind": "yolov5"}, {"output": YOLOV5}),
    ("YOLOX on its grid", {"kind": "yolox"}, {"output": yolox()}),
    ("end to end", {"kind": "yolo_end2end"}, {"output0": END2END}),
    (
        "boxes, scores and labels by name",
        {"kind": "boxes_scores_labels"},
        {"labels": np.array([0, 1]), "scores": floats([0.9, 0.8]), "boxes": floats(BOXES)},
    ),
    (
        "boxes, scores and labels by shape and type",
        {"kind": "boxes_scores_labels"},
        {"a": floats(BOXES), "b": np.array([0, 1]), "c": floats([0.9, 0.8])},
    ),
    (
        "labels that count a background",
        {"kind": "boxes_scores_labels", "first_label": 1, "outputs": ["x", "y", "z"]},
        {"x": floats(BOXES), "y": floats([0.9, 0.8]), "z": np.array([1, 2])},
    ),
    (
        "a fixed number of rows, of which some count",
        {"kind": "boxes_scores_labels"},
        {
            "num_dets": np.array([2], np.int32),
            "det_boxes": padded(BOXES, 5),
            "det_scores": floats([0.9, 0.8, 0.7, 0.7, 0.7]),
            "det_classes": np.array([0, 1, 0, 0, 0]),
        },
    ),
    (
        "scores of all classes for each box",
        {"kind": "boxes_scores_labels"},
        {"boxes": floats(BOXES), "scores": floats([[0.9, 0.0], [0.0, 0.8]])},
    ),
    (
        "boxes as corner and size",
        {"kind": "boxes_scores_labels", "box_format": "xywh"},
        {"boxes": floats([[10, 20, 20, 20], [50, 10, 40, 40]]), "scores": floats([0.9, 0.8]), "labels": np.array([0, 1])},
    ),
    (
        "boxes as shares of the input",
        {"kind": "boxes_scores_labels", "normalized": True, "box_format": "cxcywh"},
        {"boxes": SHARES, "scores": floats([0.9, 0.8]), "labels": np.array([0, 1])},
    ),
    ("DETR", {"kind": "detr", "confidence": "0.2"}, {"logits": LOGITS, "pred_boxes": np.concatenate([SHARES, SHARES[:1]])}),
    (
        "DETR with a sigmoid a class",
        {"kind": "detr", "activation": "sigmoid"},
        {"logits": np.log(floats([[9, 1e-9], [1e-9, 4]])), "boxes": SHARES},
    ),
]


@pytest.mark.parametrize(("changes", "outputs"), [row[1:] for row in FORMS], ids=[row[0] for row in FORMS])
def test_forms(changes: dict[str, Any], outputs: Outputs) -> None:
    """All hold the same two boxes: of class 0 with score 0.9, of class 1 with score 0.8."""
    found = decode(outputs, Decoder.model_validate({"confidence": "0.15"} | changes), SIZE, 2)
    assert [0, 1] == found.classes.tolist()
    assert [0.9, 0.8] == pytest.approx(found.scores.tolist(), abs=1e-5)
    assert np.allclose(BOXES, found.boxes, atol=1e-3)


def test_a_box_counts_for_each_class_that_it_may_be() -> None:
    outputs = {"output0": padded([[*CENTRES[0], 0.9, 0.4]])}
    assert [0, 1] == decode(outputs, Decoder(kind="yolo"), SIZE, 2).classes.tolist()


def test_the_best_boxes_are_kept_where_there_are_too_many() -> None:
    found = decode({"output0": END2END}, Decoder(kind="yolo_end2end", max_detections=1), SIZE, 2)
    assert [0] == found.classes.tolist()


def test_nan_scores_are_seen() -> None:
    """A box whose score is NaN is neither dropped nor suppressed: the caller must see that the engine is broken."""
    raw = YOLO.copy()
    raw[5, 4] = np.nan
    assert np.isnan(decode({"output0": raw}, Decoder(kind="yolo"), SIZE, 2).scores).any()
    end = END2END.copy()
    end[2, 4] = np.nan
    assert np.isnan(decode({"output0": end}, Decoder(kind="yolo_end2end"), SIZE, 2).scores).any()


REFUSED: list[tuple[str, dict[str, Any], Outputs, int, str, str]] = [
    ("a pose model", {"kind": "yolo"}, {"o": np.zeros((56, 300), np.float32)}, 1, "NotYetSupported", "17 joints of a pose model"),
    (
        "instance masks with their prototypes",
        {"kind": "yolo"},
        {"o": np.zeros((116, 300), np.float32), "p": np.zeros((32, 16, 16), np.float32)},
        80,
        "NotYetSupported",
        "prototypes: instance masks",
    ),
    ("coefficients of masks", {"kind": "yolo"}, {"o": np.zeros((116, 300), np.float32)}, 80, "NotYetSupported", "instance masks"),
    ("oriented boxes", {"kind": "yolo"}, {"o": np.zeros((20, 300), np.float32)}, 15, "OutputsMismatch", "oriented boxes have one more"),
    ("oriented boxes, end to end", {"kind": "yolo_end2end"}, {"o": np.zeros((300, 7), np.float32)}, 15, "NotYetSupported", "oriented"),
    ("a pose model, end to end", {"kind": "yolo_end2end"}, {"o": np.zeros((300, 57), np.float32)}, 1, "NotYetSupported", "17 joints"),
    ("instance masks, end to end", {"kind": "yolo_end2end"}, {"o": np.zeros((300, 38), np.float32)}, 80, "NotYetSupported", "masks"),
    (
        "another number of classes",
        {"kind": "yolo"},
        {"o": np.zeros((84, 8400), np.float32)},
        3,
        "OutputsMismatch",
        "84 columns a box, yolo with the data set's 3 classes has 7",
    ),
    ("a grid that is none", {"kind": "yolox"}, {"o": np.zeros((100, 7), np.float32)}, 2, "OutputsMismatch", "100 boxes are not the cells"),
    ("a classifier", {"kind": "yolo"}, {"o": np.zeros(1000, np.float32)}, 2, "OutputsMismatch", "o [1000] float32"),
    ("an output that is not there", {"kind": "yolo", "outputs": ["x"]}, {"o": YOLO}, 2, "OutputsMismatch", "['x'] are not there"),
    ("no boxes", {"kind": "boxes_scores_labels"}, {"o": np.zeros(3, np.float32)}, 2, "OutputsMismatch", "name them in decoder.outputs"),
    ("no logits", {"kind": "detr"}, {"boxes": SHARES}, 2, "OutputsMismatch", "detr needs logits"),
    ("a sigmoid DETR", {"kind": "detr"}, {"logits": LOGITS[:2, :2], "boxes": SHARES}, 2, "OutputsMismatch", "activation: sigmoid"),
]


@pytest.mark.parametrize(("changes", "outputs", "classes", "reason", "text"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refuses(changes: dict[str, Any], outputs: Outputs, classes: int, reason: str, text: str) -> None:
    with pytest.raises(PermanentError) as caught:
        decode(outputs, Decoder.model_validate(changes), SIZE, classes)
    assert reason == caught.value.reason
    assert text in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("task", "what"), [("obb", "oriented boxes"), ("pose", "a pose model"), ("segment", "instance masks")])
def test_metadata_name_what_a_model_is(task: str, what: str) -> None:
    with pytest.raises(PermanentError, match=f"metadata say task {task}: {what}"):
        require_task({"task": task})
    require_task({"task": "detect"})
    require_task({})


def test_the_size_of_an_input_is_found_whichever_axis_has_the_channels() -> None:
    assert (480, 640) == input_size([3, 480, 640])
    assert (480, 640) == input_size([480, 640, 3])
    assert (480, 640) == input_size([1, 480, 640])
    assert (8, 8) == input_size([8, 8])


def plain_suppression(found: Detections, iou: float, limit: int) -> list[int]:
    """Box by box, in the order of scores: kept unless a kept one of its class overlaps it by more than `iou`."""
    kept: list[int] = []
    for at in sorted(range(len(found.scores)), key=lambda number: (-found.scores[number], number)):
        if len(kept) < limit and all(
            found.classes[at] != found.classes[other] or overlap(found.boxes[at], found.boxes[other]) <= iou for other in kept
        ):
            kept.append(at)
    return kept


def overlap(a: Any, b: Any) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / union if union else 0.0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.sampled_from([0.3, 0.5, 0.7, 1.0]), st.integers(1, 30))
def test_suppression_is_what_the_plain_one_gives(seed: int, count: int, iou: float, limit: int) -> None:
    random = np.random.default_rng(seed)
    # whole numbers, so that overlaps and scores tie often
    corner = random.integers(0, 12, (count, 2)).astype(np.float64)
    boxes = np.concatenate([corner, corner + random.integers(1, 10, (count, 2))], axis=1)
    found = Detections(boxes, random.integers(1, 6, count) / 5, random.integers(0, 3, count))
    expected = found.take(np.array(plain_suppression(found, iou, limit), np.int64))
    kept = suppress(found, iou, limit)
    assert expected.boxes.tolist() == kept.boxes.tolist()
    assert expected.classes.tolist() == kept.classes.tolist()
    assert expected.scores.tolist() == kept.scores.tolist()
