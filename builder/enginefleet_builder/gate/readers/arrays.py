"""Arrays: an .npz file, or .npy files (the name of each is the array's).

Samples stand under `images` (or X, x, Xt, data; for calibration first calibration, cal), labels under `labels` (or y, yt, targets), masks under
`masks`, class names under `classes`, all optional but the first. A model of several inputs wants one array an input, under the input's name.
Further arrays with one text, integer or boolean a sample tell subgroups apart. The first axis counts samples.

Arrays stay in the file where that is possible (.npy, and .npz without compression), so that their size does not matter.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import Image

from enginefleet_api.errors import PermanentError

from ..arrays import Array
from ..preprocessing import Preprocessor, as_picture
from ..samples import SOLE, Dataset, Task, mismatch, no_labels, unreadable
from ..truth import Geometry
from .files import listed

SAMPLE_NAMES = ("images", "X", "x", "Xt", "data")
CALIBRATION_NAMES = ("calibration", "cal", *SAMPLE_NAMES)
"""Where calibration samples are looked for: a file may hold both."""
LABEL_NAMES = ("labels", "y", "yt", "targets")
MASK_NAME = "masks"
CLASS_NAMES = "classes"
MAX_ARRAY_BYTES = 4 * 1024**3
"""Unpacked size of compressed arrays that are still read: a zip of a few KB can unpack to terabytes."""
UNREADABLE = (ValueError, OSError, EOFError, MemoryError, OverflowError)
"""What numpy raises for files that are cut off, or whose header claims a shape that they have no room for."""
LOCAL_HEADER = 30
"""Bytes of a zip's header before a member's name; the last four are the lengths of name and extra field."""


def open_arrays(path: Path, arrays: dict[str, Array], preprocessor: Preprocessor, task: Task) -> Dataset:
    """Raises PermanentError `DataSetMismatch`, `LabelsMissing`."""
    if task == "detection":
        raise no_labels(f"{path.name} holds arrays, expected pictures with COCO json or YOLO labels: arrays hold no boxes")
    names = sorted(arrays)
    labels = next((arrays.pop(name) for name in LABEL_NAMES if name in arrays), None)
    masks = arrays.pop(MASK_NAME, None)
    classes = tuple(str(name) for name in np.ravel(arrays.pop(CLASS_NAMES, np.array([], "U1"))))
    columns = {name: array for name, array in arrays.items() if array.ndim >= 1 and array.dtype.kind in "fiub"}
    if not columns:
        raise mismatch(f"{path.name} holds {listed(names) or 'nothing'}; expected samples under one of {list(SAMPLE_NAMES)}")
    sole = next(
        (name for name in (CALIBRATION_NAMES if task == "calibration" else SAMPLE_NAMES) if name in columns),
        next(iter(columns)) if len(columns) == 1 else None,
    )
    size = len(columns[sole or next(iter(columns))])
    columns = {name: array for name, array in columns.items() if len(array) == size}
    stored = columns[sole] if sole is not None else None
    dataset = Dataset(
        size,
        None,
        classes,
        lambda index: _sample(columns, stored, index, preprocessor),
        geometry=lambda index: _geometry(_picture(stored, index), preprocessor),
        groups={name: tuple(str(value) for value in array) for name, array in arrays.items() if array.shape == (size,) and _tells(array)},
        picture=lambda index: _picture(stored, index),
    )
    return _labelled(path, dataset, labels, masks, stored, preprocessor, task)


def _labelled(
    path: Path, dataset: Dataset, labels: Array | None, masks: Array | None, stored: Array | None, preprocessor: Preprocessor, task: Task
) -> Dataset:
    """`dataset` with what the task needs."""
    size = dataset.size
    if task == "classification":
        if labels is None:
            raise no_labels(f"{path.name} holds no labels, expected labels under one of {list(LABEL_NAMES)}")
        if labels.dtype.kind not in "iu" or labels.shape != (size,) or (size and labels.min() < 0):
            found = f"labels are {labels.dtype} of shape {list(labels.shape)}"
            raise mismatch(f"{found}, expected integers from 0 of shape [{size}]")
        most = int(labels.max(initial=-1))
        if dataset.classes and most >= len(dataset.classes):
            raise mismatch(f"labels go up to {most}, expected at most {len(dataset.classes) - 1}: {len(dataset.classes)} classes are named")
        classes = dataset.classes or tuple(str(label) for label in range(most + 1))
        return replace(dataset, labels=labels.astype(np.int64), classes=classes)
    if task == "segmentation":
        if masks is None:
            raise no_labels(f"{path.name} has no masks, expected them under {MASK_NAME!r}")
        if masks.dtype.kind not in "iu" or masks.ndim != 3 or len(masks) != size:
            raise mismatch(f"masks are {masks.dtype} of shape {list(masks.shape)}, expected integers of shape [{size}, height, width]")
        return replace(dataset, mask=lambda index: _mask(masks, stored, index, preprocessor))
    # calibration data may well have labels: they tell which classes it covers
    if task == "calibration" and labels is not None and labels.shape == (size,) and labels.dtype.kind in "iu":
        return replace(dataset, labels=labels.astype(np.int64))
    return dataset


def _sample(columns: Mapping[str, Array], stored: Array | None, index: int, preprocessor: Preprocessor) -> dict[str, Array]:
    sample: dict[str, Array] = {name: array[index] for name, array in columns.items()}
    return sample if stored is None else {**sample, SOLE: preprocessor.sample(stored[index])}


def _picture(stored: Array | None, index: int) -> Image.Image | None:
    return None if stored is None else as_picture(stored[index])


def _geometry(picture: Image.Image | None, preprocessor: Preprocessor) -> Geometry | None:
    return None if picture is None else preprocessor.geometry(picture.height, picture.width)


def _mask(masks: Array, stored: Array | None, index: int, preprocessor: Preprocessor) -> NDArray[np.int64]:
    mask, picture = np.asarray(masks[index], np.int64), _picture(stored, index)
    if mask.min(initial=0) < 0:
        raise mismatch(f"mask {index} has the value {int(mask.min())}, expected classes from 0, and 255 where nothing counts")
    if picture is None:
        return mask
    if mask.shape != (picture.height, picture.width):
        raise mismatch(f"mask {index} has shape {list(mask.shape)}, expected its picture's {[picture.height, picture.width]}")
    return preprocessor.mask(mask)


def _tells(array: Array) -> bool:
    return array.dtype.kind in "Uiub"


# ---- files ----


def read_npz(path: Path) -> dict[str, Array]:
    """Raises PermanentError `DataSetUnreadable`, `DataSetTooLarge`."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            unpacked = sum(item.file_size for item in members if item.compress_type != zipfile.ZIP_STORED)
            if unpacked > MAX_ARRAY_BYTES:
                found = f"{path.name} has {unpacked} bytes when unpacked, at most {MAX_ARRAY_BYTES} are read"
                hint = "Use fewer samples, numpy.savez without compression, or a folder of pictures."
                raise PermanentError("DataSetTooLarge", f"{found}.", hint)
            return {item.filename.removesuffix(".npy"): _member(path, archive, item) for item in members if item.filename.endswith(".npy")}
    # RuntimeError: encrypted
    except (*UNREADABLE, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, struct.error) as error:
        raise unreadable(path, f"no readable .npz file: {error}; it begins with {start(path)!r}") from error


def _member(path: Path, archive: zipfile.ZipFile, item: zipfile.ZipInfo) -> Array:
    """An array of the archive: in the file where it is stored as it is, else in memory."""
    with archive.open(item) as file:
        if item.compress_type != zipfile.ZIP_STORED:
            array: Array = npy.read_array(file, allow_pickle=False)
            return array
        shape, fortran, dtype = _header(file)
        offset = file.tell()
    if dtype.hasobject:
        raise ValueError(f"{item.filename} holds Python objects, which are never loaded (allow_pickle=False)")
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    with path.open("rb") as raw:
        raw.seek(item.header_offset + LOCAL_HEADER - 4)
        name, extra = struct.unpack("<HH", raw.read(4))
    offset += item.header_offset + LOCAL_HEADER + name + extra
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy.read_magic(file)
    if version == (1, 0):
        return npy.read_array_header_1_0(file)
    if version == (2, 0):
        return npy.read_array_header_2_0(file)
    raise ValueError(f"version {version} of the .npy format is for tables, expected an array of numbers or text")


def read_npy(files: list[Path]) -> dict[str, Array]:
    """One array a file, under the file's name. Raises PermanentError `DataSetUnreadable`."""
    arrays: dict[str, Array] = {}
    for file in files:
        try:
            arrays[file.stem] = np.load(file, mmap_mode="r", allow_pickle=False)
        except UNREADABLE as error:
            raise unreadable(file, f"no readable .npy file: {error}; it begins with {start(file)!r}") from error
    return arrays


def start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(24)
