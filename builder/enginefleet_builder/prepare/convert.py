"""From a model to one variant of it for one flavour: which tool makes it, and what is checked before it counts as made.

| | onnxruntime | tensorrt-10 (and 11, RTX) | tensorrt-8 |
| --- | --- | --- | --- |
| int8 | ONNX Runtime's quantizer, rest FP32 | ModelOpt, opset >= 19, rest FP16 | ONNX Runtime's, symmetric, opset <= 17, rest FP32 |
| fp16 | ModelOpt's AutoCast | ModelOpt's AutoCast | the model as it is: the builder has a flag |
| bf16, fp8, tf32 | no | AutoCast, ModelOpt, the model as it is | tf32: the model as it is |

A change here that gives another file raises identity.PREPARE_RECIPE.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from onnx import ModelProto

from enginefleet_api.errors import PermanentError
from enginefleet_api.flavours import PRECISIONS
from enginefleet_api.resources import Calibration, InputSpec
from enginefleet_api.variants import SCALED, Variant

from ..backends.onnxruntime import open_session
from ..backends.ort_session import Level
from ..gate.datasets import Dataset
from ..io import Progress
from . import model as models
from . import modelopt, opsets, qdq, quantize, sensitivity
from .feeds import Feed, Feeds, invented
from .qdq import keep

CAST_SAMPLES, SAMPLES = 4, 32
"""Samples that AutoCast sees with all their tensors, and that closeness is measured on."""
ALIKE = 0.9999
"""Cosine of outputs that should be the same but for rounding."""
REST: Mapping[str, str] = {"tensorrt-10": "fp16"}
"""By flavour: what an INT8 file has where it is not quantized. Others have FP32."""


@dataclass(frozen=True, slots=True)
class Made:
    """The prepared files stand in the folder of `file`. `share`: converted part of the worthwhile nodes, 0 to 1; None where nothing was."""

    file: Path
    qdq_nodes: int = 0
    share: float | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Converter:
    """One model and its calibration set. What several variants need (folded model, calibrated scales) is made once. As a context: on leaving
    it, its worker ends.

    `dataset`: the calibration set, or None. `scratch`: a folder of its own; three times the model's size is used there.
    """

    rest = REST

    def __init__(
        self,
        path: Path,
        calibration: Calibration | None,
        dataset: Dataset | None,
        profiles: Sequence[InputSpec],
        scratch: Path,
        progress: Progress,
    ) -> None:
        self._path, self._model = path, models.read_model(path)
        self._calibration, self._profiles = calibration or Calibration(source="model"), profiles
        self._feeds = Feeds(dataset, models.inputs(self._model), profiles) if dataset is not None else None
        self._scratch, self._progress, self._stack = scratch, progress, ExitStack()
        self._worker: modelopt.Worker | None = None
        self._few: list[Feed] = []
        scratch.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def make(self, flavour: str, variant: Variant, folder: Path) -> Made:
        """The variant in `folder`, which is new.

        Raises PermanentError: `PrecisionNotSupported`, `CalibrationMissing`, `ModelTooLarge`, `OpsetNotConvertible`, `ExcludeMatchesNothing`,
        `ExcludeInvalid`, `QuantizationFailed`, `NothingQuantized`, `BadScales`, `InterfaceChanged`, `NonFiniteOutputs`, and what loading raises.
        """
        require_possible(flavour, variant)
        folder.mkdir(parents=True)
        target = folder / "model.onnx"
        if variant.precision in SCALED and not (variant.method or variant.repaired):
            return self._with_own_scales(flavour, folder)
        if variant.precision in ("fp32", "tf32") or (flavour == "tensorrt-8" and variant.precision == "fp16"):
            return Made(self._as_it_is(flavour, folder))
        size = sum(entry.size for entry in models.model_files(self._path, self._model))
        if size > models.CONVERTIBLE_BYTES:
            raise models.too_large_to_convert(size)
        if variant.precision in ("fp16", "bf16"):
            return self._cast(variant.precision, target)
        if self._feeds is None:
            hint = "Set spec.calibration.uri, or calibration.source to model for a QAT model."
            raise PermanentError("CalibrationMissing", f"precision {variant.precision} has no calibration set.", hint)
        if variant.precision == "fp8":
            return self._fp8(variant.method, target)
        return self._repaired(flavour, target) if variant.repaired else self._int8(flavour, variant.method, target)

    # ---- nothing to convert ----

    def _as_it_is(self, flavour: str, folder: Path) -> Path:
        """Byte for byte, unless the flavour takes older opsets only."""
        lowered = quantize.at_opset(self._path, folder / self._path.name, most=opsets.HIGHEST.get(flavour, 1000))
        if lowered != self._path:
            try:
                found = (
                    f"its outputs have cosine {(cosine := self._close(lowered, lowered, self._samples()))} to those of the model as given"
                )
            except PermanentError as error:
                cosine, found = "0", error.message
            if float(cosine) < ALIKE:
                message = f"converted to opset {opsets.HIGHEST[flavour]} the model does not compute the same: {found}."
                raise PermanentError("OpsetNotConvertible", message.replace("..", "."), "Export it with that opset.")
        else:
            for entry in models.model_files(self._path, self._model):
                target = folder / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self._path.parent / entry.path, target)
        return folder / self._path.name

    def _with_own_scales(self, flavour: str, folder: Path) -> Made:
        """A model that arrives quantized: checked, left alone."""
        file = self._as_it_is(flavour, folder)
        count = models.count(self._model, models.QUANTIZING)
        if count:
            qdq.check_scales(_with_weights(self._path))
        self._require_running(file)
        converted, worthwhile = qdq.share(self._model)
        recipe = {"tool": "none", "method": "model"}
        return Made(file, count, _part(converted, worthwhile), recipe, [f"quantized as given: {_share(converted, worthwhile)}"])

    # ---- FP16, BF16, FP8 ----

    def _cast(self, precision: str, target: Path) -> Made:
        samples: Sequence[Feed] = (
            list(self._feeds.few(CAST_SAMPLES)) if self._feeds is not None else invented(models.inputs(self._model), self._profiles)
        )
        self._modelopt().cast(precision, self._named(), target, samples)
        result = self._restored(target)
        converted, worthwhile = _low_precision(result)
        notes = [f"{precision}: {_share(converted, worthwhile)}"]
        recipe: dict[str, Any] = {
            "tool": "modelopt autocast",
            "rest": "fp32",
            "ranges": "calibration set" if self._feeds else "random numbers",
        }
        if precision == "bf16":
            # there are no kernels for it on a CPU
            notes.append("bf16 was not run: ONNX Runtime on a CPU cannot")
        else:
            recipe["cosine"] = self._close(target, target, samples)
        if not converted:
            notes.append(f"no Conv, Gemm or MatMul became {precision}: their values are too large for it")
        return Made(target, 0, _part(converted, worthwhile), recipe, notes)

    def _named(self) -> Path:
        """The model as given, or a copy in which every free dimension of an input has a name."""
        if not quantize.name_dimensions(copied := _with_weights(self._path)):
            return self._path
        onnx.save(copied, path := self._scratch / "named.onnx")
        return path

    def _fp8(self, method: str, target: Path) -> Made:
        assert self._feeds is not None
        folded = self._folded("tensorrt-10")
        excluded, notes = quantize.exclusions(self._calibration.exclude, self._model, models.read_model(folded))
        self._modelopt().quantize("fp8", method, folded, target, self._feeds, rest="fp16", exclude=excluded)
        result = self._restored(target)
        count = qdq.check_scales(result)
        converted, worthwhile = qdq.share(result)
        # moving FP8 Q/DQ nodes across pooling, which `basic` does, gives a model that no runtime takes
        cosine = self._close(target, target, self._samples(), "none")
        recipe = {
            "tool": "modelopt",
            "method": method,
            "rest": "fp16",
            "exclude": quantize.as_exclude(self._calibration.exclude, []),
            "cosine": cosine,
        }
        return Made(target, count, _part(converted, worthwhile), recipe, [*notes, f"fp8: {_share(converted, worthwhile)}"])

    # ---- INT8 ----

    def _int8(self, flavour: str, method: str, target: Path) -> Made:
        folded = _with_weights(self._folded(flavour))
        excluded, notes = quantize.exclusions(self._calibration.exclude, self._model, folded)
        kept = keep(_with_weights(self._calibrated(flavour, method)), excluded, folded)
        recipe = {"method": method, "exclude": quantize.as_exclude(self._calibration.exclude, [])}
        return self._finish(flavour, kept, target, recipe, notes)

    def _repaired(self, flavour: str, target: Path) -> Made:
        """From the method that is closer to FP32, with the layers that lose most in higher precision."""
        folded = _with_weights(self._folded(flavour))
        excluded, notes = quantize.exclusions(self._calibration.exclude, self._model, folded)
        outputs = sensitivity.Outputs(folded, self._samples(), self._progress)
        full = {method: keep(_with_weights(self._calibrated(flavour, method)), excluded, folded) for method in quantize.METHODS}
        for model in full.values():
            qdq.check_scales(model)
        method = min(full, key=lambda name: outputs.noise(full[name]))
        found = sensitivity.repair(full[method], folded, qdq.layers(full[method]), outputs, self._progress)
        freed = [node for layer in found.kept for node in layer.nodes]
        recipe = {"method": method, "exclude": quantize.as_exclude(self._calibration.exclude, freed)} | sensitivity.recipe(found)
        before, after = sensitivity.decibels(found.plain), sensitivity.decibels(found.noise)
        notes.append(
            f"repaired from {method}: layers kept in higher precision: {len(found.kept)}, signal to noise {before} dB before, {after} dB after"
            + ("" if found.reached else f", {sensitivity.decibels(found.target)} dB were aimed at")
            + (f"; the search ended early after {found.spent}" if found.spent else "")
        )
        return self._finish(flavour, keep(full[method], freed, folded), target, recipe, notes)

    def _finish(self, flavour: str, model: ModelProto, target: Path, recipe: dict[str, Any], notes: Sequence[str]) -> Made:
        """Check, convert the rest where the flavour wants it, check again."""
        count = qdq.check_scales(model)
        converted, worthwhile = qdq.share(model)
        plain = self._scratch / "finished.onnx"
        onnx.save(model, plain)
        restored = self._restored(plain)
        cosine = self._close(plain, plain, self._samples())
        rest = self.rest.get(flavour, "fp32")
        if rest == "fp16":
            # ONNX Runtime's CPU kernel for FP16 input truncates where it should round, so closeness is measured before this step
            self._modelopt().rest(plain, target)
            qdq.check_scales(self._restored(target))
            self._require_running(target)
        else:
            onnx.save(restored, target)
        recipe = {"tool": "modelopt" if flavour == "tensorrt-10" else "onnxruntime", "rest": rest, "cosine": cosine} | recipe
        return Made(target, count, _part(converted, worthwhile), recipe, [*notes, f"int8: {_share(converted, worthwhile)}"])

    def _folded(self, flavour: str) -> Path:
        """Constants folded, nodes named, in an opset that Q/DQ nodes of the flavour can live in."""
        most = opsets.HIGHEST.get(flavour, 1000)
        folder = self._scratch / f"opset-{most}"
        folded = folder / "folded.onnx"
        if not folded.exists():
            folder.mkdir(exist_ok=True)
            self._progress("quantize: fold constants")
            path = quantize.at_opset(self._path, folder / "converted.onnx", least=quantize.PER_CHANNEL_OPSET, most=most)
            quantize.fold(path, folded)
        return folded

    def _calibrated(self, flavour: str, method: str) -> Path:
        """All of the folded model with Q/DQ nodes, the rest FP32: exclusions are left out of it afterwards (qdq.keep)."""
        assert self._feeds is not None
        target = self._scratch / f"{flavour}-{method}.onnx"
        if not target.exists():
            folded = self._folded(flavour)
            if flavour == "tensorrt-10":
                self._modelopt().quantize("int8", method, folded, target, self._feeds, rest="fp32")
            else:
                quantize.quantize(
                    folded, target, method, "onnxruntime" if flavour == "onnxruntime" else "tensorrt", self._feeds, self._progress
                )
        return target

    # ---- shared ----

    def _modelopt(self) -> modelopt.Worker:
        if self._worker is None:
            self._worker = self._stack.enter_context(modelopt.worker(self._progress))
        return self._worker

    def _samples(self) -> list[Feed]:
        if not self._few:
            inputs = models.inputs(self._model)
            self._few = list(self._feeds.few(SAMPLES)) if self._feeds is not None else invented(inputs, self._profiles)
        return self._few

    def _restored(self, file: Path) -> ModelProto:
        """The converted model, with the interface and metadata of the given one."""
        result = _with_weights(file)
        qdq.restore_interface(self._model, result)
        onnx.save(result, file)
        return result

    def _close(self, plain: Path, file: Path, samples: Sequence[Feed], level: Level = "basic") -> str:
        """The smallest cosine of an output to the model as given, as decimal text. Raises PermanentError `NonFiniteOutputs`, and what loading does."""
        self._progress("check: compare with the model as given")
        with (
            open_session(self._path, "auto", self._progress, "basic") as before,
            open_session(plain, "auto", self._progress, level) as after,
        ):
            cosines = sensitivity.Cosines()
            for feed in samples:
                cosines.add(before.run(feed), after.run(feed))
        cosine = cosines.smallest
        if not np.isfinite(cosine):
            message = f"{file.name} has NaN or infinite outputs where the model as given has numbers."
            raise PermanentError("NonFiniteOutputs", message, "Values are too large for this precision: use another one, or exclude nodes.")
        return f"{cosine:.6f}"

    def _require_running(self, file: Path) -> None:
        with open_session(file, "auto", self._progress, "basic") as session:
            session.run(self._samples()[0])


def require_possible(flavour: str, variant: Variant) -> None:
    """Raises PermanentError `FlavourNotSupported`, `PrecisionNotSupported`."""
    if flavour not in PRECISIONS:
        message = f"flavour {flavour} cannot be prepared by this version, expected one of {list(PRECISIONS)}."
        raise PermanentError("FlavourNotSupported", message, "Change the HardwareClass's backend.")
    if variant.precision not in PRECISIONS[flavour]:
        known = ", ".join(PRECISIONS[flavour])
        message = f"precision {variant.precision} is not what flavour {flavour} can do; it can {known}."
        raise PermanentError("PrecisionNotSupported", message, "Set spec.precision to one of these.")


def tools() -> dict[str, str]:
    return {name: version(name) for name in ("onnx", "onnxruntime", "numpy")} | modelopt.installed()


def _with_weights(path: Path) -> ModelProto:
    model: ModelProto = onnx.load(path)
    return model


def _part(converted: int, worthwhile: int) -> float | None:
    return converted / worthwhile if worthwhile else None


def _share(converted: int, worthwhile: int) -> str:
    return f"{converted} of {worthwhile} Conv, Gemm and MatMul nodes are converted"


def _low_precision(model: ModelProto) -> tuple[int, int]:
    """(worthwhile nodes whose weights or inputs are FP16 or BF16, all of them)."""
    low = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    types = {info.name: info.type.tensor_type.elem_type for info in [*model.graph.value_info, *model.graph.input, *model.graph.output]}
    types |= {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Cast":
            types[node.output[0]] = next(attribute.i for attribute in node.attribute if attribute.name == "to")
    worthwhile = [node for node in model.graph.node if node.op_type in qdq.WORTHWHILE]
    return sum(any(types.get(name) in low for name in node.input) for node in worthwhile), len(worthwhile)
