"""Samples as small pictures for a page, each of bounded bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator

import numpy as np
from PIL import Image

from enginefleet_api.errors import EngineFleetError

from ..gate.arrays import Array
from ..gate.samples import Dataset
from .data import MOST_BOXES, Box, Picture

SIDE = 160
"""Longest side in pixels."""
TINY = 64
"""Up to this side a picture is kept without loss."""
MOST_PICTURES = 12
PICTURE_BYTES = 9000
QUALITIES = (75, 55, 35, 15)


def pictures(dataset: Dataset, indices: Iterable[int]) -> dict[int, Picture]:
    """Those of the first samples that can be shown: pictures, and arrays of one or three channels."""
    return dict(_pictures(dataset, list(indices)[:MOST_PICTURES]))


def _pictures(dataset: Dataset, indices: Iterable[int]) -> Iterator[tuple[int, Picture]]:
    for index in indices:
        try:
            image = dataset.picture(index) or _of_array(next(iter(dataset.sample(index).values())))
        except EngineFleetError:
            # a file that was there when it was judged is not now: the report does without
            continue
        if image is not None and (uri := _uri(image)) is not None:
            yield index, Picture(uri=uri, width=image.width, height=image.height, labelled=_labelled(dataset, index))


def _labelled(dataset: Dataset, index: int) -> list[Box]:
    """Empty where the set has no boxes."""
    try:
        boxes = dataset.boxes(index).boxes[:MOST_BOXES].tolist()
    except EngineFleetError:
        return []
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in boxes]


def _of_array(array: Array) -> Image.Image | None:
    """A stored tensor (H, W), (C, H, W) or (H, W, C) with one or three channels, stretched from its smallest to its largest value."""
    if array.ndim == 3 and array.shape[0] in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or min(array.shape[:2]) < 4:
        return None
    values = np.nan_to_num(array.astype(np.float64))
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low) * 255 if high > low else np.zeros_like(values)
    return Image.fromarray(scaled.round().astype(np.uint8))


def _uri(image: Image.Image) -> str | None:
    """None for a picture that does not get small enough."""
    small = _flat(image)
    tiny = max(small.size) <= TINY
    small.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    if tiny and len(data := _encoded(small, "PNG")) <= PICTURE_BYTES:
        return _data_uri("png", data)
    for quality in QUALITIES:
        if len(data := _encoded(small, "JPEG", quality=quality)) <= PICTURE_BYTES:
            return _data_uri("jpeg", data)
    return None


def _flat(image: Image.Image) -> Image.Image:
    """Grey stays grey; all else becomes RGB, without metadata."""
    return image.convert("L" if image.mode in ("1", "L") else "RGB")


def _encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, optimize=True, **options)
    return out.getvalue()


def _data_uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
