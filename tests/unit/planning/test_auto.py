"""`precision: auto` and the ladder from prepare to workload, on the small fleet of worlds.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import PrepareReport, PrepareRequest, ResolvedPrepared
from enginefleet_api.variants import Variant
from enginefleet_operator.planning import requests
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Failure, Snapshot, StartPrepare
from enginefleet_operator.render import manifests

from . import worlds as w

CALIBRATION = {"uri": "s3://models/c.npz"}


def auto(**changes: object) -> Snapshot:
    return w.fleet(spec=w.spec(**({"precision": "auto", "calibration": CALIBRATION} | changes)))


def report(variants: tuple[Variant, ...], failures: Mapping[str, str]) -> PrepareReport:
    made = [
        ResolvedPrepared(flavour="onnxruntime", precision=v.precision, variant=v.id, failure=failures[v.id])
        if v.id in failures
        else ResolvedPrepared(
            flavour="onnxruntime",
            precision=v.precision,
            variant=v.id,
            prepared_key=v.id.ljust(64, "0"),
            model="sha256:" + v.id.ljust(64, "0"),
        )
        for v in variants
    ]
    return w.prepare_report().model_copy(update={"prepared": made, "calibration": "sha256:" + "c" * 64})


def play(s: Snapshot, answers: Mapping[str, tuple[Answer, str]], failures: Mapping[str, str] | None = None) -> tuple[Snapshot, list[str]]:
    """Let every Job end: prepare as it was asked, builds by variant (answer, speed-up). Returns the end and the variants prepared, in order."""
    made: list[str] = []
    for _ in range(200):
        plan = decide(s, w.NOW)
        s = w.apply(s, plan)
        start = next((a for a in plan.actions if isinstance(a, StartPrepare)), None)
        if start is not None:
            made += [n.id for n in start.needs]
            s = w.end_job(s, "prepare", report=report(tuple(n.variant for n in start.needs), failures or {}))
            continue
        running = {j.build for j in s.jobs if j.active and j.role == "build"}
        build = next((b for b in s.builds if b.name in running), None)
        if build is None:
            if not plan.actions and plan.status is None:
                return s, made
            continue
        answer, speedup = answers[build.spec.variant]
        reasons = [] if answer is Answer.PASS else [f"{build.spec.variant} lost too much"]
        said = w.build_report(build, answer, reasons, blob="sha256:" + build.spec.variant.encode().hex().ljust(64, "0")[:64])
        s = w.end_job(s, "build", report=said.model_copy(update={"speedup": speedup or None}), node="n0")
    raise AssertionError("no end")


PASS, FAIL, UNKNOWN = Answer.PASS, Answer.FAIL, Answer.INCONCLUSIVE


def test_the_first_prepare_makes_the_top_of_each_precision_and_fp32_to_measure_against() -> None:
    start = w.first(decide(auto(), w.NOW), StartPrepare)
    assert [n.id for n in start.needs] == ["int8-entropy", "fp32", "fp16"]


def test_int8_that_passes_is_compared_with_fp16_and_the_fastest_serves() -> None:
    s, made = play(auto(), {"int8-entropy": (PASS, "2.1"), "fp16": (PASS, "1.6")})
    assert made == ["int8-entropy", "fp32", "fp16"]
    assert [b.spec.variant for b in s.builds] == ["int8-entropy", "fp16"]
    assert len(s.workloads) == 1
    found = s.status.classes[0].fingerprints[0]
    assert (found.variant, found.precision, found.speedup) == ("int8-entropy", "int8", "2.1")
    assert [(t.variant, t.state) for t in found.tried] == [("fp16", "Passed")]


def test_fp16_that_is_faster_than_int8_is_what_serves_and_no_pod_is_moved_twice() -> None:
    s, _ = play(auto(), {"int8-entropy": (PASS, "1.6"), "fp16": (PASS, "2.1")})
    assert s.status.classes[0].fingerprints[0].variant == "fp16"
    assert {x.build for x in s.workloads} == {b.name for b in s.builds if b.spec.variant == "fp16"}


def test_what_fails_its_gate_gives_way_until_one_passes() -> None:
    answers = {"int8-entropy": (FAIL, ""), "int8-max": (FAIL, ""), "int8-repaired": (PASS, "1.7"), "fp16": (PASS, "1.2")}
    s, made = play(auto(), answers)
    assert made == ["int8-entropy", "fp32", "fp16", "int8-max", "int8-repaired"]
    found = s.status.classes[0].fingerprints[0]
    assert found.variant == "int8-repaired"
    assert [(t.variant, t.state) for t in found.tried] == [("int8-entropy", "Failed"), ("int8-max", "Failed"), ("fp16", "Passed")]
    assert "int8-max lost too much" in found.tried[1].message
    assert s.status.engines == "1/1"
    assert {x.build for x in s.workloads} == {b.name for b in s.builds if b.spec.variant == "int8-repaired"}


def test_the_fastest_is_taken_where_low_precision_is_slower_than_fp32() -> None:
    answers = dict.fromkeys(("int8-entropy", "fp16"), (PASS, "0.6")) | {"fp32": (PASS, "")}
    s, _ = play(auto(), answers)
    assert [b.spec.variant for b in s.builds] == ["int8-entropy", "fp16", "fp32"]  # other scales would be no faster
    assert s.status.classes[0].fingerprints[0].variant == "fp32"


def test_a_variant_that_cannot_be_prepared_is_passed_over_with_its_reason() -> None:
    s, _ = play(auto(), {"int8-max": (PASS, "1.5"), "fp16": (FAIL, "")}, {"int8-entropy": "NothingQuantized: 0 Q/DQ nodes"})
    found = s.status.classes[0].fingerprints[0]
    assert found.variant == "int8-max"
    assert [(t.variant, t.message) for t in found.tried] == [
        ("int8-entropy", "NothingQuantized: 0 Q/DQ nodes"),
        ("fp16", "GateFailed: fp16 lost too much"),
    ]


def test_when_nothing_passes_it_is_stalled_and_every_variant_is_named() -> None:
    answers = dict.fromkeys(("int8-entropy", "int8-max", "int8-repaired", "fp16", "fp32"), (FAIL, ""))
    s, _ = play(auto(), answers)
    stalled = next(c for c in s.status.conditions if c.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "GateFailed")
    for name in answers:
        assert f"{name}: GateFailed" in stalled.message
    assert s.workloads == ()


def test_when_nothing_can_be_prepared_it_is_stalled_with_the_reasons() -> None:
    only = auto(auto={"candidates": ["fp16"]})
    s, _ = play(only, {}, {"fp16": "AutoCastFailed: no"})
    stalled = next(c for c in s.status.conditions if c.type == "Stalled")
    assert (stalled.status, stalled.reason) == ("True", "NothingPrepared")
    assert "fp16: AutoCastFailed: no" in stalled.message


def test_too_few_samples_do_not_send_it_down_the_ladder() -> None:
    s, made = play(auto(), {"int8-entropy": (UNKNOWN, "")})
    assert made == ["int8-entropy", "fp32", "fp16"]
    assert next(c for c in s.status.conditions if c.type == "Ready").reason == "GateInconclusive"


def test_the_old_release_serves_while_the_next_variant_is_prepared() -> None:
    s, _ = play(auto(), {"int8-entropy": (PASS, "2.0"), "fp16": (FAIL, "")})
    s = w.settle(w.serving(s))
    harder = s.spec.validation.model_copy(update={"min_samples": 300}) if s.spec.validation else None
    s = replace(s, spec=s.spec.model_copy(update={"validation": harder}), generation=2)
    old = {x.name for x in s.workloads}
    after, _ = play(s, {"int8-entropy": (FAIL, ""), "int8-max": (PASS, "1.9"), "fp16": (FAIL, "")})
    assert old <= {x.name for x in after.workloads}
    assert {n.labels.get(k) for n in after.nodes for k in n.labels if k.startswith("release.")}


def test_a_transient_failure_of_a_further_prepare_leaves_what_is_resolved() -> None:
    s = w.settle(auto())
    first = report((Variant(precision="int8", method="entropy"), Variant(precision="fp32")), {})
    s = w.settle(w.end_job(s, "prepare", report=first))
    s = w.settle(w.end_job(s, "build", report=w.build_report(s.builds[0], FAIL, ["lost"]), node="n0"))
    s = w.settle(w.end_job(s, "prepare", failure=Failure(FailureClass.TRANSIENT, "StoreUnavailable", "store is away.")))
    assert s.status.resolved is not None
    ready = next(c for c in s.status.conditions if c.type == "Ready")
    assert ready.reason == "StoreUnavailable"
    assert "int8-max" in ready.message
    assert "Attempt 3" in ready.message


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_one_precision_by_name_needs_no_partner(precision: str) -> None:
    start = w.first(decide(w.fleet(spec=w.spec(precision=precision)), w.NOW), StartPrepare) if precision == "fp32" else None
    assert start is None or [n.id for n in start.needs] == [precision]


def test_a_speed_up_that_is_asked_for_brings_its_partner() -> None:
    spec = w.spec(precision="int8", calibration=CALIBRATION, benchmark={"acceptance": {"minSpeedup": "1.2"}})
    s = w.fleet(spec=spec)
    start = w.first(decide(s, w.NOW), StartPrepare)
    assert [n.id for n in start.needs] == ["int8-entropy", "fp32"]


def test_prepare_is_told_for_which_runtimes_it_checks_the_model() -> None:
    s = w.fleet()
    start = w.first(decide(s, w.NOW), StartPrepare)
    env = manifests.prepare_job(s, start)["spec"]["template"]["spec"]["containers"][0]["env"]
    request = PrepareRequest.model_validate_json(next(e["value"] for e in env if e["name"] == "ENGINEFLEET_REQUEST"))
    assert [(t.name, t.backend, t.version) for t in request.targets] == [("cpu", "onnxruntime", "1.24.4")]
    assert request.batch_sizes == [1]


def test_a_further_variant_is_prepared_without_the_validation_set_whose_baseline_stands() -> None:
    s = w.settle(auto())
    s = w.settle(w.end_job(s, "prepare", report=report((Variant(precision="int8", method="entropy"), Variant(precision="fp32")), {})))
    s = w.end_job(s, "build", report=w.build_report(s.builds[0], FAIL, ["lost"]), node="n0")
    start = w.first(decide(s, w.NOW), StartPrepare)
    assert s.store is not None
    assert start.pinned is not None
    asked = requests.more_request(requests.prepare_request("vision", "m", s.spec, s.store, "holder", start.needs), start.pinned)
    assert (asked.validation, asked.validation_source) == (None, None)
    assert asked.model.digest == start.pinned.model
    assert asked.calibration_source is not None
    assert asked.calibration_source.digest == start.pinned.calibration
    # and the report, which knows of no baseline, takes none away
    said = report(tuple(n.variant for n in start.needs), {}).model_copy(update={"baseline_key": None, "baseline": None, "validation": None})
    assert requests.with_more(start.pinned, said).baseline_key == start.pinned.baseline_key
