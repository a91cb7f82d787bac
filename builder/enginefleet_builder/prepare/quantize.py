"""INT8 for ONNX Runtime: Q/DQ nodes by its own static quantizer, checked afterwards.

Symmetric weights per channel, INT8 activations; ONNX Runtime turns them into what the CPU's instructions want when it optimizes.
A change here that gives another file raises identity.PREPARE_RECIPE.
"""

from __future__ import annotations

import importlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from enginefleet_api.errors import EngineFleetError, PermanentError
from enginefleet_api.resources import Calibration, InputSpec

from ..backends.classify import refused
from ..gate.arrays import Array
from ..gate.datasets import Dataset
from ..gate.evaluate import batches
from ..io import Progress
from . import model as models

METHODS = {"entropy": "Entropy", "max": "MinMax"}
CHUNK = 4
"""Batches whose intermediate tensors are in memory at once."""
WORTHWHILE = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose share of quantized nodes is reported."""


@dataclass(frozen=True, slots=True)
class Quantized:
    file: Path
    qdq_nodes: int
    notes: list[str]


def quantize(
    path: Path, calibration: Calibration, method: str, dataset: Dataset, profiles: Sequence[InputSpec], workdir: Path, progress: Progress
) -> Quantized:
    """Quantize the model at `path` with all samples of `dataset` into `workdir`/model.onnx.

    Raises PermanentError: `ExcludeMatchesNothing`, `QuantizationFailed`, `NothingQuantized`, `BadScales`, `InterfaceChanged`.
    """
    ort: Any = importlib.import_module("onnxruntime.quantization")
    source = models.read_model(path)
    folded, target = workdir / "folded.onnx", workdir / "model.onnx"
    progress("quantize: fold constants")
    with _quantizer():
        _fold(path, folded)
        excluded, notes = exclusions(calibration, source, onnx.load(folded, load_external_data=False))
        reader = _Reader(dataset, source, profiles, progress)
        ort.quantize_static(
            str(folded),
            str(target),
            reader,
            quant_format=ort.QuantFormat.QDQ,
            per_channel=True,
            activation_type=ort.QuantType.QInt8,
            weight_type=ort.QuantType.QInt8,
            nodes_to_exclude=excluded,
            calibrate_method=ort.CalibrationMethod[METHODS[method]],
            # strided collecting bounds memory for every method, whatever its name says
            extra_options={"WeightSymmetric": True, "ActivationSymmetric": False, "CalibStridedMinMax": CHUNK},
        )
    progress.check()
    result = onnx.load(target)
    restore_metadata(source, result)
    onnx.save(result, target)
    return Quantized(target, check_quantized(source, result), [*notes, _share(result)])


@contextmanager
def _quantizer() -> Iterator[None]:
    """Its failures in our words; its chatter (it warns about its own settings) kept away."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
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


def _fold(path: Path, folded: Path) -> None:
    """Fold constants and infer shapes: weights that are Constant nodes would be quantized into nonsense."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    try:
        quant_pre_process(str(path), str(folded))
    # symbolic shape inference does not know every operator; without it the quantizer finds fewer shapes
    except Exception:  # noqa: BLE001
        quant_pre_process(str(path), str(folded), skip_symbolic_shape=True)
    model = onnx.load(folded)
    for index, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"  # the quantizer excludes nodes by name
    onnx.save(model, folded)


def exclusions(calibration: Calibration, source: ModelProto, folded: ModelProto) -> tuple[list[str], list[str]]:
    """(names of the folded model's nodes to leave alone, notes). Patterns are regular expressions over whole node names.

    Raises PermanentError `ExcludeMatchesNothing`, `ExcludeInvalid`.
    """
    exclude = calibration.exclude
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


def restore_metadata(source: ModelProto, result: ModelProto) -> None:
    """Class names, strides and the like: quantizers drop them."""
    onnx.helper.set_model_props(result, models.metadata(result) | models.metadata(source))


def check_quantized(source: ModelProto, result: ModelProto) -> int:
    """The number of Q/DQ nodes. Raises PermanentError `NothingQuantized`, `BadScales`, `InterfaceChanged`."""
    qdq = [node for node in models.nodes(result) if node.op_type in models.QUANTIZING]
    if not qdq:
        message = f"0 Q/DQ nodes came out of {len(source.graph.node)} nodes."
        raise PermanentError("NothingQuantized", message, "Does the model have Conv, Gemm or MatMul outside the exclusions?")
    stored = {tensor.name: tensor for tensor in models.tensors(result) if tensor.name}
    for name in sorted({node.input[1] for node in qdq if len(node.input) > 1}):
        if name not in stored:
            continue  # computed in the graph (QAT)
        scale = onnx.numpy_helper.to_array(stored[name]).astype(np.float64)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            message = f"scale {name} has the values {scale.ravel()[:4].tolist()}, expected finite and positive ones."
            raise PermanentError("BadScales", message, "Look for NaN or constant samples in the calibration set.")
    for what, read in (("inputs", models.inputs), ("outputs", models.outputs)):
        before, after = ([(spec.name, spec.dtype, len(spec.shape)) for spec in read(model)] for model in (source, result))
        if before != after:
            message = f"{what} were {before} and are {after} after quantizing."
            raise PermanentError("InterfaceChanged", message, "Please report it with the model.")
    return len(qdq)


def _share(model: ModelProto) -> str:
    """How many of the worthwhile nodes read quantized values."""
    dequantized = {output for node in model.graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    worthwhile = [node for node in model.graph.node if node.op_type in WORTHWHILE]
    converted = sum(bool(node.input) and node.input[0] in dequantized for node in worthwhile)
    return f"{converted} of {len(worthwhile)} Conv, Gemm and MatMul nodes are quantized"


class _Reader:
    """Calibration batches as ONNX Runtime's quantizer reads them: in chunks of CHUNK batches."""

    def __init__(self, dataset: Dataset, model: ModelProto, profiles: Sequence[InputSpec], progress: Progress) -> None:
        self._dataset, self._progress = dataset, progress
        self._inputs = models.inputs(model)
        self._chunks = chunks([batch for batch, _ in batches(range(dataset.size), self._inputs, profiles)])
        self._pending: list[list[int]] = []

    def __len__(self) -> int:
        """In batches, as if every chunk were full: the quantizer wants whole chunks."""
        return len(self._chunks) * CHUNK

    def set_range(self, start_index: int, end_index: int) -> None:  # noqa: ARG002
        self._progress("quantize: calibrate", start_index, len(self))
        self._pending = list(self._chunks[start_index // CHUNK])

    def get_next(self) -> Mapping[str, Array] | None:
        self._progress.check()
        return self._dataset.feed(self._pending.pop(0), self._inputs) if self._pending else None


def chunks(parts: Sequence[list[int]]) -> list[list[list[int]]]:
    """Batches in chunks of at most CHUNK, of one size each: the quantizer stacks a chunk's tensors. Only the last batch may be smaller."""
    full = [part for part in parts if len(part) == len(parts[0])]
    rest = list(parts[len(full) :])
    return [full[start : start + CHUNK] for start in range(0, len(full), CHUNK)] + ([rest] if rest else [])


def tools() -> dict[str, str]:
    return {name: version(name) for name in ("onnx", "onnxruntime", "numpy")}
