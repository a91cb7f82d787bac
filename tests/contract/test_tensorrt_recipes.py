"""What each TensorRT release is told for a recipe: a table against the names that the release really has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.contract.doubles import RELEASES, Double, surface_of
from tests.contract.worker import module

recipes, failed = module("recipe"), module("failed")

FP32 = {"quantized": False, "float8": False, "types": ["float32"]}
FP16 = FP32 | {"types": ["float16", "float32"]}
BF16 = FP32 | {"types": ["bfloat16", "float32"]}
INT8 = FP32 | {"quantized": True}
INT8_FP16 = FP16 | {"quantized": True}
FP8 = FP16 | {"float8": True}
WEAK_8, WEAK, STRONG, ALWAYS = {"EXPLICIT_BATCH"}, set[str](), {"STRONGLY_TYPED"}, set[str]()


def planned(release: str, precision: str, facts: Mapping[str, Any], **recipe: Any) -> Any:
    return recipes.plan(surface_of(release), {"library": f"TensorRT {release}", "precision": precision, "facts": facts, "recipe": recipe})


@pytest.mark.parametrize(
    ("release", "precision", "facts", "network", "flags"),
    [
        # TF32 is on by default in every release: FP32 clears it
        ("8.5", "fp32", FP32, WEAK_8, set()),
        ("8.5", "fp16", FP32, WEAK_8, {"FP16", "TF32"}),
        ("8.5", "int8", INT8, WEAK_8, {"FP16", "INT8", "TF32"}),
        ("8.6.0", "fp32", FP32, WEAK_8, set()),
        ("8.6.0", "tf32", FP32, WEAK_8, {"TF32"}),
        ("8.6.0", "fp16", FP32, WEAK_8, {"FP16", "TF32"}),
        ("8.6.0", "fp16", FP16, WEAK_8, {"FP16", "TF32"}),
        ("8.6.0", "int8", INT8, WEAK_8, {"FP16", "INT8", "TF32"}),
        # the INT8 flag follows from the file alone, whatever was asked for
        ("8.6.0", "fp32", INT8, WEAK_8, {"INT8"}),
        ("8.6.0", "fp8", FP8, WEAK_8, {"FP16", "FP8", "TF32"}),
        *[(release, "fp32", FP32, STRONG, set()) for release in ("10.3.0", "10.7.0", "10.16.1")],
        *[(release, "tf32", FP32, STRONG, {"TF32"}) for release in ("10.3.0", "10.7.0", "10.16.1")],
        *[(release, "fp16", FP16, STRONG, {"TF32"}) for release in ("10.3.0", "10.7.0", "10.16.1")],
        *[(release, "bf16", BF16, STRONG, {"TF32"}) for release in ("10.3.0", "10.16.1")],
        *[(release, "int8", INT8_FP16, STRONG, {"TF32"}) for release in ("10.3.0", "10.7.0", "10.16.1")],
        ("10.3.0", "fp8", FP8, STRONG, {"TF32"}),
        # a file without the types: flags, where the release still has them
        ("10.3.0", "fp16", FP32, WEAK, {"FP16", "TF32"}),
        ("10.3.0", "bf16", FP32, WEAK, {"BF16", "TF32"}),
        *[(release, "fp32", FP32, ALWAYS, set()) for release in ("11.4.0", "RTX 1.7.1")],
        *[(release, "fp16", FP16, ALWAYS, {"TF32"}) for release in ("11.4.0", "RTX 1.7.1")],
        *[(release, "int8", INT8_FP16, ALWAYS, {"TF32"}) for release in ("11.4.0", "RTX 1.7.1")],
        *[(release, "int8", INT8, ALWAYS, {"TF32"}) for release in ("11.4.0", "RTX 1.7.1")],
    ],
)
def test_flags_follow_from_file_precision_and_release(
    release: str, precision: str, facts: dict[str, Any], network: set[str], flags: set[str]
) -> None:
    trt = Double(release)
    request = {"library": release, "precision": precision, "facts": facts, "recipe": {}}
    made = recipes.plan(recipes.surface(trt), request)
    building = module("building")
    builder, _ = building.started(trt, module("logs").Lines(lambda _frame: None))
    builder.create_network(building.mask(trt.NetworkDefinitionCreationFlag, made.network))
    building.configured(trt, builder, made, {"workspace": None})
    assert network == trt.asked["network"]
    assert flags == trt.asked["flags"]


@pytest.mark.parametrize(
    ("release", "precision", "facts", "recipe", "reason", "words"),
    [
        (
            "8.2",
            "fp32",
            FP32,
            {},
            "TensorRTTooOld",
            "TensorRT 8.2 has no IExecutionContext.execute_async_v3: this builder needs TensorRT 8.5",
        ),
        *[(release, "int8", FP32, {}, "NotQuantized", "no Q/DQ nodes") for release in RELEASES],
        ("8.6.0", "fp8", INT8, {}, "NotQuantized", "fp8"),
        ("8.5", "fp8", FP8, {}, "PrecisionUnsupported", "TensorRT 8.5 has no builder flag FP8"),
        ("8.6.0", "bf16", BF16, {}, "PrecisionUnsupported", "TensorRT 8.6.0 has no builder flag BF16"),
        *[(release, "fp16", FP32, {}, "TypesMissing", "no tensor of precision fp16") for release in ("11.4.0", "RTX 1.7.1")],
        *[(release, "bf16", FP16, {}, "TypesMissing", "no tensor of precision bf16") for release in ("11.4.0", "RTX 1.7.1")],
        ("11.4.0", "fp32", FP32, {"tacticSources": ["CUBLAS"]}, "UnknownTacticSource", "TensorRT 11.4.0 has no tactic source CUBLAS"),
        ("8.6.0", "fp32", FP32, {"computeCapability": "8.6"}, "NoCrossBuild", "builds for the GPU that is there only"),
        ("11.4.0", "fp32", FP32, {"computeCapability": "8.6"}, "NoCrossBuild", "builds for the GPU that is there only"),
        ("8.6.0", "fp32", FP32, {"dla": {"core": 0}}, "DlaPrecision", "a DLA computes in fp16 and int8 only"),
        ("10.7.0", "int8", FP32, {"dla": {"core": 0}}, "NotQuantized", "no Q/DQ nodes"),
        ("RTX 1.7.1", "fp32", FP32, {"computeCapability": "8.7"}, "UnknownComputeCapability", "cannot build for 8.7"),
    ],
)
def test_what_a_release_cannot_do_is_refused_in_words(
    release: str, precision: str, facts: dict[str, Any], recipe: dict[str, Any], reason: str, words: str
) -> None:
    with pytest.raises(failed.Refused) as caught:
        planned(release, precision, facts, **recipe)
    assert reason == caught.value.reason
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("release", "has"),
    [("8.5", False), ("8.6.0", False), ("10.3.0", True), ("10.16.1", True), ("11.4.0", True), ("RTX 1.7.1", True)],
)
def test_progress_is_monitored_where_the_release_can(release: str, has: bool) -> None:
    assert has == planned(release, "fp32", FP32).monitored


@pytest.mark.parametrize("release", ["8.5", "8.6.0", "10.3.0", "10.7.0"])
def test_a_dla_takes_scales_beside_a_weakly_typed_network(release: str) -> None:
    dla = {"core": 1, "allowGpuFallback": True}
    request = {"library": release, "precision": "int8", "facts": FP32, "recipe": {"dla": dla}, "scales": {"x": 0.1}}
    made = recipes.plan(surface_of(release), request)
    assert made.implicit
    assert made.typed == "weak"
    assert set(made.set) == {"FP16", "INT8", "TF32", "GPU_FALLBACK"}
    assert {("default_device_type", "DeviceType.DLA"), ("DLA_core", 1)} <= set(made.settings)
    made = planned(release, "fp16", FP32, dla=dla | {"allowGpuFallback": False})
    assert not made.implicit
    assert set(made.set) == {"FP16", "TF32"}


def test_later_releases_take_q_dq_nodes_for_a_dla_too() -> None:
    made = planned("11.4.0", "int8", INT8_FP16, dla={"core": 0, "allowGpuFallback": True})
    assert not made.implicit
    assert made.typed == "strong"
    assert set(made.set) == {"TF32", "GPU_FALLBACK"}


def test_an_optimization_level_without_effect_is_said() -> None:
    assert planned("8.5", "fp32", FP32).notes == []
    assert planned("8.5", "fp32", FP32, optimizationLevel=5).notes == ["TensorRT 8.5 has no optimization levels: 5 has no effect"]
    assert ("builder_optimization_level", 5) in planned("8.6.0", "fp32", FP32, optimizationLevel=5).settings


def test_a_weakly_typed_network_of_a_release_that_has_both_is_said() -> None:
    assert planned("10.3.0", "fp16", FP16).notes == []
    assert "weakly typed" in planned("10.3.0", "fp16", FP32).notes[0]


def test_settings_reach_the_config_by_name() -> None:
    for release in RELEASES:
        trt = Double(release)
        building = module("building")
        sources = ["EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]
        recipe = {"optimizationLevel": 2, "tacticSources": sources}
        request = {"library": release, "precision": "fp32", "facts": FP32, "recipe": recipe}
        made = recipes.plan(recipes.surface(trt), request)
        builder, _ = building.started(trt, module("logs").Lines(lambda _frame: None))
        config = building.configured(trt, builder, made, {"workspace": 1 << 20})
        assert config.was_set["builder_optimization_level"] == 2
        assert config.was_set["profiling_verbosity"].name == "DETAILED"
        assert trt.asked["tactics"] == set(sources)
        assert trt.asked["pools"] == {"WORKSPACE": 1 << 20}
