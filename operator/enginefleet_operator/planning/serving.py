"""From passed engines to workloads and node labels: which DaemonSets must exist, which node moves now, what may go."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from enginefleet_api.base import seconds
from enginefleet_api.identity import object_name
from enginefleet_api.resources import EngineBuildStatus, Resolved

from .. import labels
from . import requests, rollout
from .model import Action, CreateService, CreateWorkload, Delete, HardwareClass, LabelNode, Node, ServingPod, Snapshot
from .stages import Wanted, nodes_of, targets

BROKEN = frozenset(
    {"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CreateContainerConfigError", "RunContainerError"}
)
"""Reasons of a waiting container after which it does not get ready by itself soon."""


@dataclass(frozen=True, slots=True)
class ClassRollout:
    """How one class stands. `held`: why no further node moves; `release` is what it moves to, "" while no engine is proven."""

    hardware_class: HardwareClass
    nodes: tuple[rollout.NodeState, ...]
    release: str
    stable: str
    held: str
    flips: tuple[rollout.Flip, ...]


@dataclass(frozen=True, slots=True)
class Serving:
    classes: tuple[ClassRollout, ...]
    actions: tuple[Action, ...]


def serving(
    s: Snapshot, pinned: Resolved | None, wanted: tuple[Wanted, ...], passed: Mapping[str, EngineBuildStatus], now: float
) -> Serving:
    """A node's target is the label of the engine that passed for its fingerprint; without one it keeps what it has."""
    key = labels.release_key(s.namespace, s.name)
    actions: list[Action] = []
    goal: dict[str, str] = {}
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
            goal[node] = label
    existing = {w.name: w for w in s.workloads}
    actions += [create for name, create in creates.items() if name not in existing]
    results: list[ClassRollout] = []
    # looked up once a node, of which there may be thousands: not searched for each of them
    pods: dict[str, list[ServingPod]] = {}
    for pod in s.pods:
        pods.setdefault(pod.node, []).append(pod)
    versions = {node.name: node.resource_version for node in s.nodes}
    for hardware_class in targets(s):
        states = tuple(_state(s, key, node, goal.get(node.name, ""), pods.get(node.name, []), now) for node in nodes_of(s, hardware_class))
        flips, held = rollout.step(states, s.spec.rollout.max_unavailable, s.spec.rollout.max_failures, s.spec.paused)
        stale = [state.current.removeprefix(labels.DRAINING) for state in states if rollout.classify(state) is rollout.State.STALE]
        results.append(
            ClassRollout(
                hardware_class,
                states,
                releases.get(hardware_class.name, ""),
                stale[0].partition("-")[0] if stale else releases.get(hardware_class.name, ""),
                held,
                tuple(flips),
            )
        )
        # a label is set only where its workload is there to follow it, or is created in this very plan before it
        actions += [LabelNode(f.node, versions[f.node], {key: f.value}, f.why) for f in flips]
    actions += _unlabel(s, key)
    actions += _retire(s, key, set(creates))
    if creates and not s.has_service:
        actions.append(CreateService(service_name(s.name, s.uid)))
    return Serving(tuple(results), tuple(actions))


def service_name(name: str, uid: str) -> str:
    """The ModelDeployment's own name where that is a name for a Service, else a generated one."""
    return name if "." not in name and len(name) <= 63 and name[:1].isalpha() else object_name(name, uid, "service")


def _state(s: Snapshot, key: str, node: Node, target: str, pods: list[ServingPod], now: float) -> rollout.NodeState:
    current = node.labels.get(key, "")
    mine = [p for p in pods if p.workload_label == current and not p.deleting]
    return rollout.NodeState(
        name=node.name,
        current=current,
        # without a goal of its own a node in mid-flip goes where it was going
        target=target or (current.removeprefix(labels.DRAINING) if current.startswith(labels.DRAINING) else ""),
        reachable=node.ready,
        serving=any(p.ready for p in mine),
        pods=len(pods),
        failed=any(_failed(s, p, now) for p in mine) or (bool(target) and current == target and not pods and now >= absent_at(s, node)),
        schedulable=not node.unschedulable,
    )


def _failed(s: Snapshot, pod: ServingPod, now: float) -> bool:
    """It says why it can't serve, or progressDeadline has passed without a word."""
    return not pod.ready and (pod.trouble is not None or now >= overdue_at(s, pod))


def absent_at(s: Snapshot, node: Node) -> float:
    """When a node without any pod of ours counts as failed: by then the DaemonSet controller should have made one.

    Never where nothing says when it was labelled.
    """
    if not node.labelled_at:
        return math.inf
    return max(node.labelled_at, node.since) + seconds(s.spec.rollout.progress_deadline)


def overdue_at(s: Snapshot, pod: ServingPod) -> float:
    """Counted from when the pod was last ready, or made."""
    return pod.unready_since + seconds(s.spec.rollout.progress_deadline)


def wakes(s: Snapshot, served: Serving, now: float) -> list[float]:
    """When a node that does not serve yet becomes one that failed."""
    found = [overdue_at(s, pod) for pod in s.pods if not pod.ready and not pod.deleting]
    empty = {n.name for c in served.classes for n in c.nodes if n.pods == 0 and n.target and n.current == n.target}
    found += [absent_at(s, node) for node in s.nodes if node.name in empty]
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
    workload = next((w for w in s.workloads if w.label == node.current and not w.deleting), None)
    if workload is None:
        return "WorkloadMissing", "its DaemonSet is gone and is made again."
    key = labels.release_key(s.namespace, s.name)
    if workload.desired < sum(n.labels.get(key) == workload.label for n in s.nodes):
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
    if len(targets(s)) < len(s.spec.targets):
        return []  # a class that is missing may come back in a minute: never stop what works
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
    """Flips that only finish what was begun: the old pod is gone, the workload is there. They go on whatever else is held up."""
    there = {w.label for w in s.workloads if not w.deleting}
    key = labels.release_key(s.namespace, s.name)
    current = {n.name: n.labels.get(key, "") for n in s.nodes}
    return tuple(
        a
        for a in served.actions
        if isinstance(a, LabelNode) and (value := a.labels.get(key)) in there and current[a.node] == f"{labels.DRAINING}{value}"
    )


def _retire(s: Snapshot, key: str, current: set[str]) -> list[Action]:
    """Workloads whose label no node carries, and which are not what nodes move to."""
    used = {node.labels[key].removeprefix(labels.DRAINING) for node in s.nodes if key in node.labels}
    return [
        Delete("DaemonSet", w.name, w.uid, "no node runs this release any more")
        for w in s.workloads
        if w.name not in current and w.label not in used and not w.deleting and not any(p.workload_label == w.label for p in s.pods)
    ]
