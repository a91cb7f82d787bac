"""Whether a pod could run on a node once its predecessor is gone: what the scheduler would say, as far as a DaemonSet's pod is concerned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enginefleet_api.base import any_quantity

ALWAYS_TOLERATED = frozenset(
    f"node.kubernetes.io/{name}"
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable", "network-unavailable")
)
"""Taints that the DaemonSet controller tolerates for its pods (network-unavailable only on the host's network, and there it passes by itself)."""
Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Room:
    """A node as the scheduler sees it. taints: (key, value, effect)."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[tuple[str, str, str]]
    allocatable: Mapping[str, str]


def requests_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """What a pod asks for: its containers together or its largest init container, and the overhead. A limit without a request is one."""
    total: dict[str, float] = {}
    for container in spec.get("containers") or ():
        for name, amount in _asked(container).items():
            total[name] = total.get(name, 0.0) + amount
    beside: dict[str, float] = {}  # init containers that stay
    for container in spec.get("initContainers") or ():
        asked = _asked(container)
        stays = container.get("restartPolicy") == "Always"
        for name, amount in asked.items():
            if stays:
                beside[name] = beside.get(name, 0.0) + amount
            total[name] = max(total.get(name, 0.0), amount + (0.0 if stays else beside.get(name, 0.0)))
    for name, amount in beside.items():
        total[name] = total.get(name, 0.0) + amount
    for name, text in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, 0.0) + any_quantity(str(text))
    return total


def _asked(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    written = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: any_quantity(str(text)) for name, text in written.items()}


def why_not(spec: Mapping[str, Any], room: Room, others: Iterable[Amounts], ours: Iterable[str] = ()) -> str:
    """Why a pod of `spec` would not run there; "" when nothing speaks against it.

    `others`: what the other pods of the node ask for, less the one that makes room. `ours`: labels that are set when it comes.
    """
    for key, value, effect in room.taints:
        if (
            effect != "PreferNoSchedule"
            and key not in ALWAYS_TOLERATED
            and not _tolerated(spec.get("tolerations") or (), key, value, effect)
        ):
            return f"the node has the taint {key}{'=' + value if value else ''}:{effect}, which the pod does not tolerate"
    own = set(ours)
    for key, value in (spec.get("nodeSelector") or {}).items():
        if key not in own and room.labels.get(key) != value:
            return f"the pod's nodeSelector wants {key}={value}, the node has {room.labels.get(key, 'no such label')!r}"
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not any(_matches(term, room) for term in required.get("nodeSelectorTerms") or ()):
        return "no term of the pod's node affinity matches the node"
    taken: dict[str, float] = {"pods": 0.0}
    for amounts in others:
        taken["pods"] += 1
        for name, amount in amounts.items():
            taken[name] = taken.get(name, 0.0) + amount
    for name, amount in {**requests_of(spec), "pods": 1.0}.items():
        has = any_quantity(room.allocatable[name]) if name in room.allocatable else 0.0 if name != "pods" else float("inf")
        free = has - taken.get(name, 0.0)
        if amount > free + 1e-9:
            return f"the pod asks for {_said(amount)} {name}, of {_said(has)} on the node {_said(max(0.0, free))} are left by other pods"
    return ""


def _said(amount: float) -> str:
    if amount >= 2**20:
        return f"{amount / 2**20:.0f}Mi"
    return f"{amount:g}"


def _tolerated(tolerations: Iterable[Mapping[str, Any]], key: str, value: str, effect: str) -> bool:
    for t in tolerations:
        if t.get("effect") not in (None, "", effect):
            continue
        if not t.get("key"):
            if t.get("operator") == "Exists":
                return True
        elif t["key"] == key and (t.get("operator") == "Exists" or t.get("value", "") == value):
            return True
    return False


def _matches(term: Mapping[str, Any], room: Room) -> bool:
    rules = [(rule, room.labels) for rule in term.get("matchExpressions") or ()]
    rules += [(rule, {"metadata.name": room.name}) for rule in term.get("matchFields") or ()]
    return bool(rules) and all(_holds(rule, have) for rule, have in rules)


def _holds(rule: Mapping[str, Any], have: Mapping[str, str]) -> bool:
    found, values = have.get(rule["key"]), rule.get("values") or []
    match rule["operator"]:
        case "In":
            return found in values
        case "NotIn":
            return found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt" as operator:
            if found is None or not found.lstrip("-").isdigit():
                return False
            return int(found) > int(values[0]) if operator == "Gt" else int(found) < int(values[0])
    return False
