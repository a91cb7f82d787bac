"""What a data set is, however it is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError

from .arrays import Array
from .truth import Boxes, Geometry

Task: TypeAlias = Literal["classification", "detection", "segmentation", "outputs", "calibration"]
"""What a data set is for: which labels it must have."""

Samples = Callable[[int], Mapping[str, Array]]
SOLE = ""
"""Name of the samples of a data set for a model with one input, whatever that input is called."""


def _no_boxes(index: int) -> NoReturn:
    raise no_labels(f"sample {index} has no boxes")


def _no_mask(index: int) -> NoReturn:
    raise no_labels(f"sample {index} has no mask")


def _unknown(index: int) -> None:  # noqa: ARG001
    return None


@dataclass(frozen=True, slots=True)
class Dataset:
    """`size` samples and what is known of each. Nothing is read before it is asked for, so a set may be larger than the memory."""

    size: int
    labels: NDArray[np.int64] | None
    """Classification: (size,)."""
    classes: tuple[str, ...]
    """Names of the classes 0, 1, …; empty where the data set does not tell."""
    sample: Samples
    """Index → arrays without a batch axis, by input name (`SOLE` for the only input). Raises PermanentError, see datasets.py."""
    boxes: Callable[[int], Boxes] = _no_boxes
    """Detection: the labelled boxes."""
    objects: Callable[[int], NDArray[np.int64]] | None = None
    """The class of each object on a picture that counts, as far as labels tell: for calibration, too. None where there are no such labels."""
    mask: Callable[[int], NDArray[np.int64]] = _no_mask
    """Segmentation: the class of each pixel of the input (H, W), resized and cropped as the picture was; truth.IGNORED does not count."""
    geometry: Callable[[int], Geometry | None] = _unknown
    """How the picture became the input; None where samples are stored as tensors."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Column → its value for each sample: what subgroups are told apart by."""
    identity: Callable[[int], str] = str
    """What a person finds the sample by: a file below the data set's folder, or the index."""
    picture: Callable[[int], Image.Image | None] = _unknown
    """The picture as it is stored (upright); None for tensors."""
    notes: tuple[str, ...] = ()
    """What the reader took for granted, for the report."""
    box_classes: Callable[[int], NDArray[np.int64]] | None = None
    """Detection: the classes of `boxes`, from labels alone; None: nothing is known of them without the boxes."""
    there: Sequence[int] = ()
    """The samples that are judged, and whose pictures are here; empty: all of them."""

    def at(self, number: int) -> int:
        """The index of the number-th sample that is here, beginning anew after the last."""
        return self.there[number % len(self.there)] if self.there else number % self.size

    def feed(self, indices: Sequence[int], inputs: Sequence[TensorSpec]) -> dict[str, Array]:
        """Arrays of shape (len(indices), …) for each input, in the input's dtype. Raises PermanentError `DataSetMismatch`."""
        samples = [self.sample(index) for index in indices]
        return {spec.name: self._column(spec, samples, indices, sole=len(inputs) == 1) for spec in inputs}

    @staticmethod
    def _column(spec: TensorSpec, samples: Sequence[Mapping[str, Array]], indices: Sequence[int], sole: bool) -> Array:
        rows: list[Array] = []
        for index, sample in zip(indices, samples, strict=True):
            row = sample.get(spec.name, sample.get(SOLE) if sole else None)
            if row is None:
                raise mismatch(f"input {spec.name!r} has no samples, found {sorted(sample)}")
            expected = spec.shape[1:]
            fits = len(row.shape) == len(expected) and all(
                want == have or not isinstance(want, int) for want, have in zip(expected, row.shape, strict=True)
            )
            if not fits or (rows and row.shape != rows[0].shape):
                what = rows[0].shape if fits else [item if item is not None else "?" for item in expected]
                raise mismatch(f"sample {index} for input {spec.name!r} has shape {list(row.shape)}, expected {list(what)}")
            rows.append(row)
        return np.stack(rows).astype(spec.dtype, copy=False)

    def instances(self, indices: Iterable[int] | None = None) -> dict[str, int] | None:
        """Class → how often these samples (all by default) show it, of all classes that have a name; None where labels do not tell."""
        chosen = range(self.size) if indices is None else indices
        if self.labels is not None:
            found = Counter(int(self.labels[index]) for index in chosen)
        elif self.objects is not None:
            found = Counter(int(label) for index in chosen for label in self.objects(index))
        else:
            return None
        return {self.class_name(label): found[label] for label in sorted({*range(len(self.classes)), *found})}

    def class_name(self, label: int) -> str:
        return self.classes[label] if 0 <= label < len(self.classes) else str(label)


def stratified(labels: NDArray[np.int64] | None, size: int, limit: int) -> list[int]:
    """At most `limit` of `size` sample indices, ascending and always the same: evenly over the classes, within a class evenly spaced."""
    if size <= limit:
        return list(range(size))
    if labels is None:
        return [index * size // limit for index in range(limit)]
    groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    quota = dict.fromkeys(range(len(groups)), 0)
    left = limit
    while left:
        open_groups = [number for number, group in enumerate(groups) if quota[number] < len(group)]
        share = max(1, left // len(open_groups))
        for number in open_groups:
            more = min(share, len(groups[number]) - quota[number], left)
            quota[number] += more
            left -= more
    chosen = [int(group[step * len(group) // quota[number]]) for number, group in enumerate(groups) for step in range(quota[number])]
    return sorted(chosen)


# ---- errors that all readers raise ----


def unreadable(path: Path, what: str) -> PermanentError:
    return PermanentError("DataSetUnreadable", f"data set {path.name}: {what}.", "Give an .npz file, a folder of pictures, COCO or YOLO.")


def mismatch(what: str) -> PermanentError:
    return PermanentError("DataSetMismatch", f"{what}.", "Correct the data set or spec.preprocessing.")


def no_labels(what: str) -> PermanentError:
    return PermanentError("LabelsMissing", f"{what}.", "A validation set needs a label for each sample.")
