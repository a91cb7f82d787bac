"""`builds.whenBusy: Auto`: a serving pod makes way for a build that finds no room beside it, and comes back.

Where a pause stands is read from the node's release label and from the Jobs every time, like a rollout: a restarted operator ends what another
life of it began.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from enginefleet_api import labels

from . import retry, rollout, windows
from .model import Event, HardwareClass, Job, LabelNode, Node, Snapshot

GRACE = 120.0
"""Seconds for which a paused node waits for a build, or for the next one of its kind, before its pod comes back."""


@dataclass(frozen=True, slots=True)
class Cramped:
    """A build whose pod has no place now; on `rooms` it would have one without what the ModelDeployment serves there."""

    build: str
    job: str
    hardware_class: str
    nodes: tuple[str, ...]
    """All of its fingerprint."""
    rooms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paused:
    """What a class does about pauses now. `node`: the one that is paused in this pass; `approved`: only a token allowed that."""

    labels: tuple[LabelNode, ...] = ()
    events: tuple[Event, ...] = ()
    node: str = ""
    approved: bool = False
    keeps_token: bool = False
    """A pause is approved and finds no budget yet: the token is not used up."""
    wake_at: float | None = None


def cramped(s: Snapshot, hardware_class: HardwareClass, build: str, job: Job, nodes: tuple[str, ...]) -> Cramped | None:
    """What a pause would help: a Job of a class with `whenBusy: Auto` that the scheduler finds no place for."""
    if hardware_class.spec.builds.when_busy != "Auto" or job.waiting is None or job.waiting[0] != "Unschedulable":
        return None
    rooms = tuple(node for node in nodes if node in s.rooms.get(job.name, ()))
    return Cramped(build, job.name, hardware_class.name, nodes, rooms) if rooms else None


def until(s: Snapshot, undecided: Collection[str], now: float) -> dict[str, float | None]:
    """Paused nodes, and when each pause ends; None: not before the build there has ended.

    It ends when no build runs there, and none is about to: `undecided` are nodes that an engine is still wanted for; they wait for GRACE.
    """
    paused = paused_nodes(s)
    return {node.name: _ends(s, node, node.name in undecided, now) for node in s.nodes if node.name in paused}


def _ends(s: Snapshot, node: Node, undecided: bool, now: float) -> float | None:
    here = [job for job in s.jobs if job.role == "build" and job.node == node.name]
    if any(job.live_pods or (job.active and not job.deleting) for job in here):
        return None
    return max([node.labelled_at, *(job.ended for job in here)]) + GRACE if undecided else now


def paused_nodes(s: Snapshot) -> frozenset[str]:
    key = labels.release_key(s.namespace, s.name)
    return frozenset(node.name for node in s.nodes if node.labels.get(key, "").startswith(labels.BUILDING))


@dataclass(frozen=True, slots=True)
class _Choice:
    node: str
    sole: bool
    """No other node of the fingerprint serves."""


def _choose(s: Snapshot, one: Cramped) -> _Choice | None:
    """The node whose pod would make way, the first by hash: the same in every life."""
    key = labels.release_key(s.namespace, s.name)
    ready = {(pod.node, pod.workload_label) for pod in s.pods if pod.ready and not pod.deleting}
    kind = {node.name: node for node in s.nodes if node.name in one.nodes and node.ready}
    serves = [node for node in kind.values() if (node.name, node.labels.get(key, "")) in ready]
    able = sorted((n.name for n in serves if n.name in one.rooms and not n.unschedulable), key=lambda n: rollout.order(n, one.build))
    return _Choice(able[0], len(serves) < 2) if able else None


def explain(s: Snapshot, one: Cramped, now: float) -> tuple[str, str] | None:
    """(reason, message): why such a build waits; None where no pause would help."""
    choice = _choose(s, one)
    if choice is None:
        return None
    held = next((h for h in s.holders if h.node == choice.node and h.ours), None)
    what = (
        f"{held.resource} of node {held.node} is held by pod {held.pod} since {held.since}"
        if held is not None
        else f"the build has no room beside the serving pod of node {choice.node}"
    )
    is_open, changes = windows.open_at(s.spec.rollout.windows, now)
    opens = f" (the next one opens at {retry.timestamp(changes)})" if changes is not None and not is_open else ""
    if s.spec.paused:
        return "BuildNeedsOutage", f"{what}; spec.paused is true: no pod makes way for the build until it is false."
    if choice.sole and not _may_stop(s, now):
        when = f"in a window of spec.rollout.windows{opens} or " if s.spec.rollout.windows else ""
        until = f"the build starts {when}after {labels.APPROVE}=<any new value>, and that pod is away until it has ended"
        return "BuildNeedsOutage", f"{what}, and no other node of its kind serves: {until}."
    if not is_open:
        return "BuildNeedsOutage", f"{what}: that pod makes way in a window of spec.rollout.windows{opens}."
    return "MakingRoom", f"{what}: that pod makes way as soon as spec.rollout.maxUnavailable allows, and comes back after the build."


def _may_stop(s: Snapshot, now: float) -> bool:
    """Whether the only node of its kind may stop serving: people said when, or that it may now."""
    return bool(approval(s)) or (bool(s.spec.rollout.windows) and windows.open_at(s.spec.rollout.windows, now)[0])


def approval(s: Snapshot) -> str:
    """The token of `enginefleet.io/approve`, unless it was acted on before."""
    token = s.annotations.get(labels.APPROVE, "")
    return token if token != s.status.approve_token else ""


def step(
    s: Snapshot,
    nodes: Sequence[rollout.NodeState],
    flips: Collection[str],
    waiting: Sequence[Cramped],
    paused: Mapping[str, float | None],
    now: float,
) -> Paused:
    """For the `nodes` of one class, those of `flips` less; `paused`: see until().

    - A node whose pause is over gets its pod back. Where the rollout moves it in this very pass, that was the end of its pause.
    - A pause begins within maxUnavailable, in a window, never while spec.paused; one node of a fingerprint at a time.
    - The only node of its kind that serves stops in a window that people wrote, or for a token of `enginefleet.io/approve`.
    """
    by_name = {node.name: node for node in s.nodes}
    ends = {n.name: paused[n.name] for n in nodes if n.name in paused}
    over = [name for name, at in ends.items() if at is not None and now >= at]
    changes = [_resume(s, by_name[name]) for name in over if name not in flips]
    events = [Event("ServingResumed", f"node {name}: no build needs its place any more, one comes back.") for name in over]
    wake_at = min((at for at in ends.values() if at is not None and now < at), default=None)
    is_open, _ = windows.open_at(s.spec.rollout.windows, now)
    if s.spec.paused:
        return Paused(tuple(changes), tuple(events), wake_at=wake_at)
    taken = rollout.unavailable(nodes) + sum(1 for node in nodes if node.serving and node.name in flips)
    room = rollout.budget(s.spec.rollout.max_unavailable, sum(node.reachable for node in nodes)) - taken
    keeps_token = False
    for one in waiting:
        choice = _choose(s, one)
        if choice is None or not paused.keys().isdisjoint(one.nodes) or choice.node in flips:
            continue
        approved = bool(approval(s)) and (choice.sole or not is_open)
        if not (approved or (is_open and (not choice.sole or _may_stop(s, now)))):
            continue
        if room <= 0:
            keeps_token |= approved
            continue
        changes.append(_pause(s, by_name[choice.node], one))
        text = f"node {choice.node}: its pod makes way for Job {one.job}" + (f", approved by {approval(s)}" if approved else "")
        events.append(Event("ServingPaused", f"{text}; one serves there again after the build."))
        # one at a time: the next look counts this one among those that are away
        return Paused(tuple(changes), tuple(events), choice.node, approved, keeps_token, wake_at)
    return Paused(tuple(changes), tuple(events), keeps_token=keeps_token, wake_at=wake_at)


def _pause(s: Snapshot, node: Node, one: Cramped) -> LabelNode:
    key = labels.release_key(s.namespace, s.name)
    return LabelNode(node.name, node.resource_version, {key: labels.BUILDING + node.labels[key]}, f"makes way for Job {one.job}")


def _resume(s: Snapshot, node: Node) -> LabelNode:
    key = labels.release_key(s.namespace, s.name)
    return LabelNode(node.name, node.resource_version, {key: labels.plain(node.labels[key])}, "no build needs its place any more")
