"""What prepare repairs: it computes the same, and a model with nothing to repair stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import PreflightTarget
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import checks, cures
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare import runtime_limits as limits
from enginefleet_builder.prepare.checks import Asked
from enginefleet_builder.prepare.preflight import Inspected, preflight
from tests.builder.models import classifier, elementwise, save_model
from tests.builder.support import Bench


def cured(model: ModelProto, folder: Path, **asked: Any) -> tuple[Inspected, ModelProto]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    inspected = preflight(folder / "m.onnx", Asked.model_validate(asked), Progress(), folder / "cured")
    return inspected, onnx.load(inspected.path)


def said(inspected: Inspected) -> dict[str, str]:
    assert [finding for finding in inspected.findings if finding.severity == "error"] == []
    return {finding.reason: finding.message for finding in inspected.findings}


def unnamed(model: ModelProto) -> None:
    for node in model.graph.node:
        node.name = ""


def named_alike(model: ModelProto) -> None:
    for node in model.graph.node[:2]:
        node.name = "same"


def unsorted(model: ModelProto) -> None:
    nodes = [model.graph.node[index] for index in (2, 0, 3, 1)]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def constants(model: ModelProto) -> None:
    """Weights as Constant nodes, one large enough to matter."""
    for tensor in list(model.graph.initializer):
        large = np.tile(numpy_helper.to_array(tensor), (8, 1, 1, 1) if tensor.name == "w" else (8, 1))
        value = numpy_helper.from_array(large.astype(np.float32), tensor.name)
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], f"constant.{tensor.name}", value=value))
        model.graph.initializer.remove(tensor)


def weights_as_inputs(model: ModelProto) -> None:
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in model.graph.initializer
    )


def unused(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(100, np.float32), "left.over"))


def negative(model: ModelProto) -> None:
    for item in (model.graph.input[0], model.graph.output[0]):
        item.type.tensor_type.shape.dim[0].dim_value = -1


def new_ir(model: ModelProto) -> None:
    model.ir_version = limits.newest_ir() + 1


@pytest.mark.parametrize(
    ("harm", "reason", "compared"),
    [
        (unnamed, "NodesUnnamed", True),
        (named_alike, "DuplicateNodeNames", False),
        (unsorted, "NodesUnsorted", True),
        (constants, "ConstantWeights", True),
        (weights_as_inputs, "WeightsAsInputs", True),
        (unused, "UnusedTensors", True),
        (negative, "NegativeDimension", True),
        (new_ir, "IrTooNew", False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_is_cured_said_and_compared(harm: Callable[[ModelProto], None], reason: str, compared: bool, tmp_path: Path) -> None:
    model = classifier()
    harm(model)
    inspected, result = cured(model, tmp_path)
    notes = said(inspected)
    assert reason in notes
    assert inspected.cured
    assert ("outputs equal the given one's" in notes["CureChecked"]) is compared, notes
    assert [] == checks.check(checks.Subject(inspected.path, result))
    assert models.metadata(result) == {"names": "a,b,c,d"}
    assert models.inputs(result)[0].name == "x"


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    model = classifier()
    for harm in (constants, unused, unnamed):
        harm(model)
    first, _ = cured(model, tmp_path / "a")
    second, _ = cured(model, tmp_path / "b")
    assert first.path.read_bytes() == second.path.read_bytes()


def test_a_good_model_is_left_alone(tmp_path: Path) -> None:
    inspected, _ = cured(classifier(), tmp_path)
    assert inspected == Inspected([], tmp_path / "m.onnx", cured=False)
    assert not (tmp_path / "cured").exists()


def test_constants_of_weights_become_initializers_under_their_name(tmp_path: Path) -> None:
    model = classifier()
    constants(model)
    _, result = cured(model, tmp_path)
    assert [tensor.name for tensor in result.graph.initializer] == ["w"]
    assert [node.op_type for node in result.graph.node].count("Constant") == 1  # the small one stays


def alike(name: str) -> ModelProto:
    """Two axes of one name in an input of unlike sizes."""
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"], "pool")],
        "alike",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, name, name])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, 1, 1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sizes(*shape: int) -> list[dict[str, Any]]:
    return [{"name": "x", "profiles": [{key: list(shape) for key in ("min", "opt", "max")}]}]


def axes(model: ModelProto) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]


def test_unlike_axes_of_one_placeholder_get_their_own_names(tmp_path: Path) -> None:
    inspected, result = cured(alike("?"), tmp_path, inputs=sizes(1, 3, 8, 16))
    assert "x are all called '?'" in said(inspected)["DimensionsNamedAlike"]
    assert axes(result) == ["batch", 3, "x_2", "x_3"]


def test_a_real_name_twice_is_only_changed_when_a_profile_contradicts_it(tmp_path: Path) -> None:
    inspected, _ = cured(alike("side"), tmp_path / "square", inputs=sizes(1, 3, 8, 8))
    assert not inspected.cured
    _, result = cured(alike("side"), tmp_path / "oblong", inputs=sizes(1, 3, 8, 16))
    assert axes(result) == ["batch", 3, "x_2", "x_3"]


def test_external_data_stays_beside_the_cured_model(tmp_path: Path) -> None:
    model = classifier()
    unnamed(model)
    (tmp_path / "weights").mkdir()
    save_model(model, tmp_path / "m.onnx", external="weights/w.bin")
    inspected = preflight(tmp_path / "m.onnx", Asked(), Progress(), tmp_path / "cured")
    assert "outputs equal" in said(inspected)["CureChecked"]
    assert (tmp_path / "cured/weights/w.bin").read_bytes() == (tmp_path / "weights/w.bin").read_bytes()


TENSORRT = PreflightTarget(name="edge", backend="tensorrt", version="8.6.2")


def test_an_opset_is_lowered_for_a_target_when_no_operator_changed(tmp_path: Path) -> None:
    model = classifier(opset=18)
    asked = {"targets": [TENSORRT], "inputs": sizes(1, 1, 8, 8)}
    inspected, result = cured(model, tmp_path, **asked)
    assert "opset 18, class edge (TensorRT 8.6.2) takes at most 17; no operator of it changed" in said(inspected)["OpsetTooNew"]
    assert models.opsets(result) == {"": 17}
    assert "outputs equal the given one's" in said(inspected)["CureChecked"]


def test_an_opset_is_not_lowered_below_a_change(tmp_path: Path) -> None:
    """Relu changed in opset 14."""
    asked = {"targets": [TENSORRT.model_copy(update={"version": "8.2.1"})], "inputs": sizes(1, 4)}
    save_model(elementwise("Relu", opset=17), tmp_path / "m.onnx")
    found = preflight(tmp_path / "m.onnx", Asked.model_validate(asked), Progress()).findings
    assert [("error", "OpsetTooNew")] == [(finding.severity, finding.reason) for finding in found]


def test_a_cure_that_changes_outputs_is_refused(tmp_path: Path) -> None:
    given = save_model(classifier(), tmp_path / "given.onnx")
    other = save_model(classifier(outlier=1.0), tmp_path / "same.onnx")
    changed = classifier()
    weights = numpy_helper.to_array(changed.graph.initializer[0]) * np.float32(1.001)
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    with pytest.raises(PermanentError, match="CureChangedOutputs"):
        cures.compare(given, save_model(changed, tmp_path / "changed.onnx"), [], Progress())
    assert "outputs equal" in cures.compare(given, other, [], Progress())


def test_prepare_publishes_the_cured_model_and_judges_it_as_the_given_one(bench: Bench, tmp_path: Path) -> None:
    plain = bench.prepare()
    model = classifier()
    unnamed(model)
    bench.give(model)
    report = bench.prepare()
    assert report.model != report.prepared[0].model
    assert any(note.startswith("NodesUnnamed: 4 of 4 nodes") for note in report.notes)
    assert any(note.startswith("CureChecked: the cured model's outputs equal") for note in report.notes)
    assert plain.baseline is not None
    assert report.baseline is not None
    assert report.baseline.value == plain.baseline.value
    again = bench.prepare()
    assert again.reused
    assert again.prepared == report.prepared
