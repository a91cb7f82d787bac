"""The fewest layers to keep in higher precision so that an INT8 model comes close to FP32: found by measuring, on calibration samples only.

Each layer is quantized alone and the noise that this adds to the outputs is measured. Then layers are freed in the order of their noise: as few
as bring the whole model's noise below the target, and of those again the ones that turn out not to be needed are given back.
Nothing is calibrated again: scales stay, Q/DQ nodes go (qdq.keep). The same inputs give the same answer unless time runs out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from enginefleet_api.errors import EngineFleetError

from ..backends import ort_session
from ..backends.classify import refused
from ..backends.threads import resolve_threads
from ..gate.arrays import Array, Floats64
from ..io import Progress
from .feeds import Feed
from .qdq import Layer, keep

TARGET_DB = 25.0
"""Signal to noise at the outputs that counts as close to FP32; plain INT8 of a well-behaved network has 20 to 35."""
GAIN_DB = 6.0
"""A repaired model is at least this much better than the plain one, whose gate has failed: half the error."""
MOST_KEPT = 0.5
"""Share of the layers that may stay in higher precision. Beyond it the model is hardly INT8 any more."""
MOST_RUNS = 250
MOST_SECONDS = 900.0
BLOCKS = 96
"""Layers are measured one by one up to this many, beyond that in blocks of neighbours."""
NAMED = 20
"""Layers that the recipe lists with their noise."""


@dataclass(slots=True)
class Budget:
    """Runs of the whole sample set, and seconds. `spent`: why the search had to end early, or empty."""

    runs: int = MOST_RUNS
    seconds: float = MOST_SECONDS
    clock: Callable[[], float] = time.monotonic
    used: int = 0
    spent: str = ""
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    def take(self) -> bool:
        """Whether one more run may be made."""
        if self.used >= self.runs:
            self.spent = f"{self.runs} runs"
        elif self.clock() - self._began >= self.seconds:
            self.spent = f"{self.seconds:g} s"
        else:
            self.used += 1
        return not self.spent


@dataclass(frozen=True, slots=True)
class Found:
    """`kept`: the layers to keep in higher precision, in the graph's order. Noise is a share of the signal's power."""

    kept: tuple[Layer, ...]
    plain: float
    noise: float
    target: float
    alone: Mapping[str, float]
    """Noise of each layer (or block, by its first one) quantized alone."""
    spent: str

    @property
    def reached(self) -> bool:
        return self.noise <= self.target


Measure = Callable[[Iterable[str]], float]
"""The noise of the model in which the named nodes are kept in higher precision."""


def search(layers: Sequence[Layer], measure: Measure, budget: Budget, shown: Callable[[int], None] = lambda _: None) -> Found:
    """Pure but for `measure` and the budget's clock. `shown`: called with the runs made."""

    def noise(freed: Iterable[Layer]) -> float:
        shown(budget.used)
        return measure(node for layer in freed for node in layer.nodes)

    budget.take()
    plain = noise([])
    target = min(ratio(TARGET_DB), plain * ratio(GAIN_DB))
    most = max(1, int(len(layers) * MOST_KEPT))
    blocks = _blocks(layers)
    alone: dict[str, float] = {}
    for block in blocks:
        if not budget.take():
            break
        alone[block[0].name] = noise(layer for layer in layers if layer not in block)
    loud = sorted((block for block in blocks if block[0].name in alone), key=lambda block: -alone[block[0].name])
    freed, best = _fewest(loud, noise, target, most, plain, budget)
    # the quietest first: most likely not needed
    for layer in reversed(freed):
        if len(freed) == 1 or best > target or not budget.take():
            break
        without = [one for one in freed if one is not layer]
        if (left := noise(without)) <= target:
            freed, best = without, left
    chosen = {layer.name for layer in freed}
    return Found(tuple(layer for layer in layers if layer.name in chosen), plain, best, target, alone, budget.spent)


def _fewest(
    loud: Sequence[Sequence[Layer]], noise: Callable[[Iterable[Layer]], float], target: float, most: int, plain: float, budget: Budget
) -> tuple[list[Layer], float]:
    """The shortest beginning of `loud` (loudest first) that meets the target, by halving; the best one seen when none does."""
    sizes = [size for size in range(1, len(loud) + 1) if sum(map(len, loud[:size])) <= most] or ([1] if loud else [])
    best: tuple[list[Layer], float] = ([], plain)
    low, high = 0, len(sizes) - 1
    place = high  # the longest one tells whether it can be met at all
    while sizes and low <= high and budget.take():
        freed = [layer for block in loud[: sizes[place]] for layer in block]
        found = noise(freed)
        met = found <= target
        if met or (best[1] > target and found < best[1]):
            best = freed, found
        if met:
            high = place - 1
        elif place == len(sizes) - 1:
            break
        else:
            low = place + 1
        place = (low + high) // 2
    return best


def _blocks(layers: Sequence[Layer]) -> list[Sequence[Layer]]:
    size = max(1, math.ceil(len(layers) / BLOCKS))
    return [layers[start : start + size] for start in range(0, len(layers), size)]


def ratio(decibels: float) -> float:
    return float(10 ** (-decibels / 10))


def decibels(noise: float) -> str:
    """Signal to noise as decimal text; `inf` without noise."""
    return f"{-10 * math.log10(noise):.1f}" if noise > 0 else "inf"


class Outputs:
    """Runs models on a few samples and compares their floating-point outputs with those of the original.

    Signal is what differs between samples: an output that is nearly constant would hide its noise behind its size.
    """

    def __init__(self, original: Path | bytes, feeds: Sequence[Feed], progress: Progress) -> None:
        self._feeds, self._progress = feeds, progress
        self._threads = resolve_threads("auto")
        self._reference = self._run(original)
        self._signal = {name: _power(parts) for name, parts in self._reference.items()}

    def _run(self, model: Path | bytes) -> dict[str, list[Floats64]]:
        found: dict[str, list[Floats64]] = {}
        try:
            # `basic` computes Q/DQ as they are written; machines differ in what they make of them beyond that
            session = ort_session.load(model, self._threads, "basic")
            names = [item.name for item in session.get_outputs()]
            for feed in self._feeds:
                self._progress.check()
                for name, output in zip(names, session.run(None, dict(feed)), strict=True):
                    if isinstance(output, np.ndarray) and output.dtype.kind == "f":
                        found.setdefault(name, []).append(output.astype(np.float64))
        except (EngineFleetError, MemoryError):
            raise
        # the binding's own exception types are private
        except Exception as error:
            raise refused(f"{type(error).__name__}: {error}", "run") from error
        return found

    def noise(self, model: Path | bytes) -> float:
        """The largest of all outputs' noise, as a share of the signal's power; NaN, infinite and misshapen outputs count as nothing but noise."""
        found = self._run(model)
        return max((self._noise(name, found.get(name, [])) for name in self._reference), default=0.0)

    def _noise(self, name: str, found: Sequence[Array]) -> float:
        reference, error = self._reference[name], 0.0
        for before, after in zip(reference, found, strict=True) if len(found) == len(reference) else ():
            if before.shape != after.shape:
                return 1.0
            error += float(np.square(after - before).sum())
        signal = self._signal[name]
        if len(found) != len(reference) or not math.isfinite(error):
            return math.inf
        return error / signal if signal > 0 else (0.0 if error == 0 else math.inf)


class Cosines:
    """Cosines of floating-point outputs, over all samples that are added: how alike two models are, in one number."""

    def __init__(self) -> None:
        self._sums: dict[str, Floats64] = {}

    def add(self, before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
        for name, reference in before.items():
            found = after.get(name)
            if reference.dtype.kind != "f":
                continue
            if found is None or found.shape != reference.shape:
                parts = np.array([0.0, 1.0, 1.0])
            else:
                a, b = (array.astype(np.float64).ravel() for array in (reference, found))
                parts = np.array([a @ b, a @ a, b @ b])
            self._sums[name] = self._sums.get(name, np.zeros(3)) + parts

    @property
    def smallest(self) -> float:
        """NaN when a value is not finite; 1 without floating-point outputs."""
        values = [1.0]
        for product, before, after in self._sums.values():
            size = math.sqrt(before * after) if math.isfinite(before * after) else math.nan
            values.append(product / size if size else float(before == after))
        return float(np.min(values))


def _power(parts: Sequence[Floats64]) -> float:
    """The power of what differs between samples (first axis); all of it where nothing can be told apart."""
    if all(part.ndim and part.shape[1:] == parts[0].shape[1:] for part in parts):
        rows = np.concatenate(parts)
        varying = float(np.square(rows - rows.mean(axis=0)).sum())
        if varying > 0:
            return varying
    return sum(float(np.square(part).sum()) for part in parts)


def repair(quantized: ModelProto, original: ModelProto, layers: Sequence[Layer], outputs: Outputs, progress: Progress) -> Found:
    """The search on real models. `original`: folded, with the names of `quantized` and its weights in memory."""

    def measure(names: Iterable[str]) -> float:
        return outputs.noise(keep(quantized, list(names), original).SerializeToString())

    seconds = min(MOST_SECONDS, progress.remaining() / 2)
    return search(layers, measure, Budget(seconds=seconds), lambda runs: progress("repair: measure layers", runs, len(layers)))


def recipe(found: Found) -> dict[str, Any]:
    """For the manifest: signal to noise in decibels before and after, and of the loudest layers quantized alone."""
    loudest = sorted(found.alone.items(), key=lambda item: -item[1])[:NAMED]
    return {
        "sqnr": {"plain": decibels(found.plain), "repaired": decibels(found.noise), "target": decibels(found.target)},
        "sensitivity": [{"layer": name, "sqnr": decibels(noise)} for name, noise in loudest],
    }
