"""Calibration and validation data: an .npz file, or a folder of pictures (one subfolder a class when labels are needed).

.npz   samples under `images` (or X, x, Xt, data; for calibration first calibration, cal), labels under `labels` (or y, yt, targets), class
       names optionally under `classes`. A model of several inputs wants one array an input, under the input's name. First axis: samples.
folder classes are the sorted names of the subfolders; files are read in sorted order, by Pillow.

Nothing is ever unpickled, and sizes are checked before memory is taken: data sets come from outside.
"""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from enginefleet_api.errors import PermanentError

from .arrays import Array
from .preprocessing import Preprocessor
from .samples import SOLE, Dataset, Task, mismatch, no_labels, stratified, unreadable

__all__ = ["Dataset", "Task", "open_dataset", "stratified"]

SAMPLE_NAMES = ("images", "X", "x", "Xt", "data")
CALIBRATION_NAMES = ("calibration", "cal", *SAMPLE_NAMES)
"""Where calibration samples are looked for: a file may hold both."""
LABEL_NAMES = ("labels", "y", "yt", "targets")
CLASS_NAMES = "classes"
PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
MAX_ARRAY_BYTES = 4 * 1024**3
"""Unpacked size of an .npz that is still opened: a zip of a few KB can unpack to terabytes."""
MAX_PIXELS = 100_000_000
"""Largest picture that is decoded."""


def open_dataset(path: Path, preprocessor: Preprocessor, task: Task) -> Dataset:
    """The data set at `path` (a file, a folder that holds one .npz, or a folder of pictures).

    Raises PermanentError: `DataSetUnreadable`, `DataSetMismatch`, `LabelsMissing`, `DataSetTooLarge`.
    """
    labelled = task == "classification"
    if path.is_dir():
        archives = sorted(path.glob("*.npz"))
        if len(archives) == 1:
            return _open_npz(archives[0], preprocessor, labelled)
        if archives:
            raise unreadable(path, f"{len(archives)} .npz files are in the folder, expected one")
        return _open_pictures(path, preprocessor, labelled)
    if path.suffix == ".npz" or zipfile.is_zipfile(path):
        return _open_npz(path, preprocessor, labelled)
    raise unreadable(path, f"it begins with {_start(path)!r}, expected an .npz file or a folder of pictures")


def _open_npz(path: Path, preprocessor: Preprocessor, labelled: bool) -> Dataset:
    arrays = _read_npz(path)
    names = sorted(arrays)
    labels_name = next((name for name in LABEL_NAMES if name in arrays), None)
    labels = arrays.pop(labels_name) if labels_name else None
    classes = tuple(str(name) for name in np.ravel(arrays.pop(CLASS_NAMES, np.array([], "U1"))))
    columns = {name: array for name, array in arrays.items() if array.ndim >= 1 and array.dtype.kind in "fiub"}
    if not columns:
        raise mismatch(f"{path.name} holds {names}, expected samples under one of {list(SAMPLE_NAMES)}")
    sole = next(
        (name for name in (SAMPLE_NAMES if labelled else CALIBRATION_NAMES) if name in columns),
        next(iter(columns)) if len(columns) == 1 else None,
    )
    size = len(columns[sole or next(iter(columns))])
    columns = {name: array for name, array in columns.items() if len(array) == size}
    if sole is not None:
        columns[SOLE] = columns[sole]

    def sample(index: int) -> Mapping[str, Array]:
        return {name: preprocessor.sample(array[index]) if name == SOLE else array[index] for name, array in columns.items()}

    if not labelled:
        return Dataset(size, None, classes, sample)
    if labels is None:
        raise no_labels(f"{path.name} holds {names}, expected labels under one of {list(LABEL_NAMES)}")
    if labels.dtype.kind not in "iu" or labels.shape != (size,) or (size and labels.min() < 0):
        found = f"labels are {labels.dtype} of shape {list(labels.shape)}"
        raise mismatch(f"{found}, expected integers from 0 of shape [{size}]")
    return Dataset(size, labels.astype(np.int64), classes or tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1)), sample)


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(item.file_size for item in archive.infolist())
        if unpacked > MAX_ARRAY_BYTES:
            found = f"{path.name} has {unpacked} bytes when unpacked, at most {MAX_ARRAY_BYTES} are read"
            raise PermanentError("DataSetTooLarge", f"{found}.", "Use fewer samples, or a folder of pictures.")
        with np.load(path, allow_pickle=False) as loaded:
            arrays: dict[str, Array] = {name: np.asarray(loaded[name]) for name in loaded.files}
            return arrays
    # MemoryError: a header may claim any shape
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError) as error:
        raise unreadable(path, f"no readable .npz file: {error}; it begins with {_start(path)!r}") from error


def _open_pictures(path: Path, preprocessor: Preprocessor, labelled: bool) -> Dataset:
    """Subfolders are classes; without labels, pictures anywhere below the folder."""
    if labelled:
        classes = tuple(sorted(item.name for item in path.iterdir() if item.is_dir() and not item.name.startswith(".")))
        if not classes:
            found = sorted(item.name for item in path.iterdir())[:5]
            raise no_labels(f"the folder holds {found}, expected one subfolder a class, with pictures in it")
        files = [(file, label) for label, name in enumerate(classes) for file in _pictures(path / name)]
    else:
        classes, files = (), [(file, 0) for file in _pictures(path)]
    if not files:
        raise unreadable(path, f"no pictures ({', '.join(PICTURES)}) and no .npz file are in the folder")
    labels = np.array([label for _, label in files], np.int64) if labelled else None
    return Dataset(len(files), labels, classes, lambda index: {SOLE: preprocessor.picture(_decode(files[index][0]))})


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())


def _decode(file: Path) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise unreadable(file, f"{image.width} x {image.height} pixels, at most {MAX_PIXELS} are decoded")
                image.load()
                return image.copy()
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise unreadable(file, str(error)) from error


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(24)
