"""Data sets that are wrong or hostile: each is refused with a reason, and with what was found and what was expected."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Preprocessing
from enginefleet_builder.gate.datasets import Task, open_dataset
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.gate.readers import coco, files
from tests.builder import data

PLAIN = Preprocessor.of(None)


@dataclass(frozen=True)
class Bad:
    what: str
    task: Task
    make: Callable[[Path], object]
    reason: str
    says: str


# ---- COCO


def document(*path: Any, value: Any) -> Callable[[Path], object]:
    """COCO with one value changed, at `path`."""

    def make(root: Path) -> None:
        changed = at = data.coco_document()
        for step in path[:-1]:
            at = at[step]
        if value is None:
            del at[path[-1]]
        else:
            at[path[-1]] = value
        data.coco(root, changed)

    return make


def coco_text(text: str) -> Callable[[Path], object]:
    return lambda root: (data.coco(root), data.write(root / "annotations.json", text))


def without_pictures(root: Path) -> None:
    data.coco(root)
    (root / "images" / "b.png").unlink()


def link_outside(root: Path) -> None:
    data.coco(root)
    data.picture(root.parent / "outside.png")
    (root / "images" / "b.png").unlink()
    (root / "images" / "b.png").symlink_to(root.parent / "outside.png")


def resized(root: Path) -> None:
    data.coco(root)
    data.picture(root / "images" / "a.png", size=(20, 15))


def corners(root: Path) -> None:
    changed = data.coco_document()
    for annotation in changed["annotations"]:
        annotation["bbox"] = [30, 20, 39, 29]
    data.coco(root, changed)


ANNOTATION = ("annotations", 0)
COCO = [
    Bad("cut off json", "detection", coco_text('{"images": [\n{"id": 1,'), "DataSetUnreadable", "no json: Expecting property name"),
    Bad("json without end", "detection", coco_text("[" * 100_000), "DataSetUnreadable", "nested too deeply"),
    Bad("a number without end", "detection", coco_text('{"images": ' + "9" * 5000 + "}"), "DataSetUnreadable", "numbers without end"),
    Bad("another json", "detection", coco_text('{"names": []}'), "DataSetMismatch", "holds names; expected COCO's images, categories"),
    Bad("a list", "detection", coco_text('["images", "annotations"]'), "DataSetMismatch", "holds a list; expected COCO's"),
    Bad("no categories", "detection", document("categories", value=None), "DataSetMismatch", "each a list of objects (categories)"),
    Bad("no images", "detection", document("images", value=[]), "DataSetUnreadable", "it lists no images"),
    Bad("no annotations", "detection", document("annotations", value=[]), "LabelsMissing", "has 2 images and no annotations"),
    Bad("two images of one id", "detection", document("images", 1, "id", value=7), "DataSetMismatch", "id 7, which images[0] has too"),
    Bad(
        "an id as text",
        "detection",
        document("images", 1, "id", value="7"),
        "DataSetMismatch",
        "images[1] has the id '7', expected an integer",
    ),
    Bad(
        "a category without a name",
        "detection",
        document("categories", 0, "name", value=5),
        "DataSetMismatch",
        "category 90 has the name 5",
    ),
    Bad(
        "an unknown image",
        "detection",
        document(*ANNOTATION, "image_id", value=8),
        "DataSetMismatch",
        "annotations[0] has image_id 8, expected",
    ),
    Bad(
        "an unknown category",
        "detection",
        document(*ANNOTATION, "category_id", value=2),
        "DataSetMismatch",
        "category_id 2, expected one of 1, 90",
    ),
    Bad(
        "a box of three",
        "detection",
        document(*ANNOTATION, "bbox", value=[1, 2, 3]),
        "DataSetMismatch",
        "bbox of 3 values, expected four finite",
    ),
    Bad("no box", "detection", document(*ANNOTATION, "bbox", value=None), "DataSetMismatch", "bbox None, expected four finite numbers"),
    Bad(
        "a box of NaN", "detection", document(*ANNOTATION, "bbox", value=[1, 2, 3, float("nan")]), "DataSetMismatch", "expected four finite"
    ),
    Bad("a box of no size", "detection", document(*ANNOTATION, "bbox", value=[1, 2, -3, 4]), "DataSetMismatch", "width -3 and height 4"),
    Bad(
        "a box elsewhere",
        "detection",
        document(*ANNOTATION, "bbox", value=[50, 2, 3, 4]),
        "DataSetMismatch",
        "lies outside its picture of 40 x 30",
    ),
    Bad("corners for sizes", "detection", corners, "DataSetMismatch", "expected bbox as x, y, width, height in pixels, not two corners"),
    Bad(
        "a negative area",
        "detection",
        document(*ANNOTATION, "area", value=-1),
        "DataSetMismatch",
        "has the area -1, expected a number from 0",
    ),
    Bad(
        "no picture",
        "detection",
        without_pictures,
        "DataSetMismatch",
        "1 of 2 pictures that annotations.json names are not in the folder: b.png",
    ),
    Bad(
        "a path upwards",
        "detection",
        document("images", 1, "file_name", value="../x.png"),
        "DataSetUnsafe",
        "leads out of the data set's folder",
    ),
    Bad(
        "a path from the root",
        "detection",
        document("images", 1, "file_name", value="/etc/x.png"),
        "DataSetUnsafe",
        "'/etc/x.png', which leads",
    ),
    Bad("a path of Windows", "detection", document("images", 1, "file_name", value="..\\x.png"), "DataSetUnsafe", "leads out of"),
    Bad("a link outside", "detection", link_outside, "DataSetUnsafe", "leads out of the data set's folder"),
    Bad(
        "a picture that was resized",
        "detection",
        resized,
        "DataSetMismatch",
        "a.png has 20 x 15 pixels (upright), its labels are for 40 x 30",
    ),
    Bad(
        "two files of annotations",
        "detection",
        lambda root: (data.coco(root), data.write(root / "b.json", json.dumps(data.coco_document()))),
        "DataSetMismatch",
        "2 COCO files: annotations.json, b.json; expected one",
    ),
]

# ---- YOLO


def yolo(yaml: str = data.YAML, labels: str = "0 0.5 0.5 1 1\n") -> Callable[[Path], object]:
    return lambda root: data.yolo(root, yaml, labels)


def unlabelled(root: Path) -> None:
    for file in data.yolo(root).glob("labels/val/*.txt"):
        file.unlink()


NAMES = "names: [cat, dog]\n"
YOLO = [
    Bad("broken YAML", "detection", yolo("names: [cat\nval: x"), "DataSetUnreadable", "in line 2"),
    Bad(
        "YAML that makes objects",
        "detection",
        yolo("names: !!python/object/apply:os.getcwd []"),
        "DataSetUnreadable",
        "could not determine a constructor",
    ),
    Bad("YAML of aliases", "detection", yolo("a: &a [1]\nb: [*a, *a]\nnames: [cat]"), "DataSetUnreadable", "aliases"),
    Bad("YAML without end", "detection", yolo("[" * 20_000), "DataSetUnreadable", "nested more than 16 deep"),
    Bad("another YAML", "detection", yolo("kind: Pod"), "DataSetMismatch", "holds kind; expected YOLO's names and val"),
    Bad(
        "names with a gap",
        "detection",
        yolo("val: images/val\nnames: {0: cat, 2: dog}"),
        "DataSetMismatch",
        "keys 0, 2; expected 0, 1, … without gaps",
    ),
    Bad(
        "names of nothing", "detection", yolo("val: images/val\nnames: []"), "DataSetMismatch", "names is a list, expected a list of names"
    ),
    Bad("nc of another set", "detection", yolo(f"val: images/val\nnc: 80\n{NAMES}"), "DataSetMismatch", "nc is 80, expected 2"),
    Bad("no val", "detection", yolo(f"train: images/train\n{NAMES}"), "DataSetMismatch", "has train, names; expected val"),
    Bad(
        "val elsewhere",
        "detection",
        yolo(f"val: images/test\n{NAMES}"),
        "DataSetMismatch",
        "val: 'images/test', which is not in the folder",
    ),
    Bad("val from the root", "detection", yolo(f"val: /data/val\n{NAMES}"), "DataSetUnsafe", "'/data/val', which leads out"),
    Bad("val upwards", "detection", yolo(f"val: ../../val\n{NAMES}"), "DataSetUnsafe", "leads out of"),
    Bad("val of numbers", "detection", yolo(f"val: 5\n{NAMES}"), "DataSetMismatch", "val names 5, expected a path"),
    Bad("val is a file", "detection", yolo(f"val: data.yaml\n{NAMES}"), "DataSetMismatch", "is a file, expected a folder of pictures"),
    Bad(
        "a list that leads out",
        "detection",
        lambda root: (data.yolo(root, f"val: val.txt\n{NAMES}"), data.write(root / "val.txt", "\n../x.png")),
        "DataSetUnsafe",
        "val.txt, line 2 names '../x.png'",
    ),
    Bad("no labels at all", "detection", unlabelled, "LabelsMissing", "expected labels/val/a.txt for the first"),
    Bad("only empty labels", "detection", yolo(labels=""), "LabelsMissing", "the 2 label files of val are empty"),
    Bad(
        "a class too many",
        "detection",
        yolo(labels="0 0 0 0 0\n2 0.5 0.5 1 1"),
        "DataSetMismatch",
        "labels/val/a.txt, line 2: the class is 2, expected 0 to 1",
    ),
    Bad("half a class", "detection", yolo(labels="0.5 0.5 0.5 1 1"), "DataSetMismatch", "line 1: the class is 0.5, expected an integer"),
    Bad("a class of NaN", "detection", yolo(labels="nan 0.5 0.5 1 1"), "DataSetMismatch", "the class is nan, expected an integer"),
    Bad("pixels for shares", "detection", yolo(labels="0 20 15 10 10"), "DataSetMismatch", "the box is 20 15 10 10, expected shares"),
    Bad("a box without end", "detection", yolo(labels="0 0.5 0.5 inf 1"), "DataSetMismatch", "expected finite numbers"),
    Bad("text in labels", "detection", yolo(labels="cat 0.5 0.5 1 1"), "DataSetMismatch", "found 'cat 0.5 0.5 1 1'; expected five"),
    Bad("four numbers", "detection", yolo(labels="0 0.5 0.5 1"), "DataSetMismatch", "found 4 numbers; expected five"),
    Bad("predictions", "detection", yolo(labels="0 0.5 0.5 1 1 0.9"), "DataSetMismatch", "a prediction with its confidence?"),
    Bad("oriented boxes", "detection", yolo(labels="0 0 0 1 0 1 1 0 1"), "NotYetSupported", "an oriented box or a polygon"),
    Bad("segments", "detection", yolo(labels="0 " + "0.5 " * 10), "NotYetSupported", "has 11 numbers, a polygon (segment) or key points"),
    Bad("key points", "detection", yolo(data.YAML + "kpt_shape: [17, 3]\n"), "NotYetSupported", "key points (pose)"),
    Bad("segments for masks", "segmentation", yolo(), "NotYetSupported", "expected masks: images/ and masks/"),
    Bad(
        "labels that are no text",
        "detection",
        lambda root: data.write(data.yolo(root) / "labels/val/a.txt", b"\xff\xfe0"),
        "DataSetUnreadable",
        "no UTF-8",
    ),
    Bad("labels without end", "detection", yolo(labels="0 0.5 0.5 1 1\n" * 400_000), "DataSetTooLarge", "at most 4194304 are read"),
]

# ---- folders, masks, tables


def table(text: str) -> Callable[[Path], object]:
    return lambda root: (data.class_folders(root, "ant", "bee", each=1), data.write(root / "metadata.csv", text))


def masked(**changes: Any) -> Callable[[Path], object]:
    return lambda root: data.masks(root, **changes)


def named(root: Path, text: str) -> None:
    data.class_folders(root, "ant", "bee")
    data.write(root / "classes.txt", text)


FOLDERS = [
    Bad("an empty folder", "calibration", lambda _: None, "DataSetUnreadable", "the folder holds nothing; expected pictures"),
    Bad(
        "an archive in the folder",
        "detection",
        lambda root: data.write(root / "val.zip", b"PK"),
        "LabelsMissing",
        "archives are not unpacked",
    ),
    Bad(
        "pictures without folders",
        "classification",
        lambda root: data.picture(root / "a.png"),
        "LabelsMissing",
        "expected one subfolder a class",
    ),
    Bad(
        "folders without pictures",
        "classification",
        lambda root: data.write(root / "ant" / "a.txt", ""),
        "DataSetUnreadable",
        "no pictures",
    ),
    Bad(
        "parts for classes",
        "classification",
        lambda root: data.class_folders(root, "train", "val"),
        "DataSetMismatch",
        "parts of a data set, no classes",
    ),
    Bad(
        "a part that was trained on",
        "classification",
        lambda root: data.class_folders(root / "train", "ant", "bee"),
        "DataSetMismatch",
        "which the model was trained on; expected a part to judge on: val",
    ),
    Bad(
        "yolo for classes",
        "classification",
        data.yolo,
        "DataSetMismatch",
        "a data set for detection or segmentation, and the task is class",
    ),
    Bad(
        "yolo of Roboflow for classes",
        "classification",
        lambda root: [data.picture(root / part / "images" / "a.png") for part in ("train", "valid")],
        "DataSetMismatch",
        "expected one subfolder a class, or train/ and val/",
    ),
    Bad(
        "yolo in a folder of its own for classes",
        "classification",
        lambda root: (data.yolo(root / "pets"), (root / "pets" / "data.yaml").rename(root / "data.yaml")),
        "DataSetMismatch",
        "a data set for detection or segmentation",
    ),
    Bad(
        "yolo without its pictures for classes",
        "classification",
        lambda root: data.write(root / "data.yaml", "names: [cat]\n"),
        "DataSetMismatch",
        "a data set for detection or segmentation",
    ),
    Bad("coco for classes", "classification", data.coco, "DataSetMismatch", "a data set for detection or segmentation"),
    Bad("masks for classes", "classification", data.masks, "DataSetMismatch", "a data set for detection or segmentation"),
    Bad(
        "a class without a name", "classification", lambda root: named(root, "ant\n"), "DataSetMismatch", "does not name the subfolders bee"
    ),
    Bad(
        "a name twice", "classification", lambda root: named(root, "ant\nbee\nant\n"), "DataSetMismatch", "has 3 lines, 2 names among them"
    ),
    Bad("a name that leads out", "classification", lambda root: named(root, "ant\nbee\n../x\n"), "DataSetUnsafe", "leads out of"),
    Bad("a table without names", "classification", table("light\nday\n"), "DataSetMismatch", "columns light; expected file_name"),
    Bad("a short row", "classification", table("file_name,light\nant/0.png\n"), "DataSetMismatch", "row 2: found 1 fields, expected 2"),
    Bad(
        "a row twice",
        "classification",
        table("file_name\nant/0.png\nant/0.png\n"),
        "DataSetMismatch",
        "row 3: 'ant/0.png' stands there twice",
    ),
    Bad(
        "a row missing",
        "classification",
        table("file_name,light\nant/0.png,day\n"),
        "DataSetMismatch",
        "no row for 1 of 2 pictures: bee/0.png",
    ),
    Bad("an open quote", "classification", table('file_name\n"ant/0.png\n'), "DataSetUnreadable", "no CSV"),
    Bad("no masks", "segmentation", lambda root: data.class_folders(root, "images"), "LabelsMissing", "expected images/ and masks/"),
    Bad(
        "a mask missing",
        "segmentation",
        lambda root: (data.masks(root) / "masks/b.png").unlink(),
        "LabelsMissing",
        "1 of 2 pictures have no mask: masks/b.png",
    ),
    Bad("masks of colours", "segmentation", masked(mode="RGB"), "DataSetMismatch", "mode RGB, expected one channel"),
    Bad("masks of another size", "segmentation", masked(size=(20, 30)), "DataSetMismatch", "20 x 30 pixels, its picture 40 x 30"),
    Bad(
        "a class that has no name",
        "segmentation",
        lambda root: (data.masks(root, value=7), data.write(root / "classes.txt", "a\nb\n")),
        "DataSetMismatch",
        "has the value 7, classes.txt names 2 classes",
    ),
]

# ---- files


def deep_picture(root: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(root / "a.png")


def cut_picture(root: Path) -> None:
    file = data.picture(root / "a.png")
    os.truncate(file, file.stat().st_size // 2)


def arrays(**given: Any) -> Callable[[Path], object]:
    return lambda root: np.savez(root / "a.npz", **given)


def huge_npy(root: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 4), }"
    with zipfile.ZipFile(root / "a.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def cut_npy(root: Path) -> None:
    np.save(root / "images.npy", np.ones((8, 8)))
    os.truncate(root / "images.npy", 200)


IMAGES = np.ones((3, 1, 4, 4), np.float32)
FILES = [
    Bad(
        "a text for a picture",
        "calibration",
        lambda root: data.write(root / "a.png", "404"),
        "DataSetUnreadable",
        "a.png: no readable picture",
    ),
    Bad("half a picture", "calibration", cut_picture, "DataSetUnreadable", "a.png: no readable picture"),
    Bad("16 bits a pixel", "calibration", deep_picture, "DataSetUnreadable", "expected 8 bits a channel"),
    Bad(
        "PostScript, which starts other programs",
        "calibration",
        lambda root: data.write(root / "a.png", "%!PS-Adobe-3.0 EPSF-3.0\n"),
        "DataSetUnreadable",
        "BMP",
    ),
    Bad("pickled objects", "calibration", arrays(images=np.array([{}], object)), "DataSetUnreadable", "never loaded (allow_pickle=False)"),
    Bad(
        "a pickle for a .npy",
        "calibration",
        lambda root: data.write(root / "a.npy", b"\x80\x04."),
        "DataSetUnreadable",
        "no readable .npy file",
    ),
    Bad("half a .npy", "calibration", cut_npy, "DataSetUnreadable", "no readable .npy file"),
    Bad("an array of terabytes", "calibration", huge_npy, "DataSetUnreadable", "no readable .npz file"),
    Bad(
        "two archives",
        "calibration",
        lambda root: (arrays(images=IMAGES)(root), shutil.copy(root / "a.npz", root / "b.npz")),
        "DataSetUnreadable",
        "2 .npz files",
    ),
    Bad("boxes in arrays", "detection", arrays(images=IMAGES, labels=[0, 1, 2]), "LabelsMissing", "arrays hold no boxes"),
    Bad(
        "labels of unnamed classes",
        "classification",
        arrays(images=IMAGES, labels=[0, 1, 5], classes=["a", "b"]),
        "DataSetMismatch",
        "labels go up to 5, expected at most 1",
    ),
    Bad("no masks in arrays", "segmentation", arrays(images=IMAGES), "LabelsMissing", "expected them under 'masks'"),
    Bad(
        "masks of fractions",
        "segmentation",
        arrays(images=IMAGES, masks=np.ones((3, 4, 4))),
        "DataSetMismatch",
        "masks are float64 of shape [3, 4, 4]",
    ),
    Bad(
        "negative masks",
        "segmentation",
        arrays(images=IMAGES, masks=-np.ones((3, 4, 4), int)),
        "DataSetMismatch",
        "mask 0 has the value -1",
    ),
    Bad(
        "masks of another size than pictures",
        "segmentation",
        arrays(images=np.zeros((2, 4, 4, 3), np.uint8), masks=np.zeros((2, 5, 4), int)),
        "DataSetMismatch",
        "mask 0 has shape [5, 4], expected its picture's [4, 4]",
    ),
]
ALL = [*COCO, *YOLO, *FOLDERS, *FILES]


@pytest.mark.parametrize("bad", ALL, ids=lambda bad: bad.what)
def test_refused(tmp_path: Path, bad: Bad) -> None:
    root = tmp_path / "set"
    root.mkdir()
    bad.make(root)
    with pytest.raises(PermanentError) as caught:
        _read_all(root, bad.task)
    assert (bad.reason, True) == (caught.value.reason, bad.says in caught.value.message), caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 600


def _read_all(root: Path, task: Task) -> None:
    """All that a Job reads of a data set."""
    dataset = open_dataset(root, PLAIN, task)
    for index in range(dataset.size):
        dataset.sample(index)
        if task == "detection":
            dataset.boxes(index)
        if task == "segmentation":
            dataset.mask(index)


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({bad.what for bad in ALL}) == len(ALL) >= 90


def test_a_json_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco, "MAX_JSON", 100)
    with pytest.raises(PermanentError, match=r"DataSetTooLarge: annotations\.json"):
        open_dataset(data.coco(tmp_path), PLAIN, "detection")


@pytest.mark.parametrize(
    "name", ["a\0.png", "\ud800.png", "x" * 5000, "x/" * 3000], ids=["NUL", "half a character", "too long", "too deep"]
)
def test_names_that_are_no_names(tmp_path: Path, name: str) -> None:
    changed = data.coco_document()
    changed["images"][1]["file_name"] = name
    with pytest.raises(PermanentError, match="DataSetMismatch"):
        open_dataset(data.coco(tmp_path, changed), PLAIN, "detection")


def test_a_name_cannot_move_the_cursor(tmp_path: Path) -> None:
    changed = data.coco_document()
    changed["images"][1]["file_name"] = "\x1b[2Jb.png" + "x" * 500
    data.coco(tmp_path, changed)
    with pytest.raises(PermanentError) as caught:
        open_dataset(tmp_path, PLAIN, "detection")
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 600


def test_a_picture_of_many_bits_is_refused_as_a_tensor_of_pillow() -> None:
    with pytest.raises(PermanentError, match="8 bits a channel"):
        Preprocessor.of(Preprocessing()).picture(Image.new("F", (4, 4)))


def test_a_picture_too_large_has_no_size_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_PIXELS", 10)
    with pytest.raises(PermanentError, match="40 x 30 pixels, at most 10"):
        files.size_of(data.picture(tmp_path / "a.png"))
