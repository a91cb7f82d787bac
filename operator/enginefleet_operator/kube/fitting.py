"""Looks before a node is drained: would the new pod run there? Nothing is drained for a pod that would only wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from enginefleet_api import labels

from ..planning import fits
from ..planning.decide import decide
from ..planning.model import CreateWorkload, LabelNode, Plan, Snapshot
from ..render import manifests
from .client import ApiClient, Object
from .kinds import DAEMONSETS, PODS
from .nodes import NodeView

FEW = 20
SHARE = 0.1
"""Nodes are asked one by one when they are few, or this share of the cluster: an answer is an index away. Else all pods are listed once."""
AT_ONCE = 8
"""Nodes that are asked at a time."""


async def fitting_plan(client: ApiClient, nodes: Mapping[str, NodeView], snapshot: Snapshot, now: float) -> tuple[Snapshot, Plan]:
    """The plan that drains no node on which the new pod would not run, and the snapshot with what was learnt on the way."""
    looked: set[str] = set()
    specs: dict[str, Mapping[str, Any]] = {}
    leaving = {pod.uid for pod in snapshot.pods}
    while True:
        plan = decide(snapshot, now)
        drains = [(node, label) for node, label in _drains(snapshot, plan) if node not in looked and node in nodes]
        looked |= {node for node, _ in drains}
        for label in {label for _, label in drains} - specs.keys():
            if (spec := await _spec(client, snapshot, plan, label)) is not None:
                specs[label] = spec
        drains = [(node, label) for node, label in drains if label in specs]
        taken = await occupancy(client, {node for node, _ in drains}, len(nodes)) if drains else {}
        found: dict[str, str] = {}
        for node, label in drains:
            here = [one.amounts for one in taken.get(node, ()) if one.uid not in leaving]
            if why := why_not(specs[label], nodes[node], here):
                found[node] = why
        if not found:
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


def why_not(spec: Mapping[str, Any], node: NodeView, others: Iterable[fits.Amounts]) -> str:
    """Why a pod of `spec` would not run on the node beside `others`; labels of ours count as set."""
    room = fits.Room(node.name, node.labels, [(t.key, t.value, t.effect) for t in node.taints], node.allocatable)
    ours = [key for key in spec.get("nodeSelector") or {} if key.startswith((labels.FP_PREFIX, labels.RELEASE_PREFIX))]
    return fits.why_not(spec, room, others, ours)


@dataclass(frozen=True, slots=True)
class Holding:
    """A pod of a node that has not ended, and what it asks for."""

    uid: str
    amounts: fits.Amounts
    serves: bool


async def occupancy(client: ApiClient, nodes: Collection[str], of: int) -> dict[str, list[Holding]]:
    """The pods of these nodes, of a cluster of `of` nodes."""
    found: dict[str, list[Holding]] = {}
    selectors = iter([f"spec.nodeName={node}" for node in nodes] if len(nodes) <= max(FEW, of * SHARE) else [""])

    async def ask() -> None:
        for selector in selectors:
            pods, _ = await client.list(PODS, field_selector=selector, project=_holding)
            for node, one in pods:
                if one is not None and node in nodes:
                    found.setdefault(node, []).append(one)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(ask())
    return found


def _holding(pod: Object) -> tuple[str, Holding | None]:
    meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
    if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return "", None
    return node, Holding(meta["uid"], fits.requests_of(pod["spec"]), meta.get("labels", {}).get(labels.ROLE) == "serve")
