"""From passed engines to workloads and node labels: which DaemonSets must exist, which node moves now, what may go."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from enginefleet_api import labels
from enginefleet_api.base import seconds
from enginefleet_api.identity import object_name
from enginefleet_api.resources import EngineBuildStatus, RefusedRelease, Resolved, RolloutStatus

from . import preloading, requests, retry, rollout, windows
from .model import (
    Action,
    CreateService,
    CreateWorkload,
    Delete,
    Event,
    HardwareClass,
    Job,
    KeepRevision,
    LabelNode,
    Node,
    RestoreWorkload,
    Revision,
    ServingPod,
    Snapshot,
    Workload,
)
from .stages import Wanted, has_missing, nodes_of, targets

LOADING = 3600.0
"""Seconds after which images or an engine that are still on their way count as a failure: a pod that waits for a volume looks the same."""
PLACING = 15.0
"""Seconds for which a pod that the scheduler finds no place for is no failure: it may not have seen yet what a node was labelled with just now."""
UNFIT = 60.0
"""Seconds after which a node on which the new pod would not run is looked at again: nothing tells us when another pod leaves."""
BROKEN = frozenset(
    {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "RunContainerError"}
)
"""Reasons of a waiting container after which it does not get ready by itself soon."""


class Goal(NamedTuple):
    """The label that a node is to get, "" where no engine of its own has passed, and the fingerprint and DaemonSet that this engine is for."""

    label: str = ""
    fingerprint: str = ""
    workload: CreateWorkload | None = None


@dataclass(frozen=True, slots=True)
class ClassRollout:
    """How one class stands; `standing` is what its status will say of it."""

    hardware_class: HardwareClass
    nodes: tuple[rollout.NodeState, ...]
    standing: RolloutStatus
    flips: tuple[rollout.Flip, ...] = ()
    wake_at: float | None = None
    events: tuple[Event, ...] = ()
    load: tuple[tuple[str, CreateWorkload], ...] = ()
    """Nodes to which an engine is to be brought."""

    @property
    def held(self) -> str:
        return self.standing.paused_reason


@dataclass(frozen=True, slots=True)
class Serving:
    classes: tuple[ClassRollout, ...]
    actions: tuple[Action, ...]
    wake_at: float | None = None
    tokens: tuple[str, str] = ("", "")
    """Values of the annotations promote and abort that have been acted on."""


def serving(
    s: Snapshot,
    pinned: Resolved | None,
    wanted: tuple[Wanted, ...],
    passed: Mapping[str, EngineBuildStatus],
    now: float,
    away: Collection[str] = (),
) -> Serving:
    """A node's target is the label of the engine that passed for its fingerprint; without one it keeps what it has.

    `away`: nodes on which a build has the place of what they serve. One whose pause is over has nothing to lose: the rollout moves it first.
    """
    key = labels.release_key(s.namespace, s.name)
    if s.spec.serving.mode == "None":
        return _nothing(s, key)
    goals: dict[str, Goal] = {}
    releases: dict[str, str] = {}
    creates: dict[str, CreateWorkload] = {}
    for want in wanted:
        status = passed.get(want.name)
        if pinned is None or s.store is None or status is None or status.engine is None:
            continue
        release = requests.release(s.spec, s.store, pinned, want.image_digest, want.hardware_class.spec.backend)
        blob, size = str(status.engine["blob"]), int(status.engine["size"])
        label = labels.release_value(release, blob)
        # the gate is not part of it: a stricter gate that passes restarts nothing
        name = object_name(s.name, s.uid, want.hardware_class.name, release, want.fingerprint, blob)
        releases[want.hardware_class.name] = release
        creates[name] = CreateWorkload(name, want.hardware_class.name, release, label, want.name, want.spec, blob, size)
        for node in want.nodes:
            goals[node] = Goal(label, want.fingerprint, creates[name])
    # looked up once a node, of which there may be thousands: not searched for each of them
    pods: dict[str, list[ServingPod]] = {}
    for pod in s.pods:
        pods.setdefault(pod.node, []).append(pod)
    jobs = preloading.jobs_of(s)
    results = tuple(_class(s, hwc, releases.get(hwc.name, ""), goals, pods, jobs, away, now) for hwc in targets(s))
    used = {labels.plain(node.labels[key]) for node in s.nodes if key in node.labels}
    actions = _workloads(s, creates, used | {labels.plain(flip.value) for c in results for flip in c.flips})
    # a label is set only where its workload is there to follow it, or is created in this very plan before it
    versions = {node.name: node.resource_version for node in s.nodes}
    actions += [LabelNode(f.node, versions[f.node], {key: f.value}, f.why) for c in results for f in c.flips]
    actions += _unlabel(s, key)
    waits = [(n.name, goal.blob) for c in results for n in c.nodes if (goal := goals.get(n.name, Goal()).workload) and _waits(n)]
    loads, wake_at = preloading.preload(s, [one for c in results for one in c.load], waits, now)
    actions += loads
    actions += _retire(s, used, set(creates))
    actions += _forget(s, used, set(creates), results)
    if creates and not s.has_service:
        actions.append(CreateService(service_name(s.name, s.uid)))
    # a token is used up once there is a release that it can be about
    tokens = (s.annotations.get(labels.PROMOTE, ""), s.annotations.get(labels.ABORT, ""))
    return Serving(results, tuple(actions), wake_at, tokens if releases else (s.status.promote_token, s.status.abort_token))


def _nothing(s: Snapshot, key: str) -> Serving:
    """serving.mode None: engines are published, no pod runs, and those of a mode before go at once. What a rollback would need is kept by nobody."""
    classes = tuple(ClassRollout(c, (), RolloutStatus()) for c in targets(s))
    used = {labels.plain(node.labels[key]) for node in s.nodes if key in node.labels}
    actions: list[Action] = [
        LabelNode(node.name, node.resource_version, {key: None}, "serving.mode is None") for node in s.nodes if key in node.labels
    ]
    actions += _retire(s, used, ())
    actions += _forget(s, used, (), classes)
    return Serving(classes, tuple(actions), tokens=(s.annotations.get(labels.PROMOTE, ""), s.annotations.get(labels.ABORT, "")))


def _class(
    s: Snapshot,
    hardware_class: HardwareClass,
    release: str,
    goals: Mapping[str, Goal],
    pods: Mapping[str, list[ServingPod]],
    jobs: Mapping[str, Job],
    away: Collection[str],
    now: float,
) -> ClassRollout:
    """Where one class stands: towards `release`, or back from it."""
    key = labels.release_key(s.namespace, s.name)
    before = next((c.rollout for c in s.status.classes if c.name == hardware_class.name), RolloutStatus())
    mine = nodes_of(s, hardware_class)
    history = before.history or _served(key, mine, pods, release)
    refused = before.refused if before.refused is not None and (not release or before.refused.release == release) else None
    if _new(s, labels.RETRY, s.status.retry_token):
        refused = None
    token = _new(s, labels.ABORT, s.status.abort_token) if release else ""
    events: tuple[Event, ...] = ()
    if token and refused is None and history == [release]:
        text = f"every node serves release {release}, and there is no earlier one to go back to: abort {token} changes nothing."
        events = (Event("NothingToAbort", f"{hardware_class.name}: {text}", warning=True),)
    elif token:
        if refused is not None:
            history = history[1:] or history  # what it went back to is not wanted either
        refused = RefusedRelease(release=release, reason="Aborted", message=f"{labels.ABORT}: {token}", at=retry.timestamp(now))
    if refused is not None:
        history = [known for known in history if known != refused.release]
    promoted = release if before.promoted == release or _new(s, labels.PROMOTE, s.status.promote_token) else ""
    excused = before.excused if before.release == release else []
    back = refused is not None  # also while what comes next is still being built
    stable = _labels_of(s, hardware_class, next((known for known in history if known != release), ""))
    loads = {n.name: preloading.loading(s, jobs, n, n.labels.get(key, ""), goals.get(n.name, Goal()).workload) for n in mine}
    states = tuple(
        replace(
            _state(s, key, node, goals.get(node.name, Goal()), stable, back, node.name in excused, pods.get(node.name, []), now),
            building=node.name in away,
            loaded=loads[node.name].loaded,
            unfit=s.unfit.get(node.name, "") or loads[node.name].unfit,
        )
        for node in mine
    )
    is_open, changes = windows.open_at(s.spec.rollout.windows, now)
    policy = _policy(s, promoted=bool(promoted), is_open=is_open, back=back)
    goes_back, keep = s.spec.rollout.on_failure == "Rollback", s.spec.history_limit + 1
    course = rollout.advance(states, policy, now, release=release, history=history, goes_back=goes_back, keep=keep)
    step = course.step
    if course.given_up:
        failed = min((node for node in states if rollout.classify(node) is rollout.State.FAILED), key=lambda node: node.excused)
        words = "{}: {}".format(*trouble(s, failed))
        refused = RefusedRelease(
            release=release,
            reason="CanaryFailed" if step.stage == "canary" else "TooManyFailures",
            message=f"{step.failure.partition(':')[0]}; {failed.name}: {words}"[:1024],
            at=retry.timestamp(now),
        )
    started = before.started_at if before.release == release else retry.timestamp(now) if release else ""
    standing = RolloutStatus(
        release=release,
        stable_release=course.history[0] if course.history else "",
        history=list(course.history),
        refused=refused,
        step="done" if course.settled(release) and not step.flips else step.stage if release else "",
        started_at=started,
        eta=_eta(states, started) if is_open and release and not step.failure and not back and not s.spec.paused else "",
        paused_reason=step.held + next((f": {loads[name].said}" for name in step.load if loads[name].said), ""),
        promoted=promoted,
        excused=sorted({*(node.name for node in states if node.excused), *step.excuse})[:100],
    )
    wakes = [at for at in (step.wake_at, None if policy.back else changes) if at is not None]
    load = tuple((name, workload) for name in step.load if (workload := goals[name].workload) is not None)
    return ClassRollout(hardware_class, states, standing, course.flips, min(wakes, default=None), events, load)


def _waits(node: rollout.NodeState) -> bool:
    """Whether it has not begun to move to its target."""
    return bool(node.target) and node.target != node.current.removeprefix(labels.DRAINING)


def _new(s: Snapshot, annotation: str, used: str) -> str:
    """The token of an annotation, unless it was acted on before."""
    token = s.annotations.get(annotation, "")
    return token if token != used else ""


def _policy(s: Snapshot, *, promoted: bool, is_open: bool, back: bool) -> rollout.Policy:
    spec = s.spec.rollout
    canary = spec.canary
    return rollout.Policy(
        max_unavailable=spec.max_unavailable,
        max_failures=spec.max_failures,
        canary=1 if canary is None else f"{canary.percent}%" if canary.percent is not None else canary.count or 1,
        soak=seconds(canary.soak) if canary is not None else 0.0,
        steps=tuple(spec.steps),
        paused=s.spec.paused,
        open=is_open,
        promoted=promoted,
        back=back,
    )


def _served(key: str, nodes: Sequence[Node], pods: Mapping[str, list[ServingPod]], release: str) -> list[str]:
    """The release that some node serves beside `release`, where nothing is written down of what was good."""
    for node in nodes:
        value = node.labels.get(key, "")
        found = labels.release_of(value)
        if found not in ("", release) and value == labels.plain(value) and any(pod.ready for pod in pods.get(node.name, ())):
            return [found]
    return []


Kept = Workload | Revision


def _labels_of(s: Snapshot, hardware_class: HardwareClass, release: str) -> list[Kept]:
    """DaemonSets of a release of a class, those that exist before those that are kept, the newest first."""
    if not release:
        return []
    kept = sorted((r for r in s.revisions if not r.deleting), key=lambda r: -r.created)
    every: list[Kept] = [*(w for w in s.workloads if not w.deleting), *kept]
    return [one for one in every if one.hardware_class == hardware_class.name and labels.release_of(one.label) == release]


def _follows(kept: Kept, node: Node) -> bool:
    """Whether the node is of the class and fingerprint that the DaemonSet selects beside its label."""
    return node.labels.get(labels.fp_key(kept.hardware_class, kept.image_digest)) == kept.fingerprint


def _workloads(s: Snapshot, creates: Mapping[str, CreateWorkload], labels_needed: Collection[str]) -> list[Action]:
    """DaemonSets that must be there: those of proven engines, and those whose label a node carries or is about to get."""
    there = {w.name for w in s.workloads}
    kept = {r.name for r in s.revisions}
    actions: list[Action] = [KeepRevision(create) for name, create in creates.items() if name not in kept]
    actions += [create for name, create in creates.items() if name not in there]
    # equal engines have equal labels: each class and fingerprint has a DaemonSet of its own all the same
    missing = [r for r in s.revisions if r.label in labels_needed and r.name not in there and r.name not in creates and not r.deleting]
    return actions + [RestoreWorkload(r.name) for r in missing]


def _forget(s: Snapshot, used: Collection[str], current: Collection[str], results: Sequence[ClassRollout]) -> list[Action]:
    """ControllerRevisions of releases that no rollback can mean any more."""
    if has_missing(s):
        return []
    kept = {(c.hardware_class.name, release) for c in results for release in (c.standing.release, *c.standing.history)}
    return [
        Delete("ControllerRevision", r.name, r.uid, "older than spec.historyLimit")
        for r in s.revisions
        if r.name not in current
        and r.label not in used
        and (r.hardware_class, labels.release_of(r.label)) not in kept
        and not r.deleting
        and not any(w.name == r.name for w in s.workloads)
    ]


def _eta(nodes: Sequence[rollout.NodeState], started: str) -> str:
    """From how long the nodes that are done took; changes only when another one is done."""
    there = [node for node in nodes if node.reachable and node.target]
    since = [node.ready_since for node in there if rollout.classify(node) is rollout.State.READY]
    begun = retry.seconds_of(started) if started else math.inf
    taken = max(since, default=0.0) - begun
    if taken <= 0 or len(since) == len(there):
        return ""
    return retry.timestamp(max(since) + taken / len(since) * (len(there) - len(since)))


def service_name(name: str, uid: str) -> str:
    """The ModelDeployment's own name where that is a name for a Service, else a generated one."""
    return name if "." not in name and len(name) <= 63 and name[:1].isalpha() else object_name(name, uid, "service")


def _state(
    s: Snapshot, key: str, node: Node, goal: Goal, stable: Sequence[Kept], back: bool, excused: bool, pods: list[ServingPod], now: float
) -> rollout.NodeState:
    value = node.labels.get(key, "")
    paused = value.startswith(labels.BUILDING)
    current = value.removeprefix(labels.BUILDING)
    mine = [p for p in pods if p.workload_label == current and not p.deleting]
    # an older release may be of another runtime image, under which the node has another fingerprint
    former = next((k.label for k in stable if _follows(k, node)), "")
    target = former if back else goal.label
    canary = s.spec.rollout.canary
    chosen = canary.node_selector if canary is not None else None
    return rollout.NodeState(
        name=node.name,
        current=current,
        # without a goal of its own a node in mid-flip goes where it was going
        target=target or (current.removeprefix(labels.DRAINING) if current.startswith(labels.DRAINING) else ""),
        reachable=node.ready,
        serving=not paused and any(p.ready for p in mine),
        pods=len(pods),
        failed=not paused
        and (any(_failed(s, p, now) for p in mine) or (bool(target) and current == target and not pods and now >= absent_at(s, node))),
        schedulable=not node.unschedulable,
        stable=former,
        ready_since=max((p.since for p in mine if p.ready), default=0.0),
        excused=excused,
        kind=goal.fingerprint,
        may_be_canary=chosen is None or chosen.matches(node.labels),
    )


def _failed(s: Snapshot, pod: ServingPod, now: float) -> bool:
    """It says why it can't serve, or progressDeadline has passed without a word."""
    return not pod.ready and ((pod.trouble is not None and now >= placed_by(pod)) or now >= overdue_at(s, pod))


def placed_by(pod: ServingPod) -> float:
    """When its trouble is one: at once, unless it is the scheduler's."""
    return pod.since + PLACING if pod.trouble is not None and pod.trouble[0] == "Unschedulable" else -math.inf


def absent_at(s: Snapshot, node: Node) -> float:
    """When a node without any pod of ours counts as failed: by then the DaemonSet controller should have made one.

    Never where nothing says when it was labelled.
    """
    if not node.labelled_at:
        return math.inf
    return max(node.labelled_at, node.since) + seconds(s.spec.rollout.progress_deadline)


def overdue_at(s: Snapshot, pod: ServingPod) -> float:
    """Counted from when the pod was last ready, or had its engine; what is on its way over a slow link gets LOADING on top."""
    return pod.since + seconds(s.spec.rollout.progress_deadline) + (LOADING if pod.loading else 0.0)


def wakes(s: Snapshot, served: Serving, now: float) -> list[float]:
    """When the passing of time alone may change what is decided."""
    found = [at for pod in s.pods if not pod.ready and not pod.deleting for at in (overdue_at(s, pod), placed_by(pod))]
    empty = {n.name for c in served.classes for n in c.nodes if n.pods == 0 and n.target and n.current == n.target and not n.building}
    found += [absent_at(s, node) for node in s.nodes if node.name in empty]
    found += [c.wake_at for c in served.classes if c.wake_at is not None]
    found += [now + UNFIT] if s.unfit else []
    found += [served.wake_at] if served.wake_at is not None else []
    return [at for at in found if now < at < math.inf]


def trouble(s: Snapshot, node: rollout.NodeState) -> tuple[str, str]:
    """(reason, message) of a failed node: the pod's own words, else what can be said from outside."""
    deadline = s.spec.rollout.progress_deadline
    mine = [p for p in s.pods if p.node == node.name]
    for pod in mine:
        if pod.trouble is not None:
            return pod.trouble
    if mine:
        return "ProgressDeadlineExceeded", f"its pod is not ready after {deadline} and gives no reason."
    key = labels.release_key(s.namespace, s.name)
    labelled = [n for n in s.nodes if n.labels.get(key) == node.current]
    here = [n for n in labelled if n.name == node.name]
    workload = next((w for w in s.workloads if w.label == node.current and not w.deleting and any(_follows(w, n) for n in here)), None)
    if workload is None:
        return "WorkloadMissing", "its DaemonSet is gone and is made again."
    if workload.desired < sum(_follows(workload, n) for n in labelled):
        return "PodNotWanted", (
            f"DaemonSet {workload.name} wants no pod there: nodeSelector or affinity of serving.template exclude the node, "
            "or it has a taint that runtime.tolerations of the class leave out."
        )
    return "PodNotCreated", (
        f"DaemonSet {workload.name} got no pod there within {deadline}: a quota, Pod Security or an admission webhook refuses it; "
        f"kubectl describe daemonset {workload.name} -n {s.namespace} says which."
    )


def _unlabel(s: Snapshot, key: str) -> list[Action]:
    """Nodes that carry this ModelDeployment's label and belong to none of its classes any more."""
    mine = {node.name for hardware_class in targets(s) for node in nodes_of(s, hardware_class)}
    if has_missing(s):
        return []  # never stop what works
    return [
        LabelNode(node.name, node.resource_version, {key: None}, "no target class matches the node any more")
        for node in s.nodes
        if key in node.labels and node.name not in mine and not _kept(s, node)
    ]


def _kept(s: Snapshot, node: Node) -> bool:
    """A node that left its class a moment ago still has its fingerprint labels: see LEFT_PREFIX."""
    plain = [labels.fp_key(c.name) for c in targets(s)]
    return any(k == p or k.startswith(p + ".") for p in plain for k in node.labels)


def arrivals(s: Snapshot, served: Serving) -> tuple[Action, ...]:
    """What goes on whatever else is held up: flips that were begun (the old pod is gone, the workload is there), and the way back."""
    there = [w for w in s.workloads if not w.deleting]
    key = labels.release_key(s.namespace, s.name)
    nodes = {n.name: n for n in s.nodes}
    back = {n.name for c in served.classes if c.standing.refused is not None for n in c.nodes}

    def goes_on(a: Action) -> bool:
        if isinstance(a, RestoreWorkload):
            return True
        if not isinstance(a, LabelNode) or (value := a.labels.get(key)) is None:
            return False
        if a.node in back:
            return True
        node = nodes[a.node]
        return node.labels.get(key) == f"{labels.DRAINING}{value}" and any(w.label == value and _follows(w, node) for w in there)

    return tuple(a for a in served.actions if goes_on(a))


def _retire(s: Snapshot, used: Collection[str], current: Collection[str]) -> list[Action]:
    """Workloads whose label no node carries, and which are not what nodes move to."""
    return [
        Delete("DaemonSet", w.name, w.uid, "no node runs this release any more")
        for w in s.workloads
        if w.name not in current and w.label not in used and not w.deleting and not any(p.workload_label == w.label for p in s.pods)
    ]
