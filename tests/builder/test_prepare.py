"""The prepare Job on a folder store, with the real quantizer and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from enginefleet_api.base import Contract
from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.jobs import PreflightTarget, PrepareReport, Source
from enginefleet_api.resources import Calibration, Exclude, ExpectedBaseline, InputSpec, Preprocessing
from enginefleet_api.variants import rungs
from enginefleet_builder.io import Cancellation, Progress
from enginefleet_builder.prepare import keys, qdq
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare.job import prepare
from examples.mnist.hard_models import hard_model
from tests.builder.models import classifier, elementwise
from tests.builder.support import Bench

MNIST = Path(__file__).resolve().parents[2] / "examples" / "mnist"


def refusal(bench: Bench, precision: str = "fp32", **changes: Any) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        bench.prepare(precision, **changes)
    return caught.value


def prepared_model(bench: Bench, key: str, folder: Path) -> onnx.ModelProto:
    manifest = bench.records.prepared(key)
    assert manifest is not None
    bench.records.fetch_prepared(manifest, folder)
    return models.read_model(next(folder.glob("*.onnx")))


def test_fp32_is_the_model_byte_for_byte(bench: Bench) -> None:
    report = bench.prepare()
    assert report.model == report.prepared[0].model
    assert report.baseline is not None
    assert ("top1", "1.000000", 400) == (report.baseline.name, report.baseline.value, report.baseline.samples)
    assert not report.reused


def test_external_data_goes_along(bench: Bench, tmp_path: Path) -> None:
    bench.give(classifier(), external="weights.bin")
    report = bench.prepare()
    prepared_model(bench, report.prepared[0].prepared_key, tmp_path / "out")
    assert (bench.model.parent / "weights.bin").read_bytes() == (tmp_path / "out" / "weights.bin").read_bytes()


def test_a_second_run_uses_what_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.prepare("int8")
    monkeypatch.setattr("enginefleet_builder.prepare.convert.Converter.make", None)
    monkeypatch.setattr("enginefleet_builder.prepare.job.baselines.compute", None)
    second = bench.prepare("int8")
    assert second.reused
    assert first.prepared == second.prepared
    assert first.baseline == second.baseline


@pytest.mark.parametrize("method", ["max", "entropy"])
def test_int8_is_quantized_and_keeps_names_and_metadata(bench: Bench, tmp_path: Path, method: str) -> None:
    report = bench.prepare("int8", calibration=Calibration.model_validate({"method": method}))
    model = prepared_model(bench, report.prepared[0].prepared_key, tmp_path / "out")
    assert models.count(model, models.QUANTIZING) > 0
    assert {"names": "a,b,c,d"} == {name: value for name, value in models.metadata(model).items() if name == "names"}
    assert ["x"] == [spec.name for spec in models.inputs(model)]
    assert "int8: 2 of 2 Conv, Gemm and MatMul nodes are converted" in report.notes


def test_int8_calibrates_a_fixed_batch_with_a_remainder(bench: Bench) -> None:
    bench.give(classifier(batch=3))
    assert bench.prepare("int8").prepared[0].precision == "int8"


def test_excluded_nodes_stay_in_fp32(bench: Bench) -> None:
    report = bench.prepare("int8", calibration=Calibration(method="max", exclude=Exclude(nodes=[".*conv"], op_types=[])))
    assert "int8: 1 of 2 Conv, Gemm and MatMul nodes are converted" in report.notes


@pytest.mark.parametrize("exclude", [Exclude(nodes=[".*dfl.*"]), Exclude(op_types=["LSTM"])])
def test_an_exclusion_that_matches_nothing_is_an_error(bench: Bench, exclude: Exclude) -> None:
    error = refusal(bench, "int8", calibration=Calibration(method="max", exclude=exclude))
    assert error.reason == "ExcludeMatchesNothing"
    assert "first.conv" in error.message or "Conv" in error.message


def test_nothing_quantized_is_a_failure(bench: Bench) -> None:
    everything = Calibration(method="max", exclude=Exclude(nodes=[".*"]))
    assert refusal(bench, "int8", calibration=everything).reason == "NothingQuantized"


def test_a_quantized_model_is_not_quantized_again_but_taken_as_it_is_for_qat(bench: Bench, tmp_path: Path) -> None:
    report = bench.prepare("int8")
    bench.give(prepared_model(bench, report.prepared[0].prepared_key, tmp_path / "out"))
    assert refusal(bench, "int8").reason == "AlreadyQuantized"
    qat = bench.prepare("int8", calibration=Calibration(source="model"), calibration_source=None)
    assert qat.model == qat.prepared[0].model


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp8"])
def test_precisions_that_this_backend_lacks(bench: Bench, precision: str) -> None:
    error = refusal(bench, precision)
    assert error.reason == "PrecisionNotSupported"
    assert precision in error.message
    assert "it can fp32, fp16, int8" in error.message


def test_int8_without_calibration(bench: Bench) -> None:
    assert refusal(bench, "int8", calibration=None, calibration_source=None).reason == "CalibrationMissing"


def test_too_few_samples_of_both_sets_are_said_together(bench: Bench) -> None:
    error = refusal(bench, "int8", calibration=Calibration(min_samples=500), validation=bench.gate(min_samples=401))
    assert error.reason == "TooFewSamples"
    assert "the calibration set has 200 samples, expected at least 500" in error.message
    assert "the validation set has 400 samples, expected at least 401" in error.message


def test_samples_of_another_shape(bench: Bench) -> None:
    np.savez(bench.validation, images=np.zeros((400, 3, 8, 8), np.float32), labels=np.zeros(400, np.int64))
    error = refusal(bench)
    assert error.reason == "DataSetMismatch"
    assert "shape [3, 8, 8], expected [1, 8, 8]" in error.message


def test_labels_that_do_not_fit_the_model_are_told_before_it_is_quantized(bench: Bench) -> None:
    with np.load(bench.validation) as arrays:
        given = dict(arrays)
    np.savez(bench.validation, **(given | {"labels": given["labels"] + 100}))
    progress = Progress()
    with pytest.raises(PermanentError) as caught:
        prepare(bench.prepare_request("int8"), progress)
    assert caught.value.reason == "DataSetMismatch"
    assert list(bench.records.store.list("prepared/")) == []


def test_a_model_whose_int8_outputs_are_far_off_is_made_and_said_to_be_so(bench: Bench) -> None:
    bench.give(hard_model("every-layer"))
    digits = Source(uri=(MNIST / "calibration.npz").as_uri())
    report = bench.prepare("int8", validation=None, validation_source=None, calibration_source=digits)
    manifest = bench.records.prepared(report.prepared[0].prepared_key)
    assert manifest is not None
    assert [note for note in report.notes if f"smallest cosine {manifest.recipe['cosine']}" in note], (report.notes, manifest.recipe)


def test_the_figure_of_the_training_is_reproduced_or_refused(bench: Bench, prepared: PrepareReport) -> None:
    assert bench.prepare(validation=bench.gate(baseline=ExpectedBaseline(expected="0.99"))).reused
    wrong = bench.gate(baseline=ExpectedBaseline(expected="0.62"))
    error = refusal(bench, validation=wrong)
    assert error.reason == "BaselineNotReproduced"
    assert "1.000000" in error.message
    assert "0.62" in error.message
    assert "preprocessing" in error.hint


def test_wrong_preprocessing_is_caught_by_the_expected_figure(bench: Bench) -> None:
    """The classes are told apart by brightness: the negative puts every picture into a wrong one."""
    gate = bench.gate(baseline=ExpectedBaseline(expected="1.0"))
    assert refusal(bench, validation=gate, preprocessing=Preprocessing(scale="-1")).reason == "BaselineNotReproduced"


def test_nan_outputs_are_refused(bench: Bench) -> None:
    bench.give(elementwise("Log", shape=["batch", 4]))
    data = np.full((400, 4), 2.0, np.float32)
    data[7] = -1
    np.savez(bench.validation, images=data, labels=np.zeros(400, np.int64))
    error = refusal(bench)
    assert error.reason == "NonFiniteOutputs"
    assert "1 of 400" in error.message


def test_a_model_that_only_onnx_runtime_refuses(bench: Bench) -> None:
    """All operators are known, and yet there is no such kernel for this type."""
    model = classifier()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("strides", [1, 1, 1]))
    bench.give(model)
    assert refusal(bench).reason == "NotLoadable"


def test_outputs_task_keeps_outputs_to_compare_with(bench: Bench) -> None:
    report = bench.prepare(validation=bench.gate(task="outputs", metric="cosine"))
    assert report.baseline_key is not None
    baseline = bench.records.baseline(report.baseline_key)
    assert baseline is not None
    (output,) = baseline.sample_outputs
    assert ("scores", 4, 1, 400) == (output.name, output.size, output.step, len(output.values))
    assert {"cosine": 1.0, "error": 0.0} == baseline.records[0]


def test_cancelling_ends_the_quantizer(bench: Bench) -> None:
    class Stop(Progress):
        def show(self, stage: str, done: float | None, total: float | None) -> None:
            if stage == "quantize: calibrate":
                self.cancellation.cancel(TransientFault("Terminated", "asked to end."))

    with pytest.raises(TransientFault, match="Terminated"):
        prepare(bench.prepare_request("int8"), Stop(Cancellation()))


def test_a_pinned_digest_is_asserted(bench: Bench) -> None:
    source = Source(uri=bench.model.as_uri(), digest="sha256:" + "0" * 64)
    assert refusal(bench, model=source).reason == "DigestMismatch"


# ---- what one target lacks ----


CPU = PreflightTarget(id="cpu", name="cpu", backend="onnxruntime")
XAVIER = PreflightTarget(id="xavier", name="xavier", backend="tensorrt", version="8.5.2.2", compute_capability="7.2")
L4 = PreflightTarget(id="l4", name="l4", backend="tensorrt", version="10.3.0.26", compute_capability="8.9")
OLDER = L4.model_copy(update={"id": "older", "name": "older", "version": "8.6.1.6"})
FP32, INT8 = (rungs(precision, Calibration(method="max"))[0] for precision in ("fp32", "int8"))
PROFILE = [InputSpec.model_validate({"name": "x", "profiles": [{size: [1, 1, 8, 8] for size in ("min", "opt", "max")}]})]


def normalising(opset: int = 17) -> onnx.ModelProto:
    """LayerNormalization, which TensorRT has since 8.6, and at opset 18 a ReduceMean with its axes as an input."""
    model = classifier(opset=opset)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "even"))
    model.graph.node[-1].output[0] = "raw"
    model.graph.node.append(onnx.helper.make_node("LayerNormalization", ["raw", "even"], ["scores"], "last.norm"))
    if opset >= 18:
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "axes"))
        model.graph.node.append(onnx.helper.make_node("ReduceMean", ["raw", "axes"], ["mean"], "mean"))
        model.graph.output.append(onnx.helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, ["batch", 1]))
    return model


def made(report: PrepareReport) -> list[str]:
    return [f"{one.flavour}/{one.variant}" for one in report.prepared if not one.failure]


def told(report: PrepareReport) -> list[tuple[list[str], list[str], str]]:
    return [(one.targets, one.variants, one.reason) for one in report.refused]


def test_what_one_release_lacks_is_refused_to_that_class_and_made_for_the_others(bench: Bench) -> None:
    bench.give(normalising())
    flavours = ["onnxruntime", "tensorrt-8", "tensorrt-10"]
    report = bench.prepare(targets=[CPU, XAVIER, L4], flavours=flavours, best_effort=True, inputs=PROFILE)
    assert made(report) == ["onnxruntime/fp32", "tensorrt-10/fp32"]
    assert told(report) == [(["xavier"], [], "UnsupportedOp")]
    assert "operator LayerNormalization is unsupported in class xavier (TensorRT 8.5.2.2); used by last.norm" in report.refused[0].message
    assert "plugin" in report.refused[0].hint
    assert report.baseline is not None
    assert not [note for note in report.notes if "LayerNormalization" in note]


def test_a_flavour_is_made_while_one_class_of_it_can_run_the_model(bench: Bench) -> None:
    bench.give(normalising())
    report = bench.prepare(targets=[XAVIER, OLDER], flavours=["tensorrt-8"], inputs=PROFILE)
    assert made(report) == ["tensorrt-8/fp32"]
    assert told(report) == [(["xavier"], [], "UnsupportedOp")]


def test_where_nobody_can_run_the_model_that_is_said_at_once_and_a_baseline_is_left_for_later(bench: Bench) -> None:
    bench.give(normalising())
    alone = bench.prepare(targets=[XAVIER], flavours=["tensorrt-8"], inputs=PROFILE)
    assert (alone.prepared, alone.baseline_key, told(alone)) == ([], None, [(["xavier"], [], "UnsupportedOp")])
    fitted = bench.prepare(targets=[XAVIER.model_copy(update={"plugins": ("/opt/norm.so",)})], flavours=["tensorrt-8"], inputs=PROFILE)
    assert (made(fitted), fitted.refused) == (["tensorrt-8/fp32"], [])
    assert fitted.baseline_key


def test_a_precision_that_one_device_lacks_is_refused_to_it_alone(bench: Bench) -> None:
    nano = PreflightTarget(id="nano", name="nano", backend="tensorrt", version="8.5.2.2", compute_capability="6.2")
    report = bench.prepare(targets=[nano, XAVIER], variants=[FP32, INT8], flavours=["tensorrt-8"], inputs=PROFILE)
    assert made(report) == ["tensorrt-8/fp32", "tensorrt-8/int8-max"]
    assert told(report) == [(["nano"], ["int8-max"], "PrecisionNotSupported")]


def test_a_free_batch_without_a_profile_is_refused_to_tensorrt_only(bench: Bench) -> None:
    report = bench.prepare(targets=[CPU, L4], flavours=["onnxruntime", "tensorrt-10"], best_effort=True)
    assert made(report) == ["onnxruntime/fp32"]
    assert told(report) == [(["l4"], [], "ProfileMissing")]


def test_what_is_wrong_with_the_model_itself_ends_the_job_and_says_all(bench: Bench) -> None:
    bench.give(normalising())
    error = refusal(bench, targets=[CPU, XAVIER], validation=bench.gate(min_samples=401), inputs=PROFILE)
    assert error.reason == "TooFewSamples"
    assert "2 findings: (1) TooFewSamples" in error.message
    assert "(2) UnsupportedOp: operator LayerNormalization" in error.message


def test_a_newer_opset_is_converted_for_tensorrt_8_and_refused_to_nobody(bench: Bench, tmp_path: Path) -> None:
    bench.give(normalising(18))
    report = bench.prepare(targets=[OLDER], flavours=["tensorrt-8"], inputs=PROFILE, validation=None, validation_source=None)
    assert report.refused == []
    assert any("takes at most 17; prepare converts it" in note for note in report.notes)
    assert models.opsets(prepared_model(bench, report.prepared[0].prepared_key, tmp_path / "out")) == {"": 17}


def test_the_report_says_which_layouts_the_model_cannot_have(bench: Bench) -> None:
    plain = bench.prepare(validation=None, validation_source=None)
    assert list(plain.unfit_layouts) == ["ultralytics"]
    assert plain.unfit_layouts["ultralytics"].startswith("NotUltralytics: the model's metadata lacks")
    model = classifier()
    onnx.helper.set_model_props(model, {"names": "{0: 'a'}", "stride": "32", "task": "detect", "batch": "1", "imgsz": "[8, 8]"})
    bench.give(model)
    assert bench.prepare(validation=None, validation_source=None).unfit_layouts == {}


# ---- keys ----


def defaults(kind: type[Contract]) -> dict[str, Any]:
    return kind.model_validate({}).to_json_dict()


def test_todays_defaults_are_those_of_schema_version_1() -> None:
    """When a default of a resource changes, its key must not: this fails then, and the key's defaults stay."""
    assert defaults(Preprocessing) == keys.PREPROCESSING_DEFAULTS
    assert keys.preprocessing_json(Preprocessing()) is None


def test_auto_and_entropy_are_the_same_model_and_data_counts_for_int8_only() -> None:
    def key(precision: str, method: str, dataset: str) -> str:
        calibration = Calibration.model_validate({"method": method})
        variant = rungs(precision, calibration)[0]
        return keys.prepared_key(
            model="m", variant=variant, flavour="onnxruntime", calibration=calibration, dataset=dataset, preprocessing=None
        )

    assert key("int8", "auto", "a") == key("int8", "entropy", "a")
    assert key("int8", "max", "a") != key("int8", "entropy", "a") != key("int8", "entropy", "b")
    assert key("fp32", "max", "a") == key("fp32", "auto", "b")


def test_scales_that_are_zero_are_found(bench: Bench) -> None:
    quantized = classifier()
    quantized.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.0, np.float32), "scale"))
    quantized.graph.node.insert(0, onnx.helper.make_node("QuantizeLinear", ["x", "scale"], ["q"]))
    with pytest.raises(PermanentError, match="BadScales"):
        qdq.check_scales(quantized)


def relabelled(bench: Bench, change: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> None:
    with np.load(bench.validation) as arrays:
        stored = dict(arrays)
    np.savez(bench.validation, **(stored | {"labels": change(stored["labels"])}))


def test_shuffled_labels_are_refused_since_every_engine_would_pass(bench: Bench) -> None:
    relabelled(bench, np.random.default_rng(0).permutation)
    error = refusal(bench)
    assert error.reason == "BaselineAtChance"
    assert "of 400 samples; the same answers in any order would give that of 0.2" in error.message
    assert "another order." not in error.message
    assert "validation.baseline.expected" in error.hint


def test_classes_in_another_order_are_named(bench: Bench) -> None:
    relabelled(bench, lambda labels: (labels + 1) % 4)
    message = refusal(bench).message
    assert "FP32 gives the label of 0.000 of 400 samples" in message
    assert "0 where the label is 1" in message
    assert message.endswith("so they stand in another order.")


def test_a_figure_at_chance_that_is_expected_is_let_pass(bench: Bench) -> None:
    relabelled(bench, lambda labels: (labels + 1) % 4)
    assert bench.prepare(validation=bench.gate(baseline=ExpectedBaseline(expected="0.0"))).baseline_key is not None


def test_a_standing_baseline_at_chance_is_refused_again(bench: Bench) -> None:
    relabelled(bench, lambda labels: (labels + 1) % 4)
    bench.prepare(validation=bench.gate(baseline=ExpectedBaseline(expected="0.0")))
    assert refusal(bench).reason == "BaselineAtChance"
