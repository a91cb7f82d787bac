"""Which variant a fingerprint gets, by tables and by random histories."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api.resources import EngineBuildStatus
from enginefleet_api.variants import Variant, rungs
from enginefleet_operator.planning.ladder import Ladder, climb

ORDER = (
    Variant(precision="int8", method="entropy"),
    Variant(precision="int8", method="max"),
    Variant(precision="int8", repaired=True),
    Variant(precision="fp16"),
    Variant(precision="fp32"),
)
MADE = {v.id: "" for v in ORDER}


@dataclass(frozen=True)
class Want:
    name: str


def status(phase: str, speedup: str = "", failure_class: str = "Permanent", reason: str = "GateFailed") -> EngineBuildStatus:
    failed = {"build": {"lastFailure": {"failureClass": failure_class, "reason": reason, "message": "m"}}} if phase == "Failed" else {}
    return EngineBuildStatus.model_validate({"phase": phase, "speedup": speedup, "message": phase} | failed)


def ladder(statuses: dict[str, EngineBuildStatus], made: dict[str, str] = MADE, serving: frozenset[str] = frozenset()) -> Ladder[Want]:
    return climb(ORDER, made, lambda v: Want(v.id), statuses, serving)


FAILED, PASSED = status("Failed"), status("Passed")
TABLE = [
    ("nothing is tried yet", {}, ["int8-entropy"], None),
    ("it is at work", {"int8-entropy": status("Building")}, ["int8-entropy"], None),
    ("too few samples are no reason to go on", {"int8-entropy": status("Inconclusive")}, ["int8-entropy"], None),
    ("one that failed gives way", {"int8-entropy": FAILED}, ["int8-entropy", "int8-max"], None),
    ("one that passed ends it", {"int8-entropy": FAILED, "int8-max": PASSED}, ["int8-entropy", "int8-max"], "int8-max"),
    (
        "one that is slower than FP32 serves while the next is tried",
        {"int8-entropy": status("Passed", "0.8")},
        ["int8-entropy", "int8-max"],
        "int8-entropy",
    ),
    (
        "the fastest that passed",
        {
            "int8-entropy": status("Passed", "0.8"),
            "int8-max": status("Passed", "0.7"),
            "int8-repaired": status("Passed", "0.9"),
            "fp16": FAILED,
            "fp32": PASSED,
        },
        ["int8-entropy", "int8-max", "int8-repaired", "fp16", "fp32"],
        "fp32",
    ),
]


@pytest.mark.parametrize(("statuses", "tried", "chosen"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_what_is_tried_and_what_is_chosen(statuses: dict[str, EngineBuildStatus], tried: list[str], chosen: str | None) -> None:
    found = ladder(statuses)
    assert [r.variant.id for r in found.rungs] == tried
    assert (found.chosen.variant.id if found.chosen else None) == chosen


def test_what_prepare_has_not_made_is_asked_for() -> None:
    found = ladder({"int8-entropy": FAILED}, made={"int8-entropy": "", "fp32": ""})
    assert found.needs == ORDER[1]
    assert found.current is not None
    assert found.current.variant == ORDER[0]


def test_what_could_not_be_made_is_passed_over_with_its_reason() -> None:
    found = ladder({}, made={"int8-entropy": "NothingQuantized: 0 Q/DQ nodes came out", "int8-max": ""})
    assert [(r.variant.id, r.state) for r in found.rungs] == [("int8-entropy", "Failed"), ("int8-max", "Waiting")]
    assert "NothingQuantized" in found.rungs[0].message


def test_the_one_that_serves_keeps_its_place_unless_another_is_clearly_faster() -> None:
    both = {"int8-entropy": status("Passed", "0.90"), "int8-max": status("Passed", "0.93"), "int8-repaired": status("Building")}
    assert ladder(both, serving=frozenset({"int8-entropy"})).chosen == ladder(both).rungs[0]
    assert ladder(both).chosen == ladder(both).rungs[1]


@given(st.dictionaries(st.sampled_from([v.id for v in ORDER]), st.sampled_from(["Failed", "Passed", "Building", "Inconclusive"])))
def test_only_what_passed_is_chosen_and_nothing_above_is_skipped(phases: dict[str, str]) -> None:
    found = ladder({name: status(phase) for name, phase in phases.items()})
    tried = [r.variant for r in found.rungs]
    assert tried == list(ORDER[: len(tried)])
    assert all(phases.get(v.id) == "Failed" for v in tried[:-1])
    if found.chosen is not None:
        assert phases[found.chosen.variant.id] == "Passed"
    assert found.needs is None


def test_the_ladder_of_a_precision_asked_for_by_name_stays_in_that_precision() -> None:
    assert {v.precision for v in rungs("int8", None)} == {"int8"}
