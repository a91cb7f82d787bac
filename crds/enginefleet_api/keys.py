"""Keys of the parts of a spec: what of it enters which key, for the operator and for the commands alike."""

from __future__ import annotations

from .identity import Json, gate_key
from .resources import Benchmark, Validation


def gate_key_of(validation: Validation | None, benchmark: Benchmark, baseline_key: str | None) -> str:
    """The gate key: baseline, thresholds, required classes, minimum samples, speed limits. The order of classes and batch sizes is nothing."""
    acceptance: dict[str, Json] = {"batchSizes": tuple(sorted(set(benchmark.batch_sizes)))}
    if validation is not None:
        acceptance |= {
            "accuracy": validation.acceptance.to_json_dict(),
            "requiredClasses": tuple(sorted(set(validation.required_classes))),
            "minSamples": validation.min_samples,
            "onDevice": validation.on_device.max_samples,
        }
    if benchmark.acceptance is not None:
        acceptance["speed"] = benchmark.acceptance.to_json_dict()
    return gate_key(baseline=baseline_key or "none", acceptance=acceptance)
