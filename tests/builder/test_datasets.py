"""Data sets in every format: what is read from them."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from enginefleet_api.documents import TensorSpec
from enginefleet_api.resources import Preprocessing
from enginefleet_builder.gate.datasets import open_dataset
from enginefleet_builder.gate.preprocessing import Preprocessor
from tests.builder import data

PLAIN = Preprocessor.of(None)
LETTERBOX = Preprocessor.of(Preprocessing(resize="letterbox", size=[40, 40], scale="1/255"))
INPUT = [TensorSpec(name="x", dtype="float32", shape=[None, 3, 40, 40])]


# ---- detection


def test_coco_classes_are_categories_in_the_order_of_their_ids(tmp_path: Path) -> None:
    dataset = open_dataset(data.coco(tmp_path), LETTERBOX, "detection")
    assert (2, ("person", "toothbrush")) == (dataset.size, dataset.classes)
    boxes = dataset.boxes(0)
    assert [[1, 2, 11, 22.5], [0, 0, 40, 30]] == boxes.boxes.tolist()
    assert [1, 0] == boxes.classes.tolist()
    assert [False, True] == boxes.crowd.tolist()
    assert [150.5, 1200] == boxes.area.tolist()
    assert len(dataset.boxes(1)) == 0
    assert dataset.feed([0, 1], INPUT)["x"].shape == (2, 3, 40, 40)


def test_coco_names_its_samples_and_tells_subgroups_apart(tmp_path: Path) -> None:
    dataset = open_dataset(data.coco(tmp_path), LETTERBOX, "detection")
    assert ["images/a.png", "images/b.png"] == [dataset.identity(index) for index in range(2)]
    assert {"scene": ("day", "night")} == dict(dataset.groups)
    picture = dataset.picture(0)
    assert picture is not None
    assert data.SIZE == picture.size


@pytest.mark.parametrize("where", [".", "images", "val2017", "images/val"])
def test_pictures_of_coco_are_found_where_people_put_them(tmp_path: Path, where: str) -> None:
    data.write(tmp_path / "annotations" / "instances_val2017.json", json.dumps(data.coco_document()))
    for name in ("a.png", "b.png"):
        data.picture(tmp_path / where / name)
    assert open_dataset(tmp_path, LETTERBOX, "detection").size == 2


def test_categories_without_annotations_are_noted(tmp_path: Path) -> None:
    document = data.coco_document()
    document["categories"].append({"id": 0, "name": "objects"})
    notes = open_dataset(data.coco(tmp_path, document), LETTERBOX, "detection").notes
    assert ("annotations.json: no annotations of 1 of 3 categories: objects",) == notes


def test_yolo_boxes_are_pixels_of_the_picture(tmp_path: Path) -> None:
    dataset = open_dataset(data.yolo(tmp_path), LETTERBOX, "detection")
    assert (2, ("cat", "dog")) == (dataset.size, dataset.classes)
    boxes = dataset.boxes(0)
    assert np.allclose([[10, 12, 30, 18], [0, 0, 20, 30]], boxes.boxes)
    assert [1, 0] == boxes.classes.tolist()
    assert np.allclose([120, 600], boxes.area)
    assert len(dataset.boxes(1)) == 0


@pytest.mark.parametrize(
    "yaml",
    [
        "val: images/val\nnames: [cat, dog]\nnc: 2\n",
        "path: /home/me/datasets/pets\nval: images/val\nnames: [cat, dog]\n",
        "path: ../datasets/pets\nval: images/val\nnames: [cat, dog]\n",
        "val: ../images/val\nnames: [cat, dog]\n",
        "val: [images/val]\nnames: [cat, dog]\n",
        "path: images\nval: val\nnames: [cat, dog]\n",
        "val: val.txt\nnames: [cat, dog]\n",
    ],
    ids=[
        "names as a list",
        "path elsewhere",
        "path beside",
        "as Roboflow writes it",
        "a list of folders",
        "path inside",
        "a list of pictures",
    ],
)
def test_ways_to_write_data_yaml(tmp_path: Path, yaml: str) -> None:
    data.write(tmp_path / "val.txt", "./images/val/a.png\n\nimages/val/b.png\n")
    dataset = open_dataset(data.yolo(tmp_path, yaml), LETTERBOX, "detection")
    assert (2, ("cat", "dog")) == (dataset.size, dataset.classes)
    assert len(dataset.boxes(0)) == 2


def test_yolo_calibrates_with_its_training_pictures(tmp_path: Path) -> None:
    dataset = open_dataset(data.yolo(tmp_path), LETTERBOX, "calibration")
    assert ["images/train/c.png"] == [dataset.identity(index) for index in range(dataset.size)]


def test_boxes_tell_which_classes_are_covered_in_every_part(tmp_path: Path) -> None:
    """Crowds do not count. What is calibrated with needs no labels, and lines that are no labels are passed over."""
    data.yolo(tmp_path / "yolo", labels="1 0.5 0.5 0.5 0.2\n1 0.1 0.1 0.1 0.1\n")
    judged = open_dataset(tmp_path / "yolo", LETTERBOX, "detection")
    assert ({"cat": 0, "dog": 2}, ("no objects of 1 of 2 classes in val: cat",)) == (judged.instances(), judged.notes)
    train = tmp_path / "yolo" / "labels" / "train" / "c.txt"
    train.write_text("0 0.1 0.1 0.9 0.1 0.9 0.9\n7 0 0 1 1\nx\n\n1\n")
    assert {"cat": 1, "dog": 1} == open_dataset(tmp_path / "yolo", LETTERBOX, "calibration").instances()
    train.write_bytes(b"\xff")
    assert {"cat": 0, "dog": 0} == open_dataset(tmp_path / "yolo", LETTERBOX, "calibration").instances()
    train.unlink()
    assert open_dataset(tmp_path / "yolo", LETTERBOX, "calibration").instances() is None
    for task in ("detection", "calibration"):
        assert {"person": 0, "toothbrush": 1} == open_dataset(data.coco(tmp_path / "coco"), LETTERBOX, task).instances()


def test_pictures_without_labels_are_background_and_noted(tmp_path: Path) -> None:
    data.yolo(tmp_path)
    (tmp_path / "labels" / "val" / "b.txt").unlink()
    dataset = open_dataset(tmp_path, LETTERBOX, "detection")
    assert len(dataset.boxes(1)) == 0
    assert ("1 of 2 pictures of val have no label file: they count as background",) == dataset.notes


def test_a_line_that_stands_there_twice_counts_once(tmp_path: Path) -> None:
    line = "1 0.5 0.5 0.5 0.2\n"
    assert len(open_dataset(data.yolo(tmp_path, labels=line + line), LETTERBOX, "detection").boxes(0)) == 1


# ---- segmentation


def test_masks_follow_their_pictures_into_the_letterbox(tmp_path: Path) -> None:
    dataset = open_dataset(data.masks(tmp_path), LETTERBOX, "segmentation")
    mask = dataset.mask(0)
    assert (40, 40) == mask.shape
    assert [255, 1, 0, 255, 255] == [mask[0, 0], mask[5, 0], mask[5, 39], mask[25, 0], mask[39, 0]]


def test_masks_of_palette_pictures_are_their_indices(tmp_path: Path) -> None:
    data.masks(tmp_path, mode="P")
    data.write(tmp_path / "classes.txt", "background\nroad\n")
    dataset = open_dataset(tmp_path, PLAIN, "segmentation")
    assert ("background", "road") == dataset.classes
    assert [0, 1, 255] == np.unique(dataset.mask(0)).tolist()


def test_masks_in_arrays_follow_their_pictures(tmp_path: Path) -> None:
    pictures, classes = np.zeros((2, 30, 40, 3), np.uint8), np.ones((2, 30, 40), np.int64)
    np.savez(tmp_path / "a.npz", images=pictures, masks=classes)
    assert [1, 255] == np.unique(open_dataset(tmp_path, LETTERBOX, "segmentation").mask(0)).tolist()
    np.savez(tmp_path / "a.npz", images=pictures.transpose(0, 3, 1, 2), masks=classes)
    assert (30, 40) == open_dataset(tmp_path, PLAIN, "segmentation").mask(0).shape


def test_calibration_does_not_take_masks_for_pictures(tmp_path: Path) -> None:
    assert open_dataset(data.masks(tmp_path), LETTERBOX, "calibration").size == 2


# ---- classification


def test_classes_txt_sets_the_order(tmp_path: Path) -> None:
    data.class_folders(tmp_path, "ant", "bee")
    data.write(tmp_path / "classes.txt", "bee\nant\ncow\n")
    dataset = open_dataset(tmp_path, LETTERBOX, "classification")
    assert dataset.labels is not None
    assert (("bee", "ant", "cow"), [0, 0, 1, 1]) == (dataset.classes, dataset.labels.tolist())
    assert ("no pictures of 1 of 3 classes: cow",) == dataset.notes


def test_parts_with_a_folder_for_each_class_are_what_ultralytics_trains_classifiers_with(tmp_path: Path) -> None:
    """Classes are numbered over all parts: `val` has no pictures of the first."""
    data.class_folders(tmp_path / "train", "ant", "bee", "cow", each=1)
    data.class_folders(tmp_path / "val", "bee", "cow")
    judged = open_dataset(tmp_path, LETTERBOX, "classification")
    assert judged.labels is not None
    assert (("ant", "bee", "cow"), [1, 1, 2, 2], "val/bee/0.png") == (judged.classes, judged.labels.tolist(), judged.identity(0))
    assert ("of its parts train, val val is used", "no pictures of 1 of 3 classes: ant") == judged.notes
    calibrated = open_dataset(tmp_path, LETTERBOX, "calibration")
    assert calibrated.labels is not None
    assert (("ant", "bee", "cow"), [0, 1, 2], "train/ant/0.png") == (calibrated.classes, calibrated.labels.tolist(), calibrated.identity(0))


def test_classes_that_are_called_as_parts_are_classes(tmp_path: Path) -> None:
    dataset = open_dataset(data.class_folders(tmp_path, "train", "tram"), LETTERBOX, "classification")
    assert ("train", "tram") == dataset.classes


def test_numbers_sorted_as_text_are_noted(tmp_path: Path) -> None:
    dataset = open_dataset(data.class_folders(tmp_path, "1", "2", "10"), LETTERBOX, "classification")
    assert ("1", "10", "2") == dataset.classes
    assert "sorted as text" in dataset.notes[0]


def test_a_table_beside_the_pictures_has_labels_and_subgroups(tmp_path: Path) -> None:
    for number in range(3):
        data.picture(tmp_path / "pictures" / f"{number}.png")
    data.write(tmp_path / "metadata.csv", 'file_name,label,light\n2.png,10,"night, rain"\npictures/0.png,9,day\n1.png,10,day\n')
    dataset = open_dataset(tmp_path, LETTERBOX, "classification")
    assert dataset.labels is not None
    assert (("9", "10"), [0, 1, 1]) == (dataset.classes, dataset.labels.tolist())
    assert ("day", "day", "night, rain") == dataset.groups["light"]


def test_a_table_tells_subgroups_of_class_folders_apart(tmp_path: Path) -> None:
    data.class_folders(tmp_path, "ant", "bee", each=1)
    data.write(tmp_path / "metadata.csv", "light,file_name\nday,ant/0.png\nnight,bee/0.png\n")
    dataset = open_dataset(tmp_path, LETTERBOX, "classification")
    assert (("ant", "bee"), {"light": ("day", "night")}) == (dataset.classes, dict(dataset.groups))


def test_calibration_data_sorted_by_class_tells_what_it_covers(tmp_path: Path) -> None:
    dataset = open_dataset(data.class_folders(tmp_path, "ant", "bee"), LETTERBOX, "calibration")
    assert dataset.labels is not None
    assert (("ant", "bee"), [0, 0, 1, 1]) == (dataset.classes, dataset.labels.tolist())


# ---- arrays


def test_columns_of_an_archive_tell_subgroups_apart(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.ones((2, 1, 4, 4)), labels=[0, 1], scene=np.array(["day", "night"]), wet=np.array([True, False]))
    dataset = open_dataset(tmp_path / "a.npz", PLAIN, "classification")
    assert {"scene": ("day", "night"), "wet": ("True", "False")} == dict(dataset.groups)
    assert ("1", None, None) == (dataset.identity(1), dataset.geometry(1), dataset.picture(1))


def test_files_of_arrays_are_read_by_their_names(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.ones((3, 1, 4, 4), np.float32))
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2]))
    assert open_dataset(tmp_path, PLAIN, "classification").size == 3
    assert open_dataset(tmp_path / "images.npy", PLAIN, "calibration").size == 3


def test_outputs_are_compared_on_the_samples_that_are_not_for_calibration(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", cal=np.ones((5, 1, 4, 4)), Xt=np.ones((3, 1, 4, 4)))
    assert [5, 3] == [open_dataset(tmp_path, PLAIN, task).size for task in ("calibration", "outputs")]


@pytest.mark.parametrize("form", ["npz", "npy", "fortran"])
def test_arrays_stay_in_their_file(tmp_path: Path, form: str) -> None:
    """64 MB of samples are opened and one is read, within 4 MB."""
    images = np.arange(1 << 24, dtype=np.float32).reshape(64, 1, 512, 512)
    if form == "npy":
        np.save(tmp_path / "images.npy", images)
    else:
        np.savez(tmp_path / "a.npz", images=np.asfortranarray(images) if form == "fortran" else images)
    tracemalloc.start()
    try:
        dataset = open_dataset(tmp_path, PLAIN, "calibration")
        assert np.array_equal(images[63], dataset.sample(63)[""])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# ---- pictures


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(tmp_path: Path, orientation: int) -> None:
    """Cameras store the turn beside the pixels; labels are made on what people see. 6: the top is at the right."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.open(data.picture(tmp_path / "a.png")).save(tmp_path / "set.jpg", exif=exif)
    (tmp_path / "a.png").unlink()
    dataset = open_dataset(tmp_path, LETTERBOX, "calibration")
    picture, geometry = dataset.picture(0), dataset.geometry(0)
    assert picture is not None
    assert geometry is not None
    assert ((40, 30) if orientation >= 5 else (30, 40)) == geometry.original == (picture.height, picture.width)


def test_geometry_of_a_letterbox() -> None:
    geometry = LETTERBOX.geometry(300, 401)
    assert ((300, 401), (30 / 300, 40 / 401), (5, 0)) == (geometry.original, geometry.ratio, geometry.pad)
    assert np.allclose([[0, 0, 401, 300]], geometry.to_original(np.array([[0, 5, 40, 35]], np.float64)))
    assert np.allclose([[0, 0, 401, 0]], geometry.to_original(np.array([[-3, 0, 90, 5]], np.float64)))


SIDE = st.integers(1, 5000)
RESIZES = st.one_of(
    st.just({"resize": "none"}),
    st.fixed_dictionaries({"resize": st.just("stretch"), "size": st.tuples(SIDE, SIDE)}),
    st.fixed_dictionaries(
        {"resize": st.just("letterbox"), "size": st.tuples(SIDE, SIDE), "align": st.sampled_from(["center", "top-left"])},
    ),
    st.fixed_dictionaries({"resize": st.just("center-crop"), "size": st.tuples(SIDE, SIDE), "shorterSide": st.integers(0, 600)}),
)


@given(RESIZES, SIDE, SIDE, st.lists(st.tuples(*[st.floats(0, 1)] * 4), max_size=4))
def test_boxes_come_back_from_the_input(spec: dict[str, Any], height: int, width: int, shares: list[tuple[float, ...]]) -> None:
    preprocessor = Preprocessor.of(Preprocessing.model_validate(spec))
    boxes = np.array(shares, np.float64).reshape(-1, 4) * [width, height, width, height]
    geometry = preprocessor.geometry(height, width)
    assert np.allclose(boxes, geometry.to_original(geometry.to_input(boxes)), atol=1e-6)


@given(RESIZES, st.integers(1, 60), st.integers(1, 60))
def test_the_input_has_the_size_asked_for(spec: dict[str, Any], height: int, width: int) -> None:
    small = {"size": [side % 90 + 1 for side in spec.get("size", [])], "shorterSide": spec.get("shorterSide", 0) % 90}
    preprocessor = Preprocessor.of(Preprocessing.model_validate({**spec, **small}))
    expected = tuple(small["size"]) or (height, width)
    assert (3, *expected) == preprocessor.picture(Image.new("RGB", (width, height))).shape
    assert expected == preprocessor.mask(np.zeros((height, width), np.int64)).shape
