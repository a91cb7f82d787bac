"""Whole stories of a rollout over snapshots: canary, failure and the way back, annotations, what is kept for it, windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import labels
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Delete, KeepRevision, LabelNode, RestoreWorkload, Snapshot, StartBuild, StartPrepare
from enginefleet_operator.planning.rollout import PROBATION
from enginefleet_operator.planning.serving import PLACING

from . import worlds as w
from .test_decide import condition

KEY = labels.release_key("vision", "m")
TROUBLE = ("RuntimeMismatch", "the engine is of ONNX Runtime 1.24.4, the serving image holds 1.23.2.")


def template(image: str) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "x", "image": image}]}}}


def changed(s: Snapshot, image: str = "triton:2", **more: Any) -> Snapshot:
    """Another pod template: a new release that needs no build."""
    return replace(s, spec=w.spec(serving=template(image), **more), generation=s.generation + 1)


def releases(s: Snapshot) -> list[str]:
    return [n.labels.get(KEY, "").partition("-")[0] for n in s.nodes]


def standing(s: Snapshot) -> Any:
    return s.status.classes[0].rollout


def played(s: Snapshot, bad: frozenset[str] = frozenset(), now: float = w.NOW, rounds: int = 60) -> Snapshot:
    """Decide, let DaemonSet controller and kubelets follow, until nothing moves and has not for a while. Pods of releases in `bad` fail."""
    for _ in range(rounds):
        plan = decide(s, now)
        after = w.follow(w.apply(s, plan)) if plan.actions or plan.status is not None else w.follow(s)
        after = replace(
            after,
            pods=tuple(
                replace(p, ready=False, trouble=TROUBLE)
                if p.workload_label.partition("-")[0] in bad
                else replace(p, since=now if p not in s.pods else p.since)
                for p in after.pods
            ),
        )
        if after == s:
            if plan.wake_at is None or plan.wake_at > now + PROBATION:
                return s
            # what is ready stays so for a while
            after = replace(s, pods=tuple(replace(p, since=min(p.since, now - PROBATION)) for p in s.pods))
        s = after
    raise AssertionError("never quiet")


def first(nodes: int = 3) -> Snapshot:
    """A first release that every node serves."""
    return played(w.passed_fleet(nodes=nodes))


def broken_update(s: Snapshot, **more: Any) -> tuple[Snapshot, str]:
    """A second release that fails on whatever node it comes to; where that ends."""
    s = changed(s, **more)
    s = w.apply(s, decide(s, w.NOW))
    bad = standing(s).release
    return played(s, frozenset({bad})), bad


def test_a_release_that_every_node_serves_is_what_a_later_one_goes_back_to() -> None:
    s = first()
    assert standing(s).history == [standing(s).release]
    assert (standing(s).step, standing(s).stable_release) == ("done", standing(s).release)
    before = standing(s).release
    s = played(changed(s))
    assert standing(s).history[1:] == [before]
    assert len(set(releases(s))) == 1
    assert releases(s)[0] == standing(s).release != before
    assert condition(s, "Ready")[0] == "True"


@pytest.mark.parametrize("nodes", [1, 3, 12])
def test_a_canary_that_fails_is_taken_back_by_itself(nodes: int) -> None:
    good = first(nodes)
    s, bad = broken_update(good)
    assert releases(s) == releases(good), "every node serves what it served before"
    assert {p.workload_label.partition("-")[0] for p in s.pods if p.ready} == set(releases(good))
    assert len({p.node for p in s.pods if p.ready}) == nodes
    assert standing(s).refused.release == bad
    assert standing(s).refused.reason == "CanaryFailed"
    assert "RuntimeMismatch: the engine is of ONNX Runtime 1.24.4" in standing(s).refused.message
    assert condition(s, "Stalled")[:2] == ("True", "RolledBack")
    assert condition(s, "Ready")[0] == "False"
    assert condition(s, "ServingStale")[0] == "True"
    assert f"{nodes} of {nodes} nodes are back" in condition(s, "Ready")[2]
    assert s.status.rollout == f"0/{nodes}"


def test_it_is_written_down_before_a_node_moves_back() -> None:
    s = changed(first())
    for _ in range(20):
        s = w.follow(w.apply(s, decide(s, w.NOW)))
        s = replace(
            s,
            pods=tuple(replace(p, ready=False, trouble=TROUBLE) if p.workload_label.startswith(standing(s).release) else p for p in s.pods),
        )
        plan = decide(s, w.NOW)
        if plan.status is not None and plan.status["classes"][0]["rollout"].get("refused"):
            break
    assert not any(isinstance(a, LabelNode) for a in plan.actions)
    assert plan.wake_at is None or plan.wake_at >= w.NOW
    back = decide(w.apply(s, plan), w.NOW)
    assert [str(a.labels[KEY]).startswith(labels.DRAINING) for a in back.actions if isinstance(a, LabelNode)] == [True]


def test_a_release_that_was_taken_back_is_not_tried_again() -> None:
    s, _ = broken_update(first())
    assert decide(s, w.NOW + 86400).actions == ()
    s = replace(s, nodes=(*s.nodes, w.node("n9", known=True)), fingerprints={**s.fingerprints, "n9": w.observed("n9")})
    s = played(s)
    assert len(set(releases(s))) == 1, "a node that joins gets the good one too"


def test_another_spec_or_retry_tries_again() -> None:
    s, bad = broken_update(first())
    good = played(changed(s, image="triton:3"))
    assert standing(good).refused is None
    assert len(set(releases(good))) == 1
    assert releases(good)[0] not in (bad, releases(s)[0])
    again = played(replace(s, annotations={labels.RETRY: "1"}))
    assert set(releases(again)) == {bad}, "it was mended outside: a secret, an image"
    assert condition(again, "Ready")[0] == "True"


def test_the_way_back_goes_on_while_the_next_model_is_prepared_and_built() -> None:
    good = first()
    s = changed(good)
    for _ in range(20):
        s = w.follow(w.apply(s, decide(s, w.NOW)))
        bad = standing(s).release
        s = replace(s, pods=tuple(replace(p, ready=False, trouble=TROUBLE) if p.workload_label.startswith(bad) else p for p in s.pods))
        if standing(s).refused is not None:
            break
    s = replace(s, spec=w.spec(model={"uri": "s3://models/next.onnx"}), generation=3)
    s = played(s, frozenset({bad}))
    assert any(j.role == "prepare" and j.active for j in s.jobs)
    assert releases(s) == releases(good)


def test_an_engine_on_its_way_over_a_slow_link_is_no_failure() -> None:
    good = first()
    s = changed(good)
    for _ in range(6):
        s = w.follow(w.apply(s, decide(s, w.NOW)))
        s = replace(s, pods=tuple(p if p in good.pods else replace(p, since=w.NOW, loading=True, ready=False) for p in s.pods))
    assert any(p.loading for p in s.pods)
    slow = w.settle(s, w.NOW + 3000)
    assert standing(slow).refused is None
    assert standing(w.settle(slow, w.NOW + 600 + 3600)).refused.reason == "CanaryFailed"


def test_on_failure_pause_stops_and_takes_nothing_back() -> None:
    s, bad = broken_update(first(), rollout={"onFailure": "Pause"})
    assert releases(s).count(bad) == 1
    assert standing(s).refused is None
    assert "canary" in standing(s).paused_reason
    assert condition(s, "Ready")[1] == "RuntimeMismatch"


def test_the_first_release_of_all_stops_where_it_fails() -> None:
    s = w.passed_fleet()
    bad = standing(s).release
    s = played(s, frozenset({bad}))
    assert releases(s).count(bad) == 1
    assert standing(s).refused is None
    assert condition(s, "Ready")[1] == "RuntimeMismatch"


def test_what_fails_long_after_its_rollout_is_not_taken_back() -> None:
    s = played(changed(first()))
    release = standing(s).release
    s = played(s, frozenset({release}), now=w.NOW + 86400)
    assert set(releases(s)) == {release}
    assert standing(s).refused is None
    assert s.status.classes[0].nodes.failed == 3


# ---- annotations ----


def test_abort_takes_a_finished_rollout_back_without_a_build() -> None:
    before = first()
    s = played(changed(before))
    s = played(replace(s, annotations={labels.ABORT: "2027-01-15"}))
    assert releases(s) == releases(before)
    assert condition(s, "Stalled")[:2] == ("True", "Aborted")
    assert s.status.abort_token == "2027-01-15"
    assert not any(j.active for j in s.jobs)
    assert len(s.builds) == len(before.builds)
    after = played(changed(s, image="triton:3"))
    assert len({*releases(after), *releases(before)}) == 2, "the token acted once"


def test_a_second_abort_goes_back_once_more() -> None:
    one = first()
    two = played(changed(one))
    s = played(changed(two, image="triton:3"))
    s = played(replace(s, annotations={labels.ABORT: "1"}))
    assert releases(s) == releases(two)
    s = played(replace(s, annotations={labels.ABORT: "2"}))
    assert releases(s) == releases(one)
    s = played(replace(s, annotations={labels.ABORT: "3"}))
    assert releases(s) == releases(one), "there is nothing before the first"


def test_abort_of_what_has_nothing_before_it_changes_nothing_and_says_so() -> None:
    before = first()
    s = replace(before, annotations={labels.ABORT: "oops"})
    told = [(event.reason, event.warning, event.message) for event in decide(s, w.NOW).events]
    assert [(reason, warning) for reason, warning, _ in told] == [("NothingToAbort", True)]
    assert "no earlier one to go back to: abort oops changes nothing" in told[0][2]
    s = played(s)
    assert condition(s, "Ready")[0] == "True"
    assert (releases(s), standing(s).refused, s.status.abort_token) == (releases(before), None, "oops")
    assert decide(s, w.NOW).events == ()


def test_abort_stops_a_first_rollout_where_it_is() -> None:
    s = played(w.passed_fleet(spec=w.spec(rollout={"canary": {"count": 1, "soak": "1h"}})))
    assert releases(s).count("") == 2
    s = played(replace(s, annotations={labels.ABORT: "x"}), now=w.NOW + 7200)
    assert releases(s).count("") == 2
    assert condition(s, "Stalled")[1] == "Aborted"


def test_abort_stops_a_rollout_in_the_middle() -> None:
    before = first()
    s = changed(before, rollout={"canary": {"count": 1, "soak": "1h"}})
    s = played(s)
    assert len(set(releases(s))) == 2
    s = played(replace(s, annotations={labels.ABORT: "x"}))
    assert releases(s) == releases(before)


def test_only_a_canary_that_is_ready_is_told_to_be() -> None:
    told = []
    closed = {"windows": [{"days": ["Sat"], "start": "10:00", "duration": "1h", "timeZone": "UTC"}]}
    s = played(changed(first(), rollout=closed))
    assert standing(s).step == "canary"
    s = replace(s, annotations={labels.ABORT: "1"})
    for _ in range(30):
        plan = decide(s, w.NOW)
        told += [event.reason for event in plan.events]
        s = w.follow(w.apply(s, plan))
    assert condition(s, "Stalled")[1] == "Aborted"
    assert "CanaryReady" not in told
    s = played(changed(s, image="triton:3", rollout={"canary": {"count": 1, "soak": "1h"}}))
    assert [event.reason for event in decide(s, w.NOW + 3600).events] == ["CanaryReady"]


def test_promote_skips_canary_and_steps_of_the_release_at_hand() -> None:
    s = played(changed(first(), rollout={"canary": {"count": 1, "soak": "1h"}, "steps": ["50%", "100%"]}))
    assert (standing(s).step, len(set(releases(s)))) == ("canary", 2)
    assert decide(s, w.NOW).wake_at == w.NOW + 3600
    s = played(replace(s, annotations={labels.PROMOTE: "1"}))
    assert set(releases(s)) == {standing(s).release}
    later = played(changed(s, image="triton:3", rollout={"canary": {"count": 1, "soak": "1h"}}))
    assert standing(later).step == "canary", "not of the next one"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_server_that_is_ready_for_a_moment_and_ends_is_rolled_back(nodes: int) -> None:
    good = first(nodes)
    stable = standing(good).release
    s = changed(good, image="triton:2")
    for _ in range(40):
        plan = decide(s, w.NOW)
        s = w.follow(w.apply(s, plan))
        s = replace(s, pods=tuple(replace(p, since=w.NOW) if p not in good.pods else p for p in s.pods))
    assert set(releases(s)) == {standing(s).release} != {stable}
    assert (standing(s).step, standing(s).stable_release) == ("done", stable)
    assert decide(s, w.NOW).wake_at == w.NOW + PROBATION
    new = standing(s).release
    ended = replace(s, pods=tuple(replace(p, ready=False, trouble=TROUBLE) for p in s.pods))
    back = played(ended, frozenset({new}), now=w.NOW + 2)
    assert standing(back).refused is not None
    assert set(releases(back)) == {stable}
    assert condition(back, "Stalled")[1] == "RolledBack"
    # what lasts is what a later one goes back to
    assert standing(played(s)).stable_release == new


def test_a_pod_that_the_scheduler_finds_no_place_for_fails_a_release_only_after_a_while() -> None:
    good = first(1)
    s, told = changed(good), ("Unschedulable", "2 nodes did not satisfy NodeAffinity.")
    for _ in range(10):
        s = w.follow(w.apply(s, decide(s, w.NOW)))
        s = replace(s, pods=tuple(p if p in good.pods else replace(p, ready=False, trouble=told, since=w.NOW) for p in s.pods))
    assert decide(s, w.NOW + 1).wake_at == w.NOW + PLACING
    assert standing(w.apply(s, decide(s, w.NOW + 1))).refused is None
    refused = standing(w.apply(s, decide(s, w.NOW + PLACING))).refused
    assert (refused.release, refused.reason) == (standing(s).release, "CanaryFailed")


def test_a_site_of_one_node_soaks_too() -> None:
    s = played(changed(first(1), rollout={"canary": {"count": 1, "soak": "1h"}}, image="triton:2"))
    assert (standing(s).step, decide(s, w.NOW).wake_at) == ("canary", w.NOW + 3600)
    after = played(s, now=w.NOW + 3600)
    assert (standing(after).step, standing(after).stable_release) == ("done", standing(after).release)


def test_a_soak_ends_by_itself() -> None:
    s = played(changed(first(), rollout={"canary": {"count": 1, "soak": "1h"}}))
    s = played(s, now=w.NOW + 3600)
    assert set(releases(s)) == {standing(s).release}


# ---- what is kept ----


def test_every_workload_is_kept_as_a_revision_and_made_again_from_it() -> None:
    before = first()
    assert [r.name for r in before.revisions] == [x.name for x in before.workloads]
    s = played(changed(before))
    assert [x.label.partition("-")[0] for x in s.workloads] == [standing(s).release], "nothing runs the old one any more"
    assert len(s.revisions) == 2
    plan = decide(replace(s, annotations={labels.ABORT: "1"}), w.NOW)
    assert [a.name for a in plan.actions if isinstance(a, RestoreWorkload)] == [before.workloads[0].name]
    kinds = [type(a) for a in plan.actions]
    assert kinds.index(RestoreWorkload) < kinds.index(LabelNode), "a label is never set before its workload is there"
    assert not any(isinstance(a, StartBuild | StartPrepare | KeepRevision) for a in plan.actions)


def test_a_workload_that_was_deleted_by_hand_is_made_again() -> None:
    s, _ = broken_update(first())
    serving = next(x for x in s.workloads if x.label == s.nodes[0].labels[KEY])
    plan = decide(replace(s, workloads=tuple(x for x in s.workloads if x != serving)), w.NOW)
    assert plan.actions == (RestoreWorkload(serving.name),)


def test_equal_engines_of_two_classes_are_both_made_again() -> None:
    """Then both carry the same label: files of ONNX Runtime for unlike CPUs may be the same to the byte."""
    two = {"cpu": w.hardware_class(), "arm": w.hardware_class("arm")}
    s = replace(
        w.fleet(classes=two, spec=w.spec(targets=[{"hardwareClass": name} for name in two])),
        nodes=tuple(w.node(f"n-{name}", hardware=name, known=True) for name in two),
        fingerprints={f"n-{name}": w.observed(f"n-{name}", name) for name in two},
    )
    s = w.settle(w.end_job(w.settle(s), "prepare", report=w.prepare_report()))
    while any(j.active for j in s.jobs):
        one = next(j for j in s.jobs if j.active)
        build = next(b for b in s.builds if b.name == one.build)
        done = replace(one, active=False, report=w.build_report(build), node=f"n-{build.spec.hardware_class}")
        s = w.settle(replace(s, jobs=tuple(done if j == one else j for j in s.jobs)))
    before = played(s)
    assert len({n.labels[KEY] for n in before.nodes}) == 1
    s = played(changed(before, targets=[{"hardwareClass": name} for name in two]))
    plan = decide(replace(s, annotations={labels.ABORT: "1"}), w.NOW)
    assert {a.name for a in plan.actions if isinstance(a, RestoreWorkload)} == {x.name for x in before.workloads}
    s = w.apply(replace(s, annotations={labels.ABORT: "1"}), plan)
    one_is_there = replace(s, workloads=tuple(x for x in s.workloads if x.name != before.workloads[0].name))
    assert [a.name for a in decide(one_is_there, w.NOW).actions if isinstance(a, RestoreWorkload)] == [before.workloads[0].name]


def test_revisions_older_than_the_history_limit_go() -> None:
    s = first()
    for number in range(2, 7):
        s = played(changed(s, image=f"triton:{number}", historyLimit=2))
    assert len(standing(s).history) == 3
    assert {r.label.partition("-")[0] for r in s.revisions} == set(standing(s).history)
    assert not any(isinstance(a, Delete) for a in decide(s, w.NOW).actions)


# ---- windows ----


def test_nodes_that_serve_move_in_windows_only_and_a_rollback_never_waits() -> None:
    # NOW is Friday 2027-01-15 08:00 UTC
    windows = [{"days": ["Fri"], "start": "10:00", "duration": "1h", "timeZone": "UTC"}]
    before = first()
    s = played(changed(before, rollout={"windows": windows}))
    assert releases(s) == releases(before)
    assert "wait for a window" in standing(s).paused_reason
    assert decide(s, w.NOW).wake_at == w.NOW + 7200
    assert standing(played(s, now=w.NOW + 7200)).step == "done"
    opened = s
    while "draining" not in str([n.labels[KEY] for n in opened.nodes]):
        opened = w.follow(w.apply(opened, decide(opened, w.NOW + 7200)))
    failed = played(opened, frozenset({standing(s).release}), now=w.NOW + 5 * 3600)
    assert releases(failed) == releases(before)
