"""Calibration and validation data, in any of the formats that docs/data.md describes: finds out which, and opens it.

Nothing is ever unpickled, sizes are checked before memory is taken, and no path leads out of the folder: data sets come from outside.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from .preprocessing import Preprocessor
from .readers.arrays import open_arrays, read_npy, read_npz, start
from .readers.coco import find_coco, is_coco, open_coco
from .readers.files import listed
from .readers.folders import MASKS, content, mask_of, open_folder
from .readers.yolo import find_yolo, open_yolo
from .samples import Dataset, Task, mismatch, no_labels, stratified, unreadable

__all__ = ["Dataset", "Task", "files_of", "open_dataset", "stratified"]


def open_dataset(path: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    """The data set at `path`: an .npz or .npy file, or a folder.

    Raises PermanentError: `DataSetUnreadable`, `DataSetMismatch`, `LabelsMissing`, `DataSetTooLarge`, `DataSetUnsafe`, `NotYetSupported`.
    """
    if path.is_dir():
        return _open_folder(path, preprocessor, task)
    if path.suffix == ".npy":
        return open_arrays(path, read_npy([path]), preprocessor, task)
    if path.suffix == ".npz" or zipfile.is_zipfile(path):
        return open_arrays(path, read_npz(path), preprocessor, task)
    raise unreadable(path, f"it begins with {start(path)!r}, expected an .npz or .npy file or a folder")


def files_of(dataset: Dataset, indices: Sequence[int], task: Task) -> set[str]:
    """Of a folder of pictures: the files below it that these samples need, beside all that are no pictures."""
    names = {dataset.identity(index) for index in indices}
    return names | ({mask_of(name) for name in names} if task == "segmentation" else set())


def _open_folder(root: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    archives, arrays = sorted(root.glob("*.npz")), sorted(root.glob("*.npy"))
    if len(archives) > 1:
        raise unreadable(root, f"{len(archives)} .npz files are in the folder, expected one")
    if archives:
        return open_arrays(archives[0], read_npz(archives[0]), preprocessor, task)
    if arrays:
        return open_arrays(root, read_npy(arrays), preprocessor, task)
    if task == "classification" or (root / MASKS).is_dir():
        return open_folder(root, preprocessor, task)
    if descriptions := find_yolo(root):
        if len(descriptions) > 1:
            raise unreadable(root, f"the folder holds {listed([file.name for file in descriptions])}; expected one data.yaml")
        return open_yolo(root, descriptions[0], preprocessor, task)
    files = find_coco(root)
    annotations = [file for file in files if is_coco(file)] or (files if task == "detection" else [])
    if len(annotations) > 1:
        names = listed([file.relative_to(root).as_posix() for file in annotations])
        raise mismatch(f"the folder holds {len(annotations)} COCO files: {names}; expected one, with the pictures that it names")
    if annotations and task != "segmentation":
        return open_coco(root, annotations[0], preprocessor, task)
    if task == "detection":
        raise no_labels(f"the folder holds {content(root)}; expected COCO json or YOLO's data.yaml (archives are not unpacked)")
    return open_folder(root, preprocessor, task)
