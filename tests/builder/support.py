"""A bench: a folder store, a model and data sets, and the requests that an operator would make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onnx import ModelProto

from enginefleet_api import fingerprint, identity
from enginefleet_api.jobs import BuildReport, BuildRequest, PrepareReport, PrepareRequest, Source, StoreRef
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, Calibration, Validation
from enginefleet_api.variants import rungs
from enginefleet_builder.backends.base import Session
from enginefleet_builder.build.job import build
from enginefleet_builder.build.watch import Watch
from enginefleet_builder.gate.conditions import Reading
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.probe import host_facts, onnxruntime_facts
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records
from tests.builder.models import classifier, save_data, save_model

ACCEPTANCE = AccuracyAcceptance(minimum="0.9", max_drop="0.01")


class Undisturbed(Watch):
    """A machine that tells nothing: speed gates of tests must not hang on what else runs beside them."""

    def look(self, session: Session | None = None) -> Reading:
        return Reading(0.0)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = StoreRef(uri=(folder / "store").as_uri())
        self.records = Records(open_store(self.store))
        self.facts = fingerprint.combine(host_facts(), onnxruntime_facts("CPU"))
        self.model = folder / "model" / "model.onnx"
        self.validation = save_data(folder / "validation.npz", 400, seed=1)
        self.calibration = save_data(folder / "calibration.npz", 200, seed=2)
        self.give(classifier())

    def give(self, model: ModelProto, *, external: str | None = None) -> None:
        save_model(model, self.model, external=external)

    def gate(self, **changes: Any) -> Validation:
        return Validation(uri=self.validation.as_uri(), acceptance=ACCEPTANCE).model_copy(update=changes)

    def prepare_request(self, precision: str = "fp32", **changes: Any) -> PrepareRequest:
        calibration = changes.get("calibration", Calibration(method="max"))
        request = PrepareRequest(
            model=Source(uri=f"{self.model.parent.as_uri()}/"),
            variants=list(rungs(precision, calibration)[:1]),
            flavours=["onnxruntime"],
            calibration=calibration,
            calibration_source=Source(uri=self.calibration.as_uri()),
            validation=self.gate(),
            validation_source=Source(uri=self.validation.as_uri()),
            store=self.store,
            holder="prepare-1",
        )
        return request.model_copy(update=changes)

    def prepare(self, precision: str = "fp32", **changes: Any) -> PrepareReport:
        return prepare(self.prepare_request(precision, **changes), Progress())

    def build_request(self, prepared: PrepareReport, **changes: Any) -> BuildRequest:
        validation = changes.get("validation", self.gate())
        model = prepared.prepared[0]
        here = fingerprint.identify(self.facts)
        acceptance = validation.acceptance.to_json_dict() if validation else {}
        request = BuildRequest(
            engine_key=identity.engine_key(prepared_model=model.model, recipe={}, fingerprint=here),
            gate_key=identity.gate_key(baseline=prepared.baseline_key or "none", acceptance=acceptance),
            baseline_key=prepared.baseline_key,
            prepared_key=model.prepared_key,
            prepared_model=model.model,
            precision=model.precision,
            backend="onnxruntime",
            fingerprint=here,
            facts=self.facts,
            validation=validation,
            validation_source=Source(uri=self.validation.as_uri()) if validation else None,
            benchmark=Benchmark(batch_sizes=[1]),
            store=self.store,
            holder="build-1",
            timeout_seconds=60,
        )
        return request.model_copy(update=changes)

    def build(self, prepared: PrepareReport, **changes: Any) -> BuildReport:
        return build(self.build_request(prepared, **changes), Progress(), Undisturbed())
