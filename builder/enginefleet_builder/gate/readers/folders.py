"""Folders of pictures: one subfolder a class; a table with a label column; pictures and masks of equal names; or just pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.errors import PermanentError

from ..preprocessing import Preprocessor
from ..samples import Dataset, Task, mismatch, no_labels, unreadable
from ..truth import IGNORED
from .files import METADATA, PICTURES, below, decode, listed, metadata, picture_set, pictures, shown, text

CLASSES = "classes.txt"
"""Names of the classes, one a line in the model's order; without it subfolders are sorted by name."""
LABEL_COLUMN = "label"
IMAGES, MASKS = "images", "masks"
JUDGED = ("val", "valid", "validation", "test")
SPLITS = {"train", *JUDGED}
"""Parts of a data set, each with one subfolder a class, as Ultralytics classifies: train/ is calibrated with, the first of the others judged on."""
BOXES = {IMAGES, MASKS, "labels", "annotations"}
"""Folders of data sets for detection and segmentation."""


def open_folder(root: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    """Raises PermanentError `LabelsMissing`, `DataSetUnreadable`, `DataSetMismatch`."""
    if task == "segmentation":
        return _open_masks(root, preprocessor)
    if task == "classification":
        return _open_labelled(root, preprocessor, task)
    place = root / IMAGES if (root / MASKS).is_dir() and (root / IMAGES).is_dir() else _part(root, task)
    files = pictures(place)
    if not files:
        raise unreadable(root, f"the folder holds {content(root)}; expected pictures ({', '.join(PICTURES)}) or an .npz file")
    notes = _part_note(root, place)
    folders = _class_folders(place)
    inside = [file.relative_to(place).parts[0] for file in files]
    # calibration data sorted by class tells which classes it covers
    if task == "calibration" and len(folders) > 1 and set(inside) == set(folders):
        labels = np.array([folders.index(name) for name in inside], np.int64)
        return picture_set(root, files, preprocessor, labels=labels, classes=folders, notes=notes)
    return picture_set(root, files, preprocessor, notes=notes)


def content(root: Path) -> str:
    """What a folder holds, for a message."""
    return listed(sorted(item.name + "/" * item.is_dir() for item in root.iterdir())) or "nothing"


def _class_folders(root: Path) -> list[str]:
    return sorted(item.name for item in root.iterdir() if item.is_dir() and not item.name.startswith("."))


def _part(root: Path, task: Task) -> Path:
    """The folder whose subfolders are classes: `root`, or that of its parts that is for `task`."""
    parts = [name for name in _class_folders(root) if name in SPLITS]
    if not parts or parts != _class_folders(root) or not all(_class_folders(root / name) for name in parts):
        return root
    chosen = next((name for name in (("train", *JUDGED) if task == "calibration" else JUDGED) if name in parts), None)
    if chosen is None and task != "classification":
        return root
    if chosen is None:
        raise mismatch(
            f"the folder holds {content(root)}, which the model was trained on; expected a part to judge on: {', '.join(JUDGED)}"
        )
    return root / chosen


def _part_note(root: Path, place: Path) -> list[str]:
    parts = _class_folders(root)
    return (
        [f"of its parts {listed(parts)} {place.name} is used"] if place.name in SPLITS and place.parent == root and len(parts) > 1 else []
    )


def _open_labelled(root: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    if (root / METADATA).is_file() and LABEL_COLUMN in text(root / METADATA).partition("\n")[0].strip().split(","):
        return _open_table(root, preprocessor)
    place = _part(root, task)
    notes = _part_note(root, place)
    folders = _class_folders(place)
    if place != root:
        # classes are numbered over all parts: one of them may be without pictures of some
        folders = sorted({name for part in _class_folders(root) for name in _class_folders(root / part)})
    if _for_boxes(root, set(folders)):
        raise _boxes(root)
    if len(folders) > 1 and set(folders) <= SPLITS:
        raise mismatch(f"the folder holds {content(root)}: parts of a data set, no classes; expected one subfolder a class")
    if not folders:
        raise no_labels(f"the folder holds {content(root)}; expected one subfolder a class, with pictures in it")
    classes = _named_classes(root) or folders
    if unknown := sorted(set(folders) - set(classes)):
        raise mismatch(f"{CLASSES} does not name the subfolders {listed(unknown)}; expected a line for each")
    if classes == folders and all(name.isdecimal() for name in folders) and sorted(folders, key=int) != folders:
        notes.append(f"subfolders are sorted as text ({listed(folders, 3)}), as torchvision does; {CLASSES} would set another order")
    files = [(file, label) for label, name in enumerate(classes) for file in pictures(place / name)]
    if not files:
        raise unreadable(root, f"no pictures ({', '.join(PICTURES)}) are in the subfolders {listed(folders)}")
    if empty := [name for label, name in enumerate(classes) if not any(known == label for _, known in files)]:
        notes.append(f"no pictures of {len(empty)} of {len(classes)} classes: {listed(empty)}")
    labels = np.array([label for _, label in files], np.int64)
    return picture_set(root, [file for file, _ in files], preprocessor, labels=labels, classes=classes, notes=notes)


def _for_boxes(root: Path, folders: set[str]) -> bool:
    if folders & BOXES and folders <= BOXES | SPLITS:
        return True
    described = any((root / name).is_file() for name in ("data.yaml", "data.yml"))
    return described and (not folders or any((root / folder / name).is_dir() for folder in folders for name in (IMAGES, "labels")))


def _boxes(root: Path) -> PermanentError:
    """A data set for another task: its folders would be taken for classes."""
    named = [file.name for file in sorted([*root.glob("*.yaml"), *root.glob("*.yml"), *root.glob("*.json")])]
    message = f"the folder holds {content(root)}: a data set for detection or segmentation, and the task is classification"
    expected = "one subfolder a class, or train/ and val/ with one subfolder a class each"
    hint = f"Set validation.task to detection{f' ({named[0]} has its labels)' if named else ''} or segmentation, or give pictures sorted by class."
    return PermanentError("DataSetMismatch", f"{message}; expected {expected}.", hint)


def _named_classes(root: Path) -> list[str]:
    file = root / CLASSES
    if not file.is_file():
        return []
    names = text(file, 1 << 20).splitlines()
    if not names or "" in names or len(set(names)) != len(names):
        raise mismatch(f"{CLASSES} has {len(names)} lines, {len(set(names) - {''})} names among them; expected one name a line, each once")
    for name in names:
        below(root, name, CLASSES)
    return names


def _open_table(root: Path, preprocessor: Preprocessor) -> Dataset:
    """Pictures whose labels stand in metadata.csv."""
    files = pictures(root)
    if not files:
        raise unreadable(root, f"no pictures ({', '.join(PICTURES)}) are in the folder")
    given = metadata(root, [file.relative_to(root).as_posix() for file in files])[LABEL_COLUMN]
    names = set(given)
    classes = _named_classes(root) or (sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names))
    if unknown := sorted(names - set(classes)):
        raise mismatch(f"{METADATA} has the labels {listed([shown(name) for name in unknown])}, which {CLASSES} does not name")
    labels = np.array([classes.index(name) for name in given], np.int64)
    return picture_set(root, files, preprocessor, labels=labels, classes=classes)


def _open_masks(root: Path, preprocessor: Preprocessor) -> Dataset:
    """images/ and masks/ (PNG of one channel: the class of each pixel, 255: does not count), paired by name without ending."""
    if not ((root / IMAGES).is_dir() and (root / MASKS).is_dir()):
        raise no_labels(f"the folder holds {content(root)}; expected {IMAGES}/ and {MASKS}/ with files of equal names")
    files = pictures(root / IMAGES)
    if not files:
        raise unreadable(root, f"no pictures ({', '.join(PICTURES)}) are in {IMAGES}/")
    masks = [root / mask_of(file.relative_to(root).as_posix()) for file in files]
    if missing := [file.relative_to(root).as_posix() for file in masks if not file.is_file()]:
        raise no_labels(f"{len(missing)} of {len(files)} pictures have no mask: {listed(missing)}")
    classes = _named_classes(root)
    dataset = picture_set(root, files, preprocessor, classes=classes)

    def mask(index: int) -> NDArray[np.int64]:
        return preprocessor.mask(_mask(root, files[index], masks[index], len(classes)))

    return replace(dataset, mask=mask)


def mask_of(picture: str) -> str:
    """images/a/1.jpg → masks/a/1.png"""
    return (PurePosixPath(MASKS) / PurePosixPath(picture).relative_to(IMAGES)).with_suffix(".png").as_posix()


def _mask(root: Path, file: Path, mask_file: Path, classes: int) -> NDArray[np.int64]:
    """The mask as it is stored, checked against its picture and, where classes are named, against their number."""
    name, mask = mask_file.relative_to(root).as_posix(), decode(mask_file)
    if mask.mode not in ("L", "P", "1"):
        raise mismatch(f"{name} has the mode {mask.mode}, expected one channel (L or P) whose values are classes; colours are not read")
    picture = decode(file)
    if mask.size != picture.size:
        raise mismatch(f"{name} has {mask.width} x {mask.height} pixels, its picture {picture.width} x {picture.height}")
    values = np.asarray(mask).astype(np.int64)
    most = int(values[values != IGNORED].max(initial=0))
    if classes and most >= classes:
        raise PermanentError(
            "DataSetMismatch",
            f"{name} has the value {most}, {CLASSES} names {classes} classes; expected at most {classes - 1}, or {IGNORED}.",
            "Correct the mask; pixels that do not count are 255.",
        )
    return values
