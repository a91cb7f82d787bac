"""Every variant of a real network for every flavour, by the real tools; hard models that plain INT8 breaks, and what repairs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Calibration, Exclude, InputSpec
from enginefleet_api.variants import Variant
from enginefleet_builder.backends import ort_session
from enginefleet_builder.gate.datasets import open_dataset
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare import model as models
from enginefleet_builder.prepare import qdq, quantize
from enginefleet_builder.prepare.convert import Converter, Made
from enginefleet_builder.prepare.feeds import BATCH_BYTES, Feeds, invented
from examples.mnist.hard_models import hard_model

MNIST = Path(__file__).resolve().parents[2] / "examples" / "mnist"
ENTROPY, MAX = Variant(precision="int8", method="entropy"), Variant(precision="int8", method="max")
REPAIRED, FP16 = Variant(precision="int8", repaired=True), Variant(precision="fp16")


def dataset(samples: int = 128) -> Dataset:
    """The first samples of the example's calibration set."""
    whole = open_dataset(MNIST / "calibration.npz", Preprocessor.of(None), "calibration")
    return replace(whole, size=samples)


class Workshop:
    """Converters of the models, one each, and what they made: a variant is made once for all tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[tuple[str, str, str], Made] = {}
        self.converters: dict[str, Converter] = {}
        self.models: dict[str, Path] = {}

    def give(self, name: str, model: onnx.ModelProto) -> None:
        self.models[name] = self._folder / name / "model.onnx"
        self.models[name].parent.mkdir()
        onnx.save(model, self.models[name])

    def make(self, name: str, flavour: str, variant: Variant) -> Made:
        key = (name, flavour, variant.id)
        if key not in self._made:
            self._made[key] = self.converters[name].make(flavour, variant, self._folder / "-".join(key))
        return self._made[key]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("convert")
    made = Workshop(folder)
    plain = onnx.load(MNIST / "model.onnx")
    onnx.helper.set_model_props(plain, {"names": "0,1,2"})
    for name, model in (("plain", plain), ("one-layer", hard_model("one-layer")), ("every-layer", hard_model("every-layer"))):
        made.give(name, model)
    arguments: dict[str, Any] = {
        name: (path, Calibration(uri="file:///x"), dataset(), [], folder / f"scratch-{name}", Progress())
        for name, path in made.models.items()
    }
    with (
        Converter(*arguments["plain"]) as plain_one,
        Converter(*arguments["one-layer"]) as one_layer,
        Converter(*arguments["every-layer"]) as every_layer,
    ):
        made.converters = {"plain": plain_one, "one-layer": one_layer, "every-layer": every_layer}
        yield made


def top1(file: Path) -> float:
    """On the first 500 pictures of the validation set."""
    data = np.load(MNIST / "validation.npz")
    (scores,) = ort_session.load(file, 1, "basic").run(None, {"x": data["images"][:500].astype(np.float32)})
    return float((scores.argmax(axis=1) == data["labels"][:500]).mean())


def zero_points(model: onnx.ModelProto) -> set[float]:
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = {node.input[2] for node in model.graph.node if node.op_type in models.QUANTIZING and len(node.input) > 2}
    return {float(value) for name in names for value in np.ravel(stored[name])}


# ---- flavours ----


@pytest.mark.parametrize(
    ("flavour", "variant"),
    [("onnxruntime", ENTROPY), ("onnxruntime", FP16), ("tensorrt-10", ENTROPY), ("tensorrt-10", FP16), ("tensorrt-8", MAX)],
    ids=lambda value: value if isinstance(value, str) else value.id,
)
def test_a_converted_model_keeps_its_interface_takes_any_batch_and_is_as_good(workshop: Workshop, flavour: str, variant: Variant) -> None:
    made = workshop.make("plain", flavour, variant)
    before, after = models.read_model(workshop.models["plain"]), models.read_model(made.file)
    assert models.inputs(before) == models.inputs(after)
    assert models.outputs(before) == models.outputs(after)
    assert models.metadata(before).items() <= models.metadata(after).items()
    session = ort_session.load(made.file, 1, "basic")
    for batch in (1, 3):
        assert (batch, 10) == session.run(None, {"x": np.zeros((batch, 1, 28, 28), np.float32)})[0].shape
    assert float(made.recipe["cosine"]) > 0.998
    if (flavour, variant.precision) != ("tensorrt-10", "int8"):
        # ONNX Runtime's CPU kernel truncates where it quantizes FP16; TensorRT rounds
        assert abs(top1(made.file) - top1(workshop.models["plain"])) <= 0.01


def test_int8_for_onnx_runtime_quantizes_every_layer_and_leaves_the_rest_in_fp32(workshop: Workshop) -> None:
    made = workshop.make("plain", "onnxruntime", ENTROPY)
    model = onnx.load(made.file)
    assert made.share == 1.0
    assert made.qdq_nodes == models.count(model, models.QUANTIZING) > 20
    assert not any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)


def test_int8_for_tensorrt_10_has_fp16_scales_zero_points_of_0_and_opset_19_or_later(workshop: Workshop) -> None:
    made = workshop.make("plain", "tensorrt-10", ENTROPY)
    model = onnx.load(made.file)
    assert models.opsets(model)[""] >= 19
    scales = {node.input[1] for node in model.graph.node if node.op_type in models.QUANTIZING}
    assert {onnx.TensorProto.FLOAT16} == {tensor.data_type for tensor in model.graph.initializer if tensor.name in scales}
    assert {0.0} == zero_points(model)
    assert made.recipe["rest"] == "fp16"
    assert made.share is not None
    assert made.share >= 0.8  # ModelOpt leaves small matrices alone: TensorRT is slower with them


def test_int8_for_tensorrt_8_is_symmetric_in_opset_17_and_has_no_fp16(workshop: Workshop) -> None:
    model = onnx.load(workshop.make("plain", "tensorrt-8", MAX).file)
    assert models.opsets(model)[""] == 17
    assert {0.0} == zero_points(model)
    assert {onnx.TensorProto.FLOAT, onnx.TensorProto.INT8, onnx.TensorProto.INT64} >= {
        tensor.data_type for tensor in model.graph.initializer
    }


def test_fp16_for_tensorrt_8_is_the_fp32_model_in_an_older_opset(workshop: Workshop) -> None:
    made = workshop.make("plain", "tensorrt-8", FP16)
    assert models.opsets(models.read_model(made.file))[""] == 17
    assert top1(made.file) == top1(workshop.models["plain"])


def test_fp8_needs_no_pytorch(workshop: Workshop) -> None:
    made = workshop.make("plain", "tensorrt-10", Variant(precision="fp8", method="max"))
    types = {tensor.data_type for tensor in onnx.load(made.file).graph.initializer}
    assert onnx.TensorProto.FLOAT8E4M3FN in types
    assert float(made.recipe["cosine"]) > 0.99


def test_bf16_keeps_the_interface_and_says_that_it_was_not_run(workshop: Workshop) -> None:
    made = workshop.make("plain", "tensorrt-10", Variant(precision="bf16"))
    model = onnx.load(made.file)
    assert models.inputs(model)[0].dtype == "float32"
    assert onnx.TensorProto.BFLOAT16 in {tensor.data_type for tensor in model.graph.initializer}
    assert any("not run" in note for note in made.notes)


def test_a_model_that_arrives_quantized_is_checked_and_left_alone(workshop: Workshop, tmp_path: Path) -> None:
    given = workshop.make("plain", "onnxruntime", ENTROPY).file
    with Converter(given, Calibration(source="model"), None, [], tmp_path / "scratch", Progress()) as one:
        made = one.make("onnxruntime", Variant(precision="int8"), tmp_path / "out")
    assert given.read_bytes() == made.file.read_bytes()
    assert made.share == 1.0


def test_a_scale_of_zero_in_a_model_that_arrives_quantized_is_found(workshop: Workshop, tmp_path: Path) -> None:
    model = onnx.load(workshop.make("plain", "onnxruntime", ENTROPY).file)
    scale = next(tensor for tensor in model.graph.initializer if tensor.name == "relu_scale")
    scale.CopyFrom(onnx.numpy_helper.from_array(np.array(0.0, np.float32), scale.name))
    onnx.save(model, tmp_path / "model.onnx")
    with (
        Converter(tmp_path / "model.onnx", Calibration(source="model"), None, [], tmp_path / "scratch", Progress()) as one,
        pytest.raises(PermanentError, match=r"BadScales.*relu_scale"),
    ):
        one.make("onnxruntime", Variant(precision="int8"), tmp_path / "out")


def test_fp16_without_a_calibration_set_runs_in_the_shapes_of_the_profile(tmp_path: Path) -> None:
    profile = InputSpec.model_validate({"name": "x", "profiles": [{"min": [1, 1, 28, 28], "opt": [4, 1, 28, 28], "max": [8, 1, 28, 28]}]})
    feeds = invented(models.inputs(models.read_model(MNIST / "model.onnx")), [profile])
    assert (4, 1, 28, 28) == feeds[0]["x"].shape
    with Converter(MNIST / "model.onnx", None, None, [profile], tmp_path / "scratch", Progress()) as one:
        made = one.make("tensorrt-10", FP16, tmp_path / "out")
    assert models.inputs(models.read_model(made.file))[0].shape == ["batch", 1, 28, 28]
    assert made.recipe["ranges"] == "random numbers"


# ---- hard models ----


def test_rescaled_channels_change_nothing_in_fp32(workshop: Workshop) -> None:
    expected = top1(workshop.models["plain"])
    assert (expected, expected) == (top1(workshop.models["one-layer"]), top1(workshop.models["every-layer"]))


@pytest.mark.parametrize("flavour", ["onnxruntime", "tensorrt-8"])
def test_one_layer_in_higher_precision_repairs_what_both_methods_break(workshop: Workshop, flavour: str) -> None:
    expected = top1(workshop.models["one-layer"])
    assert max(top1(workshop.make("one-layer", flavour, plain).file) for plain in (ENTROPY, MAX)) < expected - 0.3
    made = workshop.make("one-layer", flavour, REPAIRED)
    assert top1(made.file) >= expected - 0.01
    assert made.share == 0.8  # 4 of 5
    assert "node_Conv_72" in made.recipe["exclude"]["nodes"]
    assert made.recipe["sensitivity"][0]["layer"] == "node_Conv_72"
    assert float(made.recipe["sqnr"]["repaired"]) >= 25 > float(made.recipe["sqnr"]["plain"])


def test_the_found_exclusions_pasted_into_the_spec_give_the_same_file(workshop: Workshop, tmp_path: Path) -> None:
    repaired = workshop.make("one-layer", "onnxruntime", REPAIRED)
    told = Calibration(uri="file:///x", method=repaired.recipe["method"], exclude=Exclude.model_validate(repaired.recipe["exclude"]))
    with Converter(workshop.models["one-layer"], told, dataset(), [], tmp_path / "scratch", Progress()) as one:
        made = one.make("onnxruntime", Variant(precision="int8", method=repaired.recipe["method"]), tmp_path / "out")
    assert repaired.file.read_bytes() == made.file.read_bytes()


def test_nothing_repairs_a_model_that_is_hard_everywhere_and_fp16_is_fine(workshop: Workshop) -> None:
    expected = top1(workshop.models["every-layer"])
    repaired = workshop.make("every-layer", "onnxruntime", REPAIRED)
    assert top1(repaired.file) < expected - 0.1
    assert any("were aimed at" in note for note in repaired.notes)
    assert top1(workshop.make("every-layer", "onnxruntime", FP16).file) >= expected - 0.005


# ---- graphs ----


def test_a_layer_takes_the_nodes_before_it_along(workshop: Workshop) -> None:
    layers = qdq.layers(onnx.load(workshop.make("plain", "onnxruntime", ENTROPY).file))
    assert ["node_Conv_68", "node_Conv_70", "node_Conv_72", "node_Conv_74", "node_linear"] == [layer.name for layer in layers]
    assert ("node_relu_1", "node_max_pool2d", "node_Conv_72") == layers[2].nodes


def test_keeping_every_node_gives_the_model_without_any_quantization(workshop: Workshop) -> None:
    quantized, original = onnx.load(workshop.make("plain", "onnxruntime", ENTROPY).file), onnx.load(MNIST / "model.onnx")
    kept = qdq.keep(quantized, [node.name for node in original.graph.node], original)
    assert models.count(kept, models.QUANTIZING) == 0
    pictures = {"x": np.load(MNIST / "validation.npz")["images"][:8].astype(np.float32)}
    expected, found = (ort_session.load(one.SerializeToString(), 1, "basic").run(None, pictures)[0] for one in (original, kept))
    np.testing.assert_allclose(expected, found, rtol=1e-5, atol=1e-5)


def test_a_frozen_dimension_is_a_changed_interface() -> None:
    given, changed = onnx.load(MNIST / "model.onnx"), onnx.load(MNIST / "model.onnx")
    changed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(PermanentError, match=r"InterfaceChanged.*\[batch, 1, 28, 28\].*\[1, 1, 28, 28\]"):
        qdq.restore_interface(given, changed)


def test_more_exclusions_than_a_spec_takes_are_joined_in_patterns() -> None:
    names = [f"layer.{number}/conv" for number in range(200)]
    packed = quantize.as_exclude(Exclude(nodes=["mine.*"]), names)
    assert len(packed["nodes"]) <= quantize.MOST_PATTERNS
    assert packed["nodes"][0] == "mine.*"
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"], name) for name in [*names, "layerX0/conv"]], "g", [], [])
    model = onnx.helper.make_model(graph)
    assert names == quantize.exclusions(Exclude(nodes=packed["nodes"][1:]), model, model)[0]


# ---- samples ----


def pictures(side: int, count: int) -> Dataset:
    return Dataset(count, None, (), lambda index: {"": np.full((3, side, side), index, np.float32)})


def test_batches_of_large_pictures_are_small() -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=["batch", 3, None, None])
    assert [10, 1, 2] == [len(Feeds(pictures(side, 10), [spec], [])) for side in (640, 32, 200)]
    assert all(feed["x"].nbytes <= 2 * BATCH_BYTES for feed in Feeds(pictures(640, 10), [spec], []).few(4))


def test_a_fixed_batch_is_filled_up_with_the_last_sample() -> None:
    feeds = Feeds(pictures(8, 5), [TensorSpec(name="x", dtype="float32", shape=[3, 3, 8, 8])], [])
    assert [[0, 1, 2], [3, 4, 4]] == [feeds[index]["x"][:, 0, 0, 0].tolist() for index in range(len(feeds))]


def test_few_samples_are_spread_over_the_set() -> None:
    feeds = Feeds(pictures(8, 100), [TensorSpec(name="x", dtype="float32", shape=["batch", 3, 8, 8])], [])
    assert [[0, 25, 50, 75]] == [feed["x"][:, 0, 0, 0].tolist() for feed in feeds.few(4)]


# ---- ModelOpt without PyTorch ----


def modelopt_says(before: str, *paths: Path, after: str = "") -> str:
    """The reason that loading ModelOpt fails for, in a process of its own with more folders to import from."""
    load = "from enginefleet_builder.prepare.notorch import ModelOpt\ntry:\n    ModelOpt()\nexcept Exception as error:\n    print(error.reason)"
    environment = {"PYTHONPATH": ":".join([*map(str, paths), *(part for part in sys.path if part)])}
    script = f"{before}\n{load}\n{after}"
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_real_pytorch_is_not_shadowed_but_refused(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert modelopt_says("", tmp_path) == "TorchFound"


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("import importlib.metadata as m\nm.version = lambda name: '0.99.0'", "ModelOptChanged"),
        ("import importlib.metadata as m\ndef gone(name): raise m.PackageNotFoundError(name)\nm.version = gone", "ModelOptMissing"),
    ],
    ids=["another", "none"],
)
def test_another_modelopt_and_none_are_said_so(before: str, reason: str) -> None:
    assert modelopt_says(before) == reason


def test_loading_leaves_no_torch_behind() -> None:
    after = "import sys\nfrom importlib.util import find_spec\nprint([name for name in sys.modules if name.startswith('torch')], find_spec('torch'))"
    assert modelopt_says("", after=after) == "[] None"
