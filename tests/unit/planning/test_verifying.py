"""The periodic look at what is published: when it is due, what it looks at, and what follows from what it finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginefleet_api import labels
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import VerifyReport, VerifyRequest
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Failure, Settings, Snapshot, StartBuild, StartVerify
from enginefleet_operator.render import manifests

from . import worlds as w
from .test_contexts import kept_serving
from .test_rollback import played

DAY = 86400.0
LATER = w.NOW + 1.1 * DAY + 1
"""After the longest interval that a day may be."""


def serving(**changes: Any) -> Snapshot:
    return played(w.passed_fleet(**changes))


def verifies(s: Snapshot) -> list[str]:
    return [j.name for j in s.jobs if j.role == "verify"]


def looked(s: Snapshot, now: float, **lost: str) -> Snapshot:
    """The Job has ended, and what it says is acted on. `lost`: reason, of the one engine there is."""
    return w.end_job(s, "verify", report=VerifyReport(verified=1, lost=dict.fromkeys([w.BLOB], lost["reason"]) if lost else {}), node="n0")


def started(s: Snapshot, now: float = LATER) -> Snapshot:
    return w.settle(s, now)


def test_it_is_due_a_day_after_publishing_and_a_day_after_the_last_look() -> None:
    s = serving()
    early = decide(s, w.NOW + 0.99 * DAY)
    assert not any(isinstance(a, StartVerify) for a in early.actions)
    assert early.wake_at is not None
    assert DAY <= early.wake_at - w.NOW <= 1.1 * DAY
    s = started(s)
    assert len(verifies(s)) == 1
    s = w.settle(looked(s, LATER), LATER)
    assert s.status.store_check is not None
    assert (s.status.store_check.verified, s.status.store_check.lost) == (1, [])
    assert len(verifies(w.settle(s, LATER + 0.99 * DAY))) == 1
    assert len(verifies(w.settle(s, LATER + 1.1 * DAY + 1))) == 2


def test_without_hours_nothing_is_looked_at() -> None:
    s = replace(serving(), settings=Settings(check_hours=0))
    assert verifies(w.settle(s, w.NOW + 100 * DAY)) == []


def test_without_an_engine_that_passed_nothing_is_looked_at() -> None:
    assert verifies(w.settle(w.prepared_fleet(), w.NOW + 100 * DAY)) == []


def test_the_job_asks_for_what_the_pods_would_fetch_with_their_credentials_and_no_device() -> None:
    s = serving(classes={"cpu": w.hardware_class(runtime={"image": "runtime:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}})})
    assert s.store is not None
    store = s.store.model_validate({"uri": s.store.uri, "credentialsSecretRef": {"name": "rw"}, "readCredentialsSecretRef": {"name": "ro"}})
    plan = decide(replace(s, store=store), LATER)
    job = manifests.verify_job(replace(s, store=store), w.first(plan, StartVerify))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    request = VerifyRequest.model_validate_json(next(e["value"] for e in container["env"] if e["name"] == "ENGINEFLEET_REQUEST"))
    assert [(e.blob, e.size, e.engine_key) for e in request.engines] == [(w.BLOB, 1000, s.builds[0].spec.engine_key)]
    assert {e["valueFrom"]["secretKeyRef"]["name"] for e in container["env"] if "valueFrom" in e} == {"ro"}
    assert container["resources"] == {}
    assert job["metadata"]["labels"][labels.ROLE] == "verify"


@pytest.mark.parametrize("reason", ["ObjectMissing", "BlobDamaged", "NotProven"])
def test_what_is_lost_is_built_again_while_its_pods_serve(reason: str) -> None:
    before = started(serving())
    s = looked(before, LATER, reason=reason)
    plan = decide(s, LATER)
    assert [(e.reason, e.warning) for e in plan.events if e.warning] == [("EngineLost", True)]
    s = w.settle(w.apply(s, plan), LATER)
    assert s.status.store_check is not None
    assert s.status.store_check.lost == [f"{s.builds[0].name}: {reason}"]
    (job,) = [j for j in s.jobs if j.role == "build" and j.active]
    assert job.context == ""
    assert kept_serving(s, before)
    # the same bytes: nothing restarts
    s = w.settle(w.end_job(s, "build", report=w.build_report(s.builds[0]), node="n0"), LATER)
    assert s.builds[0].status.phase == "Passed"
    assert kept_serving(s, before)
    assert len(verifies(s)) == 1


def test_a_record_that_a_build_would_not_mend_is_told_and_builds_nothing() -> None:
    s = looked(started(serving()), LATER, reason="StoreRecordUnreadable")
    plan = decide(s, LATER)
    assert [e.reason for e in plan.events] == ["StoreRecordUnreadable"]
    s = w.settle(w.apply(s, plan), LATER)
    assert not any(j.role == "build" and j.active for j in s.jobs)


def test_an_engine_that_was_published_anew_meanwhile_is_not_lost() -> None:
    s = started(serving())
    other = "sha256:" + "f" * 64
    s = w.end_job(s, "verify", report=VerifyReport(verified=1, lost={other: "ObjectMissing"}), node="n0")
    assert not any(e.reason == "EngineLost" for e in decide(s, LATER).events)
    # the same bytes, lost and built again by another way while the operator was away
    s = looked(started(serving()), LATER, reason="ObjectMissing")
    old = tuple(replace(j, created=w.NOW - 60) if j.role == "verify" else j for j in s.jobs)
    assert not any(e.reason == "EngineLost" for e in decide(replace(s, jobs=old), LATER).events)


def test_a_store_that_does_not_answer_is_asked_again_and_takes_nothing_away() -> None:
    before = started(serving())
    failure = Failure(FailureClass.TRANSIENT, "StoreUnavailable", "the store does not answer.")
    s = w.end_job(before, "verify", failure=failure, node="n0")
    assert [e.reason for e in decide(s, LATER).events] == ["StoreUnavailable"]
    s = w.settle(s, LATER)
    assert kept_serving(s, before)
    assert len(verifies(s)) == 1
    s = w.settle(s, LATER + 60)
    assert len(verifies(s)) == 2


def test_one_that_cannot_succeed_is_tried_again_when_the_next_one_is_due() -> None:
    failure = Failure(FailureClass.PERMANENT, "StoreRefused", "access denied.")
    s = w.settle(w.end_job(started(serving()), "verify", failure=failure, node="n0"), LATER)
    assert len(verifies(w.settle(s, LATER + 0.99 * DAY))) == 1
    assert len(verifies(w.settle(s, LATER + 1.1 * DAY + 1))) == 2


Step = st.tuples(st.sampled_from(["hours", "ends", "fails", "lost", "forget jobs", "die"]), st.integers(min_value=0, max_value=40))


@settings(max_examples=40)
@given(st.lists(Step, max_size=20))
def test_whatever_happens_no_two_jobs_run_none_comes_early_and_the_engine_serves_on(steps: list[tuple[str, int]]) -> None:
    now = w.NOW
    before = s = serving()
    seen: dict[str, float] = {}
    for what, value in steps:
        if what == "hours":
            now += value * 3600
        elif what == "ends":
            s = looked(s, now)
        elif what == "fails":
            s = w.end_job(s, "verify", failure=Failure(FailureClass.TRANSIENT, "StoreUnavailable", "away."), node="n0")
        elif what == "lost":
            s = looked(s, now, reason="ObjectMissing")
        elif what == "forget jobs":
            s = replace(s, jobs=tuple(j for j in s.jobs if j.active))
        else:
            plan = decide(s, now)
            s = w.apply(s, replace(plan, actions=plan.actions[: value % 4], status=None, events=()))
        if what != "die":
            s = w.settle(s, now)
        if any(j.role == "build" and j.active for j in s.jobs):
            s = w.settle(w.end_job(s, "build", report=w.build_report(s.builds[0]), node="n0"), now)
        assert kept_serving(s, before)
        assert sum(j.role == "verify" and j.active for j in s.jobs) <= 1
        for name in verifies(s):
            seen.setdefault(name, now)
    assert all(at >= w.NOW + DAY for at in seen.values())
    assert not any(isinstance(a, StartBuild) for a in decide(s, now).actions)
