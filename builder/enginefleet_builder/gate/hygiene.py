"""Whether a data set is fit to calibrate or judge with: what an engineer would see on leafing through its samples.

A few hundred samples are looked at as the model gets them, one at a time; what was seen is kept as numbers. Errors are what makes every result
meaningless; everything that can be right for some model is a warning.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Preprocessing, Validation

from .arrays import Array
from .samples import Dataset, stratified
from .score import device_indices

MOST = 256
"""Samples looked at, evenly over the data set."""
SMALLEST = 16
"""Pixels a side from which neighbours say whether a picture is noise."""
NOISE = 0.1
"""Correlation of neighbouring pixels below which a picture is noise; photos have more than 0.8, textures and scans more than 0.3."""
TWINS = 0.99
"""Correlation of two thumbnails from which pictures are nearly the same: frames of a camera that stands still have more."""
MOST_TWINS = 0.5
"""Share of samples with an earlier twin that is reported."""
MOST_FLAT = 0.05
"""Share of pictures of one colour that is reported."""
APART = 8.0
"""Factor between the usual peaks of two sets from which they cannot have had the same preprocessing."""
BYTES = 32.0
"""Peaks above it are pixels from 0 to 255 rather than shares of 1 or deviations from a mean."""
TWICE = 1 / 64
"""Peaks below it are pixels that were scaled twice."""


@dataclass(frozen=True, slots=True)
class Concern:
    """`error`: no result could be trusted; `warning`: somebody should look."""

    severity: Literal["error", "warning"]
    reason: str
    message: str
    hint: str


@dataclass(slots=True)
class Look:
    """What was seen of one input. Lists are by sample looked at."""

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    smooth: list[float] = field(default_factory=list)
    """Correlation of neighbouring pixels, of pictures large enough and not of one colour."""
    thumbnails: list[NDArray[np.float32]] = field(default_factory=list)
    """Grey, 16 x 16 or 8 x 8, mean 0 and length 1; of pictures not of one colour."""
    flat: int = 0
    picture: bool = False
    broken: list[str] = field(default_factory=list)
    """Names of samples with NaN or infinite values."""

    @property
    def peak(self) -> float:
        """The usual largest magnitude of a sample."""
        return float(np.median(np.maximum(np.abs(self.lows), np.abs(self.highs)))) if self.lows else 0.0


@dataclass(slots=True)
class Survey:
    """What was seen of a data set."""

    dataset: Dataset
    seen: int = 0
    looks: dict[str, Look] = field(default_factory=dict)
    """By input."""
    contents: Counter[bytes] = field(default_factory=Counter)
    """Digests of the samples as the model gets them."""
    refused: list[tuple[str, PermanentError]] = field(default_factory=list)
    """Samples that cannot be read or do not fit, by name."""


def survey(dataset: Dataset, inputs: Sequence[TensorSpec], shown: Callable[[int, int], None]) -> Survey:
    """Look at up to MOST samples. `shown` gets (samples done, samples in all)."""
    found = Survey(dataset, looks={spec.name: Look() for spec in inputs})
    chosen = stratified(None, dataset.size, MOST)
    for done, index in enumerate(chosen, start=1):
        shown(done, len(chosen))
        try:
            feed = dataset.feed([index], inputs)
        except PermanentError as error:
            found.refused.append((dataset.identity(index), error))
            continue
        found.seen += 1
        content = hashlib.sha256()
        for name, array in feed.items():
            content.update(np.ascontiguousarray(array).tobytes())
            _look(found.looks[name], dataset.identity(index), array[0])
        found.contents[content.digest()] += 1
    return found


def _look(look: Look, name: str, sample: Array) -> None:
    values = sample.astype(np.float32) if sample.dtype.kind in "fiub" else np.zeros(0, np.float32)
    if values.size == 0:
        return
    if not np.isfinite(values).all():
        look.broken.append(name)
        return
    look.lows.append(float(values.min()))
    look.highs.append(float(values.max()))
    grey = _grey(values)
    if grey is None:
        return
    look.picture = True
    if look.lows[-1] == look.highs[-1]:
        look.flat += 1
        return
    if min(grey.shape) >= SMALLEST:
        look.smooth.append(_smoothness(grey))
    if min(grey.shape) >= 8:
        thumbnail = _thumbnail(grey, 16 if min(grey.shape) >= 16 else 8)
        if thumbnail is not None and (not look.thumbnails or thumbnail.shape == look.thumbnails[0].shape):
            look.thumbnails.append(thumbnail)


def _grey(values: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """The mean of the channels (H, W) of a picture, channels first or last; None for what is no picture."""
    if values.ndim != 3:
        return None
    for axis in (0, 2):
        if values.shape[axis] in (1, 3, 4):
            return np.asarray(values.mean(axis=axis))
    return None


def _smoothness(grey: NDArray[np.float32]) -> float:
    """Correlation of pixels with their right neighbours, -1 to 1; 1 where there is nothing to correlate."""
    left, right = grey[:, :-1].ravel(), grey[:, 1:].ravel()
    left, right = left - left.mean(), right - right.mean()
    lengths = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / lengths if lengths else 1.0


def _thumbnail(grey: NDArray[np.float32], side: int) -> NDArray[np.float32] | None:
    for axis in (0, 1):
        edges = np.arange(side) * grey.shape[axis] // side
        counts = np.diff(np.append(edges, grey.shape[axis])).astype(np.float32)
        grey = np.asarray(np.add.reduceat(grey, edges, axis=axis) / (counts[:, None] if axis == 0 else counts), np.float32)
    flat = np.ravel(grey - grey.mean())
    length = float(np.linalg.norm(flat))
    return np.asarray(flat / length, np.float32) if length > 0 else None


def concerns(what: str, found: Survey, preprocessing: Preprocessing | None) -> list[Concern]:
    """What is wrong with the `what` set ("calibration", "validation")."""
    said = [*_refused(what, found), *_alike(what, found)]
    for name, look in found.looks.items():
        where = f"the {what} set, input {name!r}"
        said += [*_broken(where, found, look), *_flat(where, look), *_noise(where, found, look), *_range(where, look, preprocessing)]
        said += _twins(where, look)
    return said


def _refused(what: str, found: Survey) -> list[Concern]:
    if not found.refused:
        return []
    name, error = found.refused[0]
    looked = found.seen + len(found.refused)
    more = "" if len(found.refused) == 1 else f" So it is with {len(found.refused)} of the {looked} samples looked at."
    return [Concern("error", error.reason, f"the {what} set, sample {name}: {error.message}{more}", error.hint)]


def _alike(what: str, found: Survey) -> list[Concern]:
    if found.seen < 2:
        return []
    copies = found.seen - len(found.contents)
    message = f"{copies} of the {found.seen} {what} samples looked at are copies of others, {len(found.contents)} are different"
    if len(found.contents) == 1:
        return [Concern("error", "SamplesAlike", f"{message}.", "Use samples of what the model will see in production.")]
    if copies > MOST_FLAT * found.seen:
        return [Concern("warning", "SamplesAlike", f"{message}.", "Remove copies: they count twice in scales and figures.")]
    return []


def _broken(where: str, found: Survey, look: Look) -> list[Concern]:
    if not look.broken:
        return []
    message = f"{where}: {len(look.broken)} of {found.seen} samples hold NaN or infinite values, first {look.broken[0]}; expected numbers."
    return [Concern("error", "NonFiniteSamples", message, "Correct the data, or spec.preprocessing.")]


def _flat(where: str, look: Look) -> list[Concern]:
    pictures = len(look.lows)
    if not look.picture or look.flat <= MOST_FLAT * pictures:
        return []
    message = f"{where}: {look.flat} of {pictures} pictures have one value in all pixels; expected pictures of what the model will see."
    hint = "Look at the pictures and at spec.preprocessing: whole numbers scaled to less than 1 become 0."
    return [Concern("error" if look.flat == pictures else "warning", "ConstantSamples", message, hint)]


def _noise(where: str, found: Survey, look: Look) -> list[Concern]:
    if not look.smooth or float(np.median(look.smooth)) >= NOISE:
        return []
    message = (
        f"{where}: neighbouring pixels have a correlation of {float(np.median(look.smooth)):.2f}, expected more than {NOISE}: random noise?"
    )
    stored = found.dataset.geometry(0) is None
    # a tensor of this shape need not be a picture: radar, spectra
    hint = "Use real pictures: noise gives ranges that nothing in production has."
    return [Concern("warning" if stored else "error", "NoiseSamples", message, hint)]


def _range(where: str, look: Look, preprocessing: Preprocessing | None) -> list[Concern]:
    if not look.picture or not look.lows:
        return []
    low, high = min(look.lows), max(look.highs)
    span = f"{where}: values go from {low:.4g} to {high:.4g}"
    if low >= 0 and high > BYTES and not (preprocessing is not None and (preprocessing.mean or preprocessing.std)):
        message = f"{span}; most networks expect 0 to 1, or a mean of 0."
        return [Concern("warning", "ValueRange", message, 'Set spec.preprocessing.scale: "1/255" unless the model divides by itself.')]
    if low >= 0 and 0 < high < TWICE:
        message = f"{span}; most networks expect 0 to 1: were they scaled twice?"
        return [Concern("warning", "ValueRange", message, "Leave spec.preprocessing.scale out when the data set is scaled already.")]
    return []


def _twins(where: str, look: Look) -> list[Concern]:
    if len(look.thumbnails) < 2:
        return []
    share, count = twin_share(np.stack(look.thumbnails)), len(look.thumbnails)
    if share <= MOST_TWINS:
        return []
    message = f"{where}: {share:.0%} of {count} pictures look almost like an earlier one (correlation of thumbnails from {TWINS}): one camera's burst?"
    return [Concern("warning", "NearDuplicates", message, "Take frames further apart, from all cameras, times and scenes of production.")]


def twin_share(thumbnails: NDArray[np.float32]) -> float:
    """Share of rows that correlate with an earlier row; rows have mean 0 and length 1."""
    alike = np.tril(thumbnails @ thumbnails.T >= TWINS, -1)
    return float(alike.any(axis=1).mean())


def required(dataset: Dataset, validation: Validation) -> list[Concern]:
    """Classes that the gate asks for and whose objects the samples to be judged have too few of: its answer would be Inconclusive, after a build."""
    if not validation.required_classes or (shown := dataset.instances(device_indices(validation, dataset, None))) is None:
        return []
    few = {name: shown.get(name, 0) for name in sorted(set(validation.required_classes)) if shown.get(name, 0) < validation.min_instances}
    if not few:
        return []
    found = _named([f"{name} ({count})" for name, count in few.items()])
    of = f"{len(few)} of {len(set(validation.required_classes))} requiredClasses"
    known = f"; it knows {_named(list(shown)) or 'none by name'}" if not few.keys() <= shown.keys() else ""
    message = f"the validation set has fewer than {validation.min_instances} samples or objects of {of}: {found}{known}."
    hint = "Correct validation.requiredClasses, add samples, or lower validation.minInstances: else the gate's answer is Inconclusive."
    return [Concern("warning", "RequiredClassesMissing", message, hint)]


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def compare(calibration: Survey, validation: Survey) -> list[Concern]:
    """What only both sets together show."""
    said: list[Concern] = []
    for name, look in calibration.looks.items():
        other = validation.looks.get(name)
        if other is None or not look.lows or not other.lows or min(look.peak, other.peak) <= 0:
            continue
        if max(look.peak, other.peak) / min(look.peak, other.peak) >= APART:
            found = f"input {name!r}: calibration goes to {max(look.highs):.4g}, validation to {max(other.highs):.4g}"
            hint = "Store both sets alike: spec.preprocessing is applied to both."
            message = f"{found} (usual peaks {look.peak:.4g} and {other.peak:.4g}); expected the same range."
            said.append(Concern("error" if look.picture else "warning", "RangesDiffer", message, hint))
    shared = sum(1 for content in calibration.contents if content in validation.contents)
    if shared:
        message = f"{shared} of the {calibration.seen} calibration samples looked at are in the validation set, too; expected none."
        hint = "Calibrate on other samples: on these an engine looks better than it is."
        said.append(Concern("warning", "SharedSamples", message, hint))
    return [*said, *_coverage(calibration.dataset, validation.dataset)]


def _coverage(calibration: Dataset, validation: Dataset) -> list[Concern]:
    """Classes that are judged and not calibrated with, where both sets are labelled with the same names."""
    there, judged = calibration.instances(), validation.instances()
    if there is None or judged is None or not set(calibration.classes) & set(validation.classes):
        return []
    wanted = [name for name, count in judged.items() if count]
    missing = [name for name in wanted if not there.get(name)]
    if not missing:
        return []
    message = f"the calibration set has no samples of {len(missing)} of {len(wanted)} classes that are judged: {_named(sorted(missing))}."
    return [Concern("warning", "ClassesMissing", message, "Add samples of them: what they excite has no range otherwise.")]
