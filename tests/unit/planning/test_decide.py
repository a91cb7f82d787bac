"""`decide` by tables: each test is a sentence about one ModelDeployment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import labels
from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.resources import ModelDeploymentSpec
from enginefleet_operator.planning import retry, stages
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import (
    CreateWorkload,
    DeviceHolder,
    Failure,
    HardwareClass,
    LabelNode,
    ServingPod,
    Snapshot,
    StartBuild,
    StartPrepare,
)

from . import worlds as w

STORE_DOWN = Failure(FailureClass.TRANSIENT, "StoreUnavailable", "the store did not answer in 30 s.")
BAD_MODEL = Failure(FailureClass.PERMANENT, "TruncatedModel", "the file ends in mid-message.", "Upload it again.")
NO_DRIVER = Failure(FailureClass.ENVIRONMENT, "WrongDevice", "this node is not what was expected.")


def condition(s: Snapshot, kind: str) -> tuple[str, str, str]:
    found = next(c for c in s.status.conditions if c.type == kind)
    return found.status, found.reason, found.message


def test_a_new_model_deployment_starts_exactly_one_prepare_job() -> None:
    plan = decide(w.fleet(), w.NOW)
    assert w.kinds(plan) == ["StartPrepare"]


def test_all_conditions_are_there_from_the_first_visit() -> None:
    s = w.apply(w.fleet(), decide(w.fleet(), w.NOW))
    assert [c.type for c in s.status.conditions] == [
        "Ready",
        "Reconciling",
        "Stalled",
        "Prepared",
        "EnginesReady",
        "RolledOut",
        "ServingStale",
        "BelowGate",
    ]
    assert s.status.observed_generation == 1


def test_nothing_is_done_twice_while_a_job_runs() -> None:
    s = w.settle(w.fleet())
    plan = decide(s, w.NOW + 100)
    assert (plan.actions, plan.status) == ((), None)


def test_prepare_leads_to_one_engine_build_a_fingerprint_and_one_build_job() -> None:
    s = w.prepared_fleet()
    assert len(s.builds) == 1
    assert [j.role for j in s.jobs if j.active] == ["build"]
    assert s.builds[0].status.phase == "Building"


def test_a_passed_engine_is_rolled_out_by_a_workload_a_service_and_labels() -> None:
    s = w.passed_fleet()
    assert len(s.workloads) == 1
    assert s.has_service
    key = labels.release_key("vision", "m")
    assert [n.labels[key] for n in s.nodes if key in n.labels] == [s.workloads[0].label], "the canary node moves first"
    assert {n.labels.get(key) for n in w.serving(s).nodes} == {s.workloads[0].label}


def test_it_is_ready_when_every_reachable_node_serves() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    assert condition(s, "Ready")[:2] == ("True", "Serving")
    assert condition(s, "Stalled")[0] == "False"
    assert s.status.rollout == "3/3"
    assert s.status.engines == "1/1"


def test_a_ready_model_deployment_has_an_empty_plan() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    plan = decide(s, w.NOW + 86400)
    assert (plan.actions, plan.status, plan.events) == ((), None, ())


def test_an_unreachable_node_does_not_take_ready_away() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    s = w.settle(replace(s, nodes=(replace(s.nodes[0], ready=False), *s.nodes[1:])))
    assert condition(s, "Ready")[0] == "True"
    assert s.status.classes[0].nodes.unreachable == 1


def test_a_node_that_joins_gets_the_engine_without_a_build() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    s = replace(s, nodes=(*s.nodes, w.node("n9")), fingerprints={**s.fingerprints, "n9": w.observed("n9")})
    plan = decide(s, w.NOW)
    assert [(a.node, list(a.labels.values())) for a in plan.actions if isinstance(a, LabelNode)] == [("n9", [s.workloads[0].label])]
    assert not any(isinstance(a, StartBuild) for a in plan.actions)


# ---- gate ----


@pytest.mark.parametrize(
    ("answer", "lasting", "reason", "stalled"),
    [
        (Answer.FAIL, False, "GateFailed", "True"),
        (Answer.INCONCLUSIVE, False, "GateInconclusive", "False"),
        (Answer.INCONCLUSIVE, True, "GateInconclusive", "True"),
    ],
)
def test_an_engine_that_did_not_pass_is_never_rolled_out(answer: Answer, lasting: bool, reason: str, stalled: str) -> None:
    s = w.prepared_fleet()
    said = w.build_report(s.builds[0], answer, ["top1 0.80 is below the minimum 0.9"]).model_copy(update={"lasting": lasting})
    s = w.settle(w.end_job(s, "build", report=said))
    assert s.workloads == ()
    assert condition(s, "Ready")[1] == reason
    assert condition(s, "Stalled")[0] == stalled
    assert "0.80 is below" in s.status.summary
    # what no waiting cures is not tried again
    assert (retry.due_at(s.builds[0].status.build) is None) == (stalled == "True")


def test_a_report_about_another_engine_is_not_believed() -> None:
    s = w.prepared_fleet()
    foreign = w.build_report(s.builds[0]).model_copy(update={"engine_key": "f" * 64})
    s = w.settle(w.end_job(s, "build", report=foreign))
    assert s.workloads == ()
    assert condition(s, "Stalled")[:2] == ("True", "ForeignReport")


def test_a_changed_threshold_judges_again_without_preparing_or_moving_a_pod() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    stricter = w.spec(validation={"uri": "s3://models/v.npz", "acceptance": {"minimum": "0.94"}})
    s = w.settle(replace(s, spec=stricter, generation=2))
    assert len(s.builds) == 2
    assert [j.role for j in s.jobs if j.active] == ["build"]
    before = (s.workloads, s.nodes)
    judged = next(b for b in s.builds if b.status.phase == "Building")
    s = w.settle(w.end_job(s, "build", report=w.build_report(judged).model_copy(update={"adopted": True})))
    assert (s.workloads, s.nodes) == before
    assert condition(s, "Ready")[0] == "True"


def test_a_failed_stricter_gate_leaves_the_old_engine_serving() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    s = w.settle(replace(s, spec=w.spec(validation={"uri": "s3://models/v.npz", "acceptance": {"minimum": "0.999"}}), generation=2))
    judged = next(b for b in s.builds if b.status.phase == "Building")
    before = (s.workloads, s.nodes)
    s = w.settle(w.end_job(s, "build", report=w.build_report(judged, Answer.FAIL, ["too low"])))
    assert (s.workloads, s.nodes) == before
    assert condition(s, "ServingStale")[0] == "True"


# ---- failures and retries ----


def test_a_permanent_failure_is_not_tried_again() -> None:
    s = w.settle(w.end_job(w.settle(w.fleet()), "prepare", failure=BAD_MODEL))
    assert condition(s, "Stalled")[:2] == ("True", "TruncatedModel")
    assert decide(s, w.NOW + 1e6).actions == ()


def test_the_retry_annotation_tries_again_once_a_token() -> None:
    s = w.settle(w.end_job(w.settle(w.fleet()), "prepare", failure=BAD_MODEL))
    s = replace(s, annotations={labels.RETRY: "1"})
    plan = decide(s, w.NOW)
    assert w.kinds(plan) == ["StartPrepare"]
    s = w.settle(w.end_job(w.settle(s), "prepare", failure=BAD_MODEL))
    assert decide(s, w.NOW + 1e6).actions == ()


def test_a_transient_failure_waits_for_its_back_off_and_no_longer() -> None:
    s = w.settle(w.end_job(w.settle(w.fleet()), "prepare", failure=STORE_DOWN))
    plan = decide(s, w.NOW + 29)
    assert plan.actions == ()
    assert plan.wake_at is not None
    assert w.NOW + 30 <= plan.wake_at <= w.NOW + 35
    assert w.kinds(decide(s, plan.wake_at)) == ["StartPrepare"]
    assert condition(s, "Stalled")[0] == "False"
    assert "Attempt 2 at" in condition(s, "Ready")[2]


def test_after_eight_transient_failures_it_says_stalled_and_still_tries_hourly() -> None:
    s, now = w.settle(w.fleet()), w.NOW
    for _ in range(8):
        s = w.settle(w.end_job(s, "prepare", failure=STORE_DOWN), now)
        plan = decide(s, now)
        assert plan.wake_at is not None
        assert plan.wake_at - now <= 3600 * 1.1 + 2
        now = plan.wake_at
        if s.status.prepare is not None and s.status.prepare.in_a_row == 8:
            break
        s = w.settle(s, now)
    assert condition(s, "Stalled")[0] == "True"
    assert w.kinds(decide(s, now)) == ["StartPrepare"]


def test_an_environment_fault_goes_to_another_node_next() -> None:
    s = w.prepared_fleet()
    s = w.settle(w.end_job(s, "build", failure=NO_DRIVER, node="n1"))
    plan = decide(s, w.NOW + 3600)
    assert w.first(plan, StartBuild).avoid == ("n1",)


def test_a_job_that_was_deleted_by_hand_is_started_again_under_the_same_name() -> None:
    s = w.settle(w.fleet())
    name = s.jobs[0].name
    assert w.first(decide(replace(s, jobs=()), w.NOW), StartPrepare).job == name


def test_no_second_job_while_a_pod_of_the_first_still_lives() -> None:
    s = w.prepared_fleet()
    going = replace(next(j for j in s.jobs if j.role == "build"), deleting=True, live_pods=1)
    s = replace(s, jobs=(going,))
    assert not any(isinstance(a, StartBuild) for a in decide(s, w.NOW).actions)


def test_changed_inputs_end_the_running_prepare_job_and_start_another() -> None:
    s = w.settle(w.fleet())
    s = replace(s, spec=w.spec(model={"uri": "s3://models/other.onnx"}), generation=2)
    assert sorted(w.kinds(decide(s, w.NOW))) == ["Delete", "StartPrepare"]


def test_an_engine_lost_from_the_store_is_built_again() -> None:
    s = w.serving(w.passed_fleet(), ready=False)
    broken = tuple(replace(p, trouble_at=w.NOW + 60, trouble=("ObjectMissing", "blobs/sha256/ee… is not in the store.")) for p in s.pods)
    plan = decide(replace(s, pods=broken), w.NOW)
    s = w.settle(w.apply(replace(s, pods=broken), plan))
    assert any(j.role == "build" and j.active for j in s.jobs)
    assert any(e.reason == "EngineLost" for e in plan.events)


# ---- what is missing ----


@pytest.mark.parametrize(
    ("change", "reason", "names"),
    [
        ({"store": None}, "StoreNotFound", "'default'"),
        ({"classes": {}}, "HardwareClassNotFound", "'cpu'"),
        ({"classes": {"cpu": w.hardware_class(allowedNamespaces={"matchLabels": {"team": "x"}})}}, "NamespaceNotAllowed", "team=x"),
        ({"spec": w.spec(precision="bf16")}, "NotYetSupported", "bf16"),
        (
            {"spec": w.spec(rollout={"windows": [{"days": ["Sat"], "start": "02:00", "duration": "4h", "timeZone": "Europe/Berlinn"}]})},
            "UnknownTimeZone",
            "Europe/Berlinn",
        ),
        ({"spec": w.spec(serving={"mode": "Deployment"})}, "NotYetSupported", "Deployment"),
        ({"classes": {"cpu": w.hardware_class(executionProvider="CoreML")}}, "NotYetSupported", "CoreML"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_started(change: dict[str, Any], reason: str, names: str) -> None:
    s = w.settle(replace(w.fleet(), **change))
    assert condition(s, "Ready")[1] == reason
    assert names in condition(s, "Ready")[2]
    assert s.jobs == ()


def test_it_goes_on_by_itself_when_what_was_missing_is_there() -> None:
    s = w.settle(replace(w.fleet(), store=None))
    assert w.kinds(decide(replace(s, store=w.fleet().store), w.NOW)) == ["StartPrepare"]


def test_a_node_in_two_classes_is_an_error_that_names_both() -> None:
    two = {"cpu": w.hardware_class(), "wide": replace(w.hardware_class(), name="wide")}
    s = w.settle(replace(w.fleet(), classes=two, spec=w.spec(targets=[{"hardwareClass": "cpu"}, {"hardwareClass": "wide"}])))
    assert condition(s, "Stalled")[1] == "AmbiguousHardwareClass"
    assert "cpu and wide" in condition(s, "Stalled")[2]


def test_a_class_without_nodes_waits_and_says_which_labels() -> None:
    s = w.fleet(nodes=0)
    s = w.settle(w.end_job(w.settle(s), "prepare", report=w.prepare_report()))
    assert condition(s, "Ready")[1] == "NoMatchingNodes"
    assert "hardware=cpu" in condition(s, "Ready")[2]


def test_a_build_that_waits_for_a_device_names_the_pod_that_holds_it() -> None:
    s = w.prepared_fleet()
    blocked = tuple(replace(j, waiting=("Unschedulable", "insufficient nvidia.com/gpu")) if j.role == "build" else j for j in s.jobs)
    holder = DeviceHolder("n1", "nvidia.com/gpu", "other/llm-0", "2027-01-15T07:00:00Z", ours=False)
    s = w.settle(replace(s, jobs=blocked, holders=(holder,)))
    assert condition(s, "Ready")[1] == "WaitingForDevice"
    assert "pod other/llm-0 since 2027-01-15T07:00:00Z" in condition(s, "Ready")[2]


def test_a_device_held_by_our_own_pod_needs_an_outage_and_says_so() -> None:
    s = w.prepared_fleet()
    blocked = tuple(replace(j, waiting=("Unschedulable", "")) if j.role == "build" else j for j in s.jobs)
    s = w.settle(replace(s, jobs=blocked, holders=(DeviceHolder("n1", "nvidia.com/gpu", "vision/m-x", "2027-01-15T07:00:00Z", ours=True),)))
    assert condition(s, "Ready")[1] == "BuildNeedsOutage"


# ---- changes while something serves ----


def test_a_new_runtime_image_keeps_the_old_pods_until_the_new_engine_passed() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    old = s.nodes
    changed = w.hardware_class(image="runtime:2", digest=w.IMAGE_B)
    unprobed = replace(changed, status=s.classes["cpu"].status)
    s = w.settle(replace(s, classes={"cpu": unprobed}))
    assert s.nodes == old
    observed = {n.name: w.observed(n.name, digest=w.IMAGE_B) for n in s.nodes}
    s = w.settle(replace(s, classes={"cpu": changed}, fingerprints=observed))
    assert s.nodes == old
    assert condition(s, "ServingStale")[0] == "True"
    build = next(b for b in s.builds if b.status.phase == "Building")
    s = w.end_job(s, "build", report=w.build_report(build, blob="sha256:" + "f" * 64))
    s = w.apply(s, decide(s, w.NOW))
    plan = decide(s, w.NOW)
    s = w.apply(s, plan)
    moving = [n.labels[labels.release_key("vision", "m")] for n in s.nodes]
    assert sum(value.startswith(labels.DRAINING) for value in moving) == 1


def test_a_changed_pod_template_rolls_out_without_a_build() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    template = {"spec": {"containers": [{"name": "x", "image": "triton"}]}}
    plan = decide(replace(s, spec=w.spec(serving={"template": template}), generation=2), w.NOW)
    assert any(isinstance(a, CreateWorkload) for a in plan.actions)
    assert not any(isinstance(a, StartBuild | StartPrepare) for a in plan.actions)


@pytest.mark.parametrize("change", [{"rollout": {"maxFailures": 3}}, {"historyLimit": 5}, {"paused": True}])
def test_rollout_settings_neither_build_nor_restart(change: dict[str, Any]) -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    plan = decide(replace(s, spec=w.spec(**change), generation=2), w.NOW)
    assert plan.actions == ()


def test_a_class_that_vanishes_stops_nothing() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    plan = decide(replace(s, classes={}), w.NOW)
    assert plan.actions == ()


def test_a_node_that_left_the_class_loses_our_label() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    left = replace(s.nodes[0], labels={k: v for k, v in s.nodes[0].labels.items() if k == labels.release_key("vision", "m")})
    plan = decide(replace(s, nodes=(left, *s.nodes[1:])), w.NOW)
    assert [(a.node, list(a.labels.values())) for a in plan.actions if isinstance(a, LabelNode)] == [(left.name, [None])]


def test_a_workload_that_no_node_runs_is_deleted_only_when_its_pods_are_gone() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    extra = replace(s.workloads[0], name="old", uid="uid-old", label="0123456789-00000000")
    lingering = ServingPod("p", "u", "n0", "0123456789-00000000", ready=False, deleting=True)
    assert not any(
        getattr(a, "name", "") == "old"
        for a in decide(replace(s, workloads=(*s.workloads, extra), pods=(*s.pods, lingering)), w.NOW).actions
    )
    assert any(getattr(a, "name", "") == "old" for a in decide(replace(s, workloads=(*s.workloads, extra)), w.NOW).actions)


def test_a_failing_pod_is_named_with_its_reason() -> None:
    s = w.serving(w.passed_fleet(), ready=False)
    s = replace(s, pods=tuple(replace(p, trouble=("WrongDevice", "this node has no avx512_vnni.")) for p in s.pods))
    s = w.settle(s)
    assert condition(s, "Ready")[1] == "WrongDevice"
    assert s.status.classes[0].failing_nodes[0].reason == "WrongDevice"


def test_decide_is_the_same_for_any_order_of_what_was_listed() -> None:
    s = w.prepared_fleet(nodes=4)
    shuffled = replace(s, nodes=s.nodes[::-1], jobs=s.jobs[::-1], builds=s.builds[::-1])
    assert decide(s, w.NOW) == decide(shuffled, w.NOW)


def test_the_spec_is_never_part_of_a_plan() -> None:
    assert "spec" not in (decide(w.fleet(), w.NOW).status or {})
    assert isinstance(w.fleet().spec, ModelDeploymentSpec)


# ---- classes by label


def _labelled(name: str, **labels_: str) -> HardwareClass:
    return replace(w.hardware_class(name), labels=labels_)


def _selecting(*targets: dict[str, Any]) -> ModelDeploymentSpec:
    return w.spec(targets=[*targets, {"hardwareClassSelector": {"matchLabels": {"cameras": "yes"}}}])


def test_a_selector_targets_every_class_with_its_labels_once() -> None:
    classes = {name: _labelled(name, cameras="yes") for name in ("b", "a")} | {"c": _labelled("c", cameras="no")}
    s = w.fleet(classes=classes, spec=_selecting({"hardwareClass": "b"}))
    assert [c.name for c in stages.targets(s)] == ["b", "a"]
    assert [c.name for c in stages.targets(replace(s, spec=_selecting({"hardwareClass": "c"})))] == ["c", "a", "b"]


def test_a_selector_passes_over_classes_that_do_not_allow_the_namespace() -> None:
    closed = replace(w.hardware_class("a", allowedNamespaces={"matchLabels": {"team": "x"}}), labels={"cameras": "yes"})
    s = w.fleet(classes={"a": closed, "cpu": _labelled("cpu", cameras="yes")}, spec=_selecting())
    assert [c.name for c in stages.targets(s)] == ["cpu"]
    assert not list(stages.admission(s))
    assert [c.name for c in stages.targets(replace(s, namespace_labels={"team": "x"}))] == ["a", "cpu"]


def test_a_selector_that_finds_nothing_says_which_labels_and_stops_nothing() -> None:
    s = w.settle(w.serving(w.passed_fleet(classes={"cpu": _labelled("cpu", cameras="yes")}, spec=_selecting())))
    assert condition(s, "Ready")[0] == "True"
    pods = s.pods
    s = w.settle(replace(s, classes={"cpu": _labelled("cpu")}))
    assert condition(s, "Ready")[1] == "HardwareClassNotFound"
    assert "no HardwareClass that allows namespace vision has the labels cameras=yes (there are: cpu)" in condition(s, "Ready")[2]
    assert w.serving(s).pods == pods
    s = w.settle(replace(s, classes={"cpu": _labelled("cpu", cameras="yes")}))
    assert condition(s, "Ready")[0] == "True"
