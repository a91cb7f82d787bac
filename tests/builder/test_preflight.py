"""What is found in a model before minutes are spent on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec, Profile
from enginefleet_builder.build.inspect import inspect
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare import preflight as facade
from enginefleet_builder.prepare import runtime_limits as limits
from enginefleet_builder.prepare.checks import Asked, Subject, check
from enginefleet_builder.prepare.findings import Finding, refuse
from tests.builder.bad_inputs import quantized
from tests.builder.models import classifier, elementwise, save_model


def findings(path: Path, **changes: Any) -> list[Finding]:
    """Of the checks alone, in this process."""
    try:
        return check(Subject(path, models.read_model(path), Asked.model_validate(changes)))
    except PermanentError as error:
        return [Finding.of(error)]


def preflight(path: Path, **changes: Any) -> list[Finding]:
    """The whole of it, as the command line and the prepare Job do it."""
    return facade.preflight(path, Asked.model_validate(changes), Progress()).findings


def found(path: Path, **changes: Any) -> list[str]:
    return [finding.reason for finding in findings(path, **changes)]


def profile(*shapes: list[int], name: str = "x") -> list[InputSpec]:
    low, best, high = shapes if len(shapes) == 3 else (shapes[0],) * 3
    return [InputSpec(name=name, profiles=[Profile(min=low, opt=best, max=high)])]


def test_a_good_model_has_no_findings(tmp_path: Path) -> None:
    assert [] == preflight(save_model(classifier(), tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("content", "reason", "text"),
    [
        (b"", "NotAModel", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "NotAModel", "git-lfs pointer"),
        (b"\n<!DOCTYPE html><html>", "NotAModel", "an HTML page"),
        (b"PK\x03\x04data", "NotAModel", "a ZIP archive"),
        (b'{"error": 1}', "NotAModel", "a JSON document"),
        (b"\x08\x08", "NotAModel", "0 nodes"),
        (classifier().SerializeToString()[:-40], "ModelTruncated", "cut off"),
    ],
    ids=["empty", "lfs", "html", "zip", "json", "no nodes", "truncated"],
)
def test_what_the_file_really_is(tmp_path: Path, content: bytes, reason: str, text: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    (finding,) = findings(path)
    assert reason == finding.reason
    assert text in finding.message


def test_external_data_that_is_missing_or_cut_off(tmp_path: Path) -> None:
    path = save_model(classifier(), tmp_path / "m.onnx", external="weights.bin")
    assert [] == found(path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:100])
    (finding,) = findings(path)
    assert finding.reason == "ExternalDataTruncated"
    assert "weights.bin has 100 bytes" in finding.message
    data.unlink()
    assert ["ExternalDataMissing"] == found(path)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../b", "..\\x"])
def test_external_data_never_leaves_the_models_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(2000))
    path = save_model(classifier(), tmp_path / "model" / "m.onnx", external="weights.bin")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = location
    path.write_bytes(model.SerializeToString())
    assert set(found(path)) == {"ExternalDataUnsafe"}


def test_external_data_behind_a_link_out_of_the_folder(tmp_path: Path) -> None:
    path = save_model(classifier(), tmp_path / "model" / "m.onnx", external="weights.bin")
    (path.parent / "weights.bin").rename(tmp_path / "elsewhere")
    (path.parent / "weights.bin").symlink_to(tmp_path / "elsewhere")
    assert ["ExternalDataUnsafe"] == found(path)


def test_versions_beyond_the_runtime_name_both_numbers(tmp_path: Path) -> None:
    path = save_model(classifier(opset=limits.newest_opset() + 1, ir=limits.newest_ir() + 2), tmp_path / "m.onnx")
    opset, ir = findings(path)
    assert ("OpsetTooNew", "IrTooNew") == (opset.reason, ir.reason)
    assert f"opset {limits.newest_opset() + 1}, ONNX Runtime" in opset.message
    assert f"at most {limits.newest_ir()}" in ir.message


@pytest.mark.parametrize(("op", "domain"), [("Sparkle", "acme.custom"), ("NotAnOperator", "")])
def test_operators_that_nobody_has(tmp_path: Path, op: str, domain: str) -> None:
    (finding,) = findings(save_model(elementwise(op, domain=domain), tmp_path / "m.onnx"))
    assert finding.reason == "UnsupportedOp"
    assert op in finding.message
    assert domain in finding.message
    assert "only" in finding.message


def test_operators_of_onnx_runtime_itself_are_known(tmp_path: Path) -> None:
    assert [] == found(save_model(elementwise("Gelu", domain="com.microsoft"), tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("shape", "inputs", "reasons"),
    [
        (["batch", 4], [], []),
        (["batch", "length"], [], ["ProfileMissing"]),
        ([None, 3, None, None], [], ["ProfileMissing"]),
        (["batch", "length"], profile([1, 8], [4, 16], [8, 32]), []),
        (["batch", 4], profile([1, 4], name="images"), ["UnknownInput"]),
        (["batch", 4], profile([1, 4, 4]), ["ProfileMismatch"] * 3),
        (["batch", 4], profile([1, 5]), ["ProfileMismatch"] * 3),
        (["batch", 4], profile([4, 4], [2, 4], [8, 4]), ["ProfileMismatch"]),
    ],
    ids=[
        "a free batch axis needs no profile",
        "another free axis does",
        "unnamed axes too",
        "with a profile",
        "an input that is not there",
        "wrong rank",
        "another fixed size",
        "min above opt",
    ],
)
def test_profiles(tmp_path: Path, shape: list[Any], inputs: list[InputSpec], reasons: list[str]) -> None:
    assert reasons == found(save_model(elementwise("Relu", shape=shape), tmp_path / "m.onnx"), inputs=inputs)


def with_weights(value: float) -> ModelProto:
    model = classifier()
    weights = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weights[0, 0, 0, 0] = value
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    return model


def test_weights_that_are_no_numbers(tmp_path: Path) -> None:
    (nan,) = findings(save_model(with_weights(np.nan), tmp_path / "nan.onnx", external="w.bin"))
    assert ("error", "NonFiniteWeights") == (nan.severity, nan.reason)
    (infinite,) = findings(save_model(with_weights(-np.inf), tmp_path / "inf.onnx"))
    assert infinite.severity == "warning"


def test_all_findings_are_said_at_once(tmp_path: Path) -> None:
    model = with_weights(np.nan)
    model.graph.node[1].op_type = "Sparkle"
    with pytest.raises(PermanentError) as caught:
        refuse(findings(save_model(model, tmp_path / "m.onnx"), inputs=profile([1], name="images")))
    for text in ("3 findings", "UnsupportedOp", "UnknownInput", "NonFiniteWeights"):
        assert text in caught.value.message


def test_inspect(tmp_path: Path) -> None:
    described = inspect(save_model(classifier(), tmp_path / "m.onnx").parent)
    assert {"Conv": 1, "Flatten": 1, "Gemm": 1, "Relu": 1} == described["operators"]
    assert {"ai.onnx": 17} == described["opsets"]
    assert described["qdqNodes"] == 0
    assert {"names": "a,b,c,d"} == described["metadata"]


@pytest.mark.parametrize(
    ("asked", "severity"),
    [
        ({"precisions": ["fp32"]}, ""),
        ({"precisions": ["int8"], "scales": "dataset"}, "error"),
        ({"precisions": ["int8"], "scales": "model"}, ""),
        ({"precisions": ["fp16"]}, "error"),
        ({"precisions": ["int8", "fp16", "fp32"], "scales": "dataset", "best_effort": True}, "warning"),
    ],
)
def test_a_model_that_is_too_large_to_be_converted_is_told_before_data_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], severity: str
) -> None:
    path = save_model(classifier(), tmp_path / "model.onnx")
    monkeypatch.setattr(models, "CONVERTIBLE_BYTES", 1000)
    told = [finding for finding in findings(path, **asked) if finding.reason == "ModelTooLarge"]
    assert [finding.severity for finding in told] == ([severity] if severity else [])
    assert all(set(finding.precisions) == set(asked["precisions"]) - {"fp32"} for finding in told)


def symmetry(path: Path, **changes: Any) -> list[Finding]:
    asked = {"precisions": ["int8"], "scales": "model", "inputs": profile([1, 4])} | changes
    return [finding for finding in preflight(path, **asked) if finding.reason == "AsymmetricScales"]


def test_without_a_class_asymmetric_scales_are_told_and_that_nobody_says_who_builds(tmp_path: Path) -> None:
    (finding,) = symmetry(save_model(quantized(), tmp_path / "m.onnx"))
    assert finding.severity == "warning"
    assert "no class is given" in finding.message
    assert "ONNX Runtime takes it" in finding.hint


@pytest.mark.parametrize(
    ("flavours", "severities"), [(["onnxruntime"], []), (["tensorrt-8"], ["error"]), (["onnxruntime", "tensorrt-10"], ["error"])]
)
def test_without_a_class_the_flavour_says_whether_scales_must_be_symmetric(
    tmp_path: Path, flavours: list[str], severities: list[str]
) -> None:
    told = symmetry(save_model(quantized(), tmp_path / "m.onnx"), flavours=flavours)
    assert [finding.severity for finding in told] == severities
    assert all(flavour in finding.message for finding in told for flavour in flavours if flavour != "onnxruntime")


def test_symmetric_scales_are_no_finding(tmp_path: Path) -> None:
    model = quantized()
    model.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array(0, np.int8), "zero"))
    assert [] == symmetry(save_model(model, tmp_path / "m.onnx"))


def constant_zero(model: ModelProto, value: int) -> None:
    """The zero point out of a Constant node."""
    del model.graph.initializer[-1]
    tensor = numpy_helper.from_array(np.array(value, np.int8))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["zero"], "constant", value=tensor))


@pytest.mark.parametrize(("value", "severities"), [(3, ["error"]), (0, [])])
def test_zero_points_of_constant_nodes_count(tmp_path: Path, value: int, severities: list[str]) -> None:
    model = quantized()
    constant_zero(model, value)
    told = symmetry(save_model(model, tmp_path / "m.onnx"), flavours=["tensorrt-10"])
    assert [finding.severity for finding in told] == severities


def test_zero_points_that_do_not_stand_in_the_file_are_said_to_be_unknown(tmp_path: Path) -> None:
    model = quantized()
    constant_zero(model, 0)
    model.graph.node[0].output[0] = "made"
    model.graph.node.insert(1, onnx.helper.make_node("Identity", ["made"], ["zero"], "identity"))
    (finding,) = symmetry(save_model(model, tmp_path / "m.onnx"), flavours=["tensorrt-10"])
    assert finding.severity == "warning"
    assert "2 quantizing nodes do not stand in the model file (quantize, dequantize)" in finding.message
