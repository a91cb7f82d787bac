"""Keys of the parts of a spec: what of it enters which key, for the operator and for the commands alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .base import seconds
from .identity import Json, gate_key
from .resources import Benchmark, BuildSettings, InputSpec, Validation

GATE_DEFAULTS = {"minInstances": 10}
"""Of schema version 1, for what was added since: at its default it is left out, so that a gate's key stays."""


def gate_thresholds(validation: Validation | None, benchmark: Benchmark) -> dict[str, Json]:
    """All of the spec that decides the gate's answer, and what is measured beside it: who asks for more is not shown an old verdict.

    The order of classes, subgroups and batch sizes is nothing.
    """
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
    if seconds(benchmark.sustained):
        thresholds["sustained"] = benchmark.sustained
    if benchmark.paced is not None:
        thresholds["paced"] = benchmark.paced.to_json_dict()
    thresholds |= {name: True for name, asked in (("endToEnd", benchmark.end_to_end), ("cudaGraph", benchmark.cuda_graph)) if asked}
    return thresholds


USED_SETTINGS: Mapping[str, frozenset[str]] = {
    "onnxruntime": frozenset({"threads"}),
    "tensorrt": frozenset({"workspace", "optimization_level", "dla", "plugins", "tactic_sources"}),
    "tensorrt-rtx": frozenset({"workspace", "optimization_level", "plugins", "tactic_sources"}),
}
"""Fields of spec.build by the backend that they are for."""


def ignored_settings(build: BuildSettings, backend: str) -> list[str]:
    """Names (as people write them) of settings that are given and that this backend has no use for."""
    plain, written = BuildSettings(), build.model_dump(by_alias=True)
    names = dict(zip(build.model_dump(), written, strict=True))
    return [names[name] for name in names if name not in USED_SETTINGS[backend] and getattr(build, name) != getattr(plain, name)]


def recipe_of(
    build: BuildSettings, inputs: Sequence[InputSpec], *, backend: str = "onnxruntime", precision: str = "", compute_capability: str = ""
) -> dict[str, Any]:
    """The *requested* engine recipe: never resolved values. What the backend has no use for is not in it: it must not build again.

    `precision` is in that of TensorRT alone: ONNX Runtime takes it from the file. `compute_capability`: of a GPU that is not here.
    """
    used = BuildSettings.model_validate({name: value for name, value in build.model_dump().items() if name in USED_SETTINGS[backend]})
    asked = {"precision": precision} if precision and backend != "onnxruntime" else {}
    asked |= {"computeCapability": compute_capability} if compute_capability else {}
    return used.to_json_dict() | {"profiles": [one.to_json_dict() for one in inputs]} | asked


def gate_key_of(validation: Validation | None, benchmark: Benchmark, baseline_key: str | None) -> str:
    """The gate key: the baseline (with metric, decoder and own code), thresholds, required classes, subgroups, minimum samples, speed limits."""
    return gate_key(baseline=baseline_key or "none", acceptance=gate_thresholds(validation, benchmark))
