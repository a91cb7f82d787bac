"""Looks before a node is drained: would the new pod run there? Nothing is drained for a pod that would only wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .. import labels
from ..planning import fits
from ..planning.decide import decide
from ..planning.model import CreateWorkload, LabelNode, Plan, Snapshot
from ..render import manifests
from .client import ApiClient, Object
from .kinds import DAEMONSETS, PODS
from .nodes import NodeView

AGAIN = 60.0
"""Seconds after which a node is looked at again: nothing tells us when another pod leaves."""
FEW = 20
"""Up to so many nodes are asked one by one, else all pods of the cluster are listed once."""


async def fitting_plan(client: ApiClient, nodes: Mapping[str, NodeView], snapshot: Snapshot, now: float) -> tuple[Snapshot, Plan]:
    """The plan that drains no node on which the new pod would not run, and the snapshot with what was learnt on the way."""
    looked: set[str] = set()
    taken: dict[str, list[tuple[str, fits.Amounts]]] | None = None
    specs: dict[str, Mapping[str, Any]] = {}
    while True:
        plan = decide(snapshot, now)
        drains = [(node, label) for node, label in _drains(snapshot, plan) if node not in looked]
        found: dict[str, str] = {}
        if drains and (looked or len(drains) > FEW) and taken is None:
            taken = await _all_pods(client)
        for name, label in drains:
            looked.add(name)
            spec = specs[label] if label in specs else await _spec(client, snapshot, plan, label)
            if spec is None:
                continue
            specs[label] = spec
            here = (taken.get(name, []) if taken is not None else await _pods_of(client, name)) if name in nodes else []
            if name in nodes and (why := _why_not(snapshot, spec, nodes[name], here)):
                found[name] = why
        if not found:
            if snapshot.unfit:
                plan = replace(plan, wake_at=min(plan.wake_at or now + AGAIN, now + AGAIN))
            return snapshot, plan
        snapshot = replace(snapshot, unfit={**snapshot.unfit, **found})


def _drains(snapshot: Snapshot, plan: Plan) -> list[tuple[str, str]]:
    """(node, release label) of each node that serves and is about to be drained for that release."""
    key = labels.release_key(snapshot.namespace, snapshot.name)
    serves = {pod.node for pod in snapshot.pods if pod.ready}
    moves = [(a.node, a.labels.get(key) or "") for a in plan.actions if isinstance(a, LabelNode) and a.node in serves]
    return [(node, value.removeprefix(labels.DRAINING)) for node, value in moves if value.startswith(labels.DRAINING)]


async def _spec(client: ApiClient, snapshot: Snapshot, plan: Plan, label: str) -> Mapping[str, Any] | None:
    """The pod of a release: about to be created, or as its DaemonSet has it. None for one that a rollback makes again: it ran there."""
    for action in plan.actions:
        if isinstance(action, CreateWorkload) and action.label == label:
            made: Mapping[str, Any] = manifests.workload(snapshot, action)["spec"]["template"]["spec"]
            return made
    known = next((w for w in snapshot.workloads if w.label == label and not w.deleting), None)
    found = await client.get(DAEMONSETS, known.name, snapshot.namespace) if known is not None else None
    return found["spec"]["template"]["spec"] if found is not None else None


def _why_not(snapshot: Snapshot, spec: Mapping[str, Any], node: NodeView, here: Iterable[tuple[str, fits.Amounts]]) -> str:
    leaving = {pod.uid for pod in snapshot.pods}
    room = fits.Room(node.name, node.labels, [(t.key, t.value, t.effect) for t in node.taints], node.allocatable)
    ours = [key for key in spec.get("nodeSelector") or {} if key.startswith((labels.FP_PREFIX, labels.RELEASE_PREFIX))]
    return fits.why_not(spec, room, [amounts for uid, amounts in here if uid not in leaving], ours)


async def _pods_of(client: ApiClient, node: str) -> list[tuple[str, fits.Amounts]]:
    pods, _ = await client.list(PODS, field_selector=f"spec.nodeName={node}", project=_asks)
    return [(uid, amounts) for _, uid, amounts in pods if uid]


async def _all_pods(client: ApiClient) -> dict[str, list[tuple[str, fits.Amounts]]]:
    pods, _ = await client.list(PODS, project=_asks)
    by_node: dict[str, list[tuple[str, fits.Amounts]]] = {}
    for node, uid, amounts in pods:
        if uid:
            by_node.setdefault(node, []).append((uid, amounts))
    return by_node


def _asks(pod: Object) -> tuple[str, str, fits.Amounts]:
    """(node, uid, requests) of a pod that holds something; an empty uid for one that has ended."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return "", "", {}
    return pod["spec"].get("nodeName", ""), pod["metadata"]["uid"], fits.requests_of(pod["spec"])
