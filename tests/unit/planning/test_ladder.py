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


FAILED, PASSED, FASTER = status("Failed"), status("Passed"), status("Passed", "2.0")
TABLE = [
    ("nothing is tried yet", {}, ["int8-entropy"], None),
    ("it is at work", {"int8-entropy": status("Building")}, ["int8-entropy"], None),
    ("too few samples are no reason to go on", {"int8-entropy": status("Inconclusive")}, ["int8-entropy"], None),
    ("one that failed gives way", {"int8-entropy": FAILED}, ["int8-entropy", "int8-max"], None),
    ("one that passed without a speed ends it", {"int8-entropy": FAILED, "int8-max": PASSED}, ["int8-entropy", "int8-max"], "int8-max"),
    (
        "one that passed is compared with the next precision before it serves",
        {"int8-entropy": FASTER},
        ["int8-entropy", "fp16"],
        None,
    ),
    (
        "it is compared with what is being built",
        {"int8-entropy": FASTER, "fp16": status("Building")},
        ["int8-entropy", "fp16"],
        None,
    ),
    (
        "what waits for a device or another attempt holds nothing up",
        {"int8-entropy": FASTER, "fp16": status("Waiting")},
        ["int8-entropy", "fp16"],
        "int8-entropy",
    ),
    (
        "too few samples for the other hold nothing up",
        {"int8-entropy": FASTER, "fp16": status("Inconclusive")},
        ["int8-entropy", "fp16"],
        "int8-entropy",
    ),
    ("the other one failed", {"int8-entropy": FASTER, "fp16": FAILED}, ["int8-entropy", "fp16"], "int8-entropy"),
    ("the other one is faster", {"int8-entropy": FASTER, "fp16": status("Passed", "2.4")}, ["int8-entropy", "fp16"], "fp16"),
    ("the other one is slower", {"int8-entropy": FASTER, "fp16": status("Passed", "1.9")}, ["int8-entropy", "fp16"], "int8-entropy"),
    (
        "a repaired one is compared, too",
        {"int8-entropy": FAILED, "int8-max": FAILED, "int8-repaired": FASTER, "fp16": status("Passed", "2.4")},
        ["int8-entropy", "int8-max", "int8-repaired", "fp16"],
        "fp16",
    ),
    (
        "FP32 is built where nothing that passed is faster",
        {"int8-entropy": status("Passed", "0.8"), "fp16": status("Passed", "0.9")},
        ["int8-entropy", "fp16", "fp32"],
        None,
    ),
    (
        "the fastest that passed",
        {"int8-entropy": status("Passed", "0.8"), "fp16": status("Passed", "0.9"), "fp32": PASSED},
        ["int8-entropy", "fp16", "fp32"],
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
    both = {"int8-entropy": status("Passed", "1.90"), "fp16": status("Passed", "1.93")}
    assert ladder(both, serving=frozenset({"int8-entropy"})).chosen == ladder(both).rungs[0]
    assert ladder(both).chosen == ladder(both).rungs[1]


def test_what_serves_goes_on_while_another_is_compared_with_it() -> None:
    one = {"int8-entropy": FASTER, "fp16": status("Building")}
    assert ladder(one, serving=frozenset({"int8-entropy"})).chosen == ladder(one).rungs[0]


def test_a_precision_that_prepare_has_yet_to_make_for_the_comparison_holds_nothing_up() -> None:
    found = ladder({"int8-entropy": FASTER}, made={"int8-entropy": "", "fp32": ""})
    assert found.needs == Variant(precision="fp16")
    assert found.chosen is not None


STATES = st.sampled_from(["Failed", "Passed", "Building", "Waiting", "Inconclusive"])
SPEEDS = st.sampled_from(["", "0.7", "0.95", "1.0", "1.4", "2.1"])


@given(st.dictionaries(st.sampled_from([v.id for v in ORDER]), st.tuples(STATES, SPEEDS)))
def test_only_what_passed_is_chosen_and_nothing_that_could_be_faster_is_left_out(known: dict[str, tuple[str, str]]) -> None:
    statuses = {name: status(phase, "" if name == "fp32" else speed) for name, (phase, speed) in known.items()}
    found = ladder(statuses)
    tried = [r.variant for r in found.rungs]
    assert [v for v in ORDER if v in tried] == tried
    assert found.needs is None
    states = {v.id: statuses[v.id].phase if v.id in statuses else "" for v in ORDER}
    passed = [v for v in tried if states[v.id] == "Passed"]
    # until one has passed nothing is skipped; afterwards only what has nothing to gain
    upto = ORDER.index(passed[0]) + 1 if passed else len(tried)
    assert tried[:upto] == list(ORDER[:upto])
    assert len({v.precision for v in passed}) == len(passed)
    if found.chosen is None:
        assert not passed or states[tried[-1].id] in ("", "Building")
        return
    assert found.chosen.variant in passed
    speeds = {v: 1.0 if v.id == "fp32" else float(statuses[v.id].speedup or 0) for v in passed}
    assert speeds[found.chosen.variant] == max(speeds.values())
    # and the search is over: every precision that could be faster was tried, or has no figure to compare by
    if states[tried[-1].id] in ("Passed", "Failed") and all(statuses[v.id].speedup for v in passed if v.id != "fp32"):
        assert {v.precision for v in tried} >= ({"int8", "fp16"} if max(speeds.values()) >= 1 else {"int8", "fp16", "fp32"})


def test_the_ladder_of_a_precision_asked_for_by_name_stays_in_that_precision() -> None:
    assert {v.precision for v in rungs("int8", None)} == {"int8"}
