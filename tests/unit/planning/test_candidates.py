"""`runtime.candidateImage`: what is proven under it, who is told, and that nothing of it serves before it is promoted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import fingerprint, labels
from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import ProbeReport
from enginefleet_api.resources import CandidateStatus, HardwareClassStatus, NodeFingerprintSpec, Observation
from enginefleet_operator.planning.candidates import CANDIDATE_READY, MOST
from enginefleet_operator.planning.classes import MAX_UNKNOWN, ClassSnapshot, decide_class
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.engines import Model
from enginefleet_operator.planning.model import (
    Delete,
    Failure,
    HardwareClass,
    Job,
    RunningBuild,
    Snapshot,
    StartBuild,
    StartPrepare,
    StartProbe,
)
from enginefleet_operator.render.manifests import build_job, prepare_job, probe_job

from . import worlds as w
from .test_classes import applied, host
from .test_decide import condition
from .test_hold import NEWER
from .test_pausing import World
from .test_rollback import played

BLOB = "sha256:" + "f" * 64
SAME = {"image": "runtime:1", "imageDigest": w.IMAGE_A, "hostDigest": w.HOST_DIGEST, "runtime": w.RUNTIME}
OTHER = SAME | {"image": "runtime:2", "imageDigest": w.IMAGE_B, "runtime": NEWER}


def a_class(
    image: str = "runtime:1", candidate: str = "runtime:2", probed: tuple[dict[str, Any], ...] = (SAME, OTHER), **changes: Any
) -> HardwareClass:
    hwc = w.hardware_class(runtime={"image": image, "candidateImage": candidate}, **changes)
    return replace(hwc, status=HardwareClassStatus.model_validate({"probed": probed}))


def seen(node: str, *runtimes: tuple[str, dict[str, Any]]) -> NodeFingerprintSpec:
    """A node as observed under images, each (digest, what a probe found in it)."""
    found = []
    for digest, runtime in runtimes:
        facts = fingerprint.combine(w.HOST, runtime)
        one = w.observed(node, digest=digest).observations[0]
        found.append(one.model_copy(update={"facts": facts, "id": fingerprint.identify(facts)}))
    return w.observed(node).model_copy(update={"observations": found})


BOTH = ((w.IMAGE_A, w.RUNTIME), (w.IMAGE_B, NEWER))


def tried(s: Snapshot, hwc: HardwareClass | None = None, runtimes: tuple[tuple[str, dict[str, Any]], ...] = BOTH) -> Snapshot:
    """The class has a candidate image, which is probed on all its nodes."""
    nodes = []
    for node in s.nodes:
        ids = {labels.fp_key("cpu", digest): fingerprint.identify(fingerprint.combine(w.HOST, runtime)) for digest, runtime in runtimes}
        nodes.append(replace(node, labels={**node.labels, **ids}))
    found = {n.name: seen(n.name, *runtimes) for n in s.nodes}
    return replace(s, classes={"cpu": hwc or a_class()}, nodes=tuple(nodes), fingerprints=found)


def promoted(s: Snapshot, **changes: Any) -> Snapshot:
    return replace(s, classes={"cpu": a_class("runtime:2", "", **changes)})


def serving() -> Snapshot:
    return played(w.passed_fleet())


def answered(s: Snapshot, answer: Answer = Answer.PASS, reasons: list[str] | None = None) -> Snapshot:
    """The Job that builds for the candidate has answered."""
    build = next(b for b in s.builds if b.status.candidate and b.status.phase == "Building")
    return played(w.end_job(s, "build", report=w.build_report(build, answer, reasons, blob=BLOB)))


def candidate(s: Snapshot) -> CandidateStatus:
    found = s.status.classes[0].candidate
    assert found is not None
    return found


def served(s: Snapshot) -> Any:
    """All that nodes run."""
    return s.workloads, s.revisions, s.pods, s.nodes


# ---- of a ModelDeployment


def test_a_candidate_is_built_and_judged_and_what_serves_does_not_move() -> None:
    before = tried(serving())
    s = w.settle(before)
    (job,) = [j for j in s.jobs if j.active]
    assert job.role == "build"
    assert [(b.status.phase, b.status.candidate) for b in s.builds] == [("Passed", False), ("Building", True)]
    assert (candidate(s).state, candidate(s).reason) == ("Waiting", "Building")
    s = answered(s)
    assert served(s) == served(before)
    assert [(b.status.phase, b.status.candidate) for b in s.builds] == [("Passed", False), ("Passed", True)]
    one = candidate(s)
    assert (one.state, one.reason, one.nodes, one.ready, one.image) == ("Ready", "AllPassed", 3, 3, "runtime:2")
    assert [(f.state, f.nodes, f.blob) for f in one.fingerprints] == [("Passed", 3, BLOB)]
    assert condition(s, "Ready")[:2] == ("True", "Serving")
    assert condition(s, "ServingStale")[0] == "False"
    assert (s.status.engines, s.status.rollout) == ("1/1", "3/3")


def test_its_job_runs_in_the_candidate_image_on_a_node_that_was_observed_under_it() -> None:
    s = tried(serving())
    s = w.apply(s, decide(s, w.NOW))  # the EngineBuild is there
    plan = decide(s, w.NOW)
    (start,) = [a for a in plan.actions if isinstance(a, StartBuild)]
    pod = build_job(s, start)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "runtime:2"
    assert labels.fp_key("cpu", w.IMAGE_B) in pod["nodeSelector"]


def test_events_name_the_candidate_and_say_once_when_it_is_ready() -> None:
    s = w.settle(tried(serving()))
    build = next(b for b in s.builds if b.status.candidate)
    s = w.end_job(s, "build", report=w.build_report(build, blob=BLOB))
    plan = decide(s, w.NOW)
    assert [e.reason for e in plan.events] == ["EngineBuilt", "CandidateReady"]
    assert plan.events[0].message.startswith("Candidate image runtime:2: ")
    assert "nothing is rolled out" in plan.events[1].message
    assert decide(w.apply(s, plan), w.NOW).events == ()


def test_a_promoted_candidate_is_rolled_out_without_a_build() -> None:
    s = answered(w.settle(tried(serving())))
    jobs, builds = s.jobs, [b.name for b in s.builds]
    s = played(promoted(s))
    assert ([j for j in s.jobs if j.role != "preload"], [b.name for b in s.builds]) == ([j for j in jobs if j.role != "preload"], builds)
    assert {w_.image_digest for w_ in s.workloads} == {w.IMAGE_B}
    assert {p.workload_label for p in s.pods} == {w_.label for w_ in s.workloads}
    assert condition(s, "Ready")[0] == "True"
    assert not any(b.status.candidate for b in s.builds if b.status.phase == "Passed" and b.spec.image_digest == w.IMAGE_B)
    assert s.status.classes[0].candidate is None


def test_a_candidate_that_is_promoted_by_another_name_of_its_digest_is_rolled_out_without_a_build() -> None:
    s = answered(w.settle(tried(serving())))
    jobs = [j.name for j in s.jobs if j.role == "build"]
    pinned = f"runtime@{w.IMAGE_B}"
    s = played(replace(s, classes={"cpu": a_class(pinned, "", probed=(SAME, OTHER | {"image": pinned}))}))
    assert [j.name for j in s.jobs if j.role == "build"] == jobs
    assert {w_.image_digest for w_ in s.workloads} == {w.IMAGE_B}


def test_a_candidate_that_is_promoted_before_it_is_proven_is_an_ordinary_change_of_image() -> None:
    s = w.settle(tried(serving()))
    s = w.settle(promoted(s))
    assert [(b.status.phase, b.status.candidate) for b in s.builds] == [("Passed", False), ("Building", False)]
    assert {w_.image_digest for w_ in s.workloads} == {w.IMAGE_A}


def test_without_the_candidate_its_job_ends_and_nothing_is_said_of_it() -> None:
    s = w.settle(tried(serving()))
    plan = decide(replace(s, classes={"cpu": a_class(candidate="")}), w.NOW)
    assert [a.kind for a in plan.actions if isinstance(a, Delete)] == ["Job"]
    s = w.settle(replace(s, classes={"cpu": a_class(candidate="")}))
    assert not [j for j in s.jobs if j.active]
    assert s.status.classes[0].candidate is None


def test_a_candidate_that_fails_its_gate_takes_nothing_from_what_serves() -> None:
    before = tried(serving())
    s = answered(w.settle(before), Answer.FAIL, ["top1 0.91 is below the minimum 0.95"])
    assert served(s) == served(before)
    one = candidate(s)
    assert (one.state, one.reason, one.ready) == ("Failed", "GateFailed", 0)
    assert "0.91 is below the minimum" in one.message
    assert condition(s, "Ready")[:2] == ("True", "Serving")
    assert condition(s, "Stalled")[0] == "False"
    assert condition(s, "EnginesReady")[0] == "True"


def test_a_job_of_a_candidate_is_kept_while_its_nodes_are_not_known_under_it() -> None:
    """Another host was reported (a reboot, an update), and the probe of it has not answered yet."""
    s = w.settle(tried(serving()))
    unknown = tried(s, a_class(probed=(SAME,)), BOTH[:1])
    plan = decide(unknown, w.NOW)
    assert not [a for a in plan.actions if isinstance(a, Delete)]
    assert (candidate(w.apply(unknown, plan)).state, candidate(w.apply(unknown, plan)).reason) == ("Waiting", "FingerprintUnknown")


def test_a_candidate_of_the_same_digest_is_what_serves_already() -> None:
    s = w.settle(tried(serving(), a_class(probed=(SAME, SAME | {"image": "runtime:2"})), BOTH[:1]))
    assert [(b.status.phase, b.status.candidate) for b in s.builds] == [("Passed", False)]
    assert candidate(s).state == "Ready"


def test_what_two_images_of_one_digest_want_is_built_once_in_the_image_in_use() -> None:
    s = tried(w.prepared_fleet(), a_class(probed=(SAME, SAME | {"image": "runtime:2"}), builds={"maxConcurrent": 2}), BOTH[:1])
    s = replace(s, jobs=tuple(j for j in s.jobs if j.role != "build"), builds=())
    for _ in ("it is created", "its Job is"):
        s = w.apply(s, decide(s, w.NOW))
    assert [(b.spec.image, b.status.phase, b.status.candidate) for b in s.builds] == [("runtime:1", "Building", False)]


def test_what_is_to_serve_is_built_before_a_candidate() -> None:
    s = tried(w.prepared_fleet())
    s = replace(s, jobs=tuple(j for j in s.jobs if j.role != "build"), builds=())
    s = w.apply(s, decide(s, w.NOW))
    s = replace(s, running=(RunningBuild("other", "x/y"),))
    starts = [a for a in decide(s, w.NOW).actions if isinstance(a, StartBuild)]
    assert [a.spec.image for a in starts] == ["runtime:1"], "builds.maxConcurrent is 1"
    s = w.apply(s, decide(s, w.NOW))
    assert candidate(s).reason == "Queued"


def test_a_model_whose_spec_is_refused_has_no_ready_candidate() -> None:
    s = answered(w.settle(tried(serving())))
    s = w.settle(replace(s, spec=w.spec(serving={"mode": "Deployment"}), generation=2))
    assert (candidate(s).state, candidate(s).reason) == ("Failed", "NotYetSupported")


@pytest.mark.parametrize("answer", [Answer.PASS, Answer.FAIL])
def test_a_pod_makes_way_for_a_candidate_and_comes_back_with_what_it_served(answer: Answer) -> None:
    """Each node has one device, which its serving pod holds."""
    world = World(tried(serving()))
    pods, values = {p.name for p in world.s.pods}, [world.value(n.name) for n in world.s.nodes]
    world.run()
    assert world.paused == world.running
    assert len(world.paused) == 1
    build = next(b for b in world.s.builds if b.status.candidate)
    world.end_build(report=w.build_report(build, answer, [], blob=BLOB))
    world.run()
    assert world.paused == []
    assert {p.name for p in world.s.pods} == pods
    assert [world.value(n.name) for n in world.s.nodes] == values
    assert candidate(world.s).state == ("Ready" if answer is Answer.PASS else "Failed")
    assert len(world.said("ServingPaused")) == 1


def test_the_only_node_that_serves_makes_way_for_a_candidate_when_it_is_approved() -> None:
    world = World(tried(w.settle(w.serving(w.passed_fleet(nodes=1)))))
    world.run()
    assert world.paused == []
    assert (candidate(world.s).state, candidate(world.s).reason) == ("Waiting", "BuildNeedsOutage")
    assert labels.APPROVE in candidate(world.s).message
    assert condition(world.s, "Ready")[0] == "True"
    world.s = replace(world.s, annotations={labels.APPROVE: "1"})
    world.run()
    assert world.running == ["n0"]


def test_a_pod_that_made_way_comes_back_when_the_candidate_is_taken_away() -> None:
    world = World(tried(serving()))
    pods = {p.name for p in world.s.pods}
    world.run()
    assert len(world.paused) == 1
    world.s = replace(world.s, classes={"cpu": a_class(candidate="")})
    world.run()
    assert (world.paused, world.running) == ([], [])
    assert {p.name for p in world.s.pods} == pods


def test_hold_keeps_no_candidate_from_being_proven_and_a_promoted_one_from_serving_unasked() -> None:
    hold: dict[str, Any] = {"onVersionChange": "Hold"}
    s = answered(w.settle(tried(serving(), a_class(**hold))))
    assert candidate(s).state == "Ready"
    before = served(s)
    s = w.settle(promoted(s, **hold))
    assert served(s) == before
    assert condition(s, "ServingStale")[:2] == ("True", "HeldForApproval")
    jobs = [j.name for j in s.jobs if j.role == "build"]
    s = played(replace(s, annotations={labels.APPROVE: "1"}))
    assert {w_.image_digest for w_ in s.workloads} == {w.IMAGE_B}
    assert [j.name for j in s.jobs if j.role == "build"] == jobs, "it was proven before: nothing is built"
    assert condition(s, "ServingStale")[0] == "False"


@pytest.mark.parametrize("held", [True, False])
def test_what_was_proven_for_a_candidate_is_kept_while_its_promotion_is_held(held: bool) -> None:
    """Else it is past like others, of which historyLimit keeps the newest."""
    hold: dict[str, Any] = {"onVersionChange": "Hold"}
    s = answered(w.settle(tried(replace(serving(), spec=w.spec(historyLimit=1)), a_class(**hold))))
    names = [b.name for b in s.builds]
    spec = s.builds[0].spec.model_copy(update={"fingerprint": "fp-past"})
    past = replace(s.builds[0], name="past", uid="uid-past", created="2028-01-15T08:00:00Z", spec=spec)
    s = replace(s, builds=(*s.builds, past))
    s = w.settle(promoted(s, **hold) if held else replace(s, classes={"cpu": a_class(candidate="", **hold)}))
    assert [b.name for b in s.builds] == ([*names, "past"] if held else [names[0], "past"])


def test_a_candidate_that_is_promoted_in_the_moment_in_which_its_build_is_made_is_held() -> None:
    s = tried(serving(), a_class(onVersionChange="Hold"))
    s = w.apply(s, decide(s, w.NOW))
    assert [b.status.phase for b in s.builds] == ["Passed", ""]
    s = w.settle(promoted(s, onVersionChange="Hold"))
    assert condition(s, "ServingStale")[1] == "HeldForApproval"
    assert not [j for j in s.jobs if j.role == "build" and j.active]


def test_the_model_is_checked_for_devices_of_a_candidate_too() -> None:
    s = tried(w.fleet())
    plan = decide(s, w.NOW)
    job = prepare_job(s, w.first(plan, StartPrepare))
    told = next(e["value"] for e in job["spec"]["template"]["spec"]["containers"][0]["env"] if e["name"] == "ENGINEFLEET_REQUEST")
    assert '"version":"1.24.4"' in told
    assert '"version":"1.25.0"' in told


# ---- of a HardwareClass


def snapshot(*nodes: str, hwc: HardwareClass | None = None, **changes: Any) -> ClassSnapshot:
    """The image in use is known, the candidate was just written."""
    base = ClassSnapshot(hwc or a_class(probed=(SAME,)), tuple(w.node(n) for n in nodes), {n: host(n) for n in nodes})
    return replace(base, **changes)


def probed(s: ClassSnapshot, runtime: dict[str, Any] = NEWER) -> ClassSnapshot:
    jobs = tuple(
        Job(
            a.job,
            f"uid-{a.job}",
            "probe",
            a.attempt,
            active=False,
            node=a.node,
            report=ProbeReport(runtime=runtime),
            image_id="r@" + w.IMAGE_B,
        )
        for a in decide_class(s, w.NOW).actions
        if isinstance(a, StartProbe)
    )
    s = replace(s, jobs=jobs)
    return applied(s, decide_class(s, w.NOW))


def said(s: ClassSnapshot, kind: str = CANDIDATE_READY) -> tuple[str, str, str]:
    found = next(c for c in s.hardware_class.status.conditions if c.type == kind)
    return found.status, found.reason, found.message


def settled(s: ClassSnapshot) -> ClassSnapshot:
    return applied(s, decide_class(s, w.NOW))


def model(key: str, state: str = "Ready", image: str = "runtime:2", reason: str = "AllPassed", *, current: bool = True) -> Model:
    one = CandidateStatus(image=image, state=state, nodes=2, ready=2 if state == "Ready" else 0, reason=reason, message=f"{reason} it is.")
    return Model(key, frozenset({"cpu"}), current, {}, {"cpu": one})


def test_a_candidate_is_probed_on_one_node_of_a_hardware_group() -> None:
    s = settled(snapshot("a", "b"))
    (start,) = [a for a in decide_class(snapshot("a", "b"), w.NOW).actions if isinstance(a, StartProbe)]
    pod = probe_job(s.hardware_class, start, "system", 60)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "runtime:2"
    assert said(s)[:2] == ("False", "Probing")
    assert said(s, "Ready")[:2] == ("True", "Observed")


def test_nodes_are_labelled_for_the_candidate_beside_the_image_in_use() -> None:
    s = probed(snapshot("a", "b"))
    for node in s.nodes:
        assert node.labels[labels.fp_key("cpu")] == node.labels[labels.fp_key("cpu", w.IMAGE_A)]
        assert node.labels[labels.fp_key("cpu", w.IMAGE_B)] != node.labels[labels.fp_key("cpu")]
    status = s.hardware_class.status
    assert [f.nodes for f in status.fingerprints] == [2]
    assert status.candidate is not None
    assert [f.id for f in status.candidate.fingerprints] == [s.nodes[0].labels[labels.fp_key("cpu", w.IMAGE_B)]]
    assert decide_class(s, w.NOW + 1e5).actions == ()


def test_a_promoted_candidate_is_not_probed_again() -> None:
    s = probed(snapshot("a"))
    then = s.nodes[0].labels[labels.fp_key("cpu", w.IMAGE_B)]
    moved = replace(s.hardware_class, spec=a_class("runtime:2", "").spec)
    plan = decide_class(replace(s, hardware_class=moved, jobs=(), images_in_use=frozenset({w.IMAGE_A})), w.NOW)
    assert not [a for a in plan.actions if isinstance(a, StartProbe)]
    after = applied(replace(s, hardware_class=moved), plan)
    assert after.nodes[0].labels[labels.fp_key("cpu")] == then
    assert labels.fp_key("cpu", w.IMAGE_A) in after.nodes[0].labels, "it is served still"
    assert after.hardware_class.status.candidate is None
    assert said(after)[:2] == ("False", "NoCandidate")


def test_without_the_candidate_its_probe_ends_and_its_labels_go() -> None:
    s = snapshot("a")
    start = next(a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe))
    runs = replace(s, jobs=(Job(start.job, "uid-p", "probe", 1, node="a"),))
    assert not [a for a in decide_class(runs, w.NOW).actions if isinstance(a, Delete)]
    bare = replace(s.hardware_class, spec=a_class(candidate="").spec)
    assert [a.uid for a in decide_class(replace(runs, hardware_class=bare), w.NOW).actions if isinstance(a, Delete)] == ["uid-p"]
    known = probed(s)
    after = settled(replace(known, hardware_class=replace(known.hardware_class, spec=bare.spec)))
    assert labels.fp_key("cpu", w.IMAGE_B) not in after.nodes[0].labels
    assert [o.image_digest for o in after.fingerprints["a"].observations] == [w.IMAGE_A]


def test_going_back_to_the_image_before_needs_no_probe_although_a_candidate_was_tried_since() -> None:
    before = SAME | {"image": "runtime:0", "imageDigest": "sha256:" + "c" * 64}
    s = probed(snapshot("a", hwc=a_class(probed=(before, SAME))))
    assert [p.image for p in s.hardware_class.status.probed] == ["runtime:0", "runtime:1", "runtime:2"]


def test_a_node_whose_agent_tells_no_host_is_counted_under_no_image() -> None:
    s = probed(snapshot("a", "b"))
    s = settled(replace(s, fingerprints={**s.fingerprints, "b": s.fingerprints["b"].model_copy(update={"host": None})}))
    status = s.hardware_class.status
    assert status.candidate is not None
    assert [f.nodes for f in (*status.fingerprints, *status.candidate.fingerprints)] == [1, 1]
    assert len(s.fingerprints["b"].observations) == 2, "what was observed of it stays"


def test_a_candidate_whose_probe_fails_takes_nothing_from_the_class() -> None:
    s = snapshot("a")
    start = next(a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe))
    bad = Failure(FailureClass.PERMANENT, "RuntimeBroken", "no onnxruntime in this image.")
    s = settled(replace(s, jobs=(Job(start.job, "u", "probe", 1, active=False, node="a", failure=bad),)))
    s = settled(s)
    assert said(s)[:2] == ("False", "Probing")
    assert "no onnxruntime" in said(s)[2]
    assert said(s, "Ready")[0] == "True"
    assert said(s, "Stalled")[0] == "False"


@pytest.mark.parametrize(
    ("models", "counts", "reason", "words"),
    [
        ((), "0/0", "NothingTargetsIt", ""),
        ((model("x/a"), model("x/b")), "2/2", "AllPassed", "write it as spec.runtime.image"),
        (
            (model("x/a"), model("x/b", "Waiting", reason="Queued"), model("x/c", "Failed", reason="GateFailed")),
            "1/3",
            "EnginesMissing",
            "1 of 3 ModelDeployments are ready under runtime:2; x/c is Failed: GateFailed: ",
        ),
        ((model("x/a", image="runtime:3"),), "0/1", "EnginesMissing", "x/a is Waiting: NotLookedAt"),
        ((model("x/a", current=False),), "0/1", "EnginesMissing", "x/a is Waiting: NotLookedAt"),
    ],
)
def test_the_class_counts_and_lists_the_models_that_are_ready(models: tuple[Model, ...], counts: str, reason: str, words: str) -> None:
    s = settled(replace(probed(snapshot("a")), models=models))
    found = s.hardware_class.status.candidate
    assert found is not None
    assert found.models == counts
    assert said(s)[:2] == (str(reason in ("AllPassed", "NothingTargetsIt")), reason)
    assert words in said(s)[2]
    assert decide_class(s, w.NOW + 60).status is None


def test_failed_models_are_listed_first_and_the_list_is_bounded() -> None:
    many = (*(model(f"x/m{i:03}") for i in range(MOST + 5)), model("z/bad", "Failed"), model("y/late", "Waiting"))
    found = settled(replace(probed(snapshot("a")), models=many)).hardware_class.status.candidate
    assert found is not None
    assert [m.model_deployment for m in found.model_deployments[:3]] == ["z/bad", "y/late", "x/m000"]
    assert (len(found.model_deployments), found.models, found.failed) == (MOST, f"{MOST + 5}/{MOST + 7}", 1)


def test_no_more_than_a_few_nodes_get_an_engine_of_their_own_for_a_candidate_of_unknown_facts() -> None:
    nodes = [f"n{i}" for i in range(MAX_UNKNOWN + 2)]
    s = settled(probed(snapshot(*nodes), NEWER | {"backendVersion": None}))
    found: dict[str, list[Observation]] = {n: [o for o in s.fingerprints[n].observations if o.image_digest == w.IMAGE_B] for n in nodes}
    assert sum(map(len, found.values())) == MAX_UNKNOWN
    assert all(labels.fp_key("cpu", w.IMAGE_A) in n.labels for n in s.nodes)
    again = decide_class(s, w.NOW)
    assert (again.actions, again.status) == ((), None)
