"""An engine is on the node before what serves there ends: by tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enginefleet_api import labels
from enginefleet_api.errors import FailureClass
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Delete, Failure, Job, LabelNode, Plan, Snapshot, StartPreload

from . import worlds as w

KEY = labels.release_key("vision", "m")
NEW = "sha256:" + "f" * 64


def proven(nodes: int = 2) -> Snapshot:
    """Two nodes serve, and an engine of another runtime has just passed: nothing of it is on any node."""
    s = w.settle(w.serving(w.passed_fleet(nodes=nodes)))
    s = w.settle(
        replace(
            s,
            classes={"cpu": w.hardware_class(image="runtime:2", digest=w.IMAGE_B)},
            fingerprints={n.name: w.observed(n.name, digest=w.IMAGE_B) for n in s.nodes},
        )
    )
    build = next(b for b in s.builds if b.status.phase == "Building")
    s = w.end_job(s, "build", report=w.build_report(build, blob=NEW))
    return w.apply(s, decide(s, w.NOW))


def moves(plan: Plan) -> list[str]:
    return [str(a.labels[KEY]) for a in plan.actions if isinstance(a, LabelNode)]


def starts(plan: Plan) -> list[StartPreload]:
    return [a for a in plan.actions if isinstance(a, StartPreload)]


def with_job(s: Snapshot, load: StartPreload, **changes: object) -> Snapshot:
    job = replace(Job(load.job, "uid-load", "preload", 1, node=load.node, blob=NEW, ended=w.NOW), **changes)  # type: ignore[arg-type]
    return replace(s, jobs=(*(j for j in s.jobs if j.role != "preload"), job))


@pytest.fixture(scope="module")
def waiting() -> tuple[Snapshot, StartPreload]:
    s = proven()
    # the pass in which it passed has begun to load: take that back
    s = replace(s, jobs=tuple(j for j in s.jobs if j.role != "preload"))
    (load,) = starts(decide(s, w.NOW))
    return s, load


def test_the_engine_comes_before_the_canary_is_drained(waiting: tuple[Snapshot, StartPreload]) -> None:
    s, load = waiting
    plan = decide(s, w.NOW)
    assert moves(plan) == []
    assert load.workload.blob == NEW
    running = with_job(s, load, active=True)
    assert (moves(decide(running, w.NOW)), starts(decide(running, w.NOW))) == ([], [])
    assert f"the engine is brought to {load.node} before what serves there ends" in w.apply(running, decide(running, w.NOW)).status.summary
    done = with_job(s, load, active=False)
    assert moves(decide(done, w.NOW)) == [labels.DRAINING + load.workload.label]
    assert starts(decide(done, w.NOW)) == []


def test_a_node_that_serves_nothing_and_an_engine_that_serves_there_need_no_loading() -> None:
    s = w.passed_fleet(nodes=2)
    assert not starts(decide(s, w.NOW))
    s = w.settle(w.serving(s))
    template = {"spec": {"containers": [{"name": "x", "image": "triton"}]}}
    plan = decide(replace(s, spec=w.spec(serving={"template": template}), generation=2), w.NOW)
    assert starts(plan) == []
    assert len(moves(plan)) == 1


def test_a_store_that_is_away_is_asked_again_while_everything_serves(waiting: tuple[Snapshot, StartPreload]) -> None:
    s, load = waiting
    away = Failure(FailureClass.TRANSIENT, "StoreUnavailable", "the store did not answer.")
    failed = with_job(s, load, active=False, failure=away)
    plan = decide(failed, w.NOW)
    assert (moves(plan), starts(plan)) == ([], [])
    assert not any(isinstance(a, Delete) and a.kind == "Job" for a in plan.actions)
    assert plan.wake_at is not None
    assert plan.wake_at <= w.NOW + 60
    assert "StoreUnavailable" in w.apply(failed, plan).status.summary
    again = decide(failed, w.NOW + 61)
    assert [a.name for a in again.actions if isinstance(a, Delete)] == [load.job]
    assert starts(decide(w.apply(failed, again), w.NOW + 61)) == [load]


def test_a_node_whose_disk_is_full_keeps_what_it_serves_and_another_one_is_the_canary(waiting: tuple[Snapshot, StartPreload]) -> None:
    s, load = waiting
    full = Failure(FailureClass.ENVIRONMENT, "DiskFull", "no space left.")
    (other,) = starts(decide(with_job(s, load, active=False, failure=full), w.NOW))
    assert other.node != load.node


def test_what_is_permanent_is_left_to_the_pod(waiting: tuple[Snapshot, StartPreload]) -> None:
    s, load = waiting
    wrong = Failure(FailureClass.PERMANENT, "LayoutNotPossible", "no.")
    assert len(moves(decide(with_job(s, load, active=False, failure=wrong), w.NOW))) == 1


def test_an_engine_that_the_store_has_lost_is_made_again_before_anything_is_drained(waiting: tuple[Snapshot, StartPreload]) -> None:
    s, load = waiting
    lost = Failure(FailureClass.PERMANENT, "ObjectMissing", "the blob is gone.")
    failed = with_job(s, load, active=False, failure=lost, ended=w.NOW + 5)
    plan = decide(failed, w.NOW + 6)
    assert moves(plan) == []
    assert [e.reason for e in plan.events if e.warning] == ["EngineLost"]


def test_loading_that_nothing_waits_for_any_more_ends(waiting: tuple[Snapshot, StartPreload]) -> None:
    s, load = waiting
    running = with_job(s, load, active=True)
    back = replace(running, classes={"cpu": w.hardware_class()}, fingerprints={n.name: w.observed(n.name) for n in s.nodes})
    plan = decide(back, w.NOW)
    assert [a.name for a in plan.actions if isinstance(a, Delete) and a.kind == "Job"] == [load.job]


def test_every_job_is_gone_when_all_nodes_have_moved() -> None:
    s = w.settle(w.serving(w.settle(proven())))
    assert not [j for j in s.jobs if j.role == "preload"]
    assert {p.workload_label.rpartition("-")[2] for p in s.pods} == {"ffffffff"}
