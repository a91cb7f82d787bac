"""Carries out a plan: one write an action, in order. Every write is one that a restart finds done or does again to the same effect."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, TransientFault
from enginefleet_api.resources import API_VERSION

from ..planning.classes import ClassSnapshot
from ..planning.model import (
    Action,
    CreateBuild,
    CreateService,
    CreateWorkload,
    Delete,
    Event,
    KeepRevision,
    LabelNode,
    RestoreWorkload,
    Snapshot,
    StartBuild,
    StartPreload,
    StartPrepare,
    StartProbe,
    StartVerify,
    WriteBuildStatus,
    WriteEngines,
    WriteObservations,
)
from ..render import manifests
from .client import ApiClient, Object
from .errors import AlreadyExists, Conflict, NotFound
from .events import EventRecorder
from .kinds import CONTROLLER_REVISIONS, DAEMONSETS, ENGINE_BUILDS, JOBS, NODES, PODS, Resource

logger = logging.getLogger(__name__)
_DELETABLE: Mapping[str, Resource] = {r.kind: r for r in (JOBS, DAEMONSETS, CONTROLLER_REVISIONS, ENGINE_BUILDS, PODS)}
_OF_NODES = (LabelNode, WriteObservations, WriteEngines, StartPreload)
OBSERVATIONS = "enginefleet-observations"
"""Field manager stem of what the operator adds to a NodeFingerprint; the agent owns the rest."""

ENGINES = "enginefleet-engines"
"""Field manager of the status of a NodeFingerprint."""


PASS = 300
"""Writes to nodes, and records of them, that a plan makes before it is decided anew: a fleet of thousands is labelled in several passes."""
NAMED = 3
"""Nodes that a line of the log names."""


A = TypeVar("A")


def is_more_than_a_pass(actions: Iterable[object]) -> bool:
    return sum(isinstance(action, _OF_NODES) for action in actions) > PASS


def one_pass(actions: Iterable[A]) -> Iterator[A]:
    """All but what is beyond a pass. What was done to nodes is logged at the end, a line for all of which the same is to be said."""
    told: dict[str, list[str]] = {}
    count = 0
    try:
        for action in actions:
            if isinstance(action, _OF_NODES):
                count += 1
                if count > PASS:
                    continue
            yield action
            if isinstance(action, LabelNode):
                told.setdefault(f"{', '.join(f'{k}={v}' for k, v in action.labels.items())} ({action.why})", []).append(action.node)
    finally:
        for what, nodes in told.items():
            more = "" if len(nodes) <= NAMED else f" and {len(nodes) - NAMED} more"
            logger.info("node%s %s%s: %s", "s" if len(nodes) > 1 else "", ", ".join(nodes[:NAMED]), more, what)


async def act_model(client: ApiClient, snapshot: Snapshot, actions: Sequence[Action]) -> tuple[str, str] | None:
    """A pass over the actions, whatever became of the one before; (reason, message) of the first that was refused.

    A quota that refuses a Job must not keep a drained node from its release. Conflicts and an API server that is away end the pass.
    """
    refused: tuple[str, str] | None = None
    for action in one_pass(actions):
        try:
            await _act_model(client, snapshot, action)
        except (Conflict, TransientFault):
            raise
        except EngineFleetError as error:
            name = getattr(action, "name", getattr(action, "job", ""))
            logger.warning("%s %s: %s", type(action).__name__, name, error)
            refused = refused or (f"{type(action).__name__}Refused", f"{name}: {error.message}")
    return refused


async def _act_model(client: ApiClient, snapshot: Snapshot, action: Action) -> None:
    match action:
        case StartPrepare():
            await _create(client, manifests.prepare_job(snapshot, action))
        case CreateBuild():
            await _create(client, manifests.engine_build(snapshot, action))
        case StartBuild():
            await _create(client, manifests.build_job(snapshot, action))
        case StartVerify():
            await _create(client, manifests.verify_job(snapshot, action))
        case CreateWorkload():
            await _create(client, manifests.workload(snapshot, action))
        case StartPreload():
            await _create(client, manifests.preload_job(snapshot, action))
        case KeepRevision():
            await _create(client, manifests.revision(snapshot, action.workload))
        case RestoreWorkload():
            kept = await client.get(CONTROLLER_REVISIONS, action.name, snapshot.namespace)
            if kept is not None:  # else the next look finds that it is gone
                await _create(client, kept["data"])
        case CreateService():
            await _create(client, manifests.service(snapshot, action))
        case WriteBuildStatus():
            await write_status(client, API_VERSION, "EngineBuild", action.name, snapshot.namespace, action.status)
        case _:
            await _common(client, action, snapshot.namespace)


async def act_class(client: ApiClient, snapshot: ClassSnapshot, actions: Sequence[Action]) -> None:
    for action in one_pass(actions):
        match action:
            case StartProbe():
                settings = snapshot.settings
                await _create(client, manifests.probe_job(snapshot.hardware_class, action, settings.namespace, settings.job_ttl))
            case WriteObservations():
                await _write_observations(client, snapshot.hardware_class.name, action)
            case _:
                await _common(client, action, snapshot.settings.namespace)


async def _common(client: ApiClient, action: Action, namespace: str) -> None:
    match action:
        case LabelNode():
            await label_node(client, action)
        case Delete():
            try:
                await client.delete(_DELETABLE[action.kind], action.name, namespace, uid=action.uid)
            except Conflict:
                logger.info("%s %s/%s was replaced meanwhile, not deleted", action.kind, namespace, action.name)
        case _:
            raise TypeError(f"{type(action).__name__} has no place in this plan")


async def label_node(client: ApiClient, action: LabelNode) -> None:
    body = {"metadata": {"resourceVersion": action.resource_version, "labels": dict(action.labels)}}
    await client.merge_patch(NODES, action.node, body)


async def _create(client: ApiClient, manifest: Mapping[str, Any]) -> None:
    """Create, or find that an earlier life of ours did.

    What exists under our name counts as done only when the same owner stands in it and nobody is deleting it.
    """
    try:
        await client.create(dict(manifest))
        logger.info("created %s %s/%s", manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
    except AlreadyExists as error:
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        if error.is_being_deleted:
            raise TransientFault("StillDeleting", f"{what} is being deleted; it is created again when it is gone.") from error
        owners = {o["uid"] for o in (error.existing or {}).get("metadata", {}).get("ownerReferences", ())}
        wanted = {o["uid"] for o in manifest["metadata"]["ownerReferences"]}
        if error.existing is not None and not owners & wanted:
            raise EnvironmentFault("NameTaken", f"{what} exists and is not ours.", "Rename or delete it.") from error


async def write_status(client: ApiClient, api_version: str, kind: str, name: str, namespace: str, status: Mapping[str, Any]) -> Object:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return await client.apply({"apiVersion": api_version, "kind": kind, "metadata": metadata, "status": dict(status)}, subresource="status")


async def write_engines(client: ApiClient, action: WriteEngines) -> None:
    """The status of a NodeFingerprint; one that is gone is not made again."""
    document = {"apiVersion": API_VERSION, "kind": "NodeFingerprint", "metadata": {"name": action.node}, "status": dict(action.status)}
    with contextlib.suppress(NotFound):
        await client.apply(document, field_manager=ENGINES, subresource="status")


async def _write_observations(client: ApiClient, hardware_class: str, action: WriteObservations) -> None:
    """One field manager a class: applying the list of one class takes nothing from another's."""
    observations = [o.to_json_dict(exclude_none=False) for o in action.observations]
    await client.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "NodeFingerprint",
            "metadata": {"name": action.node},
            "spec": {"node": action.node} | ({"observations": observations} if observations else {}),
        },
        field_manager=f"{OBSERVATIONS}-{hardware_class}",
    )


def record(recorder: EventRecorder, obj: Object, events: Iterable[Event]) -> None:
    for event in events:
        recorder.record(obj, "Warning" if event.warning else "Normal", event.reason, event.message)
