"""What preflight found one class unfit for: that class goes without, with the reason, and the others get their engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from enginefleet_api.jobs import PrepareReport
from enginefleet_api.resources import RefusedTarget
from enginefleet_operator.planning import requests, stages
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Snapshot, StartPrepare
from enginefleet_operator.render import manifests

from . import worlds as w
from .test_backends import ADA, CPU, L4, XAVIER, condition, fleet, known, play, reported, request_of, runtime

OLD_ADA = known("ada-old", runtime("8.6.1.6", L4))


def unfit_for(*classes: str, variants: Sequence[str] = (), unmade: Sequence[str] = ()) -> Callable[[Snapshot, StartPrepare], PrepareReport]:
    """Prepare Jobs that refuse these classes and do not make what only they would get."""

    def told(s: Snapshot, start: StartPrepare) -> PrepareReport:
        asked = request_of(manifests.prepare_job(s, start))
        ids = [t["id"] for t in asked["targets"] if t["name"] in classes and not t.get("plugins")]
        why = {"reason": "UnsupportedOp", "message": "operator LayerNormalization.", "hint": "Leave it out."}
        refused = [RefusedTarget(targets=ids, variants=list(variants), **why)] if ids else []
        left_out = unmade if ids else ()
        full = reported(start.needs)
        return full.model_copy(update={"refused": refused, "prepared": [p for p in full.prepared if p.flavour not in left_out]})

    return told


def test_a_class_that_preflight_found_unfit_keeps_no_other_from_being_built() -> None:
    s, jobs = play(fleet(CPU, XAVIER, ADA), said=unfit_for("orin", unmade=["tensorrt-8"]))
    assert len(jobs) == 1
    assert {b.spec.hardware_class for b in s.builds} == {"cpu", "ada"}
    assert condition(s, "Stalled")[:2] == ("True", "UnsupportedOp")
    assert "orin: no variant could be prepared" in condition(s, "Stalled")[2]
    assert condition(s, "Prepared")[0] == "True"
    (found,) = next(c for c in s.status.classes if c.name == "orin").fingerprints
    assert found.state == "Failed"
    assert "fp32: UnsupportedOp: operator LayerNormalization. Leave it out." in found.message


def test_of_two_classes_of_one_flavour_only_the_unfit_one_goes_without() -> None:
    s, jobs = play(fleet(XAVIER, OLD_ADA), said=unfit_for("orin"))
    assert len(jobs) == 1
    assert {b.spec.hardware_class for b in s.builds} == {"ada-old"}
    assert s.status.engines == "1/2"


def test_a_variant_that_a_class_is_unfit_for_gives_way_to_the_next() -> None:
    spec = {"precision": "auto", "auto": {"candidates": ["fp16", "fp32"]}}
    s, _ = play(fleet(XAVIER, OLD_ADA, **spec), said=unfit_for("orin", variants=["fp16"]))
    assert {(b.spec.hardware_class, b.spec.variant) for b in s.builds} == {("orin", "fp32"), ("ada-old", "fp16")}


def test_where_every_class_is_unfit_the_model_is_not_called_prepared() -> None:
    s, jobs = play(fleet(XAVIER), said=unfit_for("orin", unmade=["tensorrt-8"]))
    assert (len(jobs), s.builds) == (1, ())
    assert condition(s, "Prepared")[:2] == ("False", "NothingPrepared")
    assert condition(s, "Stalled")[:2] == ("True", "UnsupportedOp")
    later = decide(s, w.NOW + 1e6)
    assert (later.actions, later.wake_at) == ((), None)


def test_what_the_hint_says_is_enough_to_go_on() -> None:
    """A plugin, or another release, makes another target of it: it is prepared again, with the baseline that was left out."""
    told = unfit_for("orin", unmade=["tensorrt-8"])

    def without_baseline(s: Snapshot, start: StartPrepare) -> PrepareReport:
        report = told(s, start)
        return report if report.prepared else report.model_copy(update={"baseline_key": None, "baseline": None})

    s, _ = play(fleet(XAVIER), said=without_baseline)
    asked: list[dict[str, Any]] = []

    def noted(s: Snapshot, start: StartPrepare) -> PrepareReport:
        asked.append(request_of(manifests.prepare_job(s, start)))
        return without_baseline(s, start)

    s = replace(s, spec=w.spec(targets=[{"hardwareClass": "orin"}], build={"plugins": ["/opt/norm.so"]}))
    s, jobs = play(s, said=noted)
    assert jobs == [["tensorrt-8/fp32"]]
    assert asked[0]["validationSource"]["digest"] == w.prepare_report().validation
    assert [b.spec.hardware_class for b in s.builds] == ["orin"]
    assert s.builds[0].spec.request["baselineKey"] == "b" * 64
    assert condition(s, "Prepared")[0] == "True"


def test_targets_are_told_apart_by_what_findings_hang_on() -> None:
    s = fleet(XAVIER)

    def named(facts: Mapping[str, Any], image: str = "runtime:1", **spec: Any) -> str:
        found = replace(
            XAVIER[0], spec=XAVIER[0].spec.model_copy(update={"runtime": XAVIER[0].spec.runtime.model_copy(update={"image": image})})
        )
        return requests.preflight_targets(w.spec(**spec), found, [facts])[0].id

    facts = stages.devices_of(s, XAVIER[0])[0].facts
    assert named(facts) == named(facts, "runtime:2")
    assert (
        len(
            {
                named(facts),
                named({**facts, "backendVersion": "8.6"}),
                named(facts, build={"plugins": ["/p.so"]}),
                named(facts, build={"dla": {}}),
            }
        )
        == 4
    )
