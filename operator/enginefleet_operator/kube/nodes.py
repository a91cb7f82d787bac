"""A node as decisions need it: about a kilobyte instead of the ten on the wire."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ..planning.concerns import releases_changed
from ..planning.model import Node
from .client import FIELD_MANAGER


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """The projection of a Node. Equality leaves `resource_version` out: it moves with every image list that the kubelet reports.

    ready            condition Ready is "True"
    reachable        condition Ready is "True" or "False": "Unknown" or absent means that nobody hears from the kubelet
    ready_since      seconds since the epoch of the last change of that condition, 0 when absent
    allocatable      quantities as text, by resource name, extended resources included
    labelled_at      seconds since the epoch of our own last write there, 0 when there was none
    """

    name: str
    uid: str
    resource_version: str = field(compare=False)
    created: float
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    ready: bool
    reachable: bool
    ready_since: float
    allocatable: Mapping[str, str]
    boot_id: str
    arch: str
    os: str
    deleting: bool
    labelled_at: float = 0.0
    node: Node = field(init=False, compare=False, repr=False)
    """The same as decisions read it: made once, not for each of them."""

    def __post_init__(self) -> None:
        made = Node(
            name=self.name,
            resource_version=self.resource_version,
            labels=self.labels,
            ready=self.ready and not self.deleting,
            unschedulable=self.unschedulable,
            since=self.ready_since,
            labelled_at=self.labelled_at,
            boot_id=self.boot_id,
        )
        object.__setattr__(self, "node", made)


def project_node(node: Mapping[str, Any]) -> NodeView:
    """Texts that many nodes share are interned: 5,000 nodes have a few hundred distinct labels and quantities."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    info = status.get("nodeInfo", {})
    ready: Mapping[str, Any] = next((condition for condition in status.get("conditions", ()) if condition.get("type") == "Ready"), {})
    return NodeView(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        created=epoch(metadata.get("creationTimestamp")),
        labels=_interned(metadata.get("labels", {})),
        taints=tuple(
            Taint(sys.intern(taint["key"]), sys.intern(taint.get("value", "")), sys.intern(taint["effect"]))
            for taint in spec.get("taints", ())
        ),
        unschedulable=bool(spec.get("unschedulable", False)),
        ready=ready.get("status") == "True",
        reachable=ready.get("status") in ("True", "False"),
        ready_since=epoch(ready.get("lastTransitionTime")),
        allocatable=_interned(status.get("allocatable", {})),
        boot_id=info.get("bootID", ""),
        arch=sys.intern(info.get("architecture", "")),
        os=sys.intern(info.get("operatingSystem", "")),
        deleting="deletionTimestamp" in metadata,
        labelled_at=max((epoch(f.get("time")) for f in metadata.get("managedFields", ()) if f["manager"] == FIELD_MANAGER), default=0.0),
    )


def only_releases(old: NodeView, new: NodeView) -> frozenset[str] | None:
    """Release keys that differ between two views of a node, when nothing else does but the time of our last write."""
    same = replace(old, labels=new.labels, labelled_at=new.labelled_at) == new
    return releases_changed(old.labels, new.labels) if same else None


def _interned(texts: Mapping[str, str]) -> dict[str, str]:
    return {sys.intern(key): sys.intern(value) for key, value in texts.items()}


def epoch(timestamp: str | None) -> float:
    """Seconds since the epoch of an RFC 3339 time as the API server writes it; 0 for none."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
