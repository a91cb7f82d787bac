"""From a picture or a stored array to what the model reads: one definition for calibration, baseline and gate.

value = (pixel * scale - mean) / std, after choosing colours and resizing. Pixels are what Ultralytics' LetterBox (within one level of 255)
and torchvision's Resize and CenterCrop on pictures (exactly) make: tests/builder/parity holds what they gave. A change here that gives
other pixels raises identity.PREPARE_RECIPE and identity.METRIC_VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginefleet_api.base import fraction
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Preprocessing

from .arrays import Array, FloatArray
from .truth import IGNORED, Geometry

MODES_OF_8_BITS = ("1", "CMYK", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "YCbCr", "HSV", "LAB")
"""Pillow's other modes hold more than a byte a channel, which it cuts off where it converts them."""
Pixels = NDArray[np.uint8]
_PILLOW = {"antialias": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture becomes the input's size: resized to `inner`, then laid onto a canvas of `size` with its corner at `corner`.

    Each (vertical, horizontal), in pixels; a negative corner cuts off.
    """

    inner: tuple[int, int]
    corner: tuple[int, int]
    size: tuple[int, int]
    fill: int = 0


@dataclass(frozen=True, slots=True)
class Preprocessor:
    """Prepared numbers of a `Preprocessing`."""

    spec: Preprocessing
    scale: float
    mean: FloatArray = field(repr=False)
    std: FloatArray = field(repr=False)

    @classmethod
    def of(cls, spec: Preprocessing | None) -> Preprocessor:
        """Raises PermanentError `PreprocessingInvalid`: a size that is missing or no pair, a `std` of 0."""
        spec = spec or Preprocessing()
        if spec.resize != "none" and len(spec.size) != 2:
            raise _invalid(f"resize {spec.resize} has size {spec.size}, expected [height, width]")
        mean = np.array([fraction(text) for text in spec.mean], np.float32)
        std = np.array([fraction(text) for text in spec.std], np.float32)
        if np.any(std == 0):
            raise _invalid(f"std {spec.std} holds a 0, expected values other than 0")
        return cls(spec, fraction(spec.scale), mean, std)

    def picture(self, image: Image.Image) -> FloatArray:
        """One picture of 8 bits a channel, any size → (C, H, W) or (H, W, C) as the layout says, float32.

        Raises PermanentError `PreprocessingInvalid` for pictures of more bits.
        """
        if image.mode not in MODES_OF_8_BITS:
            raise _invalid(f"the picture has Pillow's mode {image.mode}, expected 8 bits a channel")
        image = image.convert("L" if self.spec.color == "GRAY" else "RGB")
        fit = self.fit(image.height, image.width)
        inner = self._resized(image, fit.inner)
        pixels = _laid(inner[:, :, None] if inner.ndim == 2 else inner, fit, fit.fill)
        if self.spec.color == "BGR":
            pixels = pixels[:, :, ::-1]
        values = self._normalised(pixels.astype(np.float32), channels_last=True)
        return np.ascontiguousarray(values.transpose(2, 0, 1) if self.spec.layout == "NCHW" else values)

    def tensor(self, array: Array) -> FloatArray:
        """One sample that already has the model's shape: only scale, mean and std apply.

        Raises PermanentError `PreprocessingInvalid` when a resize is asked for: that works on pictures (uint8, HxW or HxWxC).
        """
        if self.spec.resize != "none":
            found = f"{array.dtype} of shape {list(array.shape)}"
            raise _invalid(f"resize {self.spec.resize} works on pictures (uint8, HxW or HxWxC), found {found}")
        return self._normalised(array.astype(np.float32), channels_last=self.spec.layout == "NHWC")

    def sample(self, array: Array) -> FloatArray:
        """A stored sample: a picture when `as_picture` says so, else a tensor of the model's own shape."""
        image = as_picture(array)
        return self.tensor(array) if image is None else self.picture(image)

    def mask(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """A mask (h, w) of a picture of that size → of the input's size (H, W): nearest neighbours, `IGNORED` where there is no picture."""
        fit = self.fit(*classes.shape)
        rows, columns = (_nearest(have, want) for have, want in zip(classes.shape, fit.inner, strict=True))
        return np.asarray(_laid(classes[rows][:, columns], fit, IGNORED))

    def geometry(self, height: int, width: int) -> Geometry:
        """How a picture of that size becomes the input."""
        fit = self.fit(height, width)
        return Geometry((height, width), (fit.inner[0] / height, fit.inner[1] / width), fit.corner)

    def fit(self, height: int, width: int) -> Fit:
        """Sizes as Ultralytics (letterbox) and torchvision (center-crop) round them, Python's `round` going to even."""
        spec = self.spec
        if spec.resize == "none":
            return Fit((height, width), (0, 0), (height, width))
        size = (spec.size[0], spec.size[1])
        match spec.resize:
            case "stretch":
                return Fit(size, (0, 0), size)
            case "letterbox":
                ratio = min(size[0] / height, size[1] / width)
                inner = (max(1, round(height * ratio)), max(1, round(width * ratio)))
                corner = ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2) if spec.align == "center" else (0, 0)
                return Fit(inner, corner, size, spec.fill)
            case "center-crop":
                inner = _shorter_to(spec.shorter_side, height, width) if spec.shorter_side else _covering(size, height, width)
                return Fit(inner, (_cut(inner[0], size[0]), _cut(inner[1], size[1])), size)

    def _resized(self, image: Image.Image, size: tuple[int, int]) -> Pixels:
        if (image.height, image.width) == size:
            return np.asarray(image)
        how = self.spec.interpolation
        if how == "auto":
            how = "linear" if self.spec.resize == "letterbox" else "antialias"
        if how == "linear":
            return linear(np.asarray(image), size)
        return np.asarray(image.resize((size[1], size[0]), _PILLOW[how]))

    def _normalised(self, values: FloatArray, channels_last: bool) -> FloatArray:
        values = values * np.float32(self.scale)
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            if numbers.size == 0:
                continue
            channels = values.shape[-1 if channels_last else 0] if values.ndim == 3 else 1
            if numbers.size not in (1, channels):
                raise _invalid(f"{name} has {numbers.size} values, the samples have {channels} channels")
            by_channel = numbers if channels_last or values.ndim != 3 else numbers.reshape(-1, 1, 1)
            values = values - by_channel if name == "mean" else values / by_channel
        return values.astype(np.float32, copy=False)


def as_picture(array: Array) -> Image.Image | None:
    """A stored sample that is a picture: uint8 of HxW, HxWx1, HxWx3 or HxWx4; None for tensors."""
    if array.dtype != np.uint8 or array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))):
        return None
    return Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array))


def linear(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resized to `size` (height, width) by the two nearest pixels of each axis, also where it shrinks: OpenCV's INTER_LINEAR.

    `pixels`: (h, w) or (h, w, C). OpenCV rounds its weights differently from machine to machine: results are within one level of its own.
    """
    values: Pixels | FloatArray = pixels
    for axis, count in enumerate(size):
        low, high, share = _neighbours(values.shape[axis], count)
        first = np.take(values, low, axis).astype(np.float32)
        values = first + (np.take(values, high, axis).astype(np.float32) - first) * share.reshape(
            [-1 if at == axis else 1 for at in range(values.ndim)]
        )
    return np.rint(values).astype(np.uint8)


def _neighbours(have: int, want: int) -> tuple[NDArray[np.intp], NDArray[np.intp], FloatArray]:
    """(lower neighbour, upper neighbour, share of the upper) of each of `want` new pixels; centres of pixels lie at halves."""
    position = np.clip((np.arange(want) + 0.5) * (have / want) - 0.5, 0, have - 1)
    low = np.floor(position).astype(np.intp)
    return low, np.minimum(low + 1, have - 1), (position - low).astype(np.float32)


def _nearest(have: int, want: int) -> NDArray[np.intp]:
    return np.asarray(((np.arange(want) + 0.5) * (have / want)).astype(np.intp))


def _shorter_to(length: int, height: int, width: int) -> tuple[int, int]:
    """torchvision.transforms.Resize(length): the longer side is cut to whole pixels."""
    longer = int(length * max(height, width) / min(height, width))
    return (length, longer) if height <= width else (longer, length)


def _covering(size: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    """The smallest size of these proportions that covers `size`; for squares the same as `_shorter_to`."""
    if size[0] * width >= size[1] * height:
        return size[0], max(size[1], int(size[0] * width / height))
    return max(size[0], int(size[1] * height / width)), size[1]


def _cut(have: int, want: int) -> int:
    """Where a side of `have` pixels begins on one of `want`, both centred."""
    return (want - have) // 2 if have < want else -round((have - want) / 2)


def _laid(inner: Array, fit: Fit, fill: int) -> Array:
    """`inner` (h, w) or (h, w, C) on a canvas of the input's size."""
    if inner.shape[:2] == fit.size:
        return inner
    canvas = np.full((*fit.size, *inner.shape[2:]), fill, inner.dtype)
    (top, left), (height, width) = fit.corner, inner.shape[:2]
    canvas[max(0, top) : top + height, max(0, left) : left + width] = inner[
        max(0, -top) : max(0, -top) + fit.size[0], max(0, -left) : max(0, -left) + fit.size[1]
    ]
    return canvas


def _invalid(message: str) -> PermanentError:
    return PermanentError("PreprocessingInvalid", f"preprocessing: {message}.", "Correct spec.preprocessing or the data set.")
