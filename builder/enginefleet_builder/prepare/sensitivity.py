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
from typing import Any

import numpy as np
import onnx
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
SQUASHING = ("Softmax", "Sigmoid", "LogSoftmax")
PASSING = ("Identity", "Cast", "Mul", "Add", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose")
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
    """The shortest beginning of `loud` (loudest first) that meets the target: by doubling, then by halving; the best one seen when none does.

    Noise need not fall with every layer that is freed, so no length is ruled out by a shorter one.
    """
    limit = max((size for size in range(1, len(loud) + 1) if sum(map(len, loud[:size])) <= most), default=min(1, len(loud)))
    best: tuple[list[Layer], float] = ([], plain)
    failed, size, met = 0, 1, 0
    while not met and failed < limit and budget.take():
        freed = [layer for block in loud[:size] for layer in block]
        found = noise(freed)
        best = min(best, (freed, found), key=lambda item: item[1])
        met, failed, size = (size, failed, size) if found <= target else (0, size, min(2 * size, limit))
    while met - failed > 1 and budget.take():
        size = (failed + met) // 2
        freed = [layer for block in loud[:size] for layer in block]
        found = noise(freed)
        if found <= target:
            best, met = (freed, found), size
        else:
            failed = size
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

    Signal is what differs between samples: an output that is nearly constant would hide its noise behind its size. Where a Softmax or Sigmoid
    gives an output, what it reads is compared: near 0 and 1 everything looks alike.
    """

    def __init__(self, original: ModelProto, feeds: Sequence[Feed], progress: Progress) -> None:
        self._feeds, self._progress = feeds, progress
        self._threads = resolve_threads("auto")
        self._squashed = {item.name: _squashing(original, item.name) for item in original.graph.output}
        self._reference = self._run(original)
        self._signal = [_power(parts) for parts in self._reference]

    def _run(self, model: ModelProto) -> list[list[Floats64]]:
        """A list of batches for each output; empty where it is none of floating-point numbers."""
        opened = ModelProto()
        opened.CopyFrom(model)
        reads = {node.name: node.input[0] for node in opened.graph.node if node.op_type in SQUASHING}
        names = [reads.get(self._squashed.get(item.name, ""), item.name) for item in opened.graph.output]
        standing = {item.name for item in opened.graph.output}
        opened.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(names) if name not in standing)
        found: list[list[Floats64]] = [[] for _ in names]
        try:
            # `basic` computes Q/DQ as they are written; machines differ in what they make of them beyond that
            session = ort_session.load(opened.SerializeToString(), self._threads, "basic")
            for feed in self._feeds:
                self._progress.check()
                for place, output in enumerate(session.run(names, dict(feed))):
                    if isinstance(output, np.ndarray) and output.dtype.kind == "f":
                        found[place].append(output.astype(np.float64))
        except (EngineFleetError, MemoryError):
            raise
        # the binding's own exception types are private
        except Exception as error:
            raise refused(f"{type(error).__name__}: {error}", "run") from error
        return found

    def noise(self, model: ModelProto) -> float:
        """The largest of all outputs' noise, as a share of the signal's power; infinite for NaN and for outputs of another shape."""
        found = self._run(model)
        return max((self._noise(place, found[place]) for place, parts in enumerate(self._reference) if parts), default=0.0)

    def _noise(self, place: int, found: Sequence[Floats64]) -> float:
        reference, signal, error = self._reference[place], self._signal[place], 0.0
        if [part.shape for part in reference] != [part.shape for part in found]:
            return math.inf
        for before, after in zip(reference, found, strict=True):
            error += float(np.square(after - before).sum())
        if not math.isfinite(error):
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


def _squashing(model: ModelProto, output: str) -> str:
    """The name of the Softmax or Sigmoid that makes an output, with nothing but moves and scaling behind it; empty without one."""
    producer = {name: node for node in model.graph.node for name in node.output}
    stored = {tensor.name for tensor in model.graph.initializer}
    node = producer.get(output)
    while node is not None and node.op_type in PASSING:
        made = [name for name in node.input if name not in stored and name in producer]
        node = producer[made[0]] if len(made) == 1 else None
    return node.name if node is not None and node.op_type in SQUASHING else ""


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
        return outputs.noise(keep(quantized, list(names), original))

    seconds = min(MOST_SECONDS, progress.remaining() / 2)
    return search(layers, measure, Budget(seconds=seconds), lambda runs: progress("repair: measure layers, runs at most", runs, MOST_RUNS))


def recipe(found: Found) -> dict[str, Any]:
    """For the manifest: signal to noise in decibels before and after, and of the loudest layers quantized alone."""
    loudest = sorted(found.alone.items(), key=lambda item: -item[1])[:NAMED]
    return {
        "sqnr": {"plain": decibels(found.plain), "repaired": decibels(found.noise), "target": decibels(found.target)},
        "sensitivity": [{"layer": name, "sqnr": decibels(noise)} for name, noise in loudest],
    }
