"""Files of a data set: pictures, texts and tables, each with a limit, and paths that stay below the data set's folder."""

from __future__ import annotations

import csv
import io
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginefleet_api.errors import PermanentError

from ..preprocessing import MODES_OF_8_BITS, Preprocessor
from ..samples import SOLE, Dataset, mismatch, unreadable

Found = TypeVar("Found")
FORMATS = ("BMP", "JPEG", "PNG", "WEBP")
"""Pillow knows many more, some of which start other programs."""
PICTURES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
MAX_PIXELS = 100_000_000
"""Largest picture that is decoded."""
MAX_TEXT = 64 << 20
LONGEST = 80
"""Characters of a name in a message."""
MOST_NAMED = 5
"""Files or names that one message lists."""
METADATA = "metadata.csv"
"""Table beside the pictures: `file_name`, and any further columns, which tell subgroups apart."""
ORIENTATION = 0x0112
"""EXIF tag; 5 to 8 swap the sides."""
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
BROKEN = (OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, OverflowError, EOFError, struct.error, zlib.error)
"""What Pillow raises for files that are cut off or made to confuse it."""


def pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())


def decode(file: Path) -> Image.Image:
    """The picture, upright as its EXIF says. Raises PermanentError `DataSetUnreadable`."""
    return _opened(file, _upright)


def decode_bytes(data: bytes, name: str, most: int) -> Image.Image:
    """The same for a picture that came over the network, of at most `most` pixels."""
    return _opened(Path(name), _upright, io.BytesIO(data), most)


def size_of(file: Path) -> tuple[int, int]:
    """(height, width) of the upright picture, from its header."""
    return _opened(file, lambda image: (image.width, image.height) if _orientation(image) >= 5 else (image.height, image.width))


def _opened(file: Path, read: Callable[[Image.Image], Found], data: io.BytesIO | None = None, most: int | None = None) -> Found:
    try:
        with warnings.catch_warnings():
            # a picture too large is refused below, in our words; broken EXIF and palettes are Pillow's to ignore
            warnings.simplefilter("ignore")
            with Image.open(file if data is None else data, formats=FORMATS) as image:
                if image.width * image.height > (limit := MAX_PIXELS if most is None else most):
                    raise unreadable(file, f"{image.width} x {image.height} pixels, at most {limit} are decoded")
                if image.mode not in MODES_OF_8_BITS:
                    raise unreadable(file, f"the picture has Pillow's mode {image.mode}, expected 8 bits a channel")
                return read(image)
    except (*BROKEN, Image.DecompressionBombError) as error:
        raise unreadable(file, f"no readable picture ({', '.join(FORMATS)}): {error}") from error


def _orientation(image: Image.Image) -> int:
    # Pillow decodes a whole PNG to look for EXIF behind the pixels; nobody else looks there
    if image.format == "PNG" and "exif" not in image.info:
        return 1
    value = image.getexif().get(ORIENTATION, 1)
    return value if isinstance(value, int) else 1


def _upright(image: Image.Image) -> Image.Image:
    turn = UPRIGHT.get(_orientation(image))
    return image.copy() if turn is None else image.transpose(turn)


def below(root: Path, name: object, where: str) -> Path:
    """`root`/`name`. Raises PermanentError `DataSetUnsafe` for a name that leads out of `root`, also by a link."""
    try:
        if not isinstance(name, str) or not name:
            raise ValueError
        posix = PurePosixPath(name.replace("\\", "/"))
        path = root / posix
        inside = path.resolve().is_relative_to(root.resolve())
        path.exists()
    # names with NUL or half a character, names that are too long, links in a circle
    except (ValueError, OSError, RuntimeError) as error:
        raise mismatch(f"{where} names {shown(name)}, expected a path below the data set's folder") from error
    if posix.is_absolute() or ".." in posix.parts or not inside:
        message = f"{where} names {shown(name)}, which leads out of the data set's folder."
        raise PermanentError("DataSetUnsafe", message, "Name files relative to the folder, and put them into it.")
    return path


def text(file: Path, limit: int = MAX_TEXT) -> str:
    """The text of a UTF-8 file of at most `limit` bytes."""
    size = file.stat().st_size
    if size > limit:
        message = f"{file.name} has {size} bytes, at most {limit} are read."
        raise PermanentError("DataSetTooLarge", message, "Use fewer samples.")
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise unreadable(file, f"byte {error.start} is no UTF-8 text") from error


def printable(name: str) -> str:
    """A name from outside, fit for a terminal: short, and nothing that moves the cursor."""
    name = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in name[:LONGEST])
    return name if len(name) < LONGEST else name[:-1] + "…"


def shown(value: object) -> str:
    """A value from outside for a message: short, whatever it is."""
    if isinstance(value, str):
        return f"'{printable(value)}'"
    if isinstance(value, float | None) or (isinstance(value, int) and abs(value) < 1 << 64):
        return repr(value)
    return f"a {type(value).__name__}"


def listed(names: Sequence[str], most: int = MOST_NAMED) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name) for name in names[:most]) + more


def picture_set(
    root: Path,
    files: Sequence[Path],
    preprocessor: Preprocessor,
    *,
    labels: NDArray[np.int64] | None = None,
    classes: Sequence[str] = (),
    groups: Mapping[str, tuple[str, ...]] | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """A data set of picture files below `root`; readers add boxes or masks with `dataclasses.replace`."""
    names = [file.relative_to(root).as_posix() for file in files]
    table = metadata(root, names)
    return Dataset(
        size=len(files),
        labels=labels,
        classes=tuple(classes),
        sample=lambda index: {SOLE: preprocessor.picture(decode(files[index]))},
        geometry=lambda index: preprocessor.geometry(*size_of(files[index])),
        groups={**(groups or {}), **table},
        identity=lambda index: names[index],
        picture=lambda index: decode(files[index]),
        notes=tuple(notes),
    )


def metadata(root: Path, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Column → value of each of the pictures `names`, from metadata.csv below `root`; nothing where there is none.

    A row names a picture by its path below `root`, or by its bare name where only one picture has it. Raises PermanentError
    `DataSetMismatch` for pictures without a row, and for rows of unequal length.
    """
    file = root / METADATA
    if not file.is_file():
        return {}
    try:
        rows = list(csv.reader(io.StringIO(text(file)), strict=True))
    except csv.Error as error:
        raise unreadable(file, f"no CSV: {error}") from error
    header = rows[0] if rows else []
    if "file_name" not in header or len(set(header)) != len(header):
        raise mismatch(f"{METADATA} has the columns {listed(header) or 'none'}; expected file_name and others, each once")
    key, known = header.index("file_name"), {}
    for number, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        if len(row) != len(header):
            raise mismatch(f"{METADATA}, row {number}: found {len(row)} fields, expected {len(header)}")
        if row[key] in known:
            raise mismatch(f"{METADATA}, row {number}: {shown(row[key])} stands there twice, expected one row a picture")
        known[row[key]] = row
    bare = Counter(PurePosixPath(name).name for name in names)
    found = [known.get(name) or (known.get(PurePosixPath(name).name) if bare[PurePosixPath(name).name] == 1 else None) for name in names]
    if missing := [name for name, row in zip(names, found, strict=True) if row is None]:
        raise mismatch(f"{METADATA} has no row for {len(missing)} of {len(names)} pictures: {listed(missing)}")
    chosen = [row for row in found if row is not None]
    return {column: tuple(row[at] for row in chosen) for at, column in enumerate(header) if at != key}
