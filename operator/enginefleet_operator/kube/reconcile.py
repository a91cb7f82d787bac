"""The reconcilers: observe, decide, act, one key at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from enginefleet_api import labels
from enginefleet_api.resources import API_VERSION, EngineStoreSpec, EngineStoreStatus

from ..planning.classes import decide_class, orphaned_labels
from ..planning.decide import decide
from ..planning.engines import decide_engines
from ..planning.model import Plan, Settings, Snapshot, StartBuild, WriteBuildStatus
from ..planning.stores import decide_store
from . import act, views
from .client import ApiClient, Object
from .errors import Conflict
from .events import EventRecorder
from .fitting import fitting_plan
from .kinds import DAEMONSETS, ENGINE_STORES, MODEL_DEPLOYMENTS, NODE_FINGERPRINTS, NODES
from .metrics import Metrics
from .observe import World, observe_class, observe_model
from .placing import with_builds

logger = logging.getLogger(__name__)
RESYNC = 600.0
"""Seconds after which a key is looked at without an event: reads only when nothing has changed."""
REFUSED = 30.0
"""After a write that the API server refuses (quota, an admission policy): nothing tells us when it would be accepted."""
SOON = 0.5
"""After a conflict: another writer was first, the watch will show what it wrote."""
QUEUED = 60.0
"""While a build waits for another one: the end of any build wakes it, this is for what no event tells."""


class Reconcilers:
    """Keys are `namespace/name` for ModelDeployments, the name for HardwareClasses, anything for the sweep."""

    def __init__(
        self,
        client: ApiClient,
        world: World,
        settings: Settings,
        recorder: EventRecorder,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._world = world
        self._settings = settings
        self._recorder = recorder
        self._metrics = metrics
        self._clock = clock
        self._starting = asyncio.Lock()
        self.queued: set[str] = set()
        """ModelDeployments with a build that waits for another one to end."""

    async def model(self, key: str) -> float:
        namespace, _, name = key.partition("/")
        observed = await observe_model(self._client, self._world, self._settings, namespace, name)
        if observed is None:
            return RESYNC
        obj, snapshot = observed
        now = self._clock()
        snapshot, plan = await fitting_plan(self._client, self._world.nodes, snapshot, now)
        if not _starts(plan):
            self.queued.discard(key)
            return await self._carry_out(key, obj, snapshot, plan, now)
        # from counting what runs until ours runs nothing else may start: one operator leads, so a lock of this process is enough
        async with self._starting:
            snapshot = await with_builds(self._client, self._world.nodes, snapshot, plan)
            wished = len(_starts(plan))
            plan = decide(snapshot, now)  # what was learnt of nodes on the way is in the snapshot
            waits = len(_starts(plan)) < wished
            (self.queued.add if waits else self.queued.discard)(key)
            after = await self._carry_out(key, obj, snapshot, plan, now)
        return min(after, QUEUED) if waits else after

    async def _carry_out(self, key: str, obj: Object, snapshot: Snapshot, plan: Plan, now: float) -> float:
        namespace, _, name = key.partition("/")
        try:
            refused = await act.act_model(self._client, snapshot, plan.actions)
            if refused is not None:
                # the plan is as it was; its status must say what keeps it from happening
                plan = replace(plan, status=decide(replace(snapshot, refused=refused), now).status, wake_at=now + REFUSED)
            if plan.status is not None:
                await act.write_status(self._client, API_VERSION, "ModelDeployment", name, namespace, plan.status)
        except Conflict as conflict:
            logger.info("%s: %s; again", key, conflict.message)
            return SOON
        self._count_builds(snapshot, plan)
        act.record(self._recorder, obj, plan.events)
        return _next(plan, now)

    def _count_builds(self, snapshot: Snapshot, plan: Plan) -> None:
        before = {b.name: b.status.phase for b in snapshot.builds}
        for action in plan.actions:
            if isinstance(action, WriteBuildStatus):
                phase = str(action.status.get("phase"))
                if phase != before.get(action.name) and phase in ("Passed", "Failed", "Inconclusive"):
                    self._metrics.builds.labels(phase).inc()

    async def hardware_class(self, key: str) -> float:
        observed = await observe_class(self._client, self._world, self._settings, key)
        if observed is None:
            return RESYNC
        obj, snapshot = observed
        now = self._clock()
        plan = decide_class(snapshot, now)
        try:
            # first what was learnt, then the labels: a label without its record would be taken back by the next life
            if plan.status is not None:
                await act.write_status(self._client, API_VERSION, "HardwareClass", key, "", plan.status)
            await act.act_class(self._client, snapshot, plan.actions)
        except Conflict as conflict:
            logger.info("%s: %s; again", key, conflict.message)
            return SOON
        act.record(self._recorder, obj, plan.events)
        return _next(plan, now)

    async def engines(self, _: str) -> float:
        """What every NodeFingerprint says of its node's engines, from what is watched: nothing is read."""
        world = self._world
        nodes = [view.node for view in world.nodes.values()]
        recorded = {name: r for name, r in world.fingerprints.items() if r is not None}
        classes = [c for c in world.classes.values() if c is not None]
        models = [m for m in world.models.values() if m is not None]
        writes = decide_engines(nodes, recorded, classes, models, self._clock())
        for action in act.one_pass(writes):
            await act.write_engines(self._client, action)
        return 0.0 if act.is_more_than_a_pass(writes) else RESYNC

    async def store(self, key: str) -> float:
        namespace, _, name = key.partition("/")
        obj = await self._client.get(ENGINE_STORES, name, namespace)
        spec = views.parse(EngineStoreSpec, (obj or {}).get("spec")) if obj is not None else None
        if obj is None or spec is None or "deletionTimestamp" in obj["metadata"]:
            return RESYNC
        status = views.parse(EngineStoreStatus, obj.get("status")) or EngineStoreStatus()
        plan = decide_store(spec, status, obj["metadata"].get("generation", 0), self._clock())
        if plan.status is not None:
            await act.write_status(self._client, API_VERSION, "EngineStore", name, namespace, plan.status)
        return RESYNC

    async def sweep(self, _: str) -> float:
        """Take back labels whose owner is gone. Lists live: a label must not be lost to a watch that lags."""
        models, _version = await self._client.list(
            MODEL_DEPLOYMENTS, project=lambda o: labels.release_key(o["metadata"]["namespace"], o["metadata"]["name"])
        )
        sets, _version = await self._client.list(DAEMONSETS, label_selector=f"{labels.ROLE}=serve", project=_selected)
        nodes = tuple(view.node for view in self._world.nodes.values())
        try:
            orphans = orphaned_labels(nodes, frozenset(models), frozenset(self._world.classes), frozenset().union(*sets))
            for action in act.one_pass(orphans):
                await act.label_node(self._client, action)
        except Conflict:
            return SOON
        # what was observed of a node says nothing about another one that gets its name
        for name in sorted(self._world.fingerprints.keys() - self._world.nodes.keys()):
            if await self._client.get(NODES, name) is None:
                await self._client.delete(NODE_FINGERPRINTS, name)
        return 0.0 if act.is_more_than_a_pass(orphans) else RESYNC


def _starts(plan: Plan) -> list[StartBuild]:
    return [action for action in plan.actions if isinstance(action, StartBuild)]


def _selected(workload: Object) -> frozenset[str]:
    """Fingerprint labels that a workload selects its nodes by."""
    return frozenset(k for k in workload["spec"]["template"]["spec"].get("nodeSelector", {}) if k.startswith(labels.FP_PREFIX))


def _next(plan: Plan, now: float) -> float:
    """Seconds until the next look; at once when the plan was longer than a pass."""
    if act.is_more_than_a_pass(plan.actions):
        return 0.0
    return _after(plan.wake_at, now)


def _after(wake_at: float | None, now: float) -> float:
    return RESYNC if wake_at is None else min(max(wake_at - now, 0.0) + 0.05, RESYNC)
