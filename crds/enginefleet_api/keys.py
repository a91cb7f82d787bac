"""Keys of the parts of a spec: what of it enters which key, for the operator and for the commands alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .identity import Json, gate_key
from .resources import Benchmark, BuildSettings, InputSpec, Validation

GATE_DEFAULTS = {"minInstances": 10}
"""Of schema version 1, for what was added since: at its default it is left out, so that a gate's key stays."""


def gate_thresholds(validation: Validation | None, benchmark: Benchmark) -> dict[str, Json]:
    """All of the spec that decides the gate's answer. The order of classes, subgroups and batch sizes is nothing."""
    thresholds: dict[str, Json] = {"batchSizes": tuple(sorted(set(benchmark.batch_sizes)))}
    if validation is not None:
        thresholds |= {
            "accuracy": validation.acceptance.to_json_dict(),
            "requiredClasses": tuple(sorted(set(validation.required_classes))),
            "minSamples": validation.min_samples,
            "onDevice": validation.on_device.max_samples,
        }
        if validation.min_instances != GATE_DEFAULTS["minInstances"]:
            thresholds["minInstances"] = validation.min_instances
        if validation.subgroups is not None:
            required = tuple(sorted(set(validation.subgroups.required)))
            thresholds["subgroups"] = {"column": validation.subgroups.column} | ({"required": required} if required else {})
    if benchmark.acceptance is not None:
        thresholds["speed"] = benchmark.acceptance.to_json_dict()
    return thresholds


def recipe_of(build: BuildSettings, inputs: Sequence[InputSpec], *, backend: str = "onnxruntime", precision: str = "") -> dict[str, Any]:
    """The *requested* engine recipe: never resolved values. `precision` is in that of TensorRT alone: ONNX Runtime takes it from the file."""
    asked = {"precision": precision} if precision and backend != "onnxruntime" else {}
    return build.to_json_dict() | {"profiles": [one.to_json_dict() for one in inputs]} | asked


def gate_key_of(validation: Validation | None, benchmark: Benchmark, baseline_key: str | None) -> str:
    """The gate key: the baseline (with metric, decoder and own code), thresholds, required classes, subgroups, minimum samples, speed limits."""
    return gate_key(baseline=baseline_key or "none", acceptance=gate_thresholds(validation, benchmark))
