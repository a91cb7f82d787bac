"""Checks of a model before minutes are spent on it: a list of small functions, each yielding findings; all of them are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from onnx import ModelProto, TensorProto

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import EngineFleetError, PermanentError
from enginefleet_api.resources import InputSpec, Profile

from . import model as models
from . import runtime_limits as limits

MOST_NAMED = 5
"""Tensors or nodes that one finding names."""
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


@dataclass(frozen=True, slots=True)
class Finding:
    """`error` ends the Job; `warning` goes into the report's notes."""

    severity: Literal["error", "warning"]
    reason: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: EngineFleetError) -> Finding:
        return cls("error", error.reason, error.message, error.hint)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: the model (without external data in memory), where it lies, and what was asked for."""

    path: Path
    model: ModelProto
    precision: str
    inputs: Sequence[InputSpec]
    quantized_allowed: bool
    """True when the scales are meant to be in the file (calibration from the model)."""


def preflight(path: Path) -> list[Finding]:
    """All findings of the .onnx file at `path` on its own, without data or profiles but for what every target needs."""
    try:
        model = models.read_model(path)
    except EngineFleetError as error:
        return [Finding.of(error)]
    return check(Subject(path, model, "fp32", [], quantized_allowed=True))


def check(subject: Subject) -> list[Finding]:
    return [finding for one in CHECKS for finding in one(subject)]


def refuse(findings: Iterable[Finding]) -> None:
    """Raise one PermanentError for all errors: the first one's reason, every message and hint."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if not errors:
        return
    if len(errors) == 1:
        raise PermanentError(errors[0].reason, errors[0].message, errors[0].hint)
    text = " ".join(f"({number}) {finding.reason}: {finding.message}" for number, finding in enumerate(errors, start=1))
    hints = " ".join(dict.fromkeys(finding.hint for finding in errors if finding.hint))
    raise PermanentError(errors[0].reason, f"{len(errors)} findings: {text}", hints)


def external_data(subject: Subject) -> Iterator[Finding]:
    """A location may only name a file below the model's folder: it comes from outside."""
    seen: set[tuple[str, str]] = set()
    for item in models.external(subject.model):
        found = _external_finding(subject.path.parent, item)
        if found is not None and (found.reason, item.location) not in seen:
            seen.add((found.reason, item.location))
            yield found


def _external_finding(folder: Path, item: models.External) -> Finding | None:
    if not item.safe:
        message = f"tensor {item.tensor} keeps its data in {item.location!r}, expected a path below the model's folder."
        return Finding("error", "ExternalDataUnsafe", message, "Export the model again, with its data beside it.")
    file = folder / item.location
    if not file.is_file():
        message = f"tensor {item.tensor} keeps its data in {item.location}, which is not there."
        return Finding("error", "ExternalDataMissing", message, "Upload it beside the .onnx file and name the folder in model.uri.")
    if not file.resolve().is_relative_to(folder.resolve()):
        message = f"{item.location} is a link that leads out of the model's folder."
        return Finding("error", "ExternalDataUnsafe", message, "Put the file itself there.")
    size, needed = file.stat().st_size, item.offset + (item.length or 0)
    if needed > size:
        message = f"{item.location} has {size} bytes, tensor {item.tensor} needs {needed}."
        return Finding("error", "ExternalDataTruncated", message, "Upload the file again, in whole.")
    return None


def versions(subject: Subject) -> Iterator[Finding]:
    opset, newest = models.opsets(subject.model).get("", 0), limits.newest_opset()
    if opset > newest:
        message = f"the model has opset {opset}, ONNX Runtime {limits.version()} takes at most {newest}."
        yield Finding("error", "OpsetTooNew", message, f"Export it with opset {newest} or lower.")
    ir, newest_ir = subject.model.ir_version, limits.newest_ir()
    if ir > newest_ir:
        message = f"the model has IR version {ir}, ONNX Runtime {limits.version()} takes at most {newest_ir}."
        yield Finding("error", "IrTooNew", message, "Export it with an older onnx package.")


def operators(subject: Subject) -> Iterator[Finding]:
    functions = {("" if item.domain == "ai.onnx" else item.domain, item.name) for item in subject.model.functions}
    unknown: dict[tuple[str, str], list[str]] = {}
    for node in models.nodes(subject.model):
        key = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        if key not in functions and key not in limits.known_operators():
            unknown.setdefault(key, []).append(node.name or f"(output {node.output[0] if node.output else '?'})")
    for (domain, op), names in sorted(unknown.items()):
        where = f"operator {op}" + (f" of domain {domain}" if domain else "")
        message = f"{where} is unsupported in ONNX Runtime {limits.version()}; used by {_named(names)}."
        yield Finding("error", "UnsupportedOp", message, "Export the model without it.")


def profiles(subject: Subject) -> Iterator[Finding]:
    by_name = {spec.name: spec for spec in models.inputs(subject.model)}
    for asked in subject.inputs:
        spec = by_name.get(asked.name)
        if spec is None:
            message = f"spec.inputs names {asked.name!r}, the model's inputs are {sorted(by_name)}."
            yield Finding("error", "UnknownInput", message, "Correct the name.")
            continue
        for profile in asked.profiles:
            yield from _profile_findings(spec, profile)
    given = {asked.name for asked in subject.inputs}
    for name, spec in by_name.items():
        dynamic = [axis for axis, size in enumerate(spec.shape) if not isinstance(size, int)]
        # ONNX Runtime takes any size; a free batch axis needs no decision, other axes must be pinned to what is calibrated and measured
        if dynamic in ([], [0]) or name in given:
            continue
        message = f"input {name!r} has the shape {_shape(spec)}, and spec.inputs has no profile for it."
        yield Finding("error", "ProfileMissing", message, "Add a profile with min, opt and max.")


def _profile_findings(spec: TensorSpec, profile: Profile) -> Iterator[Finding]:
    shapes = {"min": profile.min, "opt": profile.opt, "max": profile.max}
    for kind, shape in shapes.items():
        if len(shape) != len(spec.shape):
            message = f"profile {kind} of input {spec.name!r} is {shape}, the model's shape is {_shape(spec)}: {len(spec.shape)} axes."
            yield Finding("error", "ProfileMismatch", message, "Correct the profile.")
        elif any(isinstance(want, int) and want != have for want, have in zip(spec.shape, shape, strict=True)):
            message = f"profile {kind} of input {spec.name!r} is {shape}, the model's shape is {_shape(spec)}."
            yield Finding("error", "ProfileMismatch", message, "Fixed axes cannot change: correct the profile or export with dynamic axes.")
    if len({len(shape) for shape in shapes.values()}) == 1 and not all(
        low <= best <= high for low, best, high in zip(profile.min, profile.opt, profile.max, strict=True)
    ):
        message = f"profile of input {spec.name!r} has min {profile.min}, opt {profile.opt}, max {profile.max}, expected min <= opt <= max."
        yield Finding("error", "ProfileMismatch", message, "Correct the profile.")


def quantized(subject: Subject) -> Iterator[Finding]:
    found = models.count(subject.model, models.QUANTIZED)
    if subject.precision == "int8" and found and not subject.quantized_allowed:
        message = f"int8 is asked for with a calibration set, but the model holds {found} quantizing nodes already."
        yield Finding("error", "AlreadyQuantized", message, "Set calibration.source to model, or give the model before quantization.")
    if subject.precision == "int8" and not found and subject.quantized_allowed:
        message = "calibration.source is model, but the model holds no quantizing nodes."
        yield Finding("error", "NotQuantized", message, "Give a calibration set, or a model with scales (QAT).")


def numbers(subject: Subject) -> Iterator[Finding]:
    bad: list[str] = []
    infinite: list[str] = []
    folder = subject.path.parent
    unreadable = {item.tensor for item in models.external(subject.model) if _external_finding(folder, item) is not None}
    for tensor in models.tensors(subject.model):
        if tensor.data_type not in FLOATS:
            continue
        if tensor.name in unreadable:
            continue  # a finding of its own says so
        # a copy: reading external data would leave it in the model's memory
        values = onnx.numpy_helper.to_array(_copy(tensor), str(folder))
        if np.isnan(values).any():
            bad.append(tensor.name)
        elif np.isinf(values).any():
            infinite.append(tensor.name)
    if bad:
        yield Finding("error", "NonFiniteWeights", f"NaN stands in {_named(bad)}.", "The training diverged or the file is damaged.")
    if infinite:
        # attention masks hold -inf on purpose
        yield Finding("warning", "InfiniteWeights", f"infinite values stand in {_named(infinite)}.", "Fine for masks, not for weights.")


def _copy(tensor: TensorProto) -> TensorProto:
    copied = TensorProto()
    copied.CopyFrom(tensor)
    return copied


CHECKS: Sequence[Callable[[Subject], Iterator[Finding]]] = (external_data, versions, operators, profiles, quantized, numbers)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _shape(spec: TensorSpec) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in spec.shape) + "]"
