"""What all views share: conditions, node labels, durations, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from enginefleet_api import labels

Object = Mapping[str, Any]

COLOURS = {
    "True": "green", "Passed": "green", "Ready": "green", "ready": "green", "serving": "green",
    "False": "yellow", "Unknown": "yellow", "Waiting": "yellow", "Building": "cyan", "Held": "yellow", "moving": "cyan", "waiting": "yellow",
    "Failed": "red", "Inconclusive": "red", "failed": "red", "unreachable": "red",
}  # fmt: skip


def conditions(obj: Object) -> dict[str, Object]:
    return {one["type"]: one for one in obj.get("status", {}).get("conditions", ())}


def is_true(obj: Object, kind: str) -> bool:
    return conditions(obj).get(kind, {}).get("status") == "True"


def is_of(pod: Object, mdep: Object) -> bool:
    theirs, owner = pod["metadata"], mdep["metadata"]
    return (theirs.get("namespace"), labels_of(pod).get(labels.MODEL_DEPLOYMENT)) == (owner["namespace"], owner["name"])


def is_current(obj: Object) -> bool:
    """Whether the operator has seen the spec as it stands."""
    return bool(obj.get("status", {}).get("observedGeneration", -1) == obj["metadata"].get("generation"))


def epoch(text: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time; None for other text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def span(seconds: float) -> str:
    """`45s`, `12m`, `3h`, `5d`: how kubectl writes an age."""
    whole = max(int(seconds), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def since(text: str, now: float) -> str:
    at = epoch(text)
    return "" if at is None else span(now - at)


def until(text: str, now: float) -> str:
    at = epoch(text)
    return "" if at is None else "now" if at <= now else f"in {span(at - now)}"


def labels_of(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def is_node_ready(node: Object) -> bool:
    return is_true(node, "Ready")


def fingerprint_on(node: Object, hardware_class: str) -> str:
    return labels_of(node).get(labels.fp_key(hardware_class), "")


def drain(value: str) -> bool:
    """Whether no pod is wanted at this moment: one ends, or makes way for a build."""
    return value != labels.plain(value)


def pod_trouble(pod: Object) -> str:
    """Why a pod is not ready, in the pod's own words; "" when none is told."""
    status = pod.get("status", {})
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        state = one.get("state", {})
        for how in ("waiting", "terminated"):
            found = state.get(how)
            if found and found.get("reason") not in (None, "Completed", "PodInitializing", "ContainerCreating"):
                return f"{one['name']}: {found['reason']}" + (f": {found['message']}" if found.get("message") else "")
    return ""


def short(key: str, digits: int = 12) -> str:
    return key.removeprefix("sha256:")[:digits]


def figures(fingerprint: Object) -> str:
    """`top1 0.981, p95 1.3 ms at batch 1`: the headline of what was measured; "" when nothing was."""
    accuracy, latency = fingerprint.get("accuracy") or {}, fingerprint.get("latency") or ()
    parts = [f"{accuracy['metric']} {accuracy['value']}"] if accuracy.get("value") else []
    parts += [f"p95 {one['p95']} ms at batch {one['batch']}" for one in latency[:1]]
    return ", ".join(parts)


def one_line(text: str, limit: int = 200) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def by_name(objects: Iterable[Object]) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in objects}
