"""Prepare, build and judge the example on this machine in a temporary folder store; print a table. The numbers of README.md come from here.

PYTHONPATH=crds:builder python examples/mnist/measure.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from enginefleet_api import fingerprint, identity
from enginefleet_api.jobs import BuildRequest, PrepareRequest, Source, StoreRef
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, Calibration, Validation
from enginefleet_api.variants import rungs
from enginefleet_builder.build.job import build
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.probe import host_facts, onnxruntime_facts

HERE = Path(__file__).resolve().parent
VALIDATION = Validation(uri=(HERE / "validation.npz").as_uri(), acceptance=AccuracyAcceptance(minimum="0.95", max_drop="0.01"))


def measure(precision: str, method: Literal["entropy", "max"], store: StoreRef) -> str:
    """One row of the table."""
    request = PrepareRequest(
        model=Source(uri=(HERE / "model.onnx").as_uri()),
        variants=list(rungs(precision, Calibration(method=method))),
        flavours=["onnxruntime"],
        calibration=Calibration(method=method),
        calibration_source=Source(uri=(HERE / "calibration.npz").as_uri()),
        validation=VALIDATION,
        validation_source=Source(uri=VALIDATION.uri),
        store=store,
        holder="measure",
    )
    prepared = prepare(request, Progress())
    model, baseline_key = prepared.prepared[0], prepared.baseline_key
    assert baseline_key is not None
    facts = fingerprint.combine(host_facts(), onnxruntime_facts("CPU"))
    identifier = fingerprint.identify(facts)
    report = build(
        BuildRequest(
            engine_key=identity.engine_key(prepared_model=model.model, recipe={}, fingerprint=identifier),
            gate_key=identity.gate_key(baseline=baseline_key, acceptance=VALIDATION.acceptance.to_json_dict()),
            baseline_key=baseline_key,
            prepared_key=model.prepared_key,
            prepared_model=model.model,
            precision=precision,
            backend="onnxruntime",
            fingerprint=identifier,
            facts=facts,
            validation=VALIDATION,
            validation_source=Source(uri=VALIDATION.uri),
            benchmark=Benchmark(batch_sizes=[1, 16]),
            store=store,
            holder="measure",
        ),
        Progress(),
    )
    accuracy = report.accuracy
    assert accuracy is not None
    label = precision if precision == "fp32" else f"{precision}, {method}"
    one, many = report.latency
    numbers = [accuracy.baseline, accuracy.value, accuracy.cosine_min, report.size, one.p50, many.p50, report.answer]
    return f"| {label} | " + " | ".join(str(number) for number in numbers) + " |"


def main() -> None:
    print("| precision | baseline top-1 | engine top-1 | lowest cosine | bytes | p50 ms, batch 1 | p50 ms, batch 16 | answer |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        store = StoreRef(uri=Path(folder).as_uri())
        print(measure("fp32", "entropy", store))
        print(measure("int8", "entropy", store))
        print(measure("int8", "max", store))


if __name__ == "__main__":
    main()
