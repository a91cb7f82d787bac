"""Moments at which a controller is tempted to do harm: each of these was once wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import labels
from enginefleet_api.errors import FailureClass
from enginefleet_api.resources import EngineStoreSpec
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import CreateWorkload, Delete, Failure, LabelNode, OrphanPod, Snapshot, StartBuild
from enginefleet_operator.planning.templates import problems
from enginefleet_operator.render import manifests

from . import worlds as w

KEY = labels.release_key("vision", "m")


def condition(s: Snapshot, kind: str) -> tuple[str, str, str]:
    found = next(c for c in s.status.conditions if c.type == kind)
    return found.status, found.reason, found.message


def draining() -> tuple[Snapshot, str]:
    """One node in mid-flip: drained for a new template, the old pod is gone."""
    s = w.settle(w.serving(w.passed_fleet(nodes=1)))
    template = {"spec": {"containers": [{"name": "x", "image": "triton"}]}}
    s = replace(s, spec=w.spec(serving={"template": template}), generation=2)
    s = w.apply(s, decide(s, w.NOW))
    s = replace(w.apply(s, decide(s, w.NOW)), pods=())
    value = s.nodes[0].labels[KEY]
    assert value.startswith(labels.DRAINING)
    return s, value.removeprefix(labels.DRAINING)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": w.spec(model={"uri": "s3://models/other.onnx"}), "generation": 3},
        {"spec": w.spec(serving={"mode": "Deployment"}), "generation": 3},
        {"store": None},
    ],
)
def test_a_node_in_mid_flip_arrives_whatever_happens_to_the_spec(change: dict[str, Any]) -> None:
    s, value = draining()
    plan = decide(replace(s, **change), w.NOW)
    assert [a.labels[KEY] for a in plan.actions if isinstance(a, LabelNode)] == [value]


def test_a_job_on_a_lost_node_is_given_up_after_five_minutes_and_built_elsewhere() -> None:
    s = w.prepared_fleet()
    running = tuple(replace(j, node="n0", live_pods=1) if j.role == "build" else j for j in s.jobs)
    nodes = (replace(s.nodes[0], ready=False, since=w.NOW), *s.nodes[1:])
    s = w.settle(replace(s, jobs=running, nodes=nodes))
    waiting = decide(s, w.NOW + 299)
    assert waiting.actions == ()
    assert waiting.wake_at == w.NOW + 300
    s = w.apply(s, decide(s, w.NOW + 300))
    assert condition(s, "EnginesReady")[1] == "NodeLost"
    plan = decide(s, w.NOW + 400)
    assert any(isinstance(a, StartBuild) for a in plan.actions)


def test_a_pod_of_a_deleted_job_holds_back_the_next_build_of_that_engine() -> None:
    s = w.prepared_fleet()
    orphan = OrphanPod("build", s.builds[0].spec.engine_key[:16], "n0")
    s = replace(s, jobs=(), orphans=(orphan,))
    assert not any(isinstance(a, StartBuild) for a in decide(s, w.NOW).actions)
    assert any(isinstance(a, StartBuild) for a in decide(replace(s, orphans=()), w.NOW).actions)


def test_a_rebuilt_engine_is_not_lost_again_by_what_the_pod_said_before() -> None:
    s = w.serving(w.passed_fleet(), ready=False)
    broken = tuple(replace(p, trouble_at=w.NOW + 10, trouble=("ObjectMissing", "gone.")) for p in s.pods)
    s = w.settle(replace(s, pods=broken), w.NOW + 11)
    s = w.settle(w.end_job(s, "build", report=w.build_report(s.builds[0])), w.NOW + 20)
    assert s.builds[0].status.phase == "Passed"
    assert not any(j.active for j in s.jobs if j.role == "build")


def test_an_engine_lost_after_a_gate_change_is_noticed_too() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    s = w.settle(replace(s, spec=w.spec(validation={"uri": "s3://models/v.npz", "acceptance": {"minimum": "0.91"}}), generation=2))
    judged = next(b for b in s.builds if b.status.phase == "Building")
    s = w.settle(w.end_job(s, "build", report=w.build_report(judged)))
    broken = tuple(replace(p, ready=False, trouble_at=w.NOW + 10, trouble=("ObjectMissing", "gone.")) for p in s.pods)
    plan = decide(replace(s, pods=broken), w.NOW + 11)
    assert any(e.reason == "EngineLost" for e in plan.events)


@pytest.mark.parametrize("changes", [{"uri": "s3://elsewhere/vision/"}, {"endpoint": "http://s3.example:9000"}])
def test_a_changed_store_reaches_the_pods(changes: dict[str, str]) -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    store = EngineStoreSpec.model_validate({"uri": "s3://engines/vision/"} | changes)
    s = w.settle(replace(s, store=store))
    s = w.settle(w.end_job(s, "prepare", report=w.prepare_report()))
    building = [b for b in s.builds if b.status.phase == "Building"]
    assert bool(building) is ("uri" in changes)
    if building:
        s = w.settle(w.end_job(s, "build", report=w.build_report(building[0])))
    assert len({x.label for x in s.workloads}) == 2
    assert condition(s, "Ready")[0] == "False"


def test_offline_hardware_of_its_own_kind_does_not_take_ready_away() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    alone = replace(w.node("n9"), ready=False)
    other = w.observed("n9").model_copy(deep=True)
    facts = {**other.observations[0].facts, "backendVersion": "9.9"}
    seen = other.observations[0].model_copy(update={"id": "fp-0123456789abcdef", "facts": facts})
    s = replace(s, nodes=(*s.nodes, alone), fingerprints={**s.fingerprints, "n9": other.model_copy(update={"observations": [seen]})})
    s = w.settle(s)
    assert condition(s, "Ready")[0] == "True"
    assert not any(j.active for j in s.jobs if j.role == "build")


def test_a_pod_that_served_for_a_month_is_not_overdue_when_it_blinks() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    blink = tuple(replace(p, ready=False, since=w.NOW + 86400 * 30) for p in s.pods)
    s = w.apply(replace(s, pods=blink), decide(replace(s, pods=blink), w.NOW + 86400 * 30 + 1))
    assert s.status.classes[0].nodes.failed == 0
    s = w.apply(s, decide(s, w.NOW + 86400 * 30 + 601))
    assert s.status.classes[0].nodes.failed == 3
    assert condition(s, "Ready")[1] == "ProgressDeadlineExceeded"


@pytest.mark.parametrize(
    ("desired", "reason", "says"), [(3, "PodNotCreated", "kubectl describe daemonset"), (0, "PodNotWanted", "runtime.tolerations")]
)
def test_a_node_that_never_gets_its_pod_fails_after_the_progress_deadline(desired: int, reason: str, says: str) -> None:
    s = w.passed_fleet()
    s = replace(
        s, nodes=tuple(replace(n, labelled_at=w.NOW) for n in s.nodes), workloads=tuple(replace(x, desired=desired) for x in s.workloads)
    )
    plan = decide(s, w.NOW + 599)
    assert plan.wake_at == w.NOW + 600
    assert condition(w.apply(s, plan), "Ready")[1] == "RollingOut"
    s = w.apply(s, decide(s, w.NOW + 600))
    assert s.status.classes[0].nodes.failed == 1, "the canary node; others got no label"
    assert condition(s, "Ready")[1] == reason
    assert says in condition(s, "Ready")[2]
    assert [t.reason for t in s.status.classes[0].failing_nodes] == [reason]
    assert condition(w.settle(w.serving(s), w.NOW + 700), "Ready")[0] == "True"


def test_a_label_of_unknown_age_makes_no_node_fail() -> None:
    s = w.passed_fleet()
    assert w.apply(s, decide(s, w.NOW + 1e6)).status.classes[0].nodes.failed == 0


def test_taking_the_retry_annotation_away_is_no_retry() -> None:
    bad = Failure(FailureClass.PERMANENT, "NotAModel", "no model.")
    s = replace(w.settle(w.fleet()), annotations={labels.RETRY: "1"})
    s = w.settle(w.end_job(w.settle(s), "prepare", failure=bad))
    assert decide(replace(s, annotations={}), w.NOW).actions == ()


def test_a_retry_given_while_something_is_missing_is_kept_for_later() -> None:
    bad = Failure(FailureClass.PERMANENT, "NotAModel", "no model.")
    s = w.settle(w.end_job(w.settle(w.fleet()), "prepare", failure=bad))
    s = w.settle(replace(s, annotations={labels.RETRY: "1"}, store=None))
    assert w.kinds(decide(replace(s, store=w.fleet().store), w.NOW)) == ["StartPrepare"]


def test_a_fingerprint_that_vanishes_for_a_moment_ends_no_running_build() -> None:
    s = w.prepared_fleet()
    plan = decide(replace(s, fingerprints={}), w.NOW)
    assert not any(isinstance(a, Delete) for a in plan.actions)


def test_what_the_api_server_refused_is_the_reason() -> None:
    s = replace(w.prepared_fleet(), refused=("StartBuildRefused", "job-1: exceeded quota."))
    assert condition(w.apply(s, decide(s, w.NOW)), "Ready")[1:] == ("StartBuildRefused", "job-1: exceeded quota.")


def test_a_faulty_node_is_avoided_only_if_another_one_is_there_to_build() -> None:
    s = w.prepared_fleet(nodes=2)
    have = {labels.fp_key("cpu", w.IMAGE_A): s.builds[0].spec.fingerprint}
    nodes = tuple(replace(n, labels={**n.labels, **have}) for n in s.nodes)
    action = StartBuild("job", 2, s.builds[0].name, "uid", s.builds[0].spec, avoid=("n0",))
    avoiding = manifests.build_job(replace(s, nodes=nodes), action)["spec"]["template"]["spec"]
    assert "affinity" in avoiding
    offline = (nodes[0], replace(nodes[1], ready=False))
    assert "affinity" not in manifests.build_job(replace(s, nodes=offline), action)["spec"]["template"]["spec"]


POD = {"containers": [{"name": "x", "image": "i"}]}


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ({}, "no spec"),
        ({"spec": {}}, "spec.containers is empty"),
        ({"spec": {"containers": []}}, "spec.containers is empty"),
        ({"spec": {**POD, "restartPolicy": "Never"}}, "expected Always"),
        ({"spec": {**POD, "volumes": [{"name": "engine-cache"}]}}, "'engine-cache' is a name"),
        ({"spec": {"containers": [{"name": "enginefleet-fetch", "image": "i"}]}}, "'enginefleet-fetch' is a name"),
        ({"spec": {"containers": [{"name": "x", "volumeMounts": [{"name": "engine-cache", "mountPath": "/c"}]}]}}, "mounts engine-cache"),
        ({"spec": {**POD, "initContainers": [{"name": "y", "volumeMounts": [{"name": "engine-cache"}]}]}}, "mounts engine-cache"),
    ],
)
def test_a_template_that_cannot_work_is_refused_before_anything_moves(template: dict[str, Any], says: str) -> None:
    assert any(says in text for text in problems(template))
    s = w.settle(w.fleet(spec=w.spec(serving={"template": template})))
    assert condition(s, "Stalled")[:2] == ("True", "InvalidTemplate")


def test_a_template_of_a_user_gets_the_engine_and_no_token_reaches_our_containers() -> None:
    template = {"spec": {"serviceAccountName": "mine", "containers": [{"name": "x", "image": "triton", "volumeMounts": None}]}}
    s = w.settle(w.fleet(spec=w.spec(serving={"template": template})))
    s = w.settle(w.end_job(s, "prepare", report=w.prepare_report()))
    plan = decide(w.end_job(s, "build", report=w.build_report(s.builds[0])), w.NOW)
    pod = manifests.workload(s, w.first(plan, CreateWorkload))["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == "mine"
    assert {"name": "engine", "mountPath": "/engine", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    for container in pod["initContainers"]:
        assert "/var/run/secrets/kubernetes.io/serviceaccount" in [m["mountPath"] for m in container["volumeMounts"]]
    cached = [
        c["name"] for c in [*pod["initContainers"], *pod["containers"]] if any(m["name"] == "engine-cache" for m in c["volumeMounts"])
    ]
    assert cached == ["enginefleet-fetch"]
