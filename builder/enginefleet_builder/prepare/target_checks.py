"""What preflight looks for in a model with its targets in mind: the table in targets.json against the file and what is asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto

from enginefleet_api.fingerprint import BACKEND_NAMES
from enginefleet_api.flavours import ONNXRUNTIME, flavour_of, release
from enginefleet_api.jobs import PreflightTarget

from ..backends.onnxruntime import MAX_MODEL_BYTES
from . import model as models
from . import targets
from .checks import Subject, model_bytes, shape_text, used_operators
from .findings import Finding, clean, named
from .opsets import HIGHEST, lowered_opset

CONTROL_FLOW = ("If", "Loop", "Scan")
DATA_DEPENDENT = ("NonZero", "NonMaxSuppression", "Unique", "Compress")
"""Operators whose output's size follows from values, not from sizes."""
JETSON_ONLY_DLA = ("7.2", "8.7")
"""Compute capabilities of boards that have a DLA at all."""


def check(subject: Subject) -> list[Finding]:
    """Findings about each target, each once. Errors name it: what one target lacks keeps nobody else from being served."""
    found = [_about(finding, target) for target in subject.asked.targets for one in CHECKS for finding in one(subject, target)]
    if not subject.asked.targets:
        found += without_class(subject)
    return list(dict.fromkeys(found))


def _about(finding: Finding, target: PreflightTarget) -> Finding:
    return replace(finding, target=target.id or target.name) if finding.severity == "error" else finding


def _called(target: PreflightTarget) -> str:
    backend = BACKEND_NAMES[target.backend]
    return f"class {clean(target.name)} ({backend} {clean(target.version or 'of unknown version')})"


def _release(subject: Subject, target: PreflightTarget) -> targets.TensorRT | None:
    if target.backend != "tensorrt" or target.version is None:
        return None
    return targets.tensorrt(subject.table, target.version)


def known(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if target.backend == "tensorrt" and target.version is None:
        message = f"{_called(target)}: neither its probes nor its image's name {clean(target.image)!r} tell the release; opset and operators are not checked."
        hint = "Give the class as `kubectl get hardwareclass NAME -o yaml` prints it, with its status."
        if re.search(r":[0-9]{2}\.[0-9]{2}-", target.image):
            hint += " The tag is a date; which TensorRT it holds, the table of targets can be told (docs/preflight.md)."
        yield Finding("warning", "TargetUnknown", message, hint)
    elif target.backend == "tensorrt" and _release(subject, target) is None:
        oldest = subject.table.tensorrt[0].release
        message = f"{_called(target)} is older than {oldest}, the first release that is supported."
        yield Finding("error", "PlatformMismatch", message, f"Use an image with TensorRT {oldest} or newer.")


def opset(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    have = models.opsets(subject.model).get("", 0)
    takes, documented = _newest_opset(subject, target)
    if takes is not None and have > takes:
        message = f"the model has opset {have}, {_called(target)} takes at most {takes}."
        lowered = lowered_opset(subject.model, takes)
        if lowered is not None:
            note = f"{message[:-1]}; no operator of it changed since opset {lowered}, so the number is lowered."
            yield Finding("cured", "OpsetTooNew", note)
        elif takes >= HIGHEST.get(flavour_of(target.backend, target.version) or "", takes + 1):
            yield Finding(
                "warning", "OpsetTooNew", f"{message[:-1]}; prepare converts it, and compares.", f"Export it with opset {takes} or lower."
            )
        elif documented:
            hint = f"Export it with opset {takes} or lower: parsers fail above it with words that name something else."
            yield Finding("error", "OpsetTooNew", message, hint)
        else:
            message = f"{message[:-1]} as far as is documented (for {_documented_for(subject, target)})."
            yield Finding("warning", "OpsetTooNew", message, f"If the build fails, export it with opset {takes} or lower.")
    entry = targets.onnxruntime(subject.table, target.version) if target.backend == "onnxruntime" and target.version else None
    if entry is not None and subject.model.ir_version > entry.ir:
        message = f"the model has IR version {subject.model.ir_version}, {_called(target)} takes at most {entry.ir}."
        yield Finding("error", "IrTooNew", message, "Export it with an older onnx package.")


def _newest_opset(subject: Subject, target: PreflightTarget) -> tuple[int | None, bool]:
    """(the newest opset that the target takes, None where unknown; whether that stands in the documentation of this very release)."""
    if target.version is None:
        return None, False
    if target.backend == "onnxruntime":
        entry = targets.onnxruntime(subject.table, target.version)
        return (entry.opset, True) if entry else (None, False)
    found = _release(subject, target)
    if found is None:
        return None, False
    return found.opset, release(target.version)[:2] == release(found.opset_of)[:2]


def opset_ceilings(subject: Subject) -> list[int]:
    """The newest opsets that the targets take, where known."""
    found = [_newest_opset(subject, target)[0] for target in subject.asked.targets]
    return [ceiling for ceiling in found if ceiling is not None]


def _documented_for(subject: Subject, target: PreflightTarget) -> str:
    found = _release(subject, target)
    return f"TensorRT {found.opset_of}" if found else "another release"


def operators(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    """Operators that a parser lacks. What ONNX Runtime lacks too is a finding of its own."""
    found = _release(subject, target)
    if found is None:
        return
    unknown: dict[tuple[str, str], list[str]] = {}
    for domain, op, name in used_operators(subject.model):
        if domain != "" or op in found.unsupported:
            unknown.setdefault((domain, op), []).append(name)
    severity: Literal["error", "warning"] = "warning" if target.plugins else "error"
    for (domain, op), names in sorted(unknown.items()):
        where = f"operator {clean(op)}" + (f" of domain {clean(domain)}" if domain else "")
        message = f"{where} is unsupported in {_called(target)}; used by {named(names)}."
        hint = "Export the model without it, or name a plugin library that has it in spec.build.plugins."
        if target.plugins:
            hint = f"Whether {named(target.plugins)} has it shows when the engine is built."
        yield Finding(severity, "UnsupportedOp", message, hint)


def dynamic_outputs(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if target.backend == "onnxruntime":
        return
    for ops, reason, what, hint in (
        (
            DATA_DEPENDENT,
            "DataDependentShape",
            "have outputs whose size depends on values",
            "Export without it, and do this part after inference.",
        ),
        (CONTROL_FLOW, "ControlFlow", "are control flow", "Export without it where you can: branches and loops are built apart, and slow."),
    ):
        names = [
            node.name or node.op_type for node in models.nodes(subject.model) if node.op_type in ops and node.domain in ("", "ai.onnx")
        ]
        if names:
            message = f"{named(names)} {what}, which {_called(target)} takes with limits only."
            yield Finding("warning", reason, message, hint)


def input_types(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    found = _release(subject, target)
    if found is None:
        return
    for spec in models.inputs(subject.model):
        if spec.dtype in found.cast:
            message = f"input {clean(spec.name)!r} is {spec.dtype}; {_called(target)} takes it as int32, so callers must feed that."
            yield Finding("warning", "InputTypeNarrowed", message, "Export the model with int32 inputs.")
        elif spec.dtype not in found.input_types:
            message = f"input {clean(spec.name)!r} is {spec.dtype}, {_called(target)} takes {', '.join(found.input_types)}."
            yield Finding("error", "InputType", message, "Export the model with one of these types, and convert inside of it.")


def batch_profile(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    """ONNX Runtime takes any batch; an engine is built for a range of them. Other free axes are everybody's: see checks.profiles."""
    if target.backend == "onnxruntime":
        return
    given = {asked.name for asked in subject.asked.inputs}
    for spec in models.inputs(subject.model):
        if spec.name not in given and models.free_axes(spec) == [0]:
            shape = f"input {clean(spec.name)!r} has the shape {shape_text(spec)}"
            message = f"{shape}, and spec.inputs has no profile for it, which {_called(target)} needs."
            yield Finding("error", "ProfileMissing", message, "Add a profile with min, opt and max.")


def precision(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if target.backend != "tensorrt":
        return
    found = _release(subject, target)
    device = targets.hardware(subject.table, target.compute_capability) if target.compute_capability else None
    for wanted in subject.asked.precisions:
        lacking = ""
        if found is not None and wanted not in found.precisions:
            lacking = f"TensorRT {target.version} has {', '.join(found.precisions)}"
        elif device is not None and wanted not in device.precisions:
            lacking = f"compute capability {device.compute_capability} ({device.devices}) has {', '.join(device.precisions)}"
        if lacking:
            message = f"precision {wanted} is not to be had in {_called(target)}: {lacking}."
            severity: Literal["error", "warning"] = "warning" if subject.asked.best_effort else "error"
            yield Finding(severity, "PrecisionNotSupported", message, "Ask for one of these, or for auto.", precisions=(wanted,))


def platform(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    """TensorRT release x JetPack x GPU generation."""
    found = _release(subject, target)
    capability = target.compute_capability
    if found is not None and capability and release(capability) < release(found.min_compute_capability):
        fitting = [entry.release for entry in subject.table.tensorrt if _runs_on(subject, entry.release, capability)]
        message = (
            f"{_called(target)} needs compute capability {found.min_compute_capability} or higher, the device has {clean(capability)}."
        )
        hint = f"Use an image with TensorRT {fitting[-1]} or of that age." if fitting else "No release that is supported runs there."
        yield Finding("error", "PlatformMismatch", message, hint)
    board = targets.jetpack(subject.table, target.l4t) if target.l4t else None
    if board is None:
        return
    if capability and capability not in board.compute_capabilities:
        these = ", ".join(board.compute_capabilities)
        where = f"L4T {clean(target.l4t or '')} (JetPack {board.jetpack})"
        message = f"{_called(target)}: {where} is for compute capabilities {these}, the device has {clean(capability)}."
        yield Finding("error", "PlatformMismatch", message, "Use an image of the JetPack that the board runs.")
    releases = [release(entry) for entry in board.tensorrt]
    if target.backend == "tensorrt" and target.version and release(target.version)[:2] not in [item[:2] for item in releases]:
        message = f"{_called(target)} does not go with L4T {clean(target.l4t or '')} (JetPack {board.jetpack}), which has TensorRT {', '.join(board.tensorrt)}."
        yield Finding("error", "PlatformMismatch", message, "Use an image with one of these, or another JetPack on the board.")


def _runs_on(subject: Subject, version: str, capability: str) -> bool:
    found = targets.tensorrt(subject.table, version)
    return found is not None and release(found.min_compute_capability) <= release(capability)


def dla(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if not target.dla:
        return
    found = _release(subject, target)
    if target.backend != "tensorrt":
        yield Finding("error", "DlaMissing", f"a DLA is asked for in {_called(target)}, which has none.", "Leave spec.build.dla out.")
    elif target.compute_capability and target.compute_capability not in JETSON_ONLY_DLA:
        device = targets.hardware(subject.table, target.compute_capability)
        what = f"compute capability {clean(target.compute_capability)}" + (f" ({device.devices})" if device else "")
        message = f"a DLA is asked for in {_called(target)}: {what} has none."
        hint = "Leave spec.build.dla out, or give this class a ModelDeployment of its own; Jetson Xavier and Orin have one."
        yield Finding("error", "DlaMissing", message, hint)
    elif found is not None and (target.compute_capability or "8.7") not in found.dla:
        drives = f"compute capabilities {', '.join(found.dla)} only" if found.dla else "no DLA"
        fitting = [entry.release for entry in subject.table.tensorrt if (targets.tensorrt(subject.table, entry.release) or found).dla]
        message = f"a DLA is asked for in {_called(target)}, which drives {drives}."
        yield Finding("error", "DlaMissing", message, f"Leave spec.build.dla out, or use TensorRT from {fitting[0]} to 10.7, or 11.4.1.")


def dla_sizes(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if target.dla and target.backend == "tensorrt":
        open_ = [asked.name for asked in subject.asked.inputs if any(not one.min == one.opt == one.max for one in asked.profiles)]
        if open_:
            message = f"a DLA takes fixed sizes only, and profiles of {named(open_)} are ranges: in {_called(target)} what depends on them runs on the GPU."
            yield Finding("warning", "DlaSizes", message, "Give min, opt and max of each profile the same shape.")


def zero_points(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if target.backend != "onnxruntime":
        yield from _zero_points(subject, _called(target))


def without_class(subject: Subject) -> Iterator[Finding]:
    """Where no class is told, as by hand: what can be said all the same of what only some backends take."""
    tensorrt = [flavour for flavour in subject.asked.flavours if flavour != ONNXRUNTIME]
    if tensorrt:
        yield from _zero_points(subject, f"TensorRT (flavour {', '.join(tensorrt)})")
    elif not subject.asked.flavours:
        for finding in _zero_points(subject, "TensorRT"):
            message = f"{finding.message} Whether TensorRT is to build it is not known here: no class is given."
            yield replace(finding, severity="warning", message=message, hint=f"{finding.hint} ONNX Runtime takes it as it is.")


def _zero_points(subject: Subject, called: str) -> Iterator[Finding]:
    """TensorRT's scales are symmetric: another zero point is refused by its parser."""
    off, unseen = _asymmetric(subject.model)
    if off:
        message = f"{len(off)} quantizing nodes have a zero point other than 0 or are unsigned ({named(off)}); {called} takes symmetric int8 only."
        yield Finding("error", "AsymmetricScales", message, "Quantize symmetrically, or give the model before quantization.")
    if unseen:
        message = (
            f"zero points of {len(unseen)} quantizing nodes do not stand in the model file ({named(unseen)}), so whether they are 0, "
            f"as {called} needs them, is not known."
        )
        yield Finding("warning", "AsymmetricScales", message, "Store them in the .onnx file, as quantizers do.")


def _asymmetric(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """(quantizing nodes that are not symmetric, those whose zero point cannot be seen), by name."""
    stored = {tensor.name: tensor for tensor in models.tensors(model) if tensor.name}
    constants = (node for node in models.nodes(model) if node.op_type == "Constant" and node.output)
    stored |= {node.output[0]: one.t for node in constants for one in node.attribute if one.name == "value"}
    off, unseen = [], []
    for node in models.nodes(model):
        if node.op_type not in models.QUANTIZING or len(node.input) <= 2 or not node.input[2]:
            continue
        tensor, name = stored.get(node.input[2]), node.name or node.op_type
        if tensor is None:
            unseen.append(name)
        elif tensor.data_type in (TensorProto.UINT8, TensorProto.UINT16):
            off.append(name)
        elif tensor.data_location == TensorProto.EXTERNAL:
            unseen.append(name)
        else:
            try:
                if np.any(onnx.numpy_helper.to_array(tensor) != 0):
                    off.append(name)
            except (ValueError, TypeError, KeyError):
                continue  # its size is a finding of its own
    return off, unseen


def size(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    if target.backend != "onnxruntime":
        return
    total = model_bytes(subject)
    if total > MAX_MODEL_BYTES:
        message = f"the model has {total} bytes with its external data, an engine of {_called(target)} at most {MAX_MODEL_BYTES}."
        yield Finding("error", "ModelTooLarge", message, "Use a smaller model, or a class with another backend.")


def known_bad(subject: Subject, target: PreflightTarget) -> Iterator[Finding]:
    """What public reports say of this release, board, precision and operator together."""
    version = target.version if target.backend == "tensorrt" else None
    entries = targets.known_bad(
        subject.table, tensorrt=version, l4t=target.l4t, compute_capability=target.compute_capability, dla=target.dla
    )
    used = {op for domain, op, _ in used_operators(subject.model) if domain == ""}
    for entry in entries:
        asked = [precision for precision in entry.precisions if precision in subject.asked.precisions]
        ops = [op for op in entry.operators if op in used]
        if (entry.precisions and not asked) or (entry.operators and not ops):
            continue
        parts = ([f"L4T {clean(target.l4t or '')}"] if entry.l4t else []) + asked + ops
        message = f"{_called(target)}{' with ' + ', '.join(parts) if parts else ''}: {entry.what} ({', '.join(entry.references)})."
        yield Finding(entry.severity, "KnownTrouble", message, entry.hint, precisions=tuple(asked))


CHECKS: Sequence[Callable[[Subject, PreflightTarget], Iterator[Finding]]] = (
    known,
    platform,
    precision,
    dla,
    dla_sizes,
    opset,
    operators,
    input_types,
    batch_profile,
    dynamic_outputs,
    zero_points,
    size,
    known_bad,
)
