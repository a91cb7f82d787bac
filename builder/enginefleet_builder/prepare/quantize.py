"""Q/DQ nodes by ONNX Runtime's static quantizer, for itself and for TensorRT 8; what to leave alone, in the words of spec.calibration.exclude.

A change here that gives another file raises identity.PREPARE_RECIPE.
"""

from __future__ import annotations

import importlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Literal

import onnx
from onnx import ModelProto

from enginefleet_api.errors import EngineFleetError, PermanentError
from enginefleet_api.resources import Exclude

from ..backends.classify import refused
from ..gate.arrays import Array
from ..io import Progress
from . import model as models
from .feeds import Feeds
from .qdq import WORTHWHILE

METHODS = {"entropy": "Entropy", "max": "MinMax"}
PER_CHANNEL_OPSET = 13
"""Q/DQ nodes have an axis from here on."""
MOST_PATTERNS, PATTERN_LENGTH = 64, 1024
"""Limits of spec.calibration.exclude.nodes."""

Style = Literal["onnxruntime", "tensorrt"]

_OPTIONS: Mapping[Style, Mapping[str, Any]] = {
    # activations that are never negative get all 256 steps; ONNX Runtime makes of Q/DQ pairs what the CPU's instructions want
    "onnxruntime": {"ActivationSymmetric": False},
    # TensorRT 8 takes zero points of 0 only, no quantized bias, Q/DQ pairs on weights, and places Q nodes itself where it fuses
    "tensorrt": {
        "ActivationSymmetric": True,
        "QuantizeBias": False,
        "AddQDQPairToWeight": True,
        "OpTypesToExcludeOutputQuantization": [*WORTHWHILE, "MaxPool"],
    },
}
_OPERATORS: Mapping[Style, list[str] | None] = {"onnxruntime": None, "tensorrt": [*WORTHWHILE, "MaxPool"]}


def quantize(folded: Path, target: Path, method: str, style: Style, feeds: Feeds, progress: Progress) -> None:
    """Write the folded model with Q/DQ nodes to `target`, calibrated with all batches of `feeds`. Raises PermanentError `QuantizationFailed`."""
    ort: Any = importlib.import_module("onnxruntime.quantization")
    with quantizer():
        ort.quantize_static(
            str(folded),
            str(target),
            _Reader(feeds, progress),
            quant_format=ort.QuantFormat.QDQ,
            per_channel=True,
            activation_type=ort.QuantType.QInt8,
            weight_type=ort.QuantType.QInt8,
            op_types_to_quantize=_OPERATORS[style],
            calibrate_method=ort.CalibrationMethod[METHODS[method]],
            extra_options={
                "WeightSymmetric": True,
                # a Relu that a zero point makes superfluous would be missing where its result is to be had unquantized (qdq.keep)
                "QDQKeepRemovableActivations": True,
                # one batch's tensors in memory, whatever the method: its name is misleading
                "CalibStridedMinMax": 1,
                **_OPTIONS[style],
            },
        )
    progress.check()


@contextmanager
def quantizer() -> Iterator[None]:
    """Its failures in our words; its chatter (it warns about its own settings) kept away."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (EngineFleetError, MemoryError):
        raise
    # the quantizer raises whatever it meets
    except Exception as error:
        raise refused(f"{type(error).__name__}: {error}", "quantize") from error
    finally:
        root.setLevel(level)


def fold(path: Path, folded: Path) -> None:
    """Fold constants, infer shapes, name every node: weights that are Constant nodes would be quantized into nonsense."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with quantizer():
        try:
            quant_pre_process(str(path), str(folded))
        # symbolic shape inference does not know every operator; without it the quantizer finds fewer shapes
        except Exception:  # noqa: BLE001
            quant_pre_process(str(path), str(folded), skip_symbolic_shape=True)
        model = onnx.load(folded)
        taken = {node.name for node in model.graph.node}
        for index, node in enumerate(model.graph.node):
            # layers are named by their node
            if not node.name:
                node.name = f"{node.op_type}_{index}"
                while node.name in taken:
                    node.name += "_"
                taken.add(node.name)
        name_dimensions(model)
        onnx.save(model, folded)


def name_dimensions(model: ModelProto) -> bool:
    """Name the free dimensions of inputs that have no name, which ModelOpt stumbles over; whether there were any."""
    found = False
    for item in model.graph.input:
        for axis, size in enumerate(item.type.tensor_type.shape.dim):
            if not size.HasField("dim_value") and not size.dim_param:
                size.dim_param = f"{item.name}_{axis}"
                found = True
    return found


def at_opset(path: Path, target: Path, *, least: int = 1, most: int = 1000) -> Path:
    """`path`, or the model converted into this range of opsets as `target`. Raises PermanentError `OpsetNotConvertible`."""
    source = models.read_model(path)
    found = models.opsets(source).get("", 1)
    wanted = min(max(found, least), most)
    if wanted == found:
        return path
    try:
        given = onnx.load(path)
        converted = onnx.version_converter.convert_version(given, wanted)
        _drop_newer_attributes(converted, wanted)
        _axes_as_attributes(given, converted, wanted)
        onnx.checker.check_model(converted)
    # the converter raises whatever it meets
    except Exception as error:
        message = f"the model has opset {found}, the target takes {'at most' if wanted < found else 'at least'} {wanted}, and it does not convert: "
        raise PermanentError(
            "OpsetNotConvertible", f"{message}{' '.join(str(error).split())[:200]}.", f"Export it with opset {wanted}."
        ) from error
    onnx.helper.set_model_props(converted, models.metadata(source))
    onnx.save(converted, target)
    return target


def _drop_newer_attributes(model: ModelProto, opset: int) -> None:
    """Attributes that operators of this opset do not have yet, where they say what the operator did without them: the converter leaves them."""
    for node in models.nodes(model):
        if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
            continue
        newest, known = onnx.defs.get_schema(node.op_type).attributes, onnx.defs.get_schema(node.op_type, opset).attributes
        kept = [
            attribute
            for attribute in node.attribute
            if attribute.name in known or attribute.name not in newest or attribute != newest[attribute.name].default_value
        ]
        del node.attribute[:]
        node.attribute.extend(kept)


def _axes_as_attributes(given: ModelProto, converted: ModelProto, opset: int) -> None:
    """Reductions below opset 18: onnx's converter loses axes that stand in an initializer, and the result reduces everything."""
    stored = {tensor.name: tensor for tensor in given.graph.initializer}
    axes = {node.output[0]: stored[node.input[1]] for node in given.graph.node if len(node.input) > 1 and node.input[1] in stored}
    for node in converted.graph.node:
        if opset < 18 and node.op_type.startswith("Reduce") and len(node.input) == 1 and node.output[0] in axes:
            kept = [attribute for attribute in node.attribute if attribute.name != "axes"]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.append(onnx.helper.make_attribute("axes", onnx.numpy_helper.to_array(axes[node.output[0]]).tolist()))


def exclusions(exclude: Exclude, source: ModelProto, folded: ModelProto) -> tuple[list[str], list[str]]:
    """(names of the folded model's nodes to leave alone, notes). Patterns are regular expressions over whole node names.

    Raises PermanentError `ExcludeMatchesNothing`, `ExcludeInvalid`.
    """
    chosen: dict[str, None] = {}
    notes: list[str] = []
    for kind, wanted in [*(("nodes", text) for text in exclude.nodes), *(("opTypes", text) for text in exclude.op_types)]:
        try:
            pattern = re.compile(wanted if kind == "nodes" else re.escape(wanted))
        except re.error as error:
            message = f"calibration.exclude.nodes has {wanted!r}, which is no regular expression: {error}."
            raise PermanentError("ExcludeInvalid", message, "Correct the pattern.") from error
        names = [node.name for node in folded.graph.node if pattern.fullmatch(node.name if kind == "nodes" else node.op_type)]
        chosen |= dict.fromkeys(names)
        if names:
            continue
        if any(pattern.fullmatch(node.name if kind == "nodes" else node.op_type) for node in source.graph.node):
            notes.append(f"exclude.{kind} {wanted!r}: the nodes that it matches were folded away before quantizing")
            continue
        known = sorted({node.name if kind == "nodes" else node.op_type for node in source.graph.node})[:8]
        message = (
            f"calibration.exclude.{kind} has {wanted!r}, which matches none of {len(source.graph.node)} nodes ({', '.join(known)}, …)."
        )
        raise PermanentError("ExcludeMatchesNothing", message, "Correct or remove the pattern; it must match the whole name.")
    return list(chosen), notes


def as_exclude(exclude: Exclude, names: list[str]) -> dict[str, list[str]]:
    """`exclude` and the named nodes, as spec.calibration.exclude takes them: within its limits, several names in one pattern if need be."""
    added = [re.escape(name) for name in names]
    room = MOST_PATTERNS - len(exclude.nodes)
    packed: list[str] = []
    for pattern in added if len(added) > room else ():
        if packed and len(packed[-1]) + 1 + len(pattern) <= PATTERN_LENGTH:
            packed[-1] += f"|{pattern}"
        else:
            packed.append(pattern)
    return {"nodes": [*exclude.nodes, *(packed or added)], "opTypes": list(exclude.op_types)}


class _Reader:
    """Batches as ONNX Runtime's quantizer reads them: it announces each with its number."""

    def __init__(self, feeds: Feeds, progress: Progress) -> None:
        self._feeds, self._progress = feeds, progress
        self._pending: int | None = None

    def __len__(self) -> int:
        return len(self._feeds)

    def set_range(self, start_index: int, end_index: int) -> None:  # noqa: ARG002
        self._progress("quantize: calibrate", start_index, len(self._feeds))
        self._pending = start_index

    def get_next(self) -> Mapping[str, Array] | None:
        self._progress.check()
        index, self._pending = self._pending, None
        return None if index is None else self._feeds[index]
