"""Gathers snapshots: namespaced objects are read from the API server each time, nodes and cluster-scoped kinds from watches.

Live reads are what makes a reconcile right after a restart, and after an event that got lost: there is no cache of Jobs or pods to be stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from enginefleet_api import labels
from enginefleet_api.resources import EngineStoreSpec, ModelDeploymentSpec, ModelDeploymentStatus, NodeFingerprintSpec

from ..planning.classes import ClassSnapshot
from ..planning.engines import Model, Recorded
from ..planning.model import DeviceHolder, HardwareClass, Job, Node, Settings, Snapshot
from ..planning.serving import service_name
from ..planning.stages import targeted
from . import views
from .client import ApiClient, Object
from .index import NodeIndex
from .kinds import (
    CONTROLLER_REVISIONS,
    DAEMONSETS,
    ENGINE_BUILDS,
    ENGINE_STORES,
    HARDWARE_CLASSES,
    JOBS,
    MODEL_DEPLOYMENTS,
    NAMESPACES,
    PODS,
    SERVICES,
    Resource,
)
from .nodes import NodeView
from .placing import rooms_for


@dataclass(slots=True)
class World:
    """What is watched: shared by all reconciles, changed only by reflectors."""

    nodes: Mapping[str, NodeView]
    fingerprints: Mapping[str, Recorded | None]
    classes: Mapping[str, HardwareClass | None]
    models: Mapping[str, Model | None]
    index: NodeIndex

    def recorded(self, nodes: Iterable[Node]) -> dict[str, NodeFingerprintSpec]:
        return {node.name: found.spec for node in nodes if (found := self.fingerprints.get(node.name)) is not None}


async def observe_model(client: ApiClient, world: World, settings: Settings, namespace: str, name: str) -> tuple[Object, Snapshot] | None:
    """The object as read, and the snapshot; None when it is gone or being deleted (its children are garbage-collected)."""
    obj = await client.get(MODEL_DEPLOYMENTS, name, namespace)
    if obj is None or "deletionTimestamp" in obj["metadata"]:
        return None
    spec = views.parse(ModelDeploymentSpec, obj.get("spec"))
    if spec is None:
        raise ValueError(f"ModelDeployment {namespace}/{name}: its spec cannot be read by this version of the operator; upgrade it")
    meta = obj["metadata"]
    selector = f"{labels.MODEL_DEPLOYMENT}={name}"
    async with asyncio.TaskGroup() as group:
        space = group.create_task(client.get(NAMESPACES, namespace))
        store = group.create_task(client.get(ENGINE_STORES, spec.store_ref.name, namespace))
        service = group.create_task(client.get(SERVICES, service_name(name, meta["uid"]), namespace))
        builds, jobs, sets, pods = (
            group.create_task(_listed(client, kind, namespace, selector)) for kind in (ENGINE_BUILDS, JOBS, DAEMONSETS, PODS)
        )
        # DaemonSets have revisions of their own with the labels of their pods
        kept = group.create_task(client.list(CONTROLLER_REVISIONS, namespace, label_selector=selector, project=views.revision))
    owned_builds = [b for b in builds.result() if _owned(b, meta["uid"])]
    build_uids = {b["metadata"]["uid"] for b in owned_builds}
    owned_jobs = [j for j in jobs.result() if _owned(j, meta["uid"], *build_uids)]
    job_views = tuple(views.job(j, pods.result()) for j in owned_jobs)
    current = {k: v for k, v in world.classes.items() if v is not None}
    space_labels = (space.result() or {}).get("metadata", {}).get("labels", {})
    chosen = targeted(spec, current, space_labels)
    # a class that is named and not there may have left its labels
    about = {c.name for c in chosen} | {t.hardware_class for t in spec.targets if t.hardware_class}
    nodes = world.index.nodes({*about, labels.release_key(namespace, name)})
    snapshot = Snapshot(
        name=name,
        namespace=namespace,
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        annotations=meta.get("annotations", {}),
        spec=spec,
        status=views.parse(ModelDeploymentStatus, obj.get("status")) or ModelDeploymentStatus(),
        classes=current,
        namespace_labels=space_labels,
        store=views.parse(EngineStoreSpec, found_store.get("spec")) if (found_store := store.result()) is not None else None,
        nodes=tuple(nodes),
        fingerprints=world.recorded(nodes),
        builds=tuple(b for b in map(views.engine_build, owned_builds) if b is not None),
        jobs=job_views,
        workloads=tuple(views.workload(d) for d in sets.result() if _owned(d, meta["uid"])),
        revisions=tuple(r for owner, r in kept.result()[0] if owner == meta["uid"]),
        pods=tuple(views.serving_pod(p) for p in pods.result() if p["metadata"].get("labels", {}).get(labels.ROLE) == "serve"),
        holders=await _holders(client, name, namespace, chosen, job_views),
        rooms=await _rooms(client, world, chosen, pods.result()),
        has_service=(found_service := service.result()) is not None and _owned(found_service, meta["uid"]),
        orphans=views.orphan_pods(pods.result(), owned_jobs),
        settings=settings,
    )
    return obj, snapshot


async def _listed(client: ApiClient, kind: Resource, namespace: str, selector: str) -> list[Object]:
    items: list[Object]
    items, _ = await client.list(kind, namespace, label_selector=selector, project=_slim)
    return items


def _slim(obj: Object) -> Object:
    """The object without what nobody reads: of thousands of serving pods the rest is most."""
    meta = obj["metadata"]
    meta.pop("managedFields", None)
    if obj.get("kind") == "Pod" and meta.get("labels", {}).get(labels.ROLE) == "serve":
        spec = obj.get("spec", {})
        # where it runs, or what says for which node it was made
        obj["spec"] = {"nodeName": spec["nodeName"]} if spec.get("nodeName") else {"affinity": spec.get("affinity") or {}}
    return obj


def _owned(obj: Object, *uids: str) -> bool:
    return any(o.get("uid") in uids for o in obj["metadata"].get("ownerReferences", ()))


async def _holders(
    client: ApiClient, name: str, namespace: str, targets: Iterable[HardwareClass], jobs: tuple[Job, ...]
) -> tuple[DeviceHolder, ...]:
    """Who holds the devices that a build waits for: looked up only while one can't be scheduled."""
    if not any(j.waiting is not None and j.waiting[0] == "Unschedulable" for j in jobs):
        return ()
    wanted = {r for one in targets for r in (one.spec.runtime.resources.get("limits") or {}) if "/" in r}
    if not wanted:
        return ()
    pods, _ = await client.list(PODS, field_selector="status.phase=Running", project=lambda pod: _holder(pod, wanted, namespace, name))
    return tuple(sorted((h for h in pods if h is not None), key=lambda h: (h.node, h.pod)))


async def _rooms(client: ApiClient, world: World, targets: Iterable[HardwareClass], pods: list[Object]) -> dict[str, tuple[str, ...]]:
    """Nodes on which a pause would help: looked up only where a class allows one."""
    return await rooms_for(client, world.nodes, pods) if any(c.spec.builds.when_busy == "Auto" for c in targets) else {}


def _holder(pod: Object, wanted: set[str], namespace: str, name: str) -> DeviceHolder | None:
    meta, spec = pod["metadata"], pod.get("spec", {})
    for container in spec.get("containers", ()):
        for resource in sorted(wanted & (container.get("resources", {}).get("limits") or {}).keys()):
            ours = meta["namespace"] == namespace and meta.get("labels", {}).get(labels.MODEL_DEPLOYMENT) == name
            since = pod.get("status", {}).get("startTime", "")
            return DeviceHolder(spec.get("nodeName", ""), resource, f"{meta['namespace']}/{meta['name']}", since, ours)
    return None


async def observe_class(client: ApiClient, world: World, settings: Settings, name: str) -> tuple[Object, ClassSnapshot] | None:
    obj = await client.get(HARDWARE_CLASSES, name)
    if obj is None or "deletionTimestamp" in obj["metadata"]:
        return None
    parsed = views.hardware_class(obj)
    if parsed is None:
        raise ValueError(f"HardwareClass {name}: its spec cannot be read by this version of the operator; upgrade it")
    selector = f"{labels.HARDWARE_CLASS}={name},{labels.ROLE}=probe"
    async with asyncio.TaskGroup() as group:
        jobs, pods = (group.create_task(_listed(client, kind, settings.namespace, selector)) for kind in (JOBS, PODS))
        sets = group.create_task(_listed(client, DAEMONSETS, "", f"{labels.HARDWARE_CLASS}={name}"))
        kept = group.create_task(
            client.list(CONTROLLER_REVISIONS, label_selector=f"{labels.HARDWARE_CLASS}={name}", project=views.revision)
        )
    nodes = world.index.nodes([name])
    snapshot = ClassSnapshot(
        hardware_class=parsed,
        nodes=tuple(nodes),
        fingerprints=world.recorded(nodes),
        jobs=tuple(views.job(j, pods.result()) for j in jobs.result() if _owned(j, parsed.uid)),
        models=tuple(m for m in world.models.values() if m is not None and name in m.classes),
        images_in_use=frozenset(d for w in sets.result() if (d := views.workload(w).image_digest))
        | {r.image_digest for _, r in kept.result()[0] if r.image_digest},
        settings=settings,
    )
    return obj, snapshot
