"""Judging from pictures to verdict: detectors, segmenters, embeddings and own metrics, in real engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from enginefleet_api.documents import Answer, Verdict
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import PrepareReport, Source
from enginefleet_api.keys import gate_key_of
from enginefleet_api.resources import (
    AccuracyAcceptance,
    Benchmark,
    Decoder,
    OnDevice,
    OperatingPoint,
    PythonMetric,
    SpeedAcceptance,
    Subgroups,
    Validation,
)
from tests.builder.drawn import CLASSES, PREPROCESSING, YOLO, coco_set, detector, mask_set, segmenter
from tests.builder.models import classifier
from tests.builder.support import Bench

PICTURES = 120
BENCHMARK = Benchmark(batch_sizes=[1])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coco_set(tmp_path_factory.mktemp("coco") / "set", PICTURES)


def detection(pictures: Path, *, of: dict[str, Any] | None = None, **changes: Any) -> Validation:
    acceptance = AccuracyAcceptance.model_validate({"max_drop": "0.01", **(of or {})})
    given = {
        "uri": f"{pictures.as_uri()}/",
        "task": "detection",
        "metric": "map50_95",
        "decoder": YOLO,
        "acceptance": acceptance,
        "min_samples": 50,
    }
    return Validation.model_validate(given | changes)


Judge = Callable[..., Verdict]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """One store for all: baselines and engines that several tests need are made once."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def judge(bench: Bench) -> Judge:
    """Prepares `given` with its baseline, and judges an engine of `model` (the same by default) against it."""

    done: dict[object, PrepareReport] = {}

    def prepare(model: ModelProto, validation: Validation | None, **common: Any) -> PrepareReport:
        """Once for all gates that have the same baseline: most of a second is the checking of the model."""
        key = (
            model.SerializeToString(),
            validation and validation.model_dump_json(exclude={"acceptance", "on_device", "required_classes"}),
        )
        if key not in done:
            bench.give(model)
            done[key] = bench.prepare(validation=validation, **common)
        return done[key]

    def run(
        given: ModelProto, validation: Validation, model: ModelProto | None = None, preprocessing: Any = PREPROCESSING, **changes: Any
    ) -> Verdict:
        common = {"validation_source": Source(uri=validation.uri), "preprocessing": preprocessing}
        prepared = prepare(given, validation, **common)
        partner = prepared.prepared[0].prepared_key
        if model is not None:
            prepared = prepare(model, None, validation_source=None).model_copy(update={"baseline_key": prepared.baseline_key})
        key = gate_key_of(validation, changes.get("benchmark", BENCHMARK), prepared.baseline_key)
        changes = {"partner_prepared_key": partner, "gate_key": key, "validation": validation, **common, **changes}
        request = bench.build_request(prepared, **changes)
        bench.build(prepared, **changes)
        found = bench.records.newest_verdict(request.engine_key, key)
        assert found is not None
        return found[1]

    return run


def test_a_detector_passes_with_all_that_a_person_wants_to_know(judge: Judge, pictures: Path, bench: Bench) -> None:
    gate = detection(
        pictures,
        of={"operating_point": OperatingPoint(confidence="0.3"), "max_drop_per_class": "0.02", "max_drop_per_subgroup": "0.02"},
        required_classes=["red", "blue"],
        subgroups=Subgroups(column="scene"),
    )
    verdict = judge(detector(), gate)
    assert Answer.PASS == verdict.answer, verdict.reasons
    found = verdict.accuracy
    assert found is not None
    assert 0.8 < float(found.value or 0) < 1, "squares without a label are false alarms"
    assert ("0.000000", ["0.000000", "0.000000"], PICTURES) == (found.drop, found.drop_interval, found.samples)
    assert float(found.interval[0]) < float(found.value or 0) < float(found.interval[1])
    assert set(CLASSES) == {part.name for part in found.classes}
    assert {"day": 90, "night": 30} == {part.name: part.samples for part in found.groups}
    assert found.operating_point is not None
    assert float(found.operating_point.recall) < 1, "the darkest squares lie below the confidence"
    assert "0.000000" == found.operating_point.score_shift
    assert {"accuracy", "subgroups", "requiredClasses", "minSamples", "onDevice", "batchSizes"} == set(verdict.thresholds)
    assert "0.01" == verdict.thresholds["accuracy"]["maxDrop"]
    assert [] == verdict.worst
    assert verdict.speedup is not None
    assert ("1.000", 0) == (verdict.speedup.speedup, verdict.speedup.blocks), "it is its own partner"
    assert {"engine", "validation"} == set(verdict.evidence["bytes"])
    assert {"validation", "accuracy", "statistics", "benchmark"} == set(verdict.evidence["seconds"])
    assert found.compared == 64


def test_a_detector_that_misses_a_class_fails_and_the_pictures_are_named(judge: Judge, pictures: Path) -> None:
    gate = detection(pictures, of={"minimum": "0.5", "max_drop_per_class": "0.05"})
    verdict = judge(detector(), gate, detector(blind=2))
    assert Answer.FAIL == verdict.answer
    assert any("map50_95 fell by" in reason for reason in verdict.reasons)
    assert any("map50_95 of class blue fell by" in reason for reason in verdict.reasons), verdict.reasons
    found = verdict.accuracy
    assert found is not None
    assert "blue" == found.worst_class
    assert {"red": "0.000000", "green": "0.000000"} == {part.name: part.drop for part in found.classes if part.name != "blue"}
    assert verdict.worst
    worst = verdict.worst[0]
    assert worst.identity.endswith(f"{worst.index:04}.png")
    assert "objects (FP32" in worst.why
    losses = [float(item.loss) for item in verdict.worst]
    assert losses == sorted(losses, reverse=True)
    assert worst.baseline["boxes"]
    assert verdict.speedup is not None
    assert (20, 200) == (verdict.speedup.blocks, verdict.speedup.engine.iterations)
    assert 0.2 < float(verdict.speedup.speedup) < 5, "both are the same size"
    assert float(verdict.speedup.interval[0]) <= float(verdict.speedup.speedup) <= float(verdict.speedup.interval[1])


def test_compressed_scores_do_not_show_in_map_but_at_the_operating_point(judge: Judge, pictures: Path) -> None:
    gate = detection(
        pictures, of={"operating_point": OperatingPoint(confidence="0.3", max_recall_drop="0.01")}, decoder=Decoder(kind="yolo")
    )
    verdict = judge(detector(), gate, detector(gain=0.5))
    found = verdict.accuracy
    assert found is not None
    assert found.operating_point is not None
    assert float(found.drop or 1) == pytest.approx(0, abs=1e-3), "the order of the boxes is the same"
    assert float(found.operating_point.recall_drop) > 0.2
    assert float(found.operating_point.score_shift or 0) < -0.1
    assert Answer.FAIL == verdict.answer
    assert "recall at confidence 0.3 fell by" in verdict.reasons[0]


def test_a_subgroup_fails_alone(judge: Judge, pictures: Path) -> None:
    """A higher floor of confidence loses the dark squares of the night and few of the day."""
    of = {"max_drop": "0.5", "max_drop_per_subgroup": "0.1"}
    verdict = judge(detector(), detection(pictures, of=of, subgroups=Subgroups(column="scene")), detector(gain=0.15))
    assert Answer.FAIL == verdict.answer
    assert "map50_95 of subgroup night fell by" in verdict.reasons[0], verdict.reasons
    assert not any("subgroup day fell" in reason for reason in verdict.reasons)


def test_judged_on_some_of_the_samples_and_says_so(judge: Judge, pictures: Path) -> None:
    verdict = judge(detector(), detection(pictures, on_device=OnDevice(max_samples=60), subgroups=Subgroups(column="scene")))
    assert verdict.accuracy is not None
    assert (60, PICTURES) == (verdict.accuracy.samples, verdict.accuracy.available)
    assert {"day": 45, "night": 15} == {part.name: part.samples for part in verdict.accuracy.groups}, "subgroups keep their shares"


@pytest.mark.parametrize(
    ("model", "changes", "text"),
    [
        (detector(), {"decoder": Decoder(kind="yolov5")}, "OutputsMismatch: the output has 7 columns a box, yolov5 with"),
        (detector(metadata={"task": "pose"}), {}, "NotYetSupported: the model's metadata say task pose"),
        (detector(), {"subgroups": Subgroups(column="weather")}, "SubgroupsMissing: the data set has no column 'weather'"),
    ],
    ids=["another form of outputs", "a pose model", "a column that is not there"],
)
def test_what_cannot_be_judged_is_said_in_prepare(
    judge: Judge, pictures: Path, model: ModelProto, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(PermanentError) as caught:
        judge(model, detection(pictures, **changes))
    assert text in f"{caught.value.reason}: {caught.value.message}"


def test_a_detector_of_batch_one(judge: Judge, pictures: Path) -> None:
    assert Answer.PASS == judge(detector(batch=1), detection(pictures, metric="map50")).answer


def test_a_segmenter(judge: Judge, tmp_path: Path) -> None:
    masks = mask_set(tmp_path / "masks", 40)
    acceptance = AccuracyAcceptance(minimum="0.9", max_drop="0.02")
    gate = Validation(uri=f"{masks.as_uri()}/", task="segmentation", metric="miou", min_samples=40, acceptance=acceptance)
    plain = PREPROCESSING.model_copy(update={"resize": "none", "size": []})
    assert Answer.PASS == judge(segmenter(), gate, preprocessing=plain).answer
    verdict = judge(segmenter(), gate, segmenter(blind=1), plain)
    assert Answer.FAIL == verdict.answer
    assert verdict.accuracy is not None
    assert "0.000000" == next(part.value for part in verdict.accuracy.classes if part.name in ("2", "green"))
    assert "mIoU of the picture fell" in verdict.worst[0].why


OWN = """
def sample(outputs, truth):
    return float(outputs["scores"].argmax() == truth["label"])
"""


def test_a_metric_of_ones_own(judge: Judge, bench: Bench) -> None:
    gate = bench.gate(metric="python", python=PythonMetric(code=OWN))
    verdict = judge(classifier(), gate, preprocessing=None)
    assert Answer.PASS == verdict.answer, verdict.reasons
    assert verdict.accuracy is not None
    assert ("python", "1.000000", "0.000000") == (verdict.accuracy.metric, verdict.accuracy.value, verdict.accuracy.drop)


def test_a_metric_of_ones_own_that_fails_says_why(judge: Judge, bench: Bench) -> None:
    with pytest.raises(PermanentError, match="KeyError in line 3: 'logits'"):
        judge(classifier(), bench.gate(metric="python", python=PythonMetric(code=OWN.replace('"scores"', '"logits"'))), preprocessing=None)


def test_a_decoder_of_ones_own(judge: Judge, pictures: Path) -> None:
    """The same boxes as by the decoder `yolo`, so the same value."""
    code = """
def decode(outputs):
    rows = outputs["output0"].T
    row, label = np.nonzero(rows[:, 4:] >= 0.05)
    centre, extent = rows[row, :2], rows[row, 2:4]
    return {"boxes": np.concatenate([centre - extent / 2, centre + extent / 2], axis=1), "scores": rows[row, 4 + label], "classes": label}
"""
    ours = judge(detector(), detection(pictures))
    own = judge(detector(), detection(pictures, decoder=Decoder(kind="python"), python=PythonMetric(code=code)))
    assert ours.accuracy is not None
    assert own.accuracy is not None
    assert ours.accuracy.value == own.accuracy.value


def test_outputs_by_name_of_a_model_with_several(judge: Judge, bench: Bench, pictures: Path) -> None:
    gate = bench.gate(
        task="outputs", metric="max_abs_error", decoder=Decoder(outputs=["scores"]), acceptance=AccuracyAcceptance(max_drop="0.001")
    )
    assert Answer.PASS == judge(classifier(), gate, preprocessing=None).answer
    with pytest.raises(PermanentError, match=r"no outputs \['logits'\]"):
        judge(classifier(), gate.model_copy(update={"decoder": Decoder(outputs=["logits"])}), preprocessing=None)


def test_nan_outputs_fail(judge: Judge, bench: Bench) -> None:
    broken = classifier()
    weights = next(tensor for tensor in broken.graph.initializer if tensor.name == "v")
    weights.raw_data = np.full(20, np.inf, np.float32).tobytes()
    verdict = judge(classifier(), bench.gate(), broken, None)
    assert Answer.FAIL == verdict.answer
    assert "hold NaN or infinite values for 400 of 400 samples" in verdict.reasons[0]


def test_a_minimum_speed_up_is_measured_in_turns_with_fp32(judge: Judge, bench: Bench) -> None:
    benchmark = Benchmark(batch_sizes=[1], acceptance=SpeedAcceptance(min_speedup="50"))
    verdict = judge(classifier(), bench.gate(), classifier(outlier=1.0), None, benchmark=benchmark)
    assert Answer.FAIL == verdict.answer
    assert "times as fast as FP32 at batch 1, the minimum is 50.0000" in verdict.reasons[0]
    assert "partner" in verdict.evidence["seconds"]


def test_a_partner_that_is_not_there_leaves_the_speed_up_unknown(judge: Judge, bench: Bench) -> None:
    benchmark = Benchmark(batch_sizes=[1], acceptance=SpeedAcceptance(min_speedup="0.5"))
    verdict = judge(classifier(), bench.gate(), preprocessing=None, benchmark=benchmark, partner_prepared_key="0" * 64)
    assert (Answer.INCONCLUSIVE, None) == (verdict.answer, verdict.speedup)
    assert "minSpeedup was not measured" in verdict.reasons[0]
