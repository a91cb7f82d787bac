"""Execution providers of ONNX Runtime: options by name, what is refused, and what makes a provider count as active."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from enginefleet_api.errors import EnvironmentFault, PermanentError
from enginefleet_builder.backends import ort_session
from enginefleet_builder.backends.base import NodeRun
from enginefleet_builder.backends.classify import refused
from enginefleet_builder.backends.providers import PROVIDERS, Traits, build_options, refuse, run_options
from enginefleet_builder.backends.registry import backend_for
from enginefleet_builder.io import Progress
from enginefleet_builder.probe import onnxruntime_facts
from enginefleet_builder.report.layers import summarize
from tests.builder.models import classifier, save_model

TENSORRT = PROVIDERS["TensorRT"]
PLAIN = Traits(frozenset({"FLOAT"}), quantized=False)
FOLDER = Path("/work/of/one/build")


def options(recipe: dict[str, Any], traits: Traits = PLAIN) -> dict[str, str]:
    return run_options(TENSORRT, recipe, 2) | build_options(TENSORRT, recipe, traits, FOLDER)


@pytest.mark.parametrize(
    ("traits", "flags"),
    [
        (PLAIN, "000"),
        (Traits(frozenset({"FLOAT", "FLOAT16"}), quantized=False), "100"),
        (Traits(frozenset({"BFLOAT16"}), quantized=False), "010"),
        (Traits(frozenset({"FLOAT", "INT8"}), quantized=True), "001"),
        (Traits(frozenset({"FLOAT16", "INT8"}), quantized=True), "101"),
    ],
    ids=["fp32", "autocast fp16", "bf16", "q/dq", "q/dq and fp16"],
)
def test_tensorrt_gets_the_flags_of_the_types_that_the_file_has(traits: Traits, flags: str) -> None:
    found = options({}, traits)
    assert "".join(found[f"trt_{name}_enable"] for name in ("fp16", "bf16", "int8")) == flags


def test_tensorrt_takes_nothing_from_a_cache_and_keeps_its_files_in_the_folder_of_the_build() -> None:
    """The name of a cached engine covers neither weights nor static shapes: one cache for two models gives one the other's engine."""
    found = options({})
    assert {found["trt_engine_cache_enable"], found["trt_timing_cache_enable"]} == {"0"}
    assert {found["trt_engine_cache_path"], found["trt_timing_cache_path"]} == {str(FOLDER)}


def test_tensorrt_gets_the_recipe_by_name() -> None:
    shapes = [
        {"min": [1, 3, 8, 8], "opt": [2, 3, 8, 8], "max": [4, 3, 8, 8]},
        {"min": [8, 3, 8, 8], "opt": [8, 3, 8, 8], "max": [8, 3, 8, 8]},
    ]
    recipe = {
        "workspace": "1.5Gi",
        "optimizationLevel": 5,
        "dla": {"core": 1, "allowGpuFallback": True},
        "plugins": ["/opt/a.so", "/opt/b.so"],
        "tacticSources": ["CUDNN", "JIT_CONVOLUTIONS"],
        "profiles": [{"name": "x", "profiles": shapes}, {"name": "y", "profiles": [{"min": [1], "opt": [1], "max": [1]}] * 2}],
    }
    found = options(recipe)
    assert found["trt_max_workspace_size"] == str(3 * 2**29)
    assert found["trt_builder_optimization_level"] == "5"
    assert (found["trt_dla_enable"], found["trt_dla_core"]) == ("1", "1")
    assert found["trt_extra_plugin_lib_paths"] == "/opt/a.so;/opt/b.so"
    assert found["trt_tactic_sources"] == "-CUBLAS,-CUBLAS_LT,+CUDNN,-EDGE_MASK_CONVOLUTIONS,+JIT_CONVOLUTIONS"
    assert found["trt_profile_min_shapes"] == "x:1x3x8x8,y:1,x:8x3x8x8,y:1"
    assert found["trt_profile_max_shapes"] == "x:4x3x8x8,y:1,x:8x3x8x8,y:1"


def test_a_dla_and_plugins_are_asked_for_when_an_engine_is_loaded_too() -> None:
    found = run_options(TENSORRT, {"dla": {"core": 0}, "plugins": ["/opt/a.so"]}, 2)
    assert found.keys() == {"device_id", "trt_dla_enable", "trt_dla_core", "trt_extra_plugin_lib_paths"}


def test_fp32_is_not_rounded_behind_ones_back() -> None:
    assert run_options(PROVIDERS["CUDA"], {}, 2)["use_tf32"] == "0"
    assert run_options(PROVIDERS["OpenVINO"], {}, 2)["precision"] == "ACCURACY"


@pytest.mark.parametrize(
    ("provider", "recipe", "said"),
    [
        ("CPU", {"workspace": "1Gi"}, "workspace"),
        ("OpenVINO", {"optimizationLevel": 0}, "optimizationLevel"),
        ("CUDA", {"dla": {"core": 0}, "plugins": ["/opt/a.so"]}, "dla; plugins"),
        ("TensorRT", {"dla": {"core": 0, "allowGpuFallback": False}}, "dla.allowGpuFallback false"),
        ("TensorRT", {"tacticSources": ["CUTLASS"]}, "tacticSources CUTLASS"),
        ("TensorRT", {"plugins": ["/opt/a.so;/tmp/b.so"]}, "semicolon"),
    ],
)
def test_a_setting_that_a_provider_cannot_follow_is_refused_by_name(provider: str, recipe: dict[str, Any], said: str) -> None:
    with pytest.raises(PermanentError) as caught:
        refuse(PROVIDERS[provider], recipe)
    assert caught.value.reason == "NotSupportedByProvider"
    assert said in caught.value.message


def test_settings_at_their_defaults_are_refused_by_nobody() -> None:
    recipe = {"workspace": "auto", "optimizationLevel": 3, "dla": None, "plugins": [], "tacticSources": [], "threads": "4", "profiles": []}
    for provider in PROVIDERS.values():
        refuse(provider, recipe)


# ---- what a model is ----


def test_types_are_found_in_initializers_and_casts_of_inner_graphs_too(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["low"], to=TensorProto.FLOAT16), helper.make_node("Cast", ["low"], ["y"], to=TensorProto.FLOAT)],
        "inner",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)],
        "outer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]), helper.make_tensor_value_info("yes", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(onnx.numpy_helper.to_array(helper.make_tensor("w", TensorProto.INT8, [1], [3])), "w")],
    )
    path = save_model(helper.make_model(graph), tmp_path / "model.onnx")
    assert ort_session.traits(path) == Traits(frozenset({"FLOAT", "FLOAT16", "INT8"}), quantized=False)


# ---- EP context models ----


def context(**attributes: Any) -> ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    node = helper.make_node("EPContext", ["x"], ["y"], "part", domain="com.microsoft", **attributes)
    return helper.make_model(helper.make_graph([node], "context", [x], [y]))


def test_an_ep_context_that_holds_what_was_compiled_is_whole(tmp_path: Path) -> None:
    ort_session.require_embedded(save_model(context(embed_mode=1, ep_cache_context=b"plan"), tmp_path / "engine.onnx"))


@pytest.mark.parametrize("path", ["../../etc/passwd", "/tmp/plan.bin", "plan.bin"])
def test_an_ep_context_that_names_a_file_is_refused_wherever_that_lies(tmp_path: Path, path: str) -> None:
    engine = save_model(context(embed_mode=0, ep_cache_context=path.encode()), tmp_path / "engine.onnx")
    with pytest.raises(ort_session.NotEmbeddedError, match="names a file"):
        ort_session.load(engine, 1, provider=TENSORRT)


def test_tensors_in_other_files_are_refused_too(tmp_path: Path) -> None:
    model = context(embed_mode=1)
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.bin")
    model.graph.initializer.append(tensor)
    with pytest.raises(ort_session.NotEmbeddedError, match="names files"):
        ort_session.require_embedded(save_model(model, tmp_path / "engine.onnx"))


def test_a_provider_that_wrote_no_context_model_made_no_engine(tmp_path: Path) -> None:
    with pytest.raises(ort_session.NotEmbeddedError, match="wrote no EP context"):
        ort_session.require_embedded(tmp_path / "engine.onnx")
    with pytest.raises(ort_session.NotEmbeddedError, match="no EPContext node"):
        ort_session.require_embedded(save_model(classifier(), tmp_path / "engine.onnx"))


# ---- active, or a failure ----


@pytest.mark.parametrize("provider", ["CUDA", "TensorRT", "CoreML", "OpenVINO"])
def test_a_provider_that_this_onnx_runtime_lacks_is_a_failure_never_the_cpu(tmp_path: Path, provider: str) -> None:
    model = save_model(classifier(), tmp_path / "model.onnx")
    with pytest.raises(EnvironmentFault) as caught:
        backend_for("onnxruntime", provider).build(model, {}, tmp_path, Progress())
    assert caught.value.reason == "ExecutionProviderInactive"
    assert PROVIDERS[provider].called in caught.value.message
    with pytest.raises(EnvironmentFault, match="ExecutionProviderMissing"):
        onnxruntime_facts(provider)


def test_what_onnx_runtime_logged_says_why_a_provider_did_not_start() -> None:
    log = (
        "\x1b[1;31m2026-12-02 10:34:18.74 [E:onnxruntime:Default, provider_bridge.cc:1 Create] x.cc:141 Device GPU is not available\n\x1b[m"
    )
    found = refused("ProviderInactiveError: OpenVINOExecutionProvider did not start", "load", log)
    assert isinstance(found, EnvironmentFault)
    assert found.message == "OpenVINOExecutionProvider did not start. It logged: x.cc:141 Device GPU is not available."


def test_the_cpu_takes_all_nodes_and_says_so(tmp_path: Path) -> None:
    model = save_model(classifier(), tmp_path / "model.onnx")
    built = backend_for("onnxruntime").build(model, {}, tmp_path, Progress())
    assert built.providers == {"CPUExecutionProvider": 4}


def test_a_report_calls_compiled_what_a_provider_compiled() -> None:
    nodes = [NodeRun("OpenVINO-EP-subgraph_1", ["float"], ["float"], 0.002, compiled=True), NodeRun("Add", ["float"], ["float"], 0.001)]
    layers = summarize(nodes, source="the profiler", batch=1, runs=1)
    assert [(item.type, item.nodes) for item in layers.types] == [("fp32", 1), ("compiled", 1)]
