"""`enginefleet.io/refresh`: sources are resolved again; what is as it was changes nothing."""

from __future__ import annotations

from dataclasses import replace

from enginefleet_api import labels
from enginefleet_api.errors import FailureClass
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Failure, LabelNode, Snapshot

from . import worlds as w
from .test_decide import condition
from .test_rollback import played


def asked(s: Snapshot, token: str = "1") -> Snapshot:
    return w.settle(replace(s, annotations={labels.REFRESH: token}))


def prepares(s: Snapshot) -> int:
    return sum(j.role == "prepare" for j in s.jobs)


def test_the_same_digests_change_nothing_and_restart_nothing() -> None:
    before = played(w.passed_fleet())
    s = asked(before)
    assert prepares(s) == 2
    assert (s.nodes, s.workloads, s.pods, s.builds) == (before.nodes, before.workloads, before.pods, before.builds)
    assert s.status.refresh_token == "", "not done yet"
    s = w.end_job(s, "prepare", report=w.prepare_report().model_copy(update={"reused": True}))
    assert [e.reason for e in decide(s, w.NOW).events if e.reason.startswith("Sources")] == ["SourcesUnchanged"]
    s = w.settle(s)
    assert (s.nodes, s.workloads, s.pods, s.builds) == (before.nodes, before.workloads, before.pods, before.builds)
    assert s.status.refresh_token == "1"
    assert condition(s, "Ready")[0] == "True"


def test_a_token_acts_once_and_taking_it_away_does_nothing() -> None:
    s = w.settle(w.end_job(asked(played(w.passed_fleet())), "prepare", report=w.prepare_report()))
    assert decide(s, w.NOW + 5e4).actions == ()  # what is published is looked at a day after
    s = w.settle(replace(s, annotations={}))
    assert (prepares(s), s.status.refresh_token) == (2, "1")
    assert prepares(asked(s, "2")) == 3


def test_another_model_behind_the_same_uri_is_built_like_any_change() -> None:
    before = played(w.passed_fleet())
    other = w.prepare_report().model_copy(update={"model": "sha256:" + "9" * 64})
    other = other.model_copy(update={"prepared": [other.prepared[0].model_copy(update={"model": "sha256:" + "8" * 64})]})
    s = w.end_job(asked(before), "prepare", report=other)
    (told,) = [e for e in decide(s, w.NOW).events if e.reason.startswith("Sources")]
    assert (told.reason, "model sha256:999" in told.message) == ("SourcesChanged", True)
    s = w.settle(s)
    assert [b.status.phase for b in s.builds] == ["Passed", "Building"]
    assert s.nodes == before.nodes
    assert condition(s, "ServingStale")[:2] == ("True", "Building")


def test_sources_that_cannot_be_reached_stop_nothing_that_serves() -> None:
    before = played(w.passed_fleet())
    down = Failure(FailureClass.TRANSIENT, "StoreUnavailable", "the store did not answer in 30 s.")
    s = w.settle(w.end_job(asked(before), "prepare", failure=down))
    assert (s.nodes, s.workloads, s.pods) == (before.nodes, before.workloads, before.pods)
    assert not any(isinstance(a, LabelNode) for a in decide(s, w.NOW).actions)
    assert condition(s, "Ready")[:2] == ("False", "StoreUnavailable")
    s = w.settle(replace(s, annotations={}))
    assert condition(s, "Ready")[0] == "True", "and without the annotation all is as it was"


def test_a_build_that_failed_for_want_of_a_refresh_is_tried_again_after_it() -> None:
    missing = Failure(FailureClass.PERMANENT, "PreparedMissing", "the prepared model is not in the store.")
    s = w.settle(w.end_job(w.prepared_fleet(), "build", failure=missing))
    assert condition(s, "Stalled")[:2] == ("True", "PreparedMissing")
    s = w.end_job(asked(s), "prepare", report=w.prepare_report())
    crashed = w.apply(s, replace(decide(s, w.NOW), status=None))
    for found in (w.settle(s), w.settle(crashed)):
        assert [b.status.phase for b in found.builds] == ["Building"]
        assert sum(j.role == "build" for j in found.jobs) == 2
