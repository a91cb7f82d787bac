"""A live picture of the cluster from watches, and waiting for a fact instead of for a time."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from demo.kube import Kube, KubeError

Object = Mapping[str, Any]
T = TypeVar("T")

PATHS = {
    "mdep": "/apis/enginefleet.io/v1alpha1/modeldeployments",
    "hwc": "/apis/enginefleet.io/v1alpha1/hardwareclasses",
    "eb": "/apis/enginefleet.io/v1alpha1/enginebuilds",
    "nf": "/apis/enginefleet.io/v1alpha1/nodefingerprints",
    "job": "/apis/batch/v1/jobs",
    "ds": "/apis/apps/v1/daemonsets",
    "deploy": "/apis/apps/v1/deployments",
    "pod": "/api/v1/pods",
    "node": "/api/v1/nodes",
    "event": "/apis/events.k8s.io/v1/events",
}


class NotInTime(Exception):
    """What was waited for did not come; the message ends with what the cluster says about it."""


class World:
    """Watches every kind of PATHS; a context manager. `on_change(kind, type, object, before)` is called for each change, one at a time."""

    def __init__(self, kube: Kube, on_change: Callable[[str, str, Object, Object | None], None] = lambda *_: None) -> None:
        self._kube, self._on_change = kube, on_change
        self._objects: dict[str, dict[str, Object]] = {kind: {} for kind in PATHS}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in PATHS]
        self._listed: set[str] = set()

    def __enter__(self) -> Self:
        """Returns once every kind was listed."""
        for thread in self._threads:
            thread.start()
        self.wait("the first list of every kind", lambda: len(self._listed) == len(PATHS), 30)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The threads end when the proxy closes their connections."""
        self._stop.set()

    # ---- reading

    def all(self, kind: str, namespace: str = "", **labels: str) -> list[Object]:
        """Objects of a kind, oldest name first; labels given as `role="serve"` mean enginefleet.io/role."""
        wanted = {f"enginefleet.io/{key.replace('_', '-')}": value for key, value in labels.items()}
        with self._changed:
            found = list(self._objects[kind].values())
        return sorted(
            (
                o for o in found
                if (not namespace or o["metadata"].get("namespace") == namespace)
                and all(o["metadata"].get("labels", {}).get(key) == value for key, value in wanted.items())
            ),
            key=lambda o: str(o["metadata"]["name"]),
        )  # fmt: skip

    def one(self, kind: str, name: str, namespace: str = "") -> Object | None:
        with self._changed:
            return self._objects[kind].get(f"{namespace}/{name}")

    # ---- waiting

    def wait(self, what: str, found: Callable[[], T | None], seconds: float) -> T:
        """The first true value of `found()`, asked again at each change. Raises NotInTime."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                if value := found():
                    return value
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, 1.0))
        raise NotInTime(f"not within {seconds:.0f} s: {what}\n{diagnosis(self)}")

    def quiet(self, seconds: float, disturbed: Callable[[], str]) -> str:
        """Watch for `seconds` that nothing happens; returns the first disturbance, or an empty text."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while (left := deadline - time.monotonic()) > 0:
                if what := disturbed():
                    return what
                self._changed.wait(left)
        return disturbed()

    # ---- watching

    def _follow(self, kind: str) -> None:
        while not self._stop.is_set():
            try:
                version = self._list(kind)
                for type_, item in self._kube.watch(PATHS[kind], version):
                    if type_ == "ERROR":
                        break  # the version is too old: list again
                    self._take(kind, type_, item)
            except (OSError, http.client.HTTPException, KubeError, json.JSONDecodeError):
                # the API server or the proxy is away; the end of the demo looks the same
                self._stop.wait(0.5)

    def _list(self, kind: str) -> str:
        answer = self._kube.get(PATHS[kind])
        present = {_key(item): item for item in answer.get("items", [])}
        for key, item in list(self._objects[kind].items()):
            if key not in present:
                self._take(kind, "DELETED", item)
        for key, item in present.items():
            self._take(kind, "MODIFIED" if key in self._objects[kind] else "ADDED", item)
        with self._changed:
            self._listed.add(kind)
            self._changed.notify_all()
        return str(answer["metadata"]["resourceVersion"])

    def _take(self, kind: str, type_: str, item: Object) -> None:
        with self._changed:
            before = self._objects[kind].get(_key(item))
            if before is not None and type_ != "DELETED" and before["metadata"]["resourceVersion"] == item["metadata"]["resourceVersion"]:
                return
            if type_ == "DELETED":
                self._objects[kind].pop(_key(item), None)
            else:
                self._objects[kind][_key(item)] = item
            self._on_change(kind, type_, item, before)
            self._changed.notify_all()


def _key(item: Object) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


# ---- reading objects


def condition(item: Object | None, type_: str) -> Mapping[str, str]:
    """The condition of that type; empty when it is not there."""
    found = (item or {}).get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == type_), {})


def is_true(item: Object | None, type_: str) -> bool:
    return condition(item, type_).get("status") == "True"


def is_ready_pod(pod: Object) -> bool:
    return is_true(pod, "Ready") and "deletionTimestamp" not in pod["metadata"]


def is_settled(item: Object | None, type_: str = "Ready") -> bool:
    """The condition is true and the controller has seen the present spec."""
    return item is not None and is_true(item, type_) and item["status"].get("observedGeneration") == item["metadata"]["generation"]


def messages_of_pod(pod: Object) -> Iterator[str]:
    """Why a pod does not run: waiting reasons and the last words of its containers."""
    status = pod.get("status", {})
    for c in status.get("conditions", []):
        if c["type"] == "PodScheduled" and c["status"] != "True":
            yield f"{c.get('reason')}: {c.get('message')}"
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        for state in (container.get("state", {}), container.get("lastState", {})):
            if waiting := state.get("waiting"):
                yield f"{container['name']}: waiting, {waiting.get('reason')} {waiting.get('message', '')}"
            ended = state.get("terminated")
            if ended and ended.get("exitCode"):
                yield f"{container['name']}: exit {ended['exitCode']}, {ended.get('message') or ended.get('reason')}"


def diagnosis(world: World) -> str:
    """Everything of ours that is not as it should be, for a person: conditions, Jobs, pods, the last events."""
    lines: list[str] = []
    for kind in ("hwc", "mdep", "eb"):
        for item in world.all(kind):
            name = f"{kind}/{item['metadata']['name']}"
            status = item.get("status", {})
            if kind == "eb":
                lines.append(f"{name}: {status.get('phase') or 'no phase'} {status.get('message', '')}")
            elif not status.get("conditions"):
                lines.append(f"{name}: no conditions: no operator has looked at it")
            lines += [f"{name}: {c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in status.get("conditions", [])]
    for job in world.all("job"):
        state = {key: value for key, value in job.get("status", {}).items() if key in ("active", "succeeded", "failed", "ready")}
        lines.append(f"job/{job['metadata']['name']}: {state}")
    for pod in world.all("pod"):
        if not is_ready_pod(pod) and pod.get("status", {}).get("phase") != "Succeeded":
            words = "; ".join(messages_of_pod(pod))
            lines.append(
                f"pod/{pod['metadata']['namespace']}/{pod['metadata']['name']}: {pod.get('status', {}).get('phase')} {words}"[:600]
            )
    events = sorted(
        world.all("event"), key=lambda e: str(e.get("eventTime") or e.get("deprecatedLastTimestamp") or e["metadata"]["creationTimestamp"])
    )
    for event in events[-15:]:
        about = event.get("regarding", {})
        lines.append(f"event {about.get('kind')}/{about.get('name')}: {event.get('reason')}: {event.get('note', '')}"[:300])
    return "\n".join(f"    {line}" for line in lines)
