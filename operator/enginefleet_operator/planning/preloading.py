"""Brings an engine to a node's cache before what serves there ends: a slow link, or a store that is away, costs no service.

One Job a node, of a name that follows from node and engine. It is tried again for as long as the node's turn has not passed, and is gone when
the node has moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from enginefleet_api.errors import FailureClass
from enginefleet_api.identity import object_name

from . import retry
from .model import Action, CreateWorkload, Delete, Job, Node, Snapshot, StartPreload

AGAIN = {FailureClass.TRANSIENT: 60.0, FailureClass.ENVIRONMENT: 600.0}
"""Seconds after which a Job that failed is tried again. What is permanent is left to the pod, which says the same in its own words."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How it stands with one node. `unfit`: why the engine does not get there, and what serves stays; `said`: what it waits for."""

    loaded: bool
    unfit: str = ""
    said: str = ""


def job_name(s: Snapshot, node: str, blob: str) -> str:
    return object_name(f"{s.name[:34]}-preload", s.uid, "preload", node, blob)


def jobs_of(s: Snapshot) -> dict[str, Job]:
    return {job.name: job for job in s.jobs if job.role == "preload"}


def loading(s: Snapshot, jobs: Mapping[str, Job], node: Node, current: str, workload: CreateWorkload | None) -> Loading:
    """`current`: the node's release label. An engine that serves there is on the node, whatever release it is of."""
    if workload is None or _digits(current) == _digits(workload.label):
        return Loading(True)
    job = jobs.get(job_name(s, node.name, workload.blob))
    if job is None or job.deleting:
        return Loading(False)
    if job.active:
        return Loading(False, said="{}: {}".format(*job.waiting) if job.waiting is not None else "")
    if job.failure is None or job.failure.failure_class is FailureClass.PERMANENT:
        return Loading(True)
    text = f"{job.failure.reason}: {job.failure.message} Again at {retry.timestamp(_again_at(job))}."
    if job.failure.failure_class is FailureClass.ENVIRONMENT:
        return Loading(False, unfit=f"the engine does not get there: {text}")
    return Loading(False, said=text)


def _digits(label: str) -> str:
    """Of the engine in a value of a release label."""
    return label.rpartition("-")[2]


def _again_at(job: Job) -> float:
    assert job.failure is not None
    return job.ended + AGAIN[job.failure.failure_class]


def preload(
    s: Snapshot, load: Sequence[tuple[str, CreateWorkload]], waiting: Iterable[tuple[str, str]], now: float
) -> tuple[list[Action], float | None]:
    """What to do, and when to look again. `load`: nodes whose turn has come; `waiting`: (node, blob) of all that have not moved yet."""
    jobs = jobs_of(s)
    wanted = {job_name(s, node, blob) for node, blob in waiting}
    actions: list[Action] = [
        Delete("Job", job.name, job.uid, "nothing waits for that engine on the node any more")
        for job in jobs.values()
        if job.name not in wanted and not job.deleting
    ]
    wakes: list[float] = []
    for job in jobs.values():
        if job.name not in wanted or job.deleting or job.active or job.failure is None or job.failure.failure_class not in AGAIN:
            continue
        if now >= _again_at(job):
            actions.append(Delete("Job", job.name, job.uid, "it failed, and is tried again"))
        else:
            wakes.append(_again_at(job))
    for node, workload in load:
        name = job_name(s, node, workload.blob)
        if name not in jobs:
            actions.append(StartPreload(name, node, workload))
    return actions, min(wakes, default=None)
