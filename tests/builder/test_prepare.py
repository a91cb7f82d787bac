"""The prepare Job on a folder store, with the real quantizer and ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from enginefleet_api.base import Contract
from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.jobs import PrepareReport, Source
from enginefleet_api.resources import Calibration, Exclude, ExpectedBaseline, Preprocessing
from enginefleet_api.variants import rungs
from enginefleet_builder.io import Cancellation, Progress
from enginefleet_builder.prepare import keys, qdq
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare.job import prepare
from tests.builder.models import classifier, elementwise
from tests.builder.support import Bench


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
