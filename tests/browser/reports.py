"""Reports to look at: one that a Job leaves of a real verdict, and one that is full to the brim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enginefleet_api.documents import Answer
from enginefleet_api.jobs import Source
from enginefleet_api.judging import AccuracyAcceptance, Benchmark, OperatingPoint, Subgroups, Validation
from enginefleet_api.keys import gate_key_of
from enginefleet_builder.report.model import Sources
from tests.builder import report_records as records
from tests.builder.drawn import PREPROCESSING, YOLO, coco_set, detector
from tests.builder.support import Bench

PICTURES = 60
BENCHMARK = Benchmark(batch_sizes=[1, 4], end_to_end=True)
LONGEST = 300
"""Bytes of a name, as the page cuts it."""


def failed_detector(folder: Path) -> Path:
    """The page that a build Job leaves in the store: a detector that misses a class, against one that finds all, on real pictures."""
    folder.mkdir()
    bench, pictures = Bench(folder), coco_set(folder / "set", PICTURES)
    gate = Validation(
        uri=f"{pictures.as_uri()}/",
        task="detection",
        metric="map50_95",
        decoder=YOLO,
        min_samples=50,
        subgroups=Subgroups(column="scene"),
        acceptance=AccuracyAcceptance(
            minimum="0.5", max_drop="0.01", max_drop_per_class="0.05", operating_point=OperatingPoint(confidence="0.3")
        ),
    )
    common: dict[str, Any] = {"validation_source": Source(uri=gate.uri), "preprocessing": PREPROCESSING}
    bench.give(detector())
    good = bench.prepare(validation=gate, **common)
    bench.give(detector(blind=2))
    blind = bench.prepare(validation=None, validation_source=None)
    done = bench.build(
        blind.model_copy(update={"baseline_key": good.baseline_key}),
        name="yard/squares",
        partner_prepared_key=good.prepared[0].prepared_key,
        gate_key=gate_key_of(gate, BENCHMARK, good.baseline_key),
        validation=gate,
        benchmark=BENCHMARK,
        **common,
    )
    assert done.answer is Answer.FAIL
    (found,) = (folder / "store" / "reports").rglob("*.html")
    return found


def long_names() -> Sources:
    """Every part of a page; no answer; classes, files, reasons and devices with names without a space, and in a script from right to left."""
    long = "conveyor_camera_7/" + "unbroken" * 40
    names = [long[:LONGEST], "عربة نقل " * 30, "部品" * 40, *records.HOSTILE]
    full = records.full_verdict()
    accuracy = full["accuracy"].model_copy(update={"classes": [records.part(name, drop=0.01) for name in names]})
    worst = [sample.model_copy(update={"identity": name, "why": name}) for sample, name in zip(full["worst"], names, strict=False)]
    changes = full | {"accuracy": accuracy, "worst": worst, "reasons": names, "context": {name: name for name in names}}
    return records.sources(
        engine=records.judged(**(changes | {"answer": Answer.INCONCLUSIVE})),
        device=long,
        warnings=names,
        request=records.request().model_copy(update={"name": f"vision/{long}"}),
    )
