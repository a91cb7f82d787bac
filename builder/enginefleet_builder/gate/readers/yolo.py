"""YOLO: data.yaml with the names of the classes and where the pictures are; labels in text files, one box a line: class, centre x and y, width,
height, as shares of the picture's sides.

Format: https://docs.ultralytics.com/datasets/detect/. The labels of …/images/a.jpg stand in …/labels/a.txt; a picture without is background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from enginefleet_api.errors import PermanentError

from ..preprocessing import Preprocessor
from ..samples import Dataset, Task, mismatch, no_labels, unreadable
from ..truth import Boxes
from .files import PICTURES, below, listed, picture_set, pictures, shown, size_of, text

MAX_YAML = 256 << 10
MAX_DEPTH = 16
OPENING = (yaml.BlockMappingStartToken, yaml.BlockSequenceStartToken, yaml.FlowMappingStartToken, yaml.FlowSequenceStartToken)
CLOSING = (yaml.BlockEndToken, yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken)
MAX_LABELS = 4 << 20
"""Bytes of one picture's labels."""
SLACK = 0.01
"""Share of a side by which a box may reach beyond its picture, as Ultralytics allows."""
PARTS = {"calibration": ("train", "val")}
"""Which part of the data set is for what; everything else is judged on `val`."""


def find_yolo(root: Path) -> list[Path]:
    found = sorted([*root.glob("*.yaml"), *root.glob("*.yml")])
    return [file for file in found if file.stem == "data"] or found


def open_yolo(root: Path, file: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    """Raises PermanentError `DataSetUnreadable`, `DataSetMismatch`, `DataSetUnsafe`, `LabelsMissing`, `NotYetSupported`."""
    document = _read(file)
    classes = _classes(file, document)
    if task == "segmentation":
        raise _refused(file.name, "describes boxes or polygons", "masks: images/ and masks/ with PNG files of equal names")
    if "kpt_shape" in document:
        raise _refused(file.name, "has kpt_shape: key points (pose)", "boxes")
    part, files = _part(root, file, document, PARTS.get(task, ("val",)))
    labels = [_label_file(picture) for picture in files]
    missing = sum(not label.is_file() for label in labels)
    if task == "detection" and missing == len(files):
        where = labels[0].relative_to(root).as_posix()
        raise no_labels(f"none of the {len(files)} pictures of {part} has a label file; expected {where} for the first")
    notes = [f"{missing} of {len(files)} pictures of {part} have no label file: they count as background"] if missing else []
    dataset = picture_set(root, files, preprocessor, classes=classes, notes=notes)
    if task != "detection":
        told = missing < len(files)
        return replace(dataset, objects=lambda index: _mentioned(labels[index], len(classes))) if told else dataset
    rows = [_rows(root, label, len(classes)) if label.is_file() else np.zeros((0, 5)) for label in labels]
    if not any(len(lines) for lines in rows):
        raise no_labels(f"the {len(files)} label files of {part} are empty")
    used = {int(row[0]) for lines in rows for row in lines}
    if empty := [name for label, name in enumerate(classes) if label not in used]:
        dataset = replace(
            dataset, notes=(*dataset.notes, f"no objects of {len(empty)} of {len(classes)} classes in {part}: {listed(empty)}")
        )

    def classes_of(index: int) -> NDArray[np.int64]:
        return rows[index][:, 0].astype(np.int64)

    return replace(dataset, boxes=lambda index: _boxes(rows[index], size_of(files[index])), objects=classes_of, box_classes=classes_of)


def _read(file: Path) -> dict[str, Any]:
    content = text(file, MAX_YAML)
    try:
        _require_plain(file, content)
        document = yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise unreadable(file, f"no YAML: {error.problem}{line}") from error
    # ValueError: dates that are none
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise unreadable(file, f"no YAML: {type(error).__name__}") from error
    if not isinstance(document, dict) or "names" not in document:
        found = listed([str(key) for key in document]) if isinstance(document, dict) else shown(document)
        raise mismatch(f"{file.name} holds {found or 'nothing'}; expected YOLO's names and val")
    return document


def _require_plain(file: Path, content: str) -> None:
    """Merged again and again, a few aliases fill any memory; brackets in brackets take the parser hours."""
    depth = 0
    for token in yaml.scan(content):
        if isinstance(token, yaml.AliasToken):
            raise unreadable(file, "it has YAML aliases (*name), expected none")
        depth += isinstance(token, OPENING) - isinstance(token, CLOSING)
        if depth > MAX_DEPTH:
            raise unreadable(file, f"it is nested more than {MAX_DEPTH} deep")


def _classes(file: Path, document: dict[str, Any]) -> list[str]:
    names = document["names"]
    if isinstance(names, dict):
        keys = list(names)
        if not all(isinstance(key, int) and not isinstance(key, bool) for key in keys) or sorted(keys) != list(range(len(keys))):
            raise mismatch(f"{file.name}: names has the keys {listed([shown(key) for key in keys])}; expected 0, 1, … without gaps")
        names = [names[key] for key in sorted(keys)]
    if not isinstance(names, list) or not names or not all(isinstance(name, str | int) for name in names):
        raise mismatch(f"{file.name}: names is {shown(names)}, expected a list of names, or a mapping from 0, 1, … to names")
    count = document.get("nc", len(names))
    if count != len(names):
        raise mismatch(f"{file.name}: nc is {shown(count)}, expected {len(names)}: so many names are given")
    return [str(name) for name in names]


def _part(root: Path, file: Path, document: dict[str, Any], parts: Sequence[str]) -> tuple[str, list[Path]]:
    """(name of the part, its pictures): the first of `parts` that is given and there."""
    given = [part for part in parts if document.get(part)]
    if not given:
        raise mismatch(f"{file.name} has {listed([str(key) for key in document])}; expected {' or '.join(parts)}")
    for part in given:
        values = document[part] if isinstance(document[part], list) else [document[part]]
        places = [_place(root, file, document, part, value) for value in values]
        if all(place is not None for place in places):
            files = [picture for place in places if place is not None for picture in _pictures(root, place)]
            if not files:
                raise unreadable(file, f"no pictures ({', '.join(PICTURES)}) are in {listed([shown(value) for value in values])} ({part})")
            return part, files
    found = listed([f"{part}: {shown(document[part])}" for part in given])
    raise mismatch(f"{file.name} names {found}, which is not in the folder; expected a folder of pictures or a list (.txt) below it")


def _place(root: Path, file: Path, document: dict[str, Any], part: str, value: object) -> Path | None:
    """Where a part lies. `path` is often a place on the machine of the training: then parts are looked for beside the yaml."""
    # Ultralytics itself takes ../valid/images, as Roboflow writes it, for valid/images
    name = value.removeprefix("../") if isinstance(value, str) else value
    direct = below(root, name, f"{file.name}: {part}")
    prefix = document.get("path")
    if isinstance(prefix, str) and prefix and not prefix.startswith(("/", "..", "~")):
        inside = below(root, f"{prefix}/{name}", f"{file.name}: path")
        if inside.exists():
            return inside
    return direct if direct.exists() else None


def _pictures(root: Path, place: Path) -> list[Path]:
    if place.is_dir():
        return pictures(place)
    if place.suffix != ".txt":
        raise mismatch(f"{place.relative_to(root).as_posix()} is a file, expected a folder of pictures or a list (.txt)")
    files = []
    for number, line in enumerate(text(place).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{place.name}, line {number}"
        picture = below(root, line.strip().removeprefix("./"), where)
        if not picture.is_file() or picture.suffix.lower() not in PICTURES:
            raise mismatch(f"{where} names {shown(line.strip())}, which is no picture in the folder")
        files.append(picture)
    return files


def _label_file(picture: Path) -> Path:
    """…/images/… → …/labels/…, by the last folder of that name; else beside the picture."""
    parts = list(picture.parts)
    for at in range(len(parts) - 2, -1, -1):
        if parts[at] == "images":
            parts[at] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def _rows(root: Path, file: Path, classes: int) -> NDArray[np.float64]:
    """(n, 5): class, x, y, width, height; lines that stand there twice count once."""
    rows: dict[tuple[float, ...], None] = {}
    name = file.relative_to(root).as_posix()
    for number, line in enumerate(text(file, MAX_LABELS).splitlines(), start=1):
        if fields := line.split():
            rows[_row(f"{name}, line {number}", fields, classes)] = None
    return np.array(list(rows), np.float64).reshape(-1, 5)


def _mentioned(file: Path, classes: int) -> NDArray[np.int64]:
    """(n,): classes that a label file names, of boxes and all else. Nothing is judged by it: lines that are no labels are passed over."""
    try:
        first = [line.split(maxsplit=1)[0] for line in text(file, MAX_LABELS).splitlines() if line.strip()]
    except (PermanentError, OSError):
        return np.zeros(0, np.int64)
    return np.array([int(label) for label in first if label.isdecimal() and len(label) < 10 and int(label) < classes], np.int64)


def _row(where: str, fields: list[str], classes: int) -> tuple[float, ...]:
    expected = "expected five: class, x, y, width, height"
    if len(fields) == 9:
        raise _refused(where, "has 9 numbers, an oriented box or a polygon", "five: class, x, y, width, height")
    if len(fields) > 6 and len(fields) % 2:
        raise _refused(where, f"has {len(fields)} numbers, a polygon (segment) or key points", "five: class, x, y, width, height")
    if len(fields) != 5:
        more = ", a prediction with its confidence?" if len(fields) == 6 else ""
        raise mismatch(f"{where}: found {len(fields)} numbers{more}; {expected}")
    try:
        label, *box = (float(field) for field in fields)
    except ValueError as error:
        raise mismatch(f"{where}: found {shown(' '.join(fields))}; {expected}") from error
    if label != int(label) if np.isfinite(label) else True:
        raise mismatch(f"{where}: the class is {fields[0]}, expected an integer")
    if not 0 <= label < classes:
        raise mismatch(f"{where}: the class is {int(label)}, expected 0 to {classes - 1}: data.yaml names {classes}")
    x, y, width, height = box
    if not np.isfinite(box).all() or width < 0 or height < 0:
        raise mismatch(f"{where}: the box is {' '.join(fields[1:])}, expected finite numbers, none below 0")
    if max(box) > 1 + SLACK or min(box) < 0:
        raise mismatch(f"{where}: the box is {' '.join(fields[1:])}, expected shares of the picture's sides, from 0 to 1")
    return label, x, y, width, height


def _boxes(rows: NDArray[np.float64], size: tuple[int, int]) -> Boxes:
    height, width = size
    half = rows[:, 3:] / 2
    corners = np.concatenate([rows[:, 1:3] - half, rows[:, 1:3] + half], axis=1).clip(0, 1)
    return Boxes.of(corners * np.array([width, height, width, height]), rows[:, 0].astype(np.int64))


def _refused(where: str, found: str, expected: str) -> PermanentError:
    message = f"{where} {found}, which is not supported yet; expected {expected}."
    return PermanentError("NotYetSupported", message, "Convert the labels to boxes, or wait for a version that judges them.")
