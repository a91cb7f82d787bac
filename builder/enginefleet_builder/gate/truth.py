"""What is known of a picture: where its boxes are, and how pixels of the model's input map back to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = 255
"""Value of a mask's pixels that do not count: where the labels say so, and the bars of a letterbox."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a picture became an input: input = original * ratio + pad. Pairs are (vertical, horizontal)."""

    original: tuple[int, int]
    """Height and width of the picture in pixels."""
    ratio: tuple[float, float]
    """Input pixels a pixel of the picture."""
    pad: tuple[int, int]
    """Input pixels above and left of the picture; negative where it was cropped."""

    def to_original(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes x1 y1 x2 y2 of shape (n, 4) in input pixels → pixels of the picture, cut off at its edges."""
        height, width = self.original
        moved = (boxes - self._offset()) / self._scale()
        return np.asarray(np.clip(moved, 0.0, np.array([width, height, width, height], np.float64)))

    def to_input(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes x1 y1 x2 y2 of shape (n, 4) in pixels of the picture → input pixels; may lie outside where the picture was cropped."""
        return np.asarray(boxes * self._scale() + self._offset())

    def _scale(self) -> NDArray[np.float64]:
        return np.array([self.ratio[1], self.ratio[0]] * 2, np.float64)

    def _offset(self) -> NDArray[np.float64]:
        return np.array([self.pad[1], self.pad[0]] * 2, np.float64)


@dataclass(frozen=True, slots=True)
class Boxes:
    """The labelled objects of one picture, n of them."""

    boxes: NDArray[np.float64]
    """(n, 4): x1 y1 x2 y2 in pixels of the original picture."""
    classes: NDArray[np.int64]
    """(n,): indices into the data set's classes."""
    crowd: NDArray[np.bool_]
    """(n,): regions of many objects, where COCO neither rewards nor punishes detections."""
    area: NDArray[np.float64]
    """(n,): in pixels of the original picture; COCO's own where the labels give it."""

    @classmethod
    def of(cls, boxes: NDArray[np.float64], classes: NDArray[np.int64]) -> Boxes:
        """Boxes whose labels tell no more: no crowds, the area is the box's."""
        boxes = boxes.reshape(-1, 4)
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        return cls(boxes, classes, np.zeros(len(boxes), np.bool_), area)

    def __len__(self) -> int:
        return len(self.boxes)
