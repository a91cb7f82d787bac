"""Decisions about HardwareClasses and EngineStores, by tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import fingerprint, labels
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import ProbeReport
from enginefleet_api.resources import EngineStoreSpec, EngineStoreStatus, HardwareClassStatus, NodeFingerprintSpec
from enginefleet_operator.planning.classes import ClassSnapshot, decide_class, image_digest, orphaned_labels
from enginefleet_operator.planning.model import Failure, Job, LabelNode, Plan, StartProbe, WriteObservations
from enginefleet_operator.planning.stores import decide_store

from . import worlds as w


def host(node: str, cpuinfo: str = "flags : avx2 fma\n") -> NodeFingerprintSpec:
    facts = fingerprint.host_facts(os="linux", machine="x86_64", cpuinfo=cpuinfo)
    return NodeFingerprintSpec.model_validate({"node": node, "host": {"digest": fingerprint.host_digest(facts), "facts": facts}})


def snapshot(*nodes: str, **changes: Any) -> ClassSnapshot:
    """A class just applied; the agent has reported on every node."""
    fresh = replace(w.hardware_class(), status=HardwareClassStatus())
    base = ClassSnapshot(fresh, tuple(w.node(n) for n in nodes), {n: host(n) for n in nodes})
    return replace(base, **changes)


def applied(s: ClassSnapshot, plan: Plan) -> ClassSnapshot:
    """The snapshot after the plan's status and observations were written."""
    hwc = s.hardware_class
    if plan.status is not None:
        hwc = replace(hwc, status=HardwareClassStatus.model_validate(plan.status))
    found = dict(s.fingerprints)
    nodes = {n.name: n for n in s.nodes}
    for action in plan.actions:
        if isinstance(action, WriteObservations):
            found[action.node] = found[action.node].model_copy(update={"observations": list(action.observations)})
        elif isinstance(action, LabelNode):
            have = dict(nodes[action.node].labels) | {k: v for k, v in action.labels.items() if v is not None}
            nodes[action.node] = replace(nodes[action.node], labels={k: v for k, v in have.items() if action.labels.get(k, "") is not None})
    return replace(s, hardware_class=hwc, fingerprints=found, nodes=tuple(nodes.values()))


def probed(s: ClassSnapshot, image_id: str = "runtime@" + w.IMAGE_A) -> ClassSnapshot:
    """Its probe Jobs have answered, and the answers were written down."""
    starts = [a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe)]
    jobs = tuple(
        Job(a.job, f"uid-{a.job}", "probe", a.attempt, active=False, node=a.node, report=ProbeReport(runtime=w.RUNTIME), image_id=image_id)
        for a in starts
    )
    s = replace(s, jobs=jobs)
    return applied(s, decide_class(s, w.NOW))


def test_one_node_of_a_hardware_group_is_probed_for_all() -> None:
    plan = decide_class(snapshot("a", "b", "c"), w.NOW)
    assert w.kinds(plan) == ["StartProbe"]


def test_nodes_of_other_hardware_are_probed_apart() -> None:
    s = snapshot("a", "b", fingerprints={"a": host("a"), "b": host("b", "flags : avx2 fma avx512f\n")})
    assert len([a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe)]) == 2


def test_simulated_hardware_is_never_of_the_group_of_the_real_one() -> None:
    real, simulated = host("a"), host("b", "model name : EngineFleet simulated CPU 1\nflags : avx2 fma\n")
    assert real.host is not None
    assert simulated.host is not None
    assert real.host.digest != simulated.host.digest


def test_what_a_probe_found_becomes_observations_and_labels_of_every_node() -> None:
    s = probed(snapshot("a", "b"))
    for node in s.nodes:
        value = node.labels[labels.fp_key("cpu")]
        assert value.startswith("fp-")
        assert node.labels[labels.fp_key("cpu", w.IMAGE_A)] == value
    assert s.hardware_class.status.fingerprints[0].nodes == 2
    assert decide_class(s, w.NOW + 1e5).actions == ()
    assert decide_class(s, w.NOW + 1e5).status is None


def test_a_new_image_keeps_the_label_of_the_old_one_while_a_workload_uses_it() -> None:
    s = probed(snapshot("a"))
    other = replace(s.hardware_class, spec=w.hardware_class(image="runtime:2").spec, generation=2)
    s = probed(replace(s, hardware_class=other, images_in_use=frozenset({w.IMAGE_A})), "runtime@" + w.IMAGE_B)
    assert {labels.fp_key("cpu", w.IMAGE_A), labels.fp_key("cpu", w.IMAGE_B)} <= s.nodes[0].labels.keys()
    s = replace(s, images_in_use=frozenset({w.IMAGE_B}))
    s = applied(s, decide_class(s, w.NOW))
    assert labels.fp_key("cpu", w.IMAGE_A) not in s.nodes[0].labels


def test_the_agent_being_silent_for_a_moment_takes_no_label_away() -> None:
    s = probed(snapshot("a"))
    plan = decide_class(replace(s, fingerprints={}), w.NOW)
    assert not any(isinstance(a, LabelNode) for a in plan.actions)


def test_a_node_that_leaves_the_class_loses_its_labels_after_an_hour() -> None:
    s = probed(snapshot("a"))
    left = replace(s.nodes[0], labels={k: v for k, v in s.nodes[0].labels.items() if k != "hardware"})
    s = replace(s, nodes=(left,))
    s = applied(s, decide_class(s, w.NOW))
    assert labels.fp_key("cpu") in s.nodes[0].labels
    waiting = decide_class(s, w.NOW + 3599)
    assert not any(isinstance(a, LabelNode) for a in waiting.actions)
    assert waiting.wake_at == w.NOW + 3600
    s = applied(s, decide_class(s, w.NOW + 3600))
    assert s.nodes[0].labels == {}


def test_a_node_that_comes_back_in_time_keeps_its_labels() -> None:
    s = probed(snapshot("a"))
    before = s.nodes
    s = replace(s, nodes=(replace(s.nodes[0], labels={k: v for k, v in s.nodes[0].labels.items() if k != "hardware"}),))
    s = applied(s, decide_class(s, w.NOW))
    back = replace(s.nodes[0], labels={**s.nodes[0].labels, "hardware": "cpu"})
    s = applied(replace(s, nodes=(back,)), decide_class(replace(s, nodes=(back,)), w.NOW + 60))
    assert s.nodes[0].labels == before[0].labels


def test_a_deleted_class_keeps_the_labels_that_a_workload_selects() -> None:
    key = labels.fp_key("cpu", w.IMAGE_A)
    node = replace(w.node("a"), labels={key: "fp-1"})
    assert orphaned_labels((node,), frozenset(), frozenset(), frozenset({key})) == []
    assert len(orphaned_labels((node,), frozenset(), frozenset())) == 1


def test_a_failed_probe_is_tried_on_another_node() -> None:
    s = snapshot("a", "b")
    first = next(a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe))
    fault = Failure(FailureClass.ENVIRONMENT, "RuntimeMissing", "no onnxruntime in this image.")
    job = Job(first.job, "u", "probe", 1, active=False, node=first.node, failure=fault)
    s = replace(s, jobs=(job,))
    s = applied(s, decide_class(s, w.NOW))
    again = next(a for a in decide_class(s, w.NOW + 3600).actions if isinstance(a, StartProbe))
    assert again.node != first.node
    assert again.job != first.job


@pytest.mark.parametrize(
    ("image_id", "image", "expected"),
    [
        ("runtime:1@" + w.IMAGE_A, "runtime:1", w.IMAGE_A),
        ("docker-pullable://x/runtime@" + w.IMAGE_A, "x/runtime", w.IMAGE_A),
        (w.IMAGE_A, "runtime:1", w.IMAGE_A),
        ("", "runtime@" + w.IMAGE_B, w.IMAGE_B),
        ("runtime:1", "runtime:1", ""),
        ("", "runtime:1", ""),
        ("sha256:short", "runtime:1", ""),
    ],
)
def test_the_digest_of_an_image_as_kubelets_report_it(image_id: str, image: str, expected: str) -> None:
    assert image_digest(image_id, image) == expected


def test_labels_without_an_owner_are_swept_and_others_are_left() -> None:
    mine, gone = labels.release_key("ns", "m"), labels.release_key("ns", "gone")
    node = replace(
        w.node("a"), labels={"hardware": "cpu", mine: "x", gone: "y", labels.fp_key("cpu"): "fp-1", labels.fp_key("old", w.IMAGE_A): "fp-2"}
    )
    found = orphaned_labels((node,), frozenset({mine}), frozenset({"cpu"}))
    assert [dict(a.labels) for a in found] == [{gone: None, labels.fp_key("old", w.IMAGE_A): None}]


def test_a_store_is_accepted_once_and_an_unsupported_one_is_refused_by_name() -> None:
    spec = EngineStoreSpec(uri="s3://engines/vision/")
    plan = decide_store(spec, EngineStoreStatus(), 1, w.NOW)
    assert plan.status is not None
    status = EngineStoreStatus.model_validate(plan.status)
    assert [(c.type, c.status) for c in status.conditions] == [("Ready", "True"), ("Reconciling", "False"), ("Stalled", "False")]
    assert decide_store(spec, status, 1, w.NOW + 99).status is None
    signed = EngineStoreSpec.model_validate({"uri": "s3://engines/vision/", "trust": {"require": True, "publicKeys": ["x"]}})
    refused = EngineStoreStatus.model_validate(decide_store(signed, status, 2, w.NOW).status)
    assert refused.conditions[0].reason == "NotYetSupported"
    assert "spec.trust" in refused.conditions[0].message


def test_a_probe_that_failed_for_good_is_tried_again_once_for_each_retry_annotation() -> None:
    s = snapshot("n0")
    s = applied(s, decide_class(s, w.NOW))
    started = next(a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe))
    bad = Failure(FailureClass.PERMANENT, "RuntimeBroken", "no onnxruntime in this image.")
    s = replace(s, jobs=(Job(started.job, "uid", "probe", 1, active=False, node="n0", failure=bad),))
    s = applied(s, decide_class(s, w.NOW))
    assert not any(isinstance(a, StartProbe) for a in decide_class(s, w.NOW).actions)
    asked = replace(s, hardware_class=replace(s.hardware_class, annotations={labels.RETRY: "1"}))
    plan = decide_class(asked, w.NOW)
    again = next(a for a in plan.actions if isinstance(a, StartProbe))
    assert again.attempt == 2
    assert applied(asked, plan).hardware_class.status.retry_token == "1"
    # it fails again: the same annotation is no second retry
    worse = replace(applied(asked, plan), jobs=(Job(again.job, "uid2", "probe", 2, active=False, node="n0", failure=bad),))
    worse = applied(worse, decide_class(worse, w.NOW))
    assert not any(isinstance(a, StartProbe) for a in decide_class(worse, w.NOW).actions)
