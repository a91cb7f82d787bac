"""The step function: which nodes may move to their target release now, and whether the release is to be given up.

Pure function of what each node runs, what it should run, the policy and the time. Where a rollout stands is read from the nodes every
time, never from a counter: a restarted operator goes on where it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil, inf

from enginefleet_api.labels import DRAINING

PROBATION = 10.0
"""Seconds for which all nodes must have been ready before a release is one to go back to: a server that ends at once was ready for a moment."""


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
    stable: str = ""
    """Label of the last good release for its fingerprint; "": there is none."""
    ready_since: float = 0.0
    """Since when the pod of `current` is ready; of no meaning without `serving`."""
    excused: bool = False
    """It could not serve under the release before either: it says nothing about this one."""
    may_be_canary: bool = True
    """Chosen by canary.nodeSelector, or there is none."""
    kind: str = ""
    """Its fingerprint: engines of several kinds may be equal to the byte, and have equal targets; each kind has a canary all the same."""
    unfit: str = ""
    """Why the pod of its target would not run there; what serves there stays."""
    loaded: bool = True
    """The engine of its target is on the node: what serves is not ended for a pod that would have to fetch it first."""
    building: bool = False
    """Its pod makes way for a build: it is unavailable, and no turn comes to it until the pod is back."""


@dataclass(frozen=True, slots=True)
class Policy:
    """spec.rollout with what the time and people's annotations make of it."""

    max_unavailable: int | str = "10%"
    max_failures: int = 1
    canary: int | str = 1
    """Nodes of a class, or their share; never less than one of each target (one for each fingerprint)."""
    soak: float = 0.0
    """Seconds for which canary nodes must have been ready."""
    steps: tuple[str, ...] = ()
    paused: bool = False
    open: bool = True
    """Some window of spec.rollout.windows is open now, or there are none."""
    promoted: bool = False
    """No canary and no steps any more: everything within maxUnavailable."""
    back: bool = False
    """The targets are those of the stable release: goes on whatever is paused or closed."""


@dataclass(frozen=True, slots=True)
class Flip:
    """Next value of a node's release label."""

    node: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """flips: allowed now. held: why no further ones are. stage: canary, a percentage, rollback, or done.

    failure: the release is to be given up, and why; then only flips that were begun go on. wake_at: when the passing of time alone changes the answer.
    excuse: nodes that do not serve under the release that they have, to be remembered before they move. load: nodes to which the engine is to be
    brought, as their turn has come.
    """

    flips: tuple[Flip, ...] = ()
    held: str = ""
    stage: str = "done"
    failure: str = ""
    wake_at: float | None = None
    excuse: tuple[str, ...] = ()
    load: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """A step, and what is to be written down with it: releases that every node served (the newest first), whether `release` was given up."""

    step: Step
    flips: tuple[Flip, ...]
    """Those of the step, none while a release is given up: that is written down before anything moves back, a restart must not try it again."""
    history: tuple[str, ...]
    given_up: bool = False

    def settled(self, release: str) -> bool:
        """Whether every node served `release` at some time: its rollout is over."""
        return self.history[:1] == (release,)


def advance(
    nodes: Sequence[NodeState], policy: Policy, now: float, *, release: str, history: Sequence[str], goes_back: bool = True, keep: int = 3
) -> Course:
    """The next step towards `release`, or back from it where the policy says so.

    `goes_back`: a release that fails is given up where there is a stable one. `keep`: length of the history, the present release included.
    """
    settled = list(history[:1]) == [release]
    if settled and not any(node.serving and node.target not in ("", node.current) for node in nodes):
        policy = replace(policy, promoted=True, max_failures=len(nodes))  # that rollout is over: what fails now fails by itself
    stepped = step(nodes, policy, now)
    others = [known for known in history if known != release]
    if stepped.failure and goes_back and not settled and any(node.stable for node in nodes if node.current == node.target):
        return Course(stepped, (), tuple(others), given_up=True)
    if release and not policy.back and complete(nodes):
        proven_at = max(node.ready_since for node in nodes if classify(node) is State.READY) + PROBATION
        # where there is nothing to go back to there is nothing to wait for either
        if settled or not others or (stepped.stage == "done" and now >= proven_at):
            return Course(stepped, stepped.flips, (release, *others)[:keep])
        if stepped.stage == "done":
            stepped = replace(stepped, wake_at=proven_at)
    return Course(stepped, stepped.flips, tuple(history))


def budget(max_unavailable: int | str, nodes: int) -> int:
    """Percentages round up, never below one: a site with one node must be able to move."""
    share = ceil(nodes * int(max_unavailable[:-1]) / 100) if isinstance(max_unavailable, str) else max_unavailable
    return max(1, share)


def unavailable(nodes: Iterable[NodeState]) -> int:
    """Because of us: reachable nodes that have a release but no ready pod, less those that no release could help."""
    return sum(
        1
        for node in nodes
        if node.reachable and node.current and not node.serving and not (node.excused and classify(node) is State.FAILED)
    )


def order(node: str, target: str) -> str:
    """Nodes move in an order that no one chose and every restart repeats."""
    return hashlib.sha256(f"{node} {target}".encode()).hexdigest()


def classify(node: NodeState) -> State:
    if not node.reachable:
        return State.UNREACHABLE
    if node.building or node.current.startswith(DRAINING):
        return State.MOVING
    if not node.target:
        return State.STALE if node.current else State.WAITING
    if node.current == node.target:
        if node.failed:
            return State.FAILED
        return State.READY if node.serving else State.MOVING
    return State.STALE if node.current else State.MOVING


def step(nodes: Iterable[NodeState], policy: Policy, now: float) -> Step:
    """What one class does next.

    - A node in the middle of a flip goes on whatever the budget says: it is unavailable until it arrives.
    - Canary nodes move first, then as many as each step allows. A stage is done when its nodes are ready (canary: for `soak`) or failed
      within maxFailures.
    - A node that serves moves when the engine is on it; until then it is one of those to which it is brought, as many at a time as may be unavailable.
    - Nodes that have a release and do not serve it move at once and at no cost; others while fewer than the budget are unavailable.
    - Unreachable and cordoned nodes, those on which the new pod would not run, and those that are paused for a build are left out and catch up later.
    - A failed canary, more failed nodes than maxFailures, or nothing but failed ones: the release has failed.
    - A node that has no release at all gets the stable one while its turn has not come.
    """
    known = sorted(nodes, key=lambda node: order(node.name, node.target))
    reachable = [node for node in known if node.reachable]
    flips = _arrivals(reachable)
    there = [node for node in reachable if node.target and not node.building]
    updated = [node for node in there if _moved(node)]
    waiting = [node for node in there if not _moved(node) and not node.current.startswith(DRAINING)]
    unfit = {} if policy.back else {node.name: node.unfit for node in waiting if node.unfit and node.serving}
    movable = [node for node in waiting if node.schedulable and node.name not in unfit]
    stage = _stage(updated, movable, policy, now)
    if not policy.back and (failure := _failure(updated, movable, stage, policy)):
        return Step(tuple(flips), failure, stage.name, failure)
    if not waiting:
        return Step(tuple(flips), stage=stage.name if updated and not stage.done else "done", wake_at=stage.wake_at)
    names = {node.name for node in (movable if policy.back else stage.next)}
    # what has a release and does not serve it has nothing to lose: it never waits for its turn
    turn = [node for node in movable if node.name in names or (node.current and not node.serving)]
    late = [
        Flip(node.name, node.stable, "its turn has not come: the stable release until then")
        for node in movable
        if node.name not in names and _bare(node)
    ]
    name = "rollback" if policy.back else stage.name
    if policy.paused and not policy.back:
        return Step((*flips, *late), "spec.paused is true: no further node moves", name)
    excuse = tuple(node.name for node in turn if node.failed and not node.excused and not policy.back)
    closed = not policy.open and not policy.back
    idle = [node for node in turn if not node.serving and node.name not in excuse]
    unloaded = [] if policy.back else [node for node in turn if node.serving and not node.loaded]
    busy = [node for node in turn if node.serving and node not in unloaded]
    for node in idle:
        value = DRAINING + node.target if node.pods and node.current else node.target
        flips.append(Flip(node.name, value, "nothing serves there: moves at no cost"))
    away = unavailable(reachable)
    allowed = budget(policy.max_unavailable, len(reachable))
    room = 0 if closed else max(0, allowed - away)
    for number, node in enumerate(busy[:room]):
        flips.append(Flip(node.name, DRAINING + node.target, f"{away + number} of at most {allowed} unavailable"))
    held = ""
    if closed and (busy or unloaded):
        held = f"{len(busy) + len(unloaded)} nodes wait for a window of spec.rollout.windows"
    elif len(busy) > room:
        held = f"{len(busy) - room} nodes wait: {away + min(room, len(busy))} of at most {allowed} are unavailable"
    elif unloaded:
        held = f"the engine is brought to {_named(unloaded)} before what serves there ends"
    elif not policy.back and len(turn) < len(movable):
        held = stage.held
    elif unfit:
        first, why = next(iter(unfit.items()))
        held = f"{len(unfit)} nodes keep what they serve, the new pod would not run there: {first}: {why}"
    elif len(movable) < len(waiting):
        held = f"{len(waiting) - len(movable)} nodes are cordoned"
    load = tuple(node.name for node in unloaded[:allowed])
    return Step((*flips, *late), held, name, wake_at=stage.wake_at, excuse=excuse, load=load)


def _moved(node: NodeState) -> bool:
    return node.current.removeprefix(DRAINING) == node.target


def _bare(node: NodeState) -> bool:
    return not node.current and bool(node.stable) and node.stable != node.target


def _arrivals(reachable: Sequence[NodeState]) -> list[Flip]:
    """Flips that were begun: finished when the old pod is gone, or turned towards a newer target."""
    flips = []
    for node in reachable:
        if not node.target or not node.current.startswith(DRAINING):
            continue
        if node.current != DRAINING + node.target:
            flips.append(Flip(node.name, DRAINING + node.target if node.pods else node.target, "a newer release took over in mid-flip"))
        elif node.pods == 0:
            flips.append(Flip(node.name, node.target, "the old pod is gone"))
    return flips


@dataclass(frozen=True, slots=True)
class _Stage:
    """name: canary or a percentage. next: nodes whose turn it is, in order. done: nothing of it is missing (only the last one says so)."""

    name: str
    next: list[NodeState] = field(default_factory=list)
    held: str = ""
    done: bool = False
    wake_at: float | None = None


def _stage(updated: Sequence[NodeState], movable: Sequence[NodeState], policy: Policy, now: float) -> _Stage:
    """The first stage that is not done."""
    every = len(updated) + len(movable)
    # nodes where nothing serves have nothing to lose: they go first
    ahead = sorted(movable, key=lambda node: node.serving)
    if not policy.promoted and not policy.back:
        canaries = _canaries(updated, ahead, budget(policy.canary, every))
        missing = [node for node in canaries if classify(node) is not State.READY]
        soaked = max((node.ready_since + policy.soak for node in canaries if classify(node) is State.READY), default=now)
        if missing:
            text = f"canary: {len(canaries) - len(missing)} of {len(canaries)} nodes are ready"
            return _Stage("canary", [node for node in missing if not _moved(node)], text)
        if now < soaked:
            return _Stage("canary", held=f"canary: {len(canaries)} nodes are ready and soak", wake_at=soaked)
    settled = sum(classify(node) in (State.READY, State.FAILED) for node in updated)
    steps = [] if policy.promoted or policy.back else [share for share in policy.steps if share != "100%"]
    for share in steps:
        most = budget(share, every)
        if settled < most:
            text = f"step {share}: {settled} of {most} nodes are done"
            return _Stage(share, ahead[: max(0, most - len(updated))], text)
    return _Stage("100%", list(ahead), done=settled == every)


def _canaries(updated: Sequence[NodeState], movable: Sequence[NodeState], count: int) -> list[NodeState]:
    """At least one of each target and kind, `count` in all.

    Nodes that moved already stand first, the longest ready before others: a pod that restarts in a fleet that is half done is no new
    canary. Then those of canary.nodeSelector. Nodes that could not serve before are the last resort.
    """
    moved = sorted(updated, key=lambda node: (node.excused, node.ready_since if classify(node) is State.READY else inf))
    fresh = sorted(movable, key=lambda node: (node.failed, not node.may_be_canary, node.serving))
    # an excused node that moved must not stand for the others while another one could
    ranked = sorted([*moved, *fresh], key=lambda node: node.excused and classify(node) is not State.READY)
    firsts: dict[tuple[str, str], NodeState] = {}
    for node in ranked:
        firsts.setdefault((node.target, node.kind), node)
    names = {node.name for node in firsts.values()}
    return [*firsts.values(), *[node for node in ranked if node.name not in names][: max(0, count - len(names))]]


def _failure(updated: Sequence[NodeState], movable: Sequence[NodeState], stage: _Stage, policy: Policy) -> str:
    """Why the release is to be given up; "" while it is not."""
    states = [(node, classify(node)) for node in updated]
    every = [node for node, state in states if state is State.FAILED]
    failed = [node for node in every if not node.excused]
    if failed and stage.name == "canary" and not policy.promoted:
        return f"canary {_named(failed)} failed: no further node moves"
    if len(failed) > policy.max_failures:
        return (
            f"{len(failed)} nodes failed on the new release ({_named(failed)}), maxFailures is {policy.max_failures}: no further node moves"
        )
    # where nothing else is left to try, nodes that failed before count as well: nothing is lost by going back
    if (failed or (every and not movable)) and not any(state in (State.READY, State.MOVING) for _, state in states):
        return f"no node is ready on the new release, {_named(every)} failed: no further node moves"
    return ""


def _named(nodes: Sequence[NodeState]) -> str:
    return ", ".join(node.name for node in nodes[:3]) + (" …" if len(nodes) > 3 else "")


def complete(nodes: Iterable[NodeState]) -> bool:
    """Whether every node that can be reached and moved serves its target, and one does at least: what a later release may go back to.

    Failed nodes count as arrived: more of them than maxFailures end a rollout before.
    """
    there = [node for node in nodes if node.reachable and (node.schedulable or _moved(node))]
    states = [classify(node) for node in there if node.target or node.current]
    return State.READY in states and all(state in (State.READY, State.FAILED) for state in states)


def counts(nodes: Iterable[NodeState]) -> Mapping[State, int]:
    states = [classify(node) for node in nodes]
    return {state: states.count(state) for state in State}
