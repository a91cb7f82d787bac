"""The step function: tables, and a state machine whose world lags, loses pods and nodes, and changes its mind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enginefleet_api.labels import DRAINING
from enginefleet_operator.planning.rollout import NodeState, Policy, State, Step, advance, budget, classify, complete, step


def node(
    name: str, current: str = "old", target: str = "new", *, reachable: bool = True, serving: bool = True, **more: object
) -> NodeState:
    base = NodeState(name, current, target, reachable, serving, pods=1 if serving else 0)
    return replace(base, **more)  # type: ignore[arg-type]


NOW = 1_800_000_000.0
HISTORIES = int(os.environ.get("ENGINEFLEET_HISTORIES", "300"))
"""Random histories of the state machine; 10,000 take some minutes."""
FREE = Policy(promoted=True)
"""No canary: what the budget does is seen by itself."""


def moves(stepped: Step) -> dict[str, str]:
    return {flip.node: flip.value for flip in stepped.flips}


def failing(name: str, current: str = "new", target: str = "new", **more: Any) -> NodeState:
    return node(name, current, target, serving=False, pods=1, failed=True, **more)


@pytest.mark.parametrize(
    ("max_unavailable", "nodes", "allowed"),
    [("10%", 1, 1), ("10%", 11, 2), ("0%", 5, 1), (0, 5, 1), ("100%", 7, 7), (3, 40, 3), ("25%", 8, 2)],
)
def test_percentages_round_up_and_never_below_one(max_unavailable: int | str, nodes: int, allowed: int) -> None:
    assert budget(max_unavailable, nodes) == allowed


# ---- flips ----


def test_a_serving_node_drains_before_it_changes() -> None:
    assert moves(step([node("a")], FREE, NOW)) == {"a": DRAINING + "new"}


def test_a_drained_node_gets_its_release_when_the_old_pod_is_gone() -> None:
    draining = node("a", DRAINING + "new", serving=False, pods=1)
    assert moves(step([draining], FREE, NOW)) == {}
    assert moves(step([replace(draining, pods=0)], FREE, NOW)) == {"a": "new"}


def test_a_newer_release_takes_over_in_mid_flip() -> None:
    assert moves(step([node("a", DRAINING + "older", serving=False, pods=1)], FREE, NOW)) == {"a": DRAINING + "new"}


# ---- the budget ----


def test_nodes_that_have_a_release_and_do_not_serve_it_move_at_once_and_at_no_cost() -> None:
    stepped = step([node(n, serving=False) for n in "abcd"], Policy(max_unavailable=1), NOW)
    assert moves(stepped) == dict.fromkeys("abcd", "new")


def test_the_budget_holds_back_the_rest_and_says_so() -> None:
    stepped = step([node(n) for n in "abcde"], replace(FREE, max_unavailable=2), NOW)
    assert len(stepped.flips) == 2
    assert "3 nodes wait: 2 of at most 2" in stepped.held


def test_unreachable_and_cordoned_nodes_are_left_out() -> None:
    stepped = step([node("a", reachable=False), node("b", schedulable=False)], FREE, NOW)
    assert moves(stepped) == {}
    assert stepped.held == "1 nodes are cordoned"


def test_a_node_on_which_the_new_pod_would_not_run_keeps_what_it_serves() -> None:
    nodes = [node("a", unfit="the pod asks for 2 nvidia.com/gpu"), node("b")]
    stepped = step(nodes, replace(FREE, max_unavailable=2), NOW)
    assert moves(stepped) == {"b": DRAINING + "new"}
    assert "a: the pod asks for 2 nvidia.com/gpu" in stepped.held
    assert not complete([nodes[0], node("b", "new")])
    assert moves(step([replace(nodes[0], serving=False)], FREE, NOW)) == {"a": DRAINING + "new"}, (
        "where nothing serves there is nothing to keep"
    )


def test_paused_stops_new_flips_and_lets_a_flip_in_progress_arrive() -> None:
    stepped = step([node("a"), node("b", DRAINING + "new", serving=False)], replace(FREE, max_unavailable=5, paused=True), NOW)
    assert moves(stepped) == {"b": "new"}
    assert "spec.paused" in stepped.held


def test_outside_its_windows_no_node_that_serves_moves() -> None:
    stepped = step([node("a"), node("b", serving=False), node("c", DRAINING + "new", serving=False)], replace(FREE, open=False), NOW)
    assert moves(stepped) == {"b": "new", "c": "new"}
    assert stepped.held == "1 nodes wait for a window of spec.rollout.windows"


# ---- canary and steps ----


def test_the_first_rollout_begins_with_one_node_too() -> None:
    stepped = step([node(n, "", serving=False) for n in "abcd"], Policy(), NOW)
    assert len(stepped.flips) == 1
    assert (stepped.stage, stepped.held) == ("canary", "canary: 0 of 1 nodes are ready")


def test_one_node_of_every_fingerprint_is_a_canary() -> None:
    nodes = [node(n, "", target, serving=False) for n, target in [("a", "new-1"), ("b", "new-1"), ("c", "new-2"), ("d", "new-3")]]
    stepped = step(nodes, Policy(), NOW)
    assert sorted(moves(stepped).values()) == ["new-1", "new-2", "new-3"]


def test_fingerprints_whose_engines_are_equal_to_the_byte_have_a_canary_each() -> None:
    nodes = [node(n, "", "new", serving=False, kind=kind) for n, kind in [("a", "fp-1"), ("b", "fp-1"), ("c", "fp-2"), ("d", "fp-2")]]
    first = moves(step(nodes, Policy(), NOW))
    assert sorted(n.kind for n in nodes if n.name in first) == ["fp-1", "fp-2"]
    moved = [replace(n, current="new", serving=True, pods=1) if n.kind == "fp-1" else n for n in nodes]
    assert len(moves(step(moved, Policy(), NOW))) == 1, "the other kind has its own"


@pytest.mark.parametrize(("canary", "moving"), [(1, 1), (3, 3), ("25%", 2), ("100%", 8), ("0%", 1)])
def test_canaries_are_counted_or_a_share_and_never_none(canary: int | str, moving: int) -> None:
    stepped = step([node(n) for n in "abcdefgh"], Policy(max_unavailable="100%", canary=canary), NOW)
    assert len(stepped.flips) == moving


def test_canaries_are_nodes_of_the_selector_where_it_has_some() -> None:
    nodes = [replace(node(n), may_be_canary=n == "f") for n in "abcdefgh"]
    assert list(moves(step(nodes, Policy(), NOW))) == ["f"]
    assert len(moves(step([replace(n, may_be_canary=False) for n in nodes], Policy(), NOW))) == 1


def test_others_move_when_the_canary_is_ready_and_has_soaked() -> None:
    nodes = [node("a", "new", ready_since=NOW - 60), *[node(n) for n in "bcd"]]
    soaking = step(nodes, Policy(max_unavailable=2, soak=600), NOW)
    assert (moves(soaking), soaking.stage, soaking.wake_at) == ({}, "canary", NOW + 540)
    assert "soak" in soaking.held
    assert len(step(nodes, Policy(max_unavailable=2, soak=600), NOW + 540).flips) == 2
    assert len(step(nodes, Policy(max_unavailable=2, soak=600, promoted=True), NOW).flips) == 2


def test_a_canary_that_is_not_ready_yet_holds_the_others() -> None:
    stepped = step([node("a", "new", serving=False, pods=1), *[node(n) for n in "bcd"]], Policy(max_unavailable=3), NOW)
    assert (moves(stepped), stepped.stage) == ({}, "canary")


def test_a_pod_that_restarts_in_a_fleet_that_is_half_done_is_no_new_canary() -> None:
    nodes = [node("a", "new", ready_since=NOW - 1), node("b", "new", ready_since=NOW - 900), node("c"), node("d")]
    assert step(nodes, Policy(max_unavailable=2, soak=600), NOW).stage == "100%"


@pytest.mark.parametrize(
    ("done", "stage", "moving"),
    [(1, "20%", 1), (2, "50%", 3), (4, "50%", 1), (5, "100%", 5), (9, "100%", 1)],
)
def test_steps_allow_their_share_and_go_on_when_it_is_ready(done: int, stage: str, moving: int) -> None:
    nodes = [node(f"n{i}", "new" if i < done else "old") for i in range(10)]
    stepped = step(nodes, Policy(max_unavailable="100%", steps=("20%", "50%", "100%")), NOW)
    assert (stepped.stage, len(stepped.flips)) == (stage, moving)


def test_the_last_step_is_all_of_them_even_where_it_is_not_written() -> None:
    nodes = [node(f"n{i}", "new" if i < 5 else "old") for i in range(10)]
    assert len(step(nodes, Policy(max_unavailable="100%", steps=("50%",)), NOW).flips) == 5


def test_nodes_that_are_away_do_not_hold_back_a_step() -> None:
    nodes = [node("a", "new"), node("b"), *[node(n, reachable=False) for n in "cdefghij"]]
    assert len(step(nodes, Policy(steps=("50%",)), NOW).flips) == 1


def test_a_node_that_joins_in_mid_rollout_serves_the_stable_release_until_its_turn() -> None:
    nodes = [node("a", "new", serving=False, pods=1), node("b"), node("c", "", serving=False, stable="old")]
    assert moves(step(nodes, Policy(), NOW)) == {"c": "old"}


# ---- failures ----


def test_a_failed_canary_ends_the_rollout_whatever_max_failures_says() -> None:
    stepped = step([failing("a"), *[node(n) for n in "bcd"]], Policy(max_failures=3), NOW)
    assert stepped.failure == "canary a failed: no further node moves"
    assert moves(stepped) == {}


def test_more_failures_than_allowed_end_it() -> None:
    nodes = [*[failing(n) for n in "xy"], node("z", "new"), node("a")]
    assert "2 nodes failed" in step(nodes, Policy(max_unavailable="100%", max_failures=1), NOW).failure
    tolerated = step(nodes, Policy(max_unavailable="100%", max_failures=2), NOW)
    assert (tolerated.failure, moves(tolerated)) == ("", {"a": DRAINING + "new"})


def test_a_site_whose_only_node_fails_has_failed() -> None:
    assert step([failing("a")], Policy(max_failures=1), NOW).failure
    assert step([failing("a")], Policy(max_failures=1, promoted=True), NOW).failure


def test_a_node_that_could_not_serve_before_says_nothing_about_the_release() -> None:
    broken = failing("a", "old")
    first = step([broken, node("b")], Policy(), NOW)
    assert (first.excuse, moves(first)) == (("a",), {}), "remembered before it moves"
    assert moves(step([replace(broken, excused=True), node("b")], Policy(), NOW)) == {"a": DRAINING + "new"}
    after = step([failing("a", excused=True), node("b"), node("c")], Policy(), NOW)
    assert (after.failure, len(after.flips)) == ("", 1), "and does not use up the budget"


def test_going_back_starts_with_what_failed_and_keeps_the_budget() -> None:
    nodes = [failing("a", "bad", "old"), *[node(n, "bad", "old") for n in "bcd"]]
    back = Policy(back=True, paused=True, open=False)
    stepped = step(nodes, back, NOW)
    assert moves(stepped) == {"a": DRAINING + "old"}
    assert stepped.stage == "rollback"
    nodes[0] = node("a", "old")
    assert len(step(nodes, back, NOW).flips) == 1


def test_a_release_is_complete_when_every_node_that_can_move_serves_it() -> None:
    away = [node("x", reachable=False), node("y", schedulable=False)]
    assert complete([node("a", "new"), failing("b"), *away])
    assert not complete([node("a", "new"), node("b")])
    assert not complete([failing("a")])
    assert not complete(away)


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
    ready_since: float | None = None
    terminating: bool = False
    up: bool = True
    cordoned: bool = False
    broken: bool = False
    """No release serves there."""
    failed: bool = False
    seen: str = ""
    """The label that the operator's cache still shows; its write is refused while it differs (resourceVersion)."""


@dataclass
class Fleet:
    """One class as the operator keeps it: releases that are good or bad by nature, and what was written down of them."""

    nodes: dict[str, Machine]
    policy: Policy
    bad: frozenset[str] = frozenset()
    target: str = "r0"
    history: list[str] = field(default_factory=lambda: ["r0"])
    refused: str = ""
    excused: set[str] = field(default_factory=set)
    now: float = NOW

    @property
    def stable(self) -> str:
        return next((r for r in self.history if r != self.target), "")

    @property
    def back(self) -> bool:
        return bool(self.refused) and self.refused == self.target and bool(self.stable)

    def states(self) -> list[NodeState]:
        return [
            NodeState(
                name=name,
                current=m.seen,
                target=self.stable if self.back else self.target,
                reachable=m.up,
                serving=m.up and m.ready_since is not None and m.pod == m.seen and not m.terminating,
                pods=int(bool(m.pod)),
                failed=m.failed and m.pod == m.seen and not m.terminating,
                schedulable=not m.cordoned,
                stable=self.stable,
                ready_since=m.ready_since or 0.0,
                excused=name in self.excused,
            )
            for name, m in sorted(self.nodes.items())
        ]

    def reconcile(self) -> Step:
        """As serving() does: what is written down is written before anything moves."""
        course = advance(self.states(), replace(self.policy, back=self.back), self.now, release=self.target, history=self.history)
        self.excused |= set(course.step.excuse)
        self.history = list(course.history)
        if course.given_up:
            self.refused = self.target
        for flip in course.flips:
            m = self.nodes[flip.node]
            if m.seen == m.label:  # else the API server answers 409
                m.label = flip.value
        return replace(course.step, flips=course.flips)

    def daemonset_controller(self, m: Machine) -> None:
        if m.up and m.pod and m.pod != m.label:
            m.terminating, m.ready_since = True, None
        elif m.up and not m.pod and m.label and not m.label.startswith(DRAINING):
            m.pod, m.ready_since, m.terminating, m.failed = m.label, None, False, False

    def kubelet(self, m: Machine) -> None:
        if m.up and m.terminating:
            m.pod, m.terminating, m.ready_since, m.failed = "", False, None, False
        elif m.up and m.pod and m.ready_since is None:
            m.failed = m.broken or m.pod in self.bad
            m.ready_since = None if m.failed else self.now


class Rollouts(RuleBasedStateMachine):
    """A DaemonSet controller that lags, pods that die, nodes that go, come and break, a cache that is stale, releases that fail."""

    @initialize(
        count=st.integers(1, 7),
        allowed=st.sampled_from([1, 2, "10%", "50%"]),
        canary=st.sampled_from([1, 2, "30%"]),
        soak=st.sampled_from([0.0, 100.0]),
        steps=st.sampled_from([(), ("10%", "50%"), ("50%", "100%")]),
        max_failures=st.integers(0, 2),
    )
    def start(self, count: int, allowed: int | str, canary: int | str, soak: float, steps: tuple[str, ...], max_failures: int) -> None:
        policy = Policy(max_unavailable=allowed, max_failures=max_failures, canary=canary, soak=soak, steps=steps)
        nodes = {f"n{i}": Machine("r0", "r0", ready_since=NOW - 1e6, seen="r0") for i in range(count)}
        self.fleet = Fleet(nodes, policy)
        self.generation = 0

    def machine(self, data: st.DataObject) -> Machine:
        return self.fleet.nodes[data.draw(st.sampled_from(sorted(self.fleet.nodes)))]

    @rule()
    def reconcile(self) -> None:
        f = self.fleet
        before = {n.name: n for n in f.states()}
        labels_before = {name: m.label for name, m in f.nodes.items()}
        was_back = f.back
        stepped = f.reconcile()
        moved = {name for name, m in f.nodes.items() if m.label != labels_before[name]}
        stopped = {name for name in moved if before[name].serving}
        already = {n.name for n in before.values() if n.reachable and n.current and not n.serving}
        hopeless = {n.name for n in before.values() if n.excused and classify(n) is State.FAILED}
        reachable = sum(n.reachable for n in before.values())
        assert not stopped or len(stopped | (already - hopeless)) <= budget(f.policy.max_unavailable, reachable)
        assert all(before[name].reachable for name in moved)
        assert not stepped.failure or stepped.held
        for name in moved:
            new, old = f.nodes[name].label, labels_before[name]
            assert not (old.startswith(DRAINING) and not new.startswith(DRAINING)) or before[name].pods == 0
            assert not before[name].serving or new.startswith(DRAINING), "a device is freed before the next pod wants it"
        if was_back:
            assert not any(m.label.removeprefix(DRAINING) == f.refused for name, m in f.nodes.items() if name in moved), "never back to it"
        if f.policy.soak or stepped.stage == "canary":
            arrived = [n for n in before.values() if n.current == n.target and n.serving]
            newly = {name for name in stopped if f.nodes[name].label == DRAINING + f.target}
            if not arrived and not was_back and not f.policy.promoted:
                assert len(newly) <= budget(f.policy.canary, len(before))

    @rule(bad=st.booleans())
    def new_release(self, bad: bool) -> None:
        f = self.fleet
        self.generation += 1
        f.target = f"r{self.generation}"
        f.bad |= {f.target} if bad else frozenset()
        f.refused, f.excused = "", set()

    @rule(data=st.data())
    def daemonset_controller_looks_at_a_node(self, data: st.DataObject) -> None:
        self.fleet.daemonset_controller(self.machine(data))

    @rule(data=st.data())
    def kubelet_looks_at_a_node(self, data: st.DataObject) -> None:
        self.fleet.kubelet(self.machine(data))

    @rule(data=st.data())
    def the_watch_delivers(self, data: st.DataObject) -> None:
        m = self.machine(data)
        m.seen = m.label

    @rule()
    def the_watch_catches_up(self) -> None:
        for m in self.fleet.nodes.values():
            m.seen = m.label

    @rule(data=st.data())
    def a_node_goes_or_comes_back(self, data: st.DataObject) -> None:
        m = self.machine(data)
        m.up = not m.up
        if m.up:
            m.ready_since = None

    @rule(data=st.data())
    def a_node_is_cordoned_or_uncordoned(self, data: st.DataObject) -> None:
        m = self.machine(data)
        m.cordoned = not m.cordoned

    @rule(data=st.data())
    def a_node_breaks_or_is_repaired(self, data: st.DataObject) -> None:
        m = self.machine(data)
        m.broken = not m.broken
        m.ready_since = None

    @rule(data=st.data())
    def a_node_joins_or_is_replaced(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([*sorted(self.fleet.nodes), f"n{len(self.fleet.nodes)}"]))
        self.fleet.nodes[name] = Machine("")
        self.fleet.excused.discard(name)

    @rule(seconds=st.sampled_from([1.0, 60.0, 600.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.now += seconds

    @rule()
    def it_is_promoted_or_not_any_more(self) -> None:
        self.fleet.policy = replace(self.fleet.policy, promoted=not self.fleet.policy.promoted)

    @precondition(lambda self: self.generation > 0)
    @rule()
    def left_alone_it_arrives(self) -> None:
        """On the target where it is good, else back on what was good, on every node; and then nothing is written any more."""
        f = self.fleet
        for m in f.nodes.values():
            m.up, m.cordoned, m.broken, m.seen = True, False, False, m.label
            m.ready_since = None if m.failed else m.ready_since
        for _ in range(400):
            f.reconcile()
            for m in f.nodes.values():
                m.seen = m.label
                f.daemonset_controller(m)
                f.kubelet(m)
            f.now += 50
            if not f.back and f.target in f.bad and not f.stable:
                return  # nothing to go back to
            if all(classify(n) is State.READY for n in f.states()) and not f.reconcile().flips:
                break
        else:
            raise AssertionError(f"never arrives: {f.states()}")
        served = {m.pod for m in f.nodes.values()}
        assert len(served) == 1
        assert not served & f.bad or f.back, f"{served} cannot serve"
        if f.target not in f.bad and not f.refused:
            assert served == {f.target}

    @invariant()
    def a_pod_never_runs_another_release_than_it_was_made_for(self) -> None:
        if hasattr(self, "fleet"):
            assert not any(m.pod.startswith(DRAINING) for m in self.fleet.nodes.values())


Rollouts.TestCase.settings = settings(max_examples=HISTORIES, stateful_step_count=40, deadline=None)
TestRollouts = Rollouts.TestCase
