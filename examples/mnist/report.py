"""Build and judge the example in FP32 and INT8 in a folder of your choice, and write the INT8 engine's report. docs/report-example.html comes from here.

PYTHONPATH=crds:builder python examples/mnist/report.py FOLDER PAGE      FOLDER: for store and data; it stays, so the commands on the page work
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from enginefleet_api import fingerprint, identity
from enginefleet_api.jobs import BuildRequest, PrepareRequest, Source, StoreRef
from enginefleet_api.judging import PacedRun
from enginefleet_api.keys import gate_key_of
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, Calibration, Validation
from enginefleet_api.variants import Variant
from enginefleet_builder.build.job import build
from enginefleet_builder.io import Progress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.probe import host_facts, onnxruntime_facts
from enginefleet_builder.report.html import page
from enginefleet_builder.report.job import make_report

HERE = Path(__file__).resolve().parent
VARIANTS = [Variant(precision="fp32"), Variant(precision="int8", method="max"), Variant(precision="int8", method="entropy")]
BENCHMARK = Benchmark(batch_sizes=[1, 16], paced=PacedRun(rate="30", duration="5s"), end_to_end=True)


def main(folder: Path, target: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("model.onnx", "validation.npz", "calibration.npz"):
        shutil.copyfile(HERE / name, folder / name)
    acceptance = AccuracyAcceptance(minimum="0.95", max_drop="0.01", max_drop_per_class="0.10")
    validation = Validation(uri=(folder / "validation.npz").as_uri(), acceptance=acceptance)
    store = StoreRef(uri=(folder / "store").as_uri())
    prepared = prepare(
        PrepareRequest(
            name="example/digits",
            model=Source(uri=(folder / "model.onnx").as_uri()),
            variants=VARIANTS,
            flavours=["onnxruntime"],
            calibration=Calibration(uri=(folder / "calibration.npz").as_uri()),
            calibration_source=Source(uri=(folder / "calibration.npz").as_uri()),
            validation=validation,
            validation_source=Source(uri=validation.uri),
            store=store,
            holder="example",
        ),
        Progress(),
    )
    facts = fingerprint.combine(host_facts(), onnxruntime_facts("CPU"))
    here = fingerprint.identify(facts)
    engine_key = ""
    for model in prepared.prepared:
        engine_key = identity.engine_key(prepared_model=model.model, recipe={}, fingerprint=here)
        request = BuildRequest(
            name="example/digits",
            engine_key=engine_key,
            gate_key=gate_key_of(validation, BENCHMARK, prepared.baseline_key),
            baseline_key=prepared.baseline_key,
            prepared_key=model.prepared_key,
            prepared_model=model.model,
            partner_prepared_key=prepared.prepared[0].prepared_key if model is not prepared.prepared[0] else None,
            precision=model.precision,
            backend="onnxruntime",
            fingerprint=here,
            facts=facts,
            validation=validation,
            validation_source=Source(uri=validation.uri),
            benchmark=BENCHMARK,
            store=store,
            holder="example",
        )
        print(f"{model.variant}: {build(request, Progress()).answer}")
    target.write_text(page(make_report(store, engine_key, None, (), Progress())))


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]))
