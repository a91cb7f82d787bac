"""The step function: tables, and a state machine whose world lags, loses pods and nodes, and changes its mind."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginefleet_operator.labels import DRAINING
from enginefleet_operator.planning.rollout import NodeState, State, budget, classify, step


def node(
    name: str, current: str = "old", target: str = "new", *, reachable: bool = True, serving: bool = True, **more: object
) -> NodeState:
    base = NodeState(name, current, target, reachable, serving, pods=1 if serving else 0)
    return replace(base, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("max_unavailable", "nodes", "allowed"),
    [("10%", 1, 1), ("10%", 11, 2), ("0%", 5, 1), (0, 5, 1), ("100%", 7, 7), (3, 40, 3), ("25%", 8, 2)],
)
def test_percentages_round_up_and_never_below_one(max_unavailable: int | str, nodes: int, allowed: int) -> None:
    assert budget(max_unavailable, nodes) == allowed


def test_a_serving_node_drains_before_it_changes() -> None:
    flips, _ = step([node("a")], "10%", 1, paused=False)
    assert [(f.node, f.value) for f in flips] == [("a", DRAINING + "new")]


def test_a_drained_node_gets_its_release_when_the_old_pod_is_gone() -> None:
    draining = node("a", DRAINING + "new", serving=False, pods=1)
    assert step([draining], 1, 1, paused=False)[0] == []
    assert [f.value for f in step([replace(draining, pods=0)], 1, 1, paused=False)[0]] == ["new"]


def test_a_node_where_nothing_serves_moves_at_no_cost() -> None:
    flips, _ = step([node(n, "", serving=False) for n in "abcd"], 1, 1, paused=False)
    assert sorted(f.node for f in flips) == list("abcd")


def test_the_budget_holds_back_the_rest_and_says_so() -> None:
    flips, held = step([node(n) for n in "abcde"], 2, 1, paused=False)
    assert len(flips) == 2
    assert "3 nodes wait: 2 of at most 2" in held


def test_unreachable_and_cordoned_nodes_are_left_out() -> None:
    flips, held = step([node("a", reachable=False), node("b", schedulable=False)], 1, 1, paused=False)
    assert flips == []
    assert held == "1 nodes are cordoned"


def test_paused_stops_new_flips_and_lets_a_flip_in_progress_arrive() -> None:
    flips, held = step([node("a"), node("b", DRAINING + "new", serving=False)], 5, 1, paused=True)
    assert [(f.node, f.value) for f in flips] == [("b", "new")]
    assert "spec.paused" in held


def test_more_failures_than_allowed_stop_it() -> None:
    broken = [node(n, "new", serving=False, pods=1, failed=True) for n in "xy"]
    flips, held = step([*broken, node("a")], "100%", 1, paused=False)
    assert flips == []
    assert "2 nodes failed" in held


def test_a_newer_release_takes_over_in_mid_flip() -> None:
    flips, _ = step([node("a", DRAINING + "older", serving=False, pods=1)], 1, 1, paused=False)
    assert [f.value for f in flips] == [DRAINING + "new"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (node("a", "new"), State.READY),
        (node("a", "new", serving=False), State.MOVING),
        (node("a", "new", serving=False, failed=True), State.FAILED),
        (node("a"), State.STALE),
        (node("a", target=""), State.STALE),
        (node("a", "", "", serving=False), State.WAITING),
        (node("a", reachable=False), State.UNREACHABLE),
        (node("a", DRAINING + "new", serving=False), State.MOVING),
    ],
)
def test_what_a_node_is(state: NodeState, expected: State) -> None:
    assert classify(state) is expected


@dataclass
class Machine:
    """What really is on a node: its label, and the pod that follows it with delay."""

    label: str
    pod: str = ""
    ready: bool = False
    terminating: bool = False
    up: bool = True


class Rollouts(RuleBasedStateMachine):
    """A DaemonSet controller that lags behind the labels, pods that die, nodes that go and come, and a target that changes."""

    @initialize(count=st.integers(1, 7), allowed=st.sampled_from([1, 2, "10%", "50%"]))
    def start(self, count: int, allowed: int | str) -> None:
        self.nodes = {f"n{i}": Machine("r0", "r0", ready=True) for i in range(count)}
        self.allowed, self.target = allowed, "r0"
        self.generation = 0
        self.ours: set[str] = set()

    def states(self) -> list[NodeState]:
        return [
            NodeState(name, m.label, self.target, m.up, m.up and m.ready and m.pod == m.label and not m.terminating, int(bool(m.pod)))
            for name, m in self.nodes.items()
        ]

    @rule()
    def reconcile(self) -> None:
        before = self.states()
        serving_before = {n.name for n in before if n.serving}
        already = {n.name for n in before if n.reachable and n.current and not n.serving}
        flips, _ = step(before, self.allowed, 1, paused=False)
        stopped = {f.node for f in flips} & serving_before
        reachable = sum(n.reachable for n in before)
        assert not stopped or len(stopped | already) <= budget(self.allowed, reachable)
        for f in flips:
            machine = self.nodes[f.node]
            assert machine.up
            if f.value == self.target and machine.label.startswith(DRAINING):
                assert machine.pod == ""
            machine.label = f.value

    @rule()
    def new_release(self) -> None:
        self.generation += 1
        self.target = f"r{self.generation}"

    @rule(data=st.data())
    def daemonset_controller_looks_at_a_node(self, data: st.DataObject) -> None:
        m = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        if not m.up:
            return
        if m.pod and m.pod != m.label:
            m.terminating, m.ready = True, False
        elif not m.pod and m.label and not m.label.startswith(DRAINING):
            m.pod, m.ready, m.terminating = m.label, False, False

    @rule(data=st.data())
    def kubelet_looks_at_a_node(self, data: st.DataObject) -> None:
        m = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        if m.up and m.terminating:
            m.pod, m.terminating, m.ready = "", False, False
        elif m.up and m.pod:
            m.ready = True

    @rule(data=st.data())
    def a_node_goes_or_comes_back(self, data: st.DataObject) -> None:
        m = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        m.up = not m.up
        if m.up:
            m.ready = False

    @precondition(lambda self: self.generation > 0)
    @rule()
    def left_alone_it_arrives(self) -> None:
        for m in self.nodes.values():
            m.up = True
        for _ in range(200):
            self.reconcile()
            for m in self.nodes.values():
                if m.pod and m.pod != m.label:
                    m.pod, m.terminating, m.ready = "", False, False
                elif not m.pod and m.label and not m.label.startswith(DRAINING):
                    m.pod, m.ready, m.terminating = m.label, True, False
                elif m.pod:
                    m.ready, m.terminating = True, False
            if all(classify(n) is State.READY for n in self.states()):
                return
        raise AssertionError(f"never arrives: {self.states()}")

    @invariant()
    def a_pod_never_runs_another_release_than_it_was_made_for(self) -> None:
        for m in getattr(self, "nodes", {}).values():
            assert not m.pod.startswith(DRAINING)


Rollouts.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRollouts = Rollouts.TestCase
