"""`onVersionChange: Hold` and `enginefleet.io/approve`: what is held, what serves meanwhile, what a token does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import fingerprint, labels
from enginefleet_api.resources import HardwareClassStatus, NodeFingerprintSpec
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import HardwareClass, Snapshot

from . import worlds as w
from .test_decide import condition
from .test_rollback import played

NEWER = w.RUNTIME | {"backendVersion": "1.25.0"}


def upgraded(s: Snapshot, policy: str = "Hold") -> Snapshot:
    """The class has an image with another runtime, which is probed: every node has another fingerprint."""
    hwc = w.hardware_class(image="runtime:2", digest=w.IMAGE_B, onVersionChange=policy)
    probed = hwc.status.probed[0].model_copy(update={"runtime": NEWER})
    hwc = replace(hwc, status=HardwareClassStatus(probed=[probed]), generation=2)
    return replace(s, classes={"cpu": hwc}, **_seen(s, NEWER, w.IMAGE_B))


def _seen(s: Snapshot, runtime: dict[str, Any], digest: str) -> dict[str, Any]:
    facts = fingerprint.combine(w.HOST, runtime)
    found = {}
    for node in s.nodes:
        one = w.observed(node.name, digest=digest).observations[0]
        one = one.model_copy(update={"facts": facts, "id": fingerprint.identify(facts), "summary": "a CPU with a newer runtime"})
        found[node.name] = s.fingerprints[node.name].model_copy(update={"observations": [one]})
    key = labels.fp_key("cpu", digest)
    nodes = tuple(replace(n, labels={**n.labels, key: fingerprint.identify(facts)}) for n in s.nodes)
    return {"fingerprints": found, "nodes": nodes}


def serving(**changes: Any) -> Snapshot:
    return played(w.passed_fleet(**changes))


def built(s: Snapshot) -> Snapshot:
    build = next(b for b in s.builds if b.status.phase == "Building")
    return played(w.end_job(s, "build", report=w.build_report(build, blob="sha256:" + "f" * 64)))


def test_what_is_held_is_not_built_and_what_serves_stays_and_is_ready() -> None:
    before = serving()
    s = w.settle(upgraded(before))
    assert (s.jobs, s.workloads, s.pods) == (before.jobs, before.workloads, before.pods)
    assert [n.labels[labels.release_key("vision", "m")] for n in s.nodes] == [
        n.labels[labels.release_key("vision", "m")] for n in before.nodes
    ]
    assert condition(s, "Ready")[:2] == ("True", "Serving")
    assert "3 of them an older release that is held for approval" in condition(s, "Ready")[2]
    status, reason, message = condition(s, "ServingStale")
    assert (status, reason) == ("True", "HeldForApproval")
    assert "3 nodes" in message
    assert labels.APPROVE in message
    assert condition(s, "RolledOut")[:2] == ("False", "HeldForApproval")
    assert condition(s, "EnginesReady")[:2] == ("False", "HeldForApproval")
    assert [f.state for f in s.status.classes[0].fingerprints] == ["Held"]
    assert s.status.engines == "0/1"


def test_a_token_lets_what_is_held_be_built_and_rolled_out_once() -> None:
    s = w.settle(upgraded(serving()))
    s = w.settle(replace(s, annotations={labels.APPROVE: "1"}))
    assert s.status.approve_token == "1"
    assert [b.status.phase for b in s.builds] == ["Passed", "Building"]
    s = built(s)
    assert condition(s, "Ready")[:2] == ("True", "Serving")
    assert condition(s, "ServingStale")[0] == "False"
    assert {w_.image_digest for w_ in s.workloads} == {w.IMAGE_B}
    assert [f.state for f in s.status.classes[0].fingerprints] == ["Passed"]


def test_events_say_what_a_token_approved_and_when_there_was_nothing() -> None:
    told = [(e.reason, e.warning) for e in decide(replace(serving(), annotations={labels.APPROVE: "1"}), w.NOW).events]
    assert told == [("NothingToApprove", True)]
    held = w.settle(upgraded(serving()))
    [event] = [e for e in decide(replace(held, annotations={labels.APPROVE: "2"}), w.NOW).events if e.reason == "Approved"]
    assert event.message.startswith("enginefleet.io/approve 2: cpu: ")


def test_a_token_that_was_there_before_the_change_does_not_approve_it() -> None:
    s = w.settle(replace(serving(), annotations={labels.APPROVE: "1"}))
    assert s.status.approve_token == "1"
    s = w.settle(upgraded(s))
    assert condition(s, "ServingStale")[1] == "HeldForApproval"
    s = w.settle(replace(s, annotations={}))
    assert condition(s, "ServingStale")[1] == "HeldForApproval", "taking the annotation away approves nothing"


def test_rebuild_is_the_default_and_ends_a_hold() -> None:
    s = w.settle(upgraded(serving()))
    s = w.settle(replace(s, classes=upgraded(s, "Rebuild").classes))
    assert [b.status.phase for b in s.builds] == ["Passed", "Building"]


def _held_class() -> dict[str, HardwareClass]:
    return {"cpu": w.hardware_class(onVersionChange="Hold")}


def test_a_first_rollout_and_another_model_are_no_version_change() -> None:
    s = serving(classes=_held_class())
    assert condition(s, "Ready")[0] == "True"
    s = w.settle(replace(s, spec=w.spec(benchmark={"batchSizes": [2]}), generation=2))
    assert [b.status.phase for b in s.builds] == ["Passed", "Building"]


def test_a_class_on_which_nothing_served_yet_is_not_held() -> None:
    s = w.settle(upgraded(w.prepared_fleet()))
    assert any(b.spec.image_digest == w.IMAGE_B for b in s.builds)


@pytest.mark.parametrize("serves", [True, False])
def test_one_flashed_node_is_held_alone(serves: bool) -> None:
    """Only where its old pod is gone, because the engine does not fit any more, is it a reason not to be Ready."""
    s = serving(classes=_held_class())
    flashed: dict[str, NodeFingerprintSpec] = {**s.fingerprints, "n1": _seen(s, NEWER, w.IMAGE_A)["fingerprints"]["n1"]}
    pods = s.pods if serves else tuple(p for p in s.pods if p.node != "n1")
    s = w.settle(replace(s, fingerprints=flashed, pods=pods))
    assert {f.state: f.nodes for f in s.status.classes[0].fingerprints} == {"Passed": 2, "Held": 1}
    assert condition(s, "Ready")[0] == str(serves)
    if not serves:
        assert condition(s, "Ready")[1] == "HeldForApproval"
        assert labels.APPROVE in condition(s, "Ready")[2]
    assert len(s.builds) == 1


def test_a_restart_between_the_builds_and_the_status_holds_nothing_again() -> None:
    s = w.settle(upgraded(serving()))
    asked = replace(s, annotations={labels.APPROVE: "1"})
    plan = decide(asked, w.NOW)
    crashed = w.apply(asked, replace(plan, status=None))
    assert len(crashed.builds) == 2
    assert len(w.settle(crashed).builds) == 2


def test_while_a_spec_is_invalid_the_cause_is_that_and_not_a_rollout() -> None:
    s = serving()
    s = w.settle(replace(s, spec=w.spec(serving={"mode": "Deployment"}), generation=2))
    status, reason, message = condition(s, "ServingStale")
    assert (status, reason) == ("True", "NotYetSupported")
    assert "nothing is built or rolled out until this is mended: spec.serving.mode Deployment" in message
