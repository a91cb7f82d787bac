"""Labelled pictures of text, drawn with Pillow: nothing is downloaded, and labels are right by construction.

Calibration and test pictures use different words, fonts are shared. Everything follows from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Pixels = NDArray[np.uint8]
WORDS = {
    "calibration": (
        "anchor",
        "bridge",
        "candle",
        "desert",
        "engine",
        "forest",
        "glacier",
        "harbor",
        "island",
        "jungle",
        "kettle",
        "ladder",
    ),
    "test": ("copper", "dolphin", "feather", "granite", "hammer", "lantern", "marble", "nectar", "oyster", "pepper", "quartz", "ribbon"),
}
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSansMono", "STIXGeneral", "cmr10")
FONTS_FOLDER = Path("matplotlib/mpl-data/fonts/ttf")


class Draw:
    def __init__(self, packages: Path, split: str, seed: int) -> None:
        """`packages`: a site-packages folder with matplotlib, whose wheel brings fonts. `split`: calibration or test."""
        self._fonts, self._words = packages / FONTS_FOLDER, WORDS[split]
        self.random = np.random.default_rng([seed, sorted(WORDS).index(split)])

    @cache  # noqa: B019 - one object a data set
    def _font(self, name: str, size: int) -> ImageFont.FreeTypeFont:
        return ImageFont.truetype(str(self._fonts / f"{name}.ttf"), size)

    def _some(self, smallest: int, largest: int) -> tuple[ImageFont.FreeTypeFont, str]:
        word = str(self.random.choice(self._words))
        word = (word, word.upper(), word.title(), str(self.random.integers(100, 10**6)))[int(self.random.integers(4))]
        return self._font(str(self.random.choice(FONTS)), int(self.random.integers(smallest, largest + 1))), word

    def _colours(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ground and ink, one dark and one light."""
        dark = tuple(int(value) for value in self.random.integers(0, 90, 3))
        light = tuple(int(value) for value in self.random.integers(165, 256, 3))
        return (light, dark) if self.random.random() < 0.7 else (dark, light)

    def _worn(self, picture: Image.Image) -> Pixels:
        """Blur now and then, noise always."""
        if self.random.random() < 0.4:
            picture = picture.filter(ImageFilter.GaussianBlur(self.random.uniform(0.3, 1.3)))
        noise = self.random.normal(0, self.random.uniform(1, 16), (picture.height, picture.width, 3))
        return np.asarray(np.clip(np.asarray(picture) + noise, 0, 255), np.uint8)

    def line(self) -> Pixels:
        """One line of one to three words, upright: (height, width, 3)."""
        font, text = self._some(18, 42)
        for _ in range(int(self.random.integers(3))):
            text += f" {self._some(18, 18)[1]}"
        ground, ink = self._colours()
        left, top, right, bottom = font.getbbox(text)
        margin = int(self.random.integers(3, 10))
        picture = Image.new("RGB", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), ground)
        ImageDraw.Draw(picture).text((margin - left, margin - top), text, ink, font)
        turned = picture.rotate(self.random.uniform(-3, 3), Image.Resampling.BILINEAR, fillcolor=ground)
        return self._worn(turned)

    def page(self, height: int, width: int) -> Pixels:
        """Lines of text on a light ground: (height, width, 3)."""
        picture = Image.new("RGB", (width, height), (int(self.random.integers(225, 256)),) * 3)
        pen, (font, _) = ImageDraw.Draw(picture), self._some(12, 20)
        margin, spacing = int(self.random.integers(6, 24)), self.random.uniform(1.2, 1.6)
        y = float(margin)
        while y < height - 24:
            text = ""
            length = width - 2 * margin if self.random.random() < 0.7 else width * self.random.uniform(0.3, 0.8)
            while font.getlength(text) < length - 60:
                text += f"{self._some(18, 18)[1]} "
            pen.text((margin, y), text, (int(self.random.integers(0, 80)),) * 3, font)
            y += font.size * spacing
        return self._worn(picture)

    def scattered(self, side: int) -> tuple[Pixels, list[tuple[float, float, float, float]]]:
        """A few characters in clean print that do not overlap, and their boxes x1 y1 x2 y2: (side, side, 3)."""
        ground, ink = self._colours()
        picture = Image.new("RGB", (side, side), ground)
        pen, boxes = ImageDraw.Draw(picture), list[tuple[float, float, float, float]]()
        wanted = int(self.random.integers(3, 7))
        for _ in range(60):
            if len(boxes) == wanted:
                break
            font, word = self._some(44, 64)
            letter = word[int(self.random.integers(len(word)))].upper()
            left, top, right, bottom = font.getbbox(letter)
            x, y = (float(self.random.uniform(5, side - 5 - size)) for size in (right - left, bottom - top))
            box = (x, y, x + right - left, y + bottom - top)
            if all(box[2] + 8 < a or c + 8 < box[0] or box[3] + 8 < b or d + 8 < box[1] for a, b, c, d in boxes):
                pen.text((x - left, y - top), letter, ink, font)
                boxes.append(box)
        return np.asarray(picture, np.uint8), boxes


def resized(picture: Pixels, height: int, width: int) -> Pixels:
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR), np.uint8)


def normalized(pictures: Sequence[Pixels], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """(n, 3, height, width) of (pixel / 255 - mean) / std."""
    stacked = np.stack(pictures).astype(np.float32) / 255
    return np.ascontiguousarray(((stacked - np.array(mean, np.float32)) / np.array(std, np.float32)).transpose(0, 3, 1, 2))
