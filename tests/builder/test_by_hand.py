"""What `enginefleet prepare` makes of --precision, --method, --calibration and --repair, and --spec with the flags over it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import PrepareRequest
from enginefleet_api.variants import Variant
from enginefleet_builder import by_hand
from enginefleet_builder.main import app


@pytest.mark.parametrize(
    ("precision", "method", "data", "repair", "expected"),
    [
        ("fp32", "auto", False, False, ["fp32"]),
        ("int8", "auto", True, False, ["int8-entropy"]),
        ("int8", "max", True, False, ["int8-max"]),
        ("int8", "auto", False, True, ["int8"]),
        ("int8", "max", True, True, ["int8-max", "int8-repaired"]),
        ("auto", "auto", True, False, ["int8-entropy", "int8-max", "fp16", "fp32"]),
        ("auto", "auto", True, True, ["int8-entropy", "int8-max", "int8-repaired", "fp16", "fp32"]),
        ("auto", "auto", False, True, ["fp16", "fp32"]),
        ("fp16", "auto", True, True, ["fp16"]),
    ],
)
def test_variants(precision: str, method: Literal["auto", "entropy", "max"], data: bool, repair: bool, expected: list[str]) -> None:
    asked = by_hand.spec(
        None, {"precision": precision, "calibration": {"uri": "cal.npz" if data else None, "method": method if data else None}}
    )
    made = by_hand.variants(asked, repair=repair)
    assert expected == [Variant.model_validate(one).id for one in made]


def test_a_precision_that_nobody_knows() -> None:
    with pytest.raises(PermanentError, match=r"BadRequest: the flags: spec\.precision: .*'int8'"):
        by_hand.spec(None, {"precision": "int3"})


MANIFEST = """
kind: EngineStore
spec: {uri: s3://engines/}
---
apiVersion: enginefleet.io/v1alpha1
kind: ModelDeployment
metadata: {name: squares}
spec:
  model: {uri: s3://models/squares.onnx}
  preprocessing: {resize: letterbox, size: [64, 64], scale: "1/255"}
  validation:
    uri: s3://models/squares/
    task: detection
    metric: map50
    decoder: {kind: yolo, confidence: "0.05"}
    subgroups: {column: scene}
    acceptance: {maxDrop: "0.02"}
  benchmark: {batchSizes: [1, 4]}
  targets: [{hardwareClass: cpu-a}]
"""


def test_a_manifest_says_what_flags_cannot_and_flags_say_it_for_this_machine(tmp_path: Path) -> None:
    (tmp_path / "squares.yaml").write_text(MANIFEST)
    flags = {"validation": {"uri": "/data/squares/", "task": None, "minSamples": 20, "acceptance": {"maxDrop": "0.01", "minimum": None}}}
    asked = by_hand.spec(tmp_path / "squares.yaml", flags)
    assert asked.preprocessing.size == [64, 64]
    assert asked.benchmark.batch_sizes == [1, 4]
    assert asked.validation is not None
    assert (asked.validation.task, asked.validation.metric, asked.validation.decoder.kind) == ("detection", "map50", "yolo")
    assert (asked.validation.min_samples, asked.validation.acceptance.max_drop) == (20, "0.01")
    request = by_hand.prepare_request(asked, repair=False, flavours=["onnxruntime"], store_ref=by_hand.store("store"))
    made = PrepareRequest.model_validate(request | {"holder": "test"})
    assert made.model.uri == "s3://models/squares.onnx"
    assert made.validation_source is not None
    assert made.validation_source.uri == "file:///data/squares"
    assert made.preprocessing == asked.preprocessing


def test_the_part_below_spec_will_do_with_its_name_or_without(tmp_path: Path) -> None:
    (tmp_path / "part.yaml").write_text("validation: {uri: data/, task: outputs, metric: cosine}\n")
    asked = by_hand.spec(tmp_path / "part.yaml", {})
    assert asked.validation is not None
    assert asked.validation.uri == (Path.cwd() / "data").as_uri()
    (tmp_path / "named.yaml").write_text("metadata: {name: yard}\nspec: {validation: {uri: data/, task: outputs, metric: cosine}}\n")
    assert by_hand.named_spec(tmp_path / "named.yaml", {}) == (asked, "yard")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("validation: {uri: data/, acceptance: {maxdrop: '0.01'}}", r'unknown field "spec\.validation\.acceptance\.maxdrop"'),
        ("validation: {uri: data/, acceptance: {maxDrop: 0.01}}", r"spec\.validation\.acceptance\.maxDrop: Input should be a valid string"),
        ("inputs: [{name: x, profiles: [{min: [1], opt: [1], max: [1], best: [1]}]}]", r"spec\.inputs\[0\]\.profiles\[0\]\.best"),
        ("kind: HardwareClass\nspec: {}", "it has 0 ModelDeployments"),
        (MANIFEST + "---" + MANIFEST, "it has 2 ModelDeployments"),
        ("kind: ModelDeployment", "it has no spec"),
        ("spec: {precision: fp32}\nvalidation: {uri: data/}", "beside spec it has validation, which belongs below it"),
        ("{", "cannot be used as a spec"),
        ("- validation", "it has 0 ModelDeployments"),
        ("validation: &a {python: *a}", "cannot be used as a spec|valid"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(PermanentError, match=f"BadRequest: .*({message})"):
        by_hand.spec(tmp_path / "spec.yaml", {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--prepared", "x", "--store", "STORE"], "'x' is not a key"),
        (["judge", "--prepared", "0" * 64, "--baseline", "x", "--store", "STORE"], "'x' is not a key"),
        (["build", "--prepared", "0" * 64, "--store", "STORE"], "PreparedMissing"),
        (["build", "--prepared", "0" * 64, "--store", "STORE", "--max-drop", "0.01"], "spec.validation.uri: Field required"),
        (["build", "--prepared", "0" * 64, "--store", "STORE", "--validation", "x", "--max-drop", "abc"], "acceptance.maxDrop"),
        (["prepare", "--spec", "STORE/nothing.yaml", "--store", "STORE"], "nothing.yaml cannot be used as a spec: No such file"),
        (["build", "--request", "STORE/binary"], "binary is no text"),
    ],
)
def test_flags_that_cannot_be_read_end_with_a_message(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    result = CliRunner().invoke(app, [argument.replace("STORE", str(tmp_path)) for argument in arguments])
    assert (result.exit_code, message in result.output) == (42, True), result.output
