"""What prepare repairs in a model without changing what it computes. Findings of severity `cured` announce it; here it is done.

A model with nothing to cure is left alone, byte for byte; the same file gives the same cured bytes. What is cured is compared with what was
given: both run in ONNX Runtime on the same inputs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import EngineFleetError, PermanentError
from enginefleet_api.resources import InputSpec

from ..backends.onnxruntime import open_session
from ..gate.arrays import Array
from ..io import Progress
from . import checks, target_checks
from . import model as models
from . import runtime_limits as limits
from .checks import Subject
from .opsets import lowered_opset

FOLDER = "cured"
TOLERANCE = 1e-6
"""Largest difference of outputs, as a share of the largest output."""
SEEDS = (1, 2)
MOST_INPUT_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Cured:
    """`path` is the given file when there was nothing to cure. `notes` say what was cured and how it was checked."""

    path: Path
    notes: tuple[str, ...]


# ---- in the child process ----


def apply(subject: Subject) -> bool:
    """Cure the model of `subject` in place; whether anything was done. Only what a finding says is touched."""
    findings = [*checks.check(subject), *target_checks.check(subject)]
    wanted = {finding.reason for finding in findings if finding.severity == "cured"}
    for reason, cure in CURES.items():
        if reason in wanted:
            cure(subject)
    return bool(wanted)


def write(subject: Subject, folder: Path) -> Path:
    """The model of `subject` in `folder`, with its external data beside it (hard links where the file system allows)."""
    target = folder / subject.path.name
    for location in sorted({item.location for item in models.external(subject.model)}):
        copy = folder / location
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(subject.path.parent / location, copy)
        except OSError:
            shutil.copyfile(subject.path.parent / location, copy)
    target.write_bytes(subject.model.SerializeToString(deterministic=True))
    return target


def _sort_nodes(subject: Subject) -> None:
    graph = subject.model.graph
    order = checks.sorted_nodes(graph)
    if order is not None:
        ordered = [_copy(graph.node[index]) for index in order]
        del graph.node[:]
        graph.node.extend(ordered)


def _name_nodes(subject: Subject) -> None:
    """Names for nodes without one, and numbers for all but the first of one name."""
    taken = {node.name for node in subject.model.graph.node}
    seen: set[str] = set()
    for index, node in enumerate(subject.model.graph.node):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        node.name = _free(node.name or f"{node.op_type}_{index}", taken)
        seen.add(node.name)


def _free(stem: str, taken: set[str]) -> str:
    name = stem
    number = 0
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name)
    return name


def _weights_to_initializers(subject: Subject) -> None:
    graph = subject.model.graph
    found = checks.weight_constants(graph)
    moved = {node.output[0] for node in found}
    for node in found:
        tensor = graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
    kept = [_copy(node) for node in graph.node if not (len(node.output) == 1 and node.output[0] in moved)]
    del graph.node[:]
    graph.node.extend(kept)
    _at_least_ir(subject, 4)


def _weights_out_of_inputs(subject: Subject) -> None:
    graph = subject.model.graph
    stored = {tensor.name for tensor in graph.initializer}
    kept = [_copy(item) for item in graph.input if item.name not in stored]
    del graph.input[:]
    graph.input.extend(kept)
    _at_least_ir(subject, 4)


def _at_least_ir(subject: Subject, version: int) -> None:
    """IR 3 wants every initializer among the inputs."""
    subject.model.ir_version = max(subject.model.ir_version, version)


def _drop_unused(subject: Subject) -> None:
    graph = subject.model.graph
    used = checks.used(graph)
    kept = [_copy(tensor) for tensor in graph.initializer if tensor.name in used]
    gone = {tensor.name for tensor in graph.initializer} - used
    inputs = [_copy(item) for item in graph.input if item.name not in gone]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    del graph.input[:]
    graph.input.extend(inputs)


def _free_negative(subject: Subject) -> None:
    for dim in _dims(subject.model):
        if dim.HasField("dim_value") and dim.dim_value == -1:
            dim.Clear()


def _name_dimensions(subject: Subject) -> None:
    """Each axis of such a name its own in the inputs; elsewhere, where it says nothing, none."""
    graph = subject.model.graph
    names = set(checks.alike(subject.model, subject.asked.inputs))
    taken = {dim.dim_param for dim in _dims(subject.model)}
    fed = {spec.name for spec in models.inputs(subject.model)}
    for item in graph.input:
        for axis, dim in enumerate(item.type.tensor_type.shape.dim):
            if item.name in fed and dim.dim_param in names:
                dim.dim_param = _free(re.sub(r"\W", "_", f"{item.name[:64]}_{axis}"), taken)
    for dim in _dims(subject.model):
        if dim.dim_param in names:
            dim.Clear()


def _dims(model: ModelProto) -> Iterator[Any]:
    for graph in models.graphs(model):
        for item in (*graph.input, *graph.output, *graph.value_info):
            yield from item.type.tensor_type.shape.dim


def _lower_ir(subject: Subject) -> None:
    subject.model.ir_version = min(subject.model.ir_version, limits.newest_ir())


def _lower_opset(subject: Subject) -> None:
    ceilings = sorted({limits.newest_opset(), *target_checks.opset_ceilings(subject)})
    lowered = next((ceiling for ceiling in ceilings if lowered_opset(subject.model, ceiling) is not None), None)
    for item in subject.model.opset_import:
        if item.domain in ("", "ai.onnx") and lowered is not None:
            item.version = lowered


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


CURES: dict[str, Callable[[Subject], None]] = {
    "OpsetTooNew": _lower_opset,
    "IrTooNew": _lower_ir,
    "NodesUnsorted": _sort_nodes,
    "ConstantWeights": _weights_to_initializers,
    "WeightsAsInputs": _weights_out_of_inputs,
    "UnusedTensors": _drop_unused,
    "NegativeDimension": _free_negative,
    "DimensionsNamedAlike": _name_dimensions,
    "DuplicateNodeNames": _name_nodes,
    "NodesUnnamed": _name_nodes,
}
"""By the finding's reason, in the order in which they are applied."""


# ---- in the prepare Job ----


def compare(given: Path, cured: Path, profiles: Sequence[InputSpec], progress: Progress) -> str:
    """A note about how far the outputs lie apart. Raises PermanentError `CureChangedOutputs`, and what loading the cured one raises.

    Both run on the same random inputs; where ONNX Runtime does not load the given file (that may be what was cured), the cured one must.
    """
    with open_session(cured, "auto", progress) as after:
        inputs = after.inputs
        try:
            with open_session(given, "auto", progress) as before:
                return _compare(before.run, after.run, inputs, profiles, progress)
        except PermanentError as error:
            if error.reason == "CureChangedOutputs":
                raise
            return f"the cured model loads in ONNX Runtime; the given one does not run there ({error.reason}), so outputs were not compared"


Run = Callable[[dict[str, Array]], dict[str, Array]]


def _compare(before: Run, after: Run, inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], progress: Progress) -> str:
    worst = 0.0
    for seed in SEEDS:
        feeds = random_feeds(inputs, profiles, seed)
        if feeds is None:
            return "the inputs are too large to compare outputs on"
        progress("preflight: compare the cured model with the given one")
        try:
            expected = before(feeds)
        except EngineFleetError as error:
            return f"the given model does not run on random inputs ({error.reason}), so outputs were not compared"
        found = after(feeds)
        for name, value in expected.items():
            difference = _difference(value, found.get(name))
            if not difference <= TOLERANCE:
                message = f"output {name} of the cured model differs by {difference:.3g} of its range, expected at most {TOLERANCE:g}."
                raise PermanentError("CureChangedOutputs", message, "Please report it with the model.")
            worst = max(worst, difference)
    return f"the cured model's outputs equal the given one's on {len(SEEDS)} random inputs (largest difference {worst:.1g} of the range)"


def _difference(expected: Array, found: Array | None) -> float:
    if found is None or expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    if expected.dtype.kind not in "fiub" or not expected.size:
        return 0.0 if np.array_equal(expected, found) else float("inf")
    left, right = expected.astype(np.float64), found.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if same.all():
        return 0.0
    return float(np.max(np.where(same, 0.0, np.abs(left - right))) / max(1e-30, float(np.nanmax(np.abs(left)))))


def random_feeds(inputs: Sequence[TensorSpec], profiles: Sequence[InputSpec], seed: int) -> dict[str, Array] | None:
    """One input each: free axes as the first profile tunes for, else 2 for the batch and 8; None when that is too large."""
    random = np.random.default_rng(seed)
    chosen = {spec.name: spec.profiles[0].opt for spec in profiles if spec.profiles}
    feeds: dict[str, Array] = {}
    for spec in inputs:
        free = [2 if axis == 0 else 8 for axis in range(len(spec.shape))]
        wanted = chosen.get(spec.name, free)
        wanted = wanted if len(wanted) == len(spec.shape) else free
        shape = [size if isinstance(size, int) and size > 0 else wanted[axis] for axis, size in enumerate(spec.shape)]
        if int(np.prod(shape, dtype=np.float64)) > MOST_INPUT_BYTES // 8:
            return None
        feeds[spec.name] = _random(random, spec.dtype, shape)
    return feeds


def _random(random: np.random.Generator, dtype: str, shape: Sequence[int]) -> Array:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return random.uniform(0, 1, shape).astype(kind)
    # small: integers are often indices
    return random.integers(0, 2, shape).astype(kind)
