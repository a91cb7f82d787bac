"""The step function: which nodes may move to their target release now.

Pure function of what each node runs, what it should run, and the budget. Canary and steps will narrow `candidates` here; today nodes move
in order, within maxUnavailable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import ceil

from ..labels import DRAINING


class State(Enum):
    """What a node is in the eyes of the rollout."""

    READY = "ready"
    """Runs its target release, pod ready."""
    STALE = "stale"
    """Runs an older release, pod ready."""
    MOVING = "moving"
    """Between releases, or the pod of its target is not ready yet."""
    FAILED = "failed"
    """The pod of its target release cannot serve."""
    WAITING = "waiting"
    """No proven engine for its fingerprint yet, and nothing older serves."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node of a class. `current` and `target` are values of the release label; "" is none."""

    name: str
    current: str
    target: str
    reachable: bool
    serving: bool
    """A ready pod of this ModelDeployment runs there."""
    pods: int
    """Pod objects of this ModelDeployment on the node, deleted ones that still hold the device included."""
    failed: bool = False
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class Flip:
    """Next value of a node's release label."""

    node: str
    value: str
    why: str


def budget(max_unavailable: int | str, nodes: int) -> int:
    """Percentages round up, never below one: a site with one node must be able to move."""
    share = ceil(nodes * int(max_unavailable[:-1]) / 100) if isinstance(max_unavailable, str) else max_unavailable
    return max(1, share)


def order(node: str, target: str) -> str:
    """Nodes move in an order that no one chose and every restart repeats."""
    return hashlib.sha256(f"{node} {target}".encode()).hexdigest()


def classify(node: NodeState) -> State:
    if not node.reachable:
        return State.UNREACHABLE
    if node.current.startswith(DRAINING):
        return State.MOVING
    if not node.target:
        return State.STALE if node.current else State.WAITING
    if node.current == node.target:
        if node.failed:
            return State.FAILED
        return State.READY if node.serving else State.MOVING
    return State.STALE if node.current else State.MOVING


def step(nodes: Iterable[NodeState], max_unavailable: int | str, max_failures: int, paused: bool) -> tuple[list[Flip], str]:
    """Flips that are allowed now, and why no further ones are (empty: nothing holds them back).

    - A node in the middle of a flip goes on whatever the budget says: it is unavailable until it arrives.
    - A node without a serving pod moves at no cost.
    - A node with a serving pod moves while fewer than the budget are unavailable.
    - Unreachable and cordoned nodes are left out and catch up later.
    - More than `max_failures` failed nodes, or `paused`: no node that serves is touched.
    """
    known = sorted(nodes, key=lambda node: order(node.name, node.target))
    flips: list[Flip] = []
    for node in known:
        if node.reachable and node.target and node.current == DRAINING + node.target and node.pods == 0:
            flips.append(Flip(node.name, node.target, "the old pod is gone"))
        elif node.reachable and node.target and node.current.startswith(DRAINING) and node.current != DRAINING + node.target:
            flips.append(Flip(node.name, DRAINING + node.target if node.pods else node.target, "a newer release took over in mid-flip"))
    reachable = [node for node in known if node.reachable]
    failed = sum(classify(node) is State.FAILED for node in reachable)
    waiting = [node for node in reachable if node.target and node.current != node.target and not node.current.startswith(DRAINING)]
    if not waiting:
        return flips, ""
    if paused:
        return flips, "spec.paused is true: no further node moves"
    if failed > max_failures:
        return flips, f"{failed} nodes failed on the new release, maxFailures is {max_failures}: no further node moves"
    movable = [node for node in waiting if node.schedulable]
    for node in movable:
        if not node.serving:
            value = DRAINING + node.target if node.pods and node.current else node.target
            flips.append(Flip(node.name, value, "nothing serves there: moves at no cost"))
    # unavailable because of us: nodes that have a release but no ready pod
    unavailable = sum(1 for node in reachable if node.current and not node.serving)
    allowed = budget(max_unavailable, len(reachable))
    held = 0
    for node in movable:
        if not node.serving:
            continue
        if unavailable < allowed:
            flips.append(Flip(node.name, DRAINING + node.target, f"{unavailable} of at most {allowed} unavailable"))
            unavailable += 1
        else:
            held += 1
    if held:
        return flips, f"{held} nodes wait: {unavailable} of at most {allowed} are unavailable"
    return flips, f"{len(waiting) - len(movable)} nodes are cordoned" if len(movable) < len(waiting) else ""


def counts(nodes: Iterable[NodeState]) -> Mapping[State, int]:
    states = [classify(node) for node in nodes]
    return {state: states.count(state) for state in State}
