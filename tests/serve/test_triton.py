"""config.pbtxt as Triton's own schema reads it: batches, profiles, types, names."""

from __future__ import annotations

from typing import Any

import pytest

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_builder.triton import config
from tests.serve.triton_schema import ParseError, parsed, schema

TENSORRT = {"backend": "tensorrt", "backendVersion": "10.3.0.30"}
X = TensorSpec(name="images", dtype="float32", shape=["N", 3, 640, 640])
Y = TensorSpec(name="boxes", dtype="float32", shape=["N", 300, 6])


def profiles(*ranges: tuple[int, int, int], name: str = "images") -> dict[str, Any]:
    """(smallest, best, largest) batch of each profile of one input."""
    shapes = [dict(zip(("min", "opt", "max"), ([size, 3, 640, 640] for size in sizes), strict=True)) for sizes in ranges]
    return {"name": name, "profiles": shapes}


def made(
    inputs: list[TensorSpec] | None = None, outputs: list[TensorSpec] | None = None, facts: dict[str, Any] | None = None, **recipe: Any
) -> Any:
    recipe.setdefault("profiles", [profiles((1, 4, 8))])
    return parsed(config("line", "model.plan", facts or TENSORRT, recipe, inputs or [X], outputs or [Y]))


def test_a_dynamic_batch_is_added_up_to_what_the_profile_takes() -> None:
    found = made()
    assert (found.name, found.backend, found.platform, found.default_model_filename) == ("line", "tensorrt", "tensorrt_plan", "model.plan")
    assert found.max_batch_size == 8
    assert list(found.dynamic_batching.preferred_batch_size) == [4]
    assert [(item.name, item.data_type, list(item.dims)) for item in found.input] == [("images", schema().TYPE_FP32, [3, 640, 640])]
    assert [(item.name, list(item.dims)) for item in found.output] == [("boxes", [300, 6])]
    assert (found.instance_group[0].kind, list(found.instance_group[0].profile)) == (schema().ModelInstanceGroup.KIND_GPU, [])


def test_every_profile_is_named_or_triton_would_use_the_first_alone() -> None:
    found = made(profiles=[profiles((1, 1, 1), (1, 8, 16))])
    assert list(found.instance_group[0].profile) == ["0", "1"]
    assert (found.max_batch_size, list(found.dynamic_batching.preferred_batch_size)) == (16, [8])


def test_an_engine_for_a_dla_names_it() -> None:
    (named,) = made(dla={"core": 1, "allowGpuFallback": True}).instance_group[0].secondary_devices
    assert (named.kind, named.device_id) == (schema().ModelInstanceGroup.SecondaryDevice.KIND_NVDLA, 1)
    assert not made().instance_group[0].secondary_devices


def test_a_profile_takes_no_more_than_its_narrowest_input() -> None:
    mask = TensorSpec(name="mask", dtype="bool", shape=["M", 640])
    narrow = {"name": "mask", "profiles": [{"min": [1, 640], "opt": [2, 640], "max": [4, 640]}]}
    found = made([X, mask], profiles=[profiles((1, 4, 8)), narrow])
    assert (found.max_batch_size, list(found.dynamic_batching.preferred_batch_size)) == (4, [2])


@pytest.mark.parametrize(
    ("inputs", "outputs", "given"),
    [
        ([X.model_copy(update={"shape": [1, 3, 640, 640]})], [Y], []),
        ([X], [Y.model_copy(update={"shape": [300, 6]})], [profiles((1, 4, 8))]),
        ([X], [Y], [profiles((4, 4, 8))]),
        ([X], [Y], []),
        ([X], [Y.model_copy(update={"shape": []})], [profiles((1, 4, 8))]),
    ],
    ids=["fixed batch", "an output without batch", "a batch of at least 4", "no profile", "a scalar output"],
)
def test_what_is_not_added_up_is_served_in_whole_shapes(inputs: list[TensorSpec], outputs: list[TensorSpec], given: list[Any]) -> None:
    found = made(inputs, outputs, profiles=given)
    assert found.max_batch_size == 0
    assert not found.HasField("dynamic_batching")
    assert len(found.input[0].dims) == 4


def test_inputs_and_outputs_that_hold_a_shape_are_said_to_and_requests_are_not_added_up() -> None:
    size = TensorSpec(name="size", dtype="int32", shape=[2])
    ranges = [profiles((1, 4, 8)), {"name": "size", "profiles": [{"min": [1, 1], "opt": [4, 4], "max": [8, 8]}]}]
    text = config("line", "model.plan", TENSORRT, {"profiles": ranges}, [X, size], [Y], ["size"])
    found = parsed(text)
    assert [(item.name, item.is_shape_tensor, list(item.dims)) for item in found.input] == [
        ("images", False, [-1, 3, 640, 640]),
        ("size", True, [2]),
    ]
    assert [item.is_shape_tensor for item in found.output] == [False]
    assert found.max_batch_size == 0


def test_open_sizes_stay_open_and_a_scalar_a_sample_is_reshaped() -> None:
    found = made([X.model_copy(update={"shape": [None, 3, "h", "w"]})], [Y.model_copy(update={"shape": ["N"]})])
    assert list(found.input[0].dims) == [3, -1, -1]
    assert (list(found.output[0].dims), found.output[0].HasField("reshape"), list(found.output[0].reshape.shape)) == ([1], True, [])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bfloat16"])
def test_types_are_tritons(dtype: str) -> None:
    found = made([X.model_copy(update={"dtype": dtype})])
    name = schema().DataType.Name(found.input[0].data_type)
    assert name.removeprefix("TYPE_").replace("FP", "float").replace("BF", "bfloat").lower() == dtype


def test_an_engine_of_onnx_runtime_runs_on_the_cpu_with_the_threads_that_it_was_judged_with() -> None:
    found = made(facts={"backend": "onnxruntime", "executionProvider": "CPU"}, threads="2")
    assert (found.backend, found.platform) == ("onnxruntime", "onnxruntime_onnx")
    assert found.instance_group[0].kind == schema().ModelInstanceGroup.KIND_CPU
    assert found.parameters["intra_op_thread_count"].string_value == "2"


@pytest.mark.parametrize(
    ("provider", "kind", "on_gpu", "on_cpu"),
    [("CUDA", "KIND_GPU", [], []), ("TensorRT", "KIND_GPU", ["tensorrt"], []), ("OpenVINO", "KIND_CPU", [], ["openvino"])],
)
def test_an_engine_of_onnx_runtime_runs_where_its_provider_does_which_is_named(
    provider: str, kind: str, on_gpu: list[str], on_cpu: list[str]
) -> None:
    found = made(facts={"backend": "onnxruntime", "executionProvider": provider})
    assert schema().ModelInstanceGroup.Kind.Name(found.instance_group[0].kind) == kind
    named = found.optimization.execution_accelerators
    assert [one.name for one in named.gpu_execution_accelerator] == on_gpu
    assert [one.name for one in named.cpu_execution_accelerator] == on_cpu


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "größe", "😀", "a\x00b", "x: 1 }"])
def test_any_name_comes_out_as_it_went_in(name: str) -> None:
    assert made([X.model_copy(update={"name": name})], profiles=[profiles((1, 4, 8), name=name)]).input[0].name == name


@pytest.mark.parametrize(
    ("facts", "inputs", "recipe", "said"),
    [
        ({"backend": "tensorrt-rtx"}, [X], {}, "no backend for 'tensorrt-rtx'"),
        (TENSORRT, [X.model_copy(update={"dtype": "complex64"})], {}, "images is complex64"),
        (TENSORRT, [], {}, "does not tell"),
        (TENSORRT, [X], {"profiles": [{"name": "images"}]}, "profiles cannot be read"),
    ],
)
def test_what_triton_cannot_serve_is_refused_with_words(
    facts: dict[str, Any], inputs: list[TensorSpec], recipe: dict[str, Any], said: str
) -> None:
    with pytest.raises(PermanentError, match=said) as caught:
        config("line", "model.plan", facts, recipe, inputs, [Y])
    assert caught.value.reason == "LayoutNotPossible"


def test_the_schema_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ParseError):
        parsed('name: "x" max_batch: 1')
