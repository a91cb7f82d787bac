"""`builds.whenBusy: Auto`: a serving pod makes way for a build, and always comes back. The world has nodes with one exclusive device each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api import labels
from enginefleet_api.errors import FailureClass
from enginefleet_api.resources import JudgedContext
from enginefleet_operator.planning import pausing, rollout
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Event, Failure, Job, Snapshot

from . import worlds as w

KEY = labels.release_key("vision", "m")
NEW = "sha256:" + "f" * 64
SATURDAY = [{"days": ["Sat"], "start": "02:00", "duration": "4h", "timeZone": "UTC"}]


@dataclass
class World:
    """Each node has one device, which either a serving pod or a build holds."""

    s: Snapshot
    now: float = w.NOW

    def __post_init__(self) -> None:
        self.events: list[Event] = []

    def look(self) -> None:
        """One pass of the operator."""
        plan = decide(self.s, self.now)
        before = {n.name: n.resource_version for n in self.s.nodes}
        self.s = w.apply(self.s, plan)
        self.events += plan.events
        self.s = replace(
            self.s, nodes=tuple(replace(n, labelled_at=self.now) if n.resource_version != before[n.name] else n for n in self.s.nodes)
        )

    def turn(self) -> None:
        """The cluster does its part: pods follow labels where the device is free, the build takes a free node."""
        builds = {j.node for j in self.s.jobs if j.active and j.node}
        followed = w.follow(self.s)
        self.s = replace(self.s, pods=tuple(p for p in followed.pods if p.node not in builds))
        free = sorted({n.name for n in self.s.nodes} - builds - {p.node for p in self.s.pods})
        jobs, rooms = [], {}
        for job in self.s.jobs:
            if job.role != "build" or not job.active or job.node:
                jobs.append(job)
            elif free:
                jobs.append(replace(job, node=free.pop(0), waiting=None, live_pods=1))
            else:
                jobs.append(replace(job, waiting=("Unschedulable", "0/1 nodes are available")))
                rooms[job.name] = tuple(sorted({n.name for n in self.s.nodes} - builds))
        self.s = replace(self.s, jobs=tuple(jobs), rooms=rooms)

    def run(self, rounds: int = 8) -> None:
        for _ in range(rounds):
            self.look()
            self.turn()

    def end_build(self, **outcome: Any) -> None:
        def ended(job: Job) -> Job:
            build = next(b for b in self.s.builds if b.name == job.build)
            return replace(job, active=False, live_pods=0, ended=self.now, **(outcome or {"report": w.build_report(build, blob=NEW)}))

        self.s = replace(self.s, jobs=tuple(ended(j) if j.role == "build" and j.active and j.node else j for j in self.s.jobs))

    def value(self, name: str) -> str:
        return next(n.labels.get(KEY, "") for n in self.s.nodes if n.name == name)

    @property
    def paused(self) -> list[str]:
        return sorted(pausing.paused_nodes(self.s))

    @property
    def running(self) -> list[str]:
        return [j.node for j in self.s.jobs if j.role == "build" and j.active and j.node]

    def said(self, reason: str) -> list[str]:
        return [e.message for e in self.events if e.reason == reason]

    def waits(self) -> str:
        return next(b.status.message for b in self.s.builds if b.status.phase == "Waiting")


def full(nodes: int, when_busy: str = "Auto", **changes: Any) -> World:
    """Every device is held by a serving pod, and a new runtime image wants a build."""
    s = w.settle(w.serving(w.passed_fleet(nodes=nodes, spec=w.spec(**changes))))
    another = w.hardware_class(image="runtime:2", digest=w.IMAGE_B, builds={"whenBusy": when_busy})
    observed = {n.name: w.observed(n.name, digest=w.IMAGE_B) for n in s.nodes}
    return World(replace(s, classes={"cpu": another}, fingerprints=observed))


def test_a_pod_makes_way_for_judging_again_and_comes_back_with_the_same_engine() -> None:
    s = w.settle(w.serving(w.passed_fleet(nodes=3)))
    known = s.builds[0].status.model_copy(update={"contexts": [JudgedContext(key="ctx-0", facts={"powerMode": "0"}, answer="Pass")]})
    s = replace(s, builds=(replace(s.builds[0], status=known),))
    world = World(replace(s, fingerprints={n.name: w.observed(n.name, powerMode="1") for n in s.nodes}))
    before = {p.name for p in s.pods}
    world.run()
    assert world.paused == world.running
    assert len(world.paused) == 1
    world.end_build(report=w.build_report(world.s.builds[0]))
    world.run()
    assert world.paused == []
    assert [record.answer for record in world.s.builds[0].status.contexts] == ["Pass", "Pass"]
    assert {p.name for p in world.s.pods} == before
    assert len([j for j in world.s.jobs if j.context]) == 1


def test_judging_again_where_only_one_node_serves_waits_for_approval_and_says_so() -> None:
    s = w.settle(w.serving(w.passed_fleet(nodes=1)))
    known = s.builds[0].status.model_copy(update={"contexts": [JudgedContext(key="ctx-0", facts={"powerMode": "0"}, answer="Pass")]})
    s = replace(s, builds=(replace(s.builds[0], status=known),))
    world = World(replace(s, fingerprints={"n0": w.observed("n0", powerMode="1")}))
    world.run()
    assert world.paused == []
    below = next(c for c in world.s.status.conditions if c.type == "BelowGate")
    assert (below.status, below.reason) == ("False", "Rejudging")
    assert "BuildNeedsOutage" in below.message
    assert labels.APPROVE in below.message
    assert next(c for c in world.s.status.conditions if c.type == "Ready").status == "True"
    world.s = replace(world.s, annotations={labels.APPROVE: "1"})
    world.run()
    assert world.running == ["n0"]
    world.end_build(report=w.build_report(world.s.builds[0]))
    world.run()
    assert world.paused == []
    assert len(world.s.pods) == 1


def test_one_of_several_makes_way_and_comes_back_with_the_new_engine() -> None:
    world = full(3)
    world.run()
    assert len(world.paused) == 1
    node = world.paused[0]
    assert world.running == [node]
    assert world.said("ServingPaused") == [
        f"node {node}: its pod makes way for Job {world.s.jobs[-1].name}; one serves there again after the build."
    ]
    assert len({p.node for p in world.s.pods}) == 2, "the others serve on"
    world.end_build()
    before = {n.name: n.labels[KEY] for n in world.s.nodes}
    world.look()
    moved = {n.name: n.labels[KEY] for n in world.s.nodes if n.labels[KEY] != before[n.name]}
    assert list(moved) == [node], "it is the canary of what was built there: no other pod has to end for that"
    assert moved[node].endswith(NEW.removeprefix("sha256:")[:8])
    world.run(40)
    assert not world.paused
    assert world.said("ServingResumed") == [f"node {node}: no build needs its place any more, one comes back."]
    assert {p.workload_label for p in world.s.pods} == {world.value(node)}
    assert len(world.s.pods) == 3
    assert world.value(node).endswith(NEW.removeprefix("sha256:")[:8])


def test_the_only_one_of_its_kind_waits_until_it_is_approved() -> None:
    world = full(1)
    world.run()
    assert not world.paused
    assert world.waits().startswith("BuildNeedsOutage: ")
    assert "no other node of its kind serves" in world.waits()
    assert "enginefleet.io/approve=<any new value>" in world.waits()
    world.s = replace(world.s, annotations={labels.APPROVE: "now"})
    world.run()
    assert world.running == world.paused == ["n0"]
    assert "approved by now" in world.said("ServingPaused")[0]
    assert not world.said("NothingToApprove")
    assert not world.said("Approved")
    world.end_build()
    world.run(20)
    assert [p.workload_label for p in world.s.pods] == [world.value("n0")]
    assert not world.paused


def test_a_window_that_people_wrote_lets_the_only_one_stop() -> None:
    world = full(1, rollout={"windows": SATURDAY})
    world.run()  # a Friday
    assert not world.paused
    assert "in a window of spec.rollout.windows (the next one opens at 2027-01-16T02:00:00Z) or after" in world.waits()
    world.now += 24 * 3600 - 4 * 3600
    world.run()
    assert world.running == ["n0"]


def test_windows_hold_for_the_pause_of_one_of_several_too() -> None:
    world = full(2, rollout={"windows": SATURDAY})
    world.run()
    assert not world.paused
    assert "makes way in a window of spec.rollout.windows (the next one opens at 2027-01-16T02:00:00Z)" in world.waits()


def test_nothing_makes_way_while_paused_or_with_wait() -> None:
    world = full(2)
    world.s = replace(world.s, spec=w.spec(paused=True))
    world.run()
    assert not world.paused
    assert "spec.paused is true" in world.waits()
    waits = full(2, when_busy="Wait")
    waits.run()
    assert not waits.paused


def test_a_token_is_kept_while_the_budget_has_no_room() -> None:
    world = full(1)
    world.run()
    # another one of the class has a release, and its pod is away
    broken = w.node("n9", release="0123456789-00000000")
    world.s = replace(world.s, nodes=(*world.s.nodes, broken), annotations={labels.APPROVE: "now"})
    world.look()
    assert not world.paused
    assert world.s.status.approve_token == ""
    world.s = replace(world.s, nodes=world.s.nodes[:1])
    world.run()
    assert world.paused == ["n0"]
    assert world.s.status.approve_token == "now"


def test_the_next_attempt_has_the_same_pause() -> None:
    world = full(2)
    world.run()
    node = world.paused[0]
    transient = Failure(FailureClass.TRANSIENT, "StoreUnavailable", "the store is away.")
    world.end_build(failure=transient)
    world.run(4)
    assert world.paused == [node], "the next attempt is due in a moment"
    world.now += 40
    world.run()
    assert world.running == [node]
    assert len(world.said("ServingPaused")) == 1


def test_a_pause_without_a_build_ends_and_is_not_begun_again_for_that_job() -> None:
    world = full(2)
    world.run(4)
    node = world.paused[0]
    # somebody else's pod was faster: the build finds no place there after all
    world.s = replace(world.s, jobs=tuple(replace(j, node="", live_pods=0, waiting=("Unschedulable", "")) for j in world.s.jobs))

    def nowhere() -> None:
        world.s = replace(
            world.s, rooms={j.name: tuple(n.name for n in world.s.nodes) for j in world.s.jobs if j.active}, pods=w.follow(world.s).pods
        )

    nowhere()
    world.look()
    assert world.paused == [node]
    world.now += pausing.GRACE + 1
    for _ in range(6):
        world.look()
        nowhere()
    assert not world.paused
    assert len(world.said("ServingPaused")) == 1
    assert len({p.node for p in world.s.pods}) == 2


def test_a_pause_ends_when_nothing_is_wanted_any_more() -> None:
    world = full(2)
    world.run(4)
    assert world.paused
    before = w.hardware_class(builds={"whenBusy": "Auto"})
    world.s = replace(world.s, classes={"cpu": before}, fingerprints={n.name: w.observed(n.name) for n in world.s.nodes})
    world.run()
    assert not world.paused
    assert len(world.s.pods) == 2


def test_a_paused_node_is_unavailable_and_gets_no_turn() -> None:
    state = rollout.NodeState("n0", "a", "a", True, False, 0, building=True)
    assert rollout.classify(state) is rollout.State.MOVING
    assert rollout.unavailable([state]) == 1
    assert rollout.step([state], rollout.Policy(), w.NOW).flips == ()


STEPS = st.lists(st.sampled_from(["look", "look", "turn", "pass", "fail", "later", "approve", "lose", "back"]), max_size=60)


@given(st.integers(1, 4), STEPS)
def test_whatever_happens_the_budget_holds_and_every_pause_ends(nodes: int, steps: list[str]) -> None:
    world = full(nodes)
    approved = False
    for number, one in enumerate(steps):
        paused = set(world.paused)
        match one:
            case "look":
                world.look()
            case "turn":
                world.turn()
            case "pass":
                world.end_build()
            case "fail":
                world.end_build(failure=Failure(FailureClass.TRANSIENT, "PodLost", "gone."))
            case "later":
                world.now += 50
            case "approve":
                approved = True
                world.s = replace(world.s, annotations={labels.APPROVE: f"t{number}"})
            case "lose" | "back":
                first, *rest = world.s.nodes
                world.s = replace(world.s, nodes=(replace(first, ready=one == "back", since=world.now), *rest))
        new = set(world.paused) - paused
        assert len(new) <= 1
        assert len(world.paused) <= 1, "maxUnavailable is one node"
        if new and not approved:
            serves = {p.node for p in world.s.pods if p.ready} & {n.name for n in world.s.nodes if n.ready}
            assert serves - new, "the only one that serves never stops without a word"
        for name in paused - set(world.paused):
            assert name not in {j.node for j in world.s.jobs if j.active and j.live_pods and j.role == "build"}
    world.s = replace(world.s, nodes=tuple(replace(n, ready=True) for n in world.s.nodes))
    for number in range(60):
        world.s = replace(world.s, annotations={labels.APPROVE: f"last-{number}"})  # a token says nothing about what waits later
        world.look()
        world.turn()
        world.end_build()
        world.now += 50
    assert not world.paused
    assert len(world.s.pods) == nodes, "every pod is back"
    assert {p.workload_label for p in world.s.pods} == {world.value("n0")}
    assert all(b.status.phase == "Passed" for b in world.s.builds if b.spec.image_digest == w.IMAGE_B)
