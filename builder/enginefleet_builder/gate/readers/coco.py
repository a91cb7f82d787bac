"""COCO: one json of images, categories and annotations (bbox: x, y, width, height in pixels), and the pictures.

Format: https://cocodataset.org/#format-data. Category ids need not be contiguous: classes are the categories in the order of their ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..preprocessing import Preprocessor
from ..samples import Dataset, Task, mismatch, no_labels, unreadable
from ..truth import Boxes
from .files import below, listed, picture_set, shown, size_of, text

MAX_JSON = 256 << 20
LARGEST = 1e9
"""Beyond any picture; json has numbers that are not finite, too."""
SLACK = 1.0
"""Pixels that a box may reach beyond its picture: labelling tools round."""
MOST_BEYOND = 0.1
"""Share of boxes that may reach further; more of them are corners where width and height are expected."""
OWN_FIELDS = {"id", "file_name", "width", "height", "license", "coco_url", "flickr_url", "url", "date_captured"}
"""Fields of COCO's images; further ones tell subgroups apart."""
SECTIONS = ("images", "categories", "annotations")


@dataclass(frozen=True, slots=True)
class Labels:
    """What the json says, checked. `boxes` by position in `images`."""

    images: list[dict[str, Any]]
    classes: list[str]
    boxes: list[Boxes]
    notes: list[str]


def find_coco(root: Path) -> list[Path]:
    """Files that may be COCO's: *.json in the folder, below annotations/, or beside the pictures (as Roboflow exports them)."""
    return sorted({*root.glob("*.json"), *root.glob("annotations/*.json"), *root.glob("*/_annotations.coco.json")})


def is_coco(file: Path) -> bool:
    """Whether the file has COCO's sections; a quick look, `read` says what is wrong."""
    if file.stat().st_size > MAX_JSON:
        return True
    content = file.read_bytes()
    return all(f'"{section}"'.encode() in content for section in ("images", "annotations"))


def open_coco(root: Path, file: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    """Raises PermanentError `DataSetUnreadable`, `DataSetMismatch`, `DataSetUnsafe`, `LabelsMissing`."""
    labels = read(file)
    files = _find_pictures(root, file, labels.images)
    if task == "detection" and not any(len(boxes) for boxes in labels.boxes):
        raise no_labels(f"{file.name} has {len(labels.images)} images and no annotations")
    groups = _groups(labels.images)
    dataset = picture_set(root, files, preprocessor, classes=labels.classes, groups=groups, notes=labels.notes)
    inner = dataset.sample

    def sample(index: int) -> Mapping[str, Array]:
        _require_size(labels.images[index], files[index])
        return inner(index)

    def objects(index: int) -> NDArray[np.int64]:
        boxes = labels.boxes[index]
        return boxes.classes[~boxes.crowd]

    classes = [boxes.classes for boxes in labels.boxes]
    return replace(
        dataset, boxes=lambda index: labels.boxes[index], objects=objects, sample=sample, box_classes=lambda index: classes[index]
    )


def read(file: Path) -> Labels:
    try:
        document = json.loads(text(file, MAX_JSON))
    except json.JSONDecodeError as error:
        raise unreadable(file, f"no json: {error.msg} in line {error.lineno}, column {error.colno}") from error
    # ValueError: a number of thousands of digits
    except (RecursionError, ValueError) as error:
        raise unreadable(file, f"no COCO json: {type(error).__name__}, it is nested too deeply or holds numbers without end") from error
    sections = {name: document.get(name) if isinstance(document, dict) else None for name in SECTIONS}
    for name, section in sections.items():
        if not isinstance(section, list) or not all(isinstance(item, dict) for item in section):
            found = listed(sorted(map(str, document))) if isinstance(document, dict) else shown(document)
            raise mismatch(
                f"{file.name} holds {found or 'nothing'}; expected COCO's {', '.join(SECTIONS)}, each a list of objects ({name})"
            )
    images, categories = sections["images"] or [], sections["categories"] or []
    if not images:
        raise unreadable(file, "it lists no images")
    places = _by_id(file, "images", images)
    ordered = sorted(_by_id(file, "categories", categories))
    names = {category["id"]: category.get("name") for category in categories}
    if wrong := [number for number in ordered if not isinstance(names[number], str)]:
        raise mismatch(f"{file.name}: category {wrong[0]} has the name {shown(names[wrong[0]])}, expected text")
    classes = {number: place for place, number in enumerate(ordered)}
    rows: list[list[tuple[list[float], int, bool, float]]] = [[] for _ in images]
    beyond, count = 0, 0
    for at, annotation in enumerate(sections["annotations"] or []):
        where = f"{file.name}: annotations[{at}]"
        image, category = annotation.get("image_id"), annotation.get("category_id")
        if not _is_id(image) or image not in places:
            raise mismatch(f"{where} has image_id {shown(image)}, expected the id of one of the {len(images)} images")
        if not _is_id(category) or category not in classes:
            raise mismatch(f"{where} has category_id {shown(category)}, expected one of {listed([str(number) for number in ordered])}")
        box, area, out = _box(where, annotation, images[places[image]])
        rows[places[image]].append((box, classes[category], annotation.get("iscrowd") in (1, True), area))
        count, beyond = count + 1, beyond + out
    if beyond > MOST_BEYOND * count:
        found = f"{file.name}: {beyond} of {count} boxes reach beyond their picture"
        raise mismatch(f"{found}; expected bbox as x, y, width, height in pixels, not two corners")
    named = [str(names[number]) for number in ordered]
    return Labels(images, named, [_boxes(items) for items in rows], _notes(file, named, rows, beyond))


def _by_id(file: Path, section: str, items: Sequence[dict[str, Any]]) -> dict[int, int]:
    """id → position."""
    places: dict[int, int] = {}
    for at, item in enumerate(items):
        number = item.get("id")
        if not _is_id(number):
            raise mismatch(f"{file.name}: {section}[{at}] has the id {shown(number)}, expected an integer")
        if number in places:
            raise mismatch(f"{file.name}: {section}[{at}] has the id {number}, which {section}[{places[number]}] has too")
        places[number] = at
    return places


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _box(where: str, annotation: Mapping[str, Any], image: Mapping[str, Any]) -> tuple[list[float], float, bool]:
    """(corners, area, whether it reaches beyond the picture)."""
    given = annotation.get("bbox")
    if not isinstance(given, list) or len(given) != 4 or not all(_is_number(value) for value in given):
        found = f"of {len(given)} values" if isinstance(given, list) else shown(given)
        raise mismatch(f"{where} has the bbox {found}, expected four finite numbers: x, y, width, height")
    x, y, width, height = (float(value) for value in given)
    if width < 0 or height < 0:
        raise mismatch(f"{where} has a bbox of width {width:g} and height {height:g}, expected none below 0")
    area = annotation.get("area")
    if area is not None and (not _is_number(area) or area < 0):
        raise mismatch(f"{where} has the area {shown(area)}, expected a number from 0")
    size = image.get("width"), image.get("height")
    beyond = False
    if _is_number(size[0]) and _is_number(size[1]):
        if x > size[0] or y > size[1] or x + width < 0 or y + height < 0:
            raise mismatch(f"{where} has the bbox {given}, which lies outside its picture of {size[0]} x {size[1]} pixels")
        beyond = x < -SLACK or y < -SLACK or x + width > size[0] + SLACK or y + height > size[1] + SLACK
    return [x, y, x + width, y + height], width * height if area is None else float(area), beyond


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def _boxes(rows: Sequence[tuple[list[float], int, bool, float]]) -> Boxes:
    return Boxes(
        np.array([box for box, _, _, _ in rows], np.float64).reshape(-1, 4),
        np.array([label for _, label, _, _ in rows], np.int64),
        np.array([crowd for _, _, crowd, _ in rows], np.bool_),
        np.array([area for _, _, _, area in rows], np.float64),
    )


def _notes(file: Path, classes: Sequence[str], rows: Sequence[Sequence[tuple[list[float], int, bool, float]]], beyond: int) -> list[str]:
    used = {label for items in rows for _, label, _, _ in items}
    notes = []
    if empty := [name for label, name in enumerate(classes) if label not in used]:
        notes.append(f"{file.name}: no annotations of {len(empty)} of {len(classes)} categories: {listed(empty)}")
    if beyond:
        notes.append(f"{file.name}: {beyond} boxes reach beyond their picture")
    if flat := sum(box[0] == box[2] or box[1] == box[3] for items in rows for box, _, _, _ in items):
        notes.append(f"{file.name}: {flat} boxes have no area")
    return notes


def _find_pictures(root: Path, file: Path, images: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Each image's file: below the folder, images/, the json's own folder, or any folder one or two levels down."""
    folders = [root, file.parent, root / "images", *(item for item in sorted([*root.glob("*"), *root.glob("images/*")]) if item.is_dir())]
    files, missing = [], []
    for at, image in enumerate(images):
        where = f"{file.name}: images[{at}].file_name"
        name = below(root, image.get("file_name"), where).relative_to(root)
        found = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if found is None:
            missing.append(name.as_posix())
        else:
            files.append(below(root, found.relative_to(root).as_posix(), where))
    if missing:
        message = f"{len(missing)} of {len(images)} pictures that {file.name} names are not in the folder: {listed(missing)}"
        raise mismatch(f"{message}; expected them beside it or in images/ (an address that ends in a slash fetches the whole folder)")
    return files


def _require_size(image: Mapping[str, Any], file: Path) -> None:
    """Boxes of a picture that was resized, or turned, after labelling would all be wrong."""
    width, height = image.get("width"), image.get("height")
    if width is None or height is None:
        return
    found_height, found_width = size_of(file)
    if (found_width, found_height) != (width, height):
        found = f"{file.name} has {found_width} x {found_height} pixels (upright)"
        raise mismatch(f"{found}, its labels are for {shown(width)} x {shown(height)}")


def _groups(images: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    columns = sorted({key for image in images for key, value in image.items() if isinstance(value, str | int) and key not in OWN_FIELDS})
    return {column: tuple(str(image.get(column, "")) for image in images) for column in columns}
