"""Speed of real engines: what is measured beside the latency, and what doubtful conditions do to a gate, from the reading to the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from enginefleet_api.documents import Answer, Verdict
from enginefleet_api.jobs import BuildReport, PrepareReport, Source
from enginefleet_api.keys import gate_key_of
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, SpeedAcceptance, Validation
from enginefleet_builder.backends.base import Session
from enginefleet_builder.build.job import build
from enginefleet_builder.build.watch import Watch
from enginefleet_builder.gate.conditions import Reading
from enginefleet_builder.io import Progress
from tests.builder.drawn import PREPROCESSING, YOLO, coco_set, detector
from tests.builder.models import SIDE
from tests.builder.support import Bench, Undisturbed

FAST = SpeedAcceptance(p95="10s", throughput="0.1")
"""What any engine reaches on any machine."""


class Machine(Watch):
    """A machine that tells these readings, one at each look: idle, then before and after each batch size; the last one from then on."""

    def __init__(self, *readings: Reading) -> None:
        super().__init__()
        self._readings = list(readings)

    def look(self, session: Session | None = None) -> Reading:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


def judged(bench: Bench, prepared: PrepareReport, watch: Watch | None = None, **changes: Any) -> tuple[BuildReport, Verdict]:
    validation = changes.setdefault("validation", bench.gate())
    changes["gate_key"] = gate_key_of(validation, changes["benchmark"], prepared.baseline_key)
    request = bench.build_request(prepared, **changes)
    report = build(request, Progress(), watch or Undisturbed())
    found = bench.records.newest_verdict(request.engine_key, request.gate_key)
    assert found is not None
    return report, found[1]


IDLE = Reading(0.0, ran=1.0, waited=0.0, limited=0.0, context={"gpuProcesses": "0", "throttled": "no"})
DONE = Reading(10.0, ran=9.0, waited=0.1, limited=0.0, context={"gpuProcesses": "1", "throttled": "no"})


@pytest.mark.parametrize(
    ("idle", "after", "mark"),
    [
        (IDLE, Reading(10.0, context={"throttled": "thermal"}), "throttled: the GPU's clocks were held down (thermal)"),
        (IDLE, Reading(10.0, limited=5.0), "throttled: the container's CPU limit held it back for 50% of the time"),
        (IDLE, Reading(10.0, ran=5.0, waited=4.0), "shared: the engine's threads waited 50% of their time for a CPU"),
        (Reading(0.0, context={"gpuProcesses": "3"}), DONE, "shared: other processes on the GPU before the engine was loaded: 3"),
    ],
    ids=["a hot GPU", "a CPU limit", "a busy CPU", "a busy GPU"],
)
def test_a_speed_gate_on_doubtful_times_is_inconclusive(
    bench: Bench, prepared: PrepareReport, idle: Reading, after: Reading, mark: str
) -> None:
    report, verdict = judged(bench, prepared, Machine(idle, IDLE, after), benchmark=Benchmark(batch_sizes=[1], acceptance=FAST))
    assert Answer.INCONCLUSIVE == report.answer
    assert f"p95 and throughput at batch 1 cannot be judged: {mark}" == verdict.reasons[0]
    assert [mark] == verdict.latency[0].marks
    assert [mark.partition(":")[0]] == report.latency[0].marks


def test_the_readings_stand_in_the_verdict_and_times_that_nobody_limits_are_only_marked(bench: Bench, prepared: PrepareReport) -> None:
    hot = Reading(20.0, context={"gpuProcesses": "1", "throttled": "thermal"})
    report, verdict = judged(bench, prepared, Machine(IDLE, IDLE, DONE, DONE, hot), benchmark=Benchmark(batch_sizes=[1, 4]))
    assert Answer.PASS == report.answer
    assert [None, ["throttled"]] == [item.marks for item in report.latency]
    assert {"idle": IDLE.context, "before": IDLE.context, "after": hot.context} == verdict.conditions


def test_quiet_conditions_decide(bench: Bench, prepared: PrepareReport) -> None:
    report, verdict = judged(bench, prepared, Machine(IDLE, IDLE, DONE), benchmark=Benchmark(batch_sizes=[1], acceptance=FAST))
    assert (Answer.PASS, None) == (report.answer, verdict.latency[0].marks)
    assert float(verdict.latency[0].warm_up or 0) > 0


def test_a_sustained_run_lasts_as_long_as_asked_and_of_the_judged_batch_only(bench: Bench, prepared: PrepareReport) -> None:
    asked = Benchmark(batch_sizes=[1, 2], acceptance=FAST.model_copy(update={"batch_size": 2}), sustained="2s")
    _, verdict = judged(bench, prepared, benchmark=asked)
    short, long = ((item.iterations / float(item.throughput)) * item.batch for item in verdict.latency)
    assert short < 1.5 <= long


def test_cameras_rate_and_stages_are_measured_beside_the_latency_of_a_detector(bench: Bench, tmp_path: Path) -> None:
    pictures = coco_set(tmp_path / "set", 24)
    acceptance = AccuracyAcceptance(max_drop="0.01")
    gate = Validation.model_validate(
        {
            "uri": f"{pictures.as_uri()}/",
            "task": "detection",
            "metric": "map50",
            "decoder": YOLO,
            "acceptance": acceptance,
            "min_samples": 20,
        }
    )
    common: dict[str, Any] = {"validation": gate, "validation_source": Source(uri=gate.uri), "preprocessing": PREPROCESSING}
    bench.give(detector())
    asked = Benchmark.model_validate({"batch_sizes": [2, 1], "paced": {"rate": "40", "duration": "1s"}, "end_to_end": True})
    _, verdict = judged(bench, bench.prepare(**common), benchmark=asked, **common)
    first, second = verdict.latency
    assert (2, None, None) == (first.batch, second.paced, second.end_to_end)
    assert first.paced is not None
    assert ("40", 20) == (first.paced.rate, first.paced.iterations)
    assert first.end_to_end is not None
    stages = first.end_to_end
    assert stages.decode is not None
    parts = [stages.decode, stages.preprocess, stages.infer, stages.postprocess]
    assert all(float(part.p50) > 0 for part in parts)
    assert float(stages.whole.p95) >= max(float(part.p50) for part in parts)


def test_stages_of_a_set_of_tensors_have_no_decoding(bench: Bench, prepared: PrepareReport) -> None:
    report, verdict = judged(bench, prepared, benchmark=Benchmark(batch_sizes=[4], end_to_end=True))
    stages = verdict.latency[0].end_to_end
    assert stages is not None
    assert stages.decode is None
    assert float(stages.whole.p50) > 0
    assert [] == [line for line in report.warnings if "endToEnd" in line]


def test_stages_without_a_validation_set_are_not_measured_and_the_report_says_so(bench: Bench, prepared: PrepareReport) -> None:
    report, verdict = judged(bench, prepared, validation=None, benchmark=Benchmark(batch_sizes=[1], end_to_end=True))
    assert verdict.latency[0].end_to_end is None
    assert "benchmark.endToEnd was not measured: it needs a validation set" in report.warnings


# ---- alone and in a batch


def leaning() -> ModelProto:
    """A classifier of quadrants that takes the mean of its scores over the whole batch away: right in any batch of all classes, never alone."""
    weights = np.zeros((4, 1, SIDE, SIDE), np.float32)
    half = SIDE // 2
    for label in range(4):
        row, column = divmod(label, 2)
        weights[label, 0, row * half : (row + 1) * half, column * half : (column + 1) * half] = 1 / half**2
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["conv"]),
        helper.make_node("Flatten", ["conv"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["flat", "mean"], ["scores"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])
    y = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(nodes, "leaning", [x], [y], [numpy_helper.from_array(weights, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def crooked(bench: Bench) -> PrepareReport:
    bench.give(leaning())
    return bench.prepare()


def test_an_engine_whose_rows_lean_on_each_other_fails_though_its_accuracy_in_batches_is_perfect(
    bench: Bench, crooked: PrepareReport
) -> None:
    report, verdict = judged(bench, crooked, benchmark=Benchmark(batch_sizes=[1]))
    assert verdict.accuracy is not None
    assert ("1.000000", "0.000000") == (verdict.accuracy.value, verdict.accuracy.drop)
    assert Answer.FAIL == report.answer
    assert "the same samples give other outputs alone than in a batch: output scores of sample " in verdict.reasons[0]
    assert verdict.accuracy.consistency is not None
    assert [16] == verdict.accuracy.consistency.batches
