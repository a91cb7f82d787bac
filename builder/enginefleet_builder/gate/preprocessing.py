"""From a picture or a stored array to what the model reads: one definition for calibration, baseline and gate.

value = (pixel * scale - mean) / std, after resizing and choosing colours.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from enginefleet_api.base import fraction
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Preprocessing

from .arrays import Array, FloatArray

LETTERBOX_GREY = 114
"""Grey of the bars that `letterbox` adds, as YOLO's own preprocessing has it."""


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
        """One picture of any mode and size → (C, H, W) or (H, W, C) as the layout says, float32."""
        pixels = np.asarray(self._resized(image.convert("L" if self.spec.color == "GRAY" else "RGB")), np.float32)
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        if self.spec.color == "BGR":
            pixels = pixels[:, :, ::-1]
        pixels = self._normalised(pixels, channels_last=True)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1) if self.spec.layout == "NCHW" else pixels)

    def tensor(self, array: Array) -> FloatArray:
        """One sample that already has the model's shape: only scale, mean and std apply.

        Raises PermanentError `PreprocessingInvalid` when a resize is asked for: that works on pictures (uint8, HxW or HxWxC).
        """
        if self.spec.resize != "none":
            found = f"{array.dtype} of shape {list(array.shape)}"
            raise _invalid(f"resize {self.spec.resize} works on pictures (uint8, HxW or HxWxC), found {found}")
        return self._normalised(array.astype(np.float32), channels_last=self.spec.layout == "NHWC")

    def sample(self, array: Array) -> FloatArray:
        """A stored sample: a picture when it is uint8 of HxW, HxWx1, HxWx3 or HxWx4, else a tensor of the model's own shape."""
        if array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))):
            return self.picture(Image.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array))
        return self.tensor(array)

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

    def _resized(self, image: Image.Image) -> Image.Image:
        if self.spec.resize == "none":
            return image
        height, width = self.spec.size
        bilinear = Image.Resampling.BILINEAR
        match self.spec.resize:
            case "stretch":
                return image.resize((width, height), bilinear)
            case "letterbox":
                ratio = min(width / image.width, height / image.height)
                inner = image.resize((max(1, round(image.width * ratio)), max(1, round(image.height * ratio))), bilinear)
                canvas = Image.new(image.mode, (width, height), (LETTERBOX_GREY,) * len(image.getbands()))
                canvas.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
                return canvas
            case "center-crop":
                ratio = max(width / image.width, height / image.height)
                outer = image.resize((max(width, round(image.width * ratio)), max(height, round(image.height * ratio))), bilinear)
                left, top = (outer.width - width) // 2, (outer.height - height) // 2
                return outer.crop((left, top, left + width, top + height))


def _invalid(message: str) -> PermanentError:
    return PermanentError("PreprocessingInvalid", f"preprocessing: {message}.", "Correct spec.preprocessing or the data set.")
