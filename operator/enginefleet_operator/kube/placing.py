"""What a build needs to know of the cluster before it starts: which others run, and what its nodes look like now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from enginefleet_api import labels

from ..planning.model import Place, Plan, RunningBuild, Snapshot, StartBuild
from ..render import manifests
from .client import ApiClient, Object
from .fitting import occupancy, why_not
from .kinds import JOBS, PODS
from .nodes import NodeView
from .views import ended
from .views import waiting as waiting_of

MOST = 50
"""So many nodes of a fingerprint are looked at, those that come first by name: a build needs one of them."""


async def with_builds(client: ApiClient, nodes: Mapping[str, NodeView], snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot with the builds that run anywhere, and the places that those of the plan could take. Reads live."""
    selector = f"{labels.ROLE}=build"
    jobs, _ = await client.list(JOBS, label_selector=selector, project=_job)
    pods, _ = await client.list(PODS, label_selector=selector, project=_placed)
    placed = dict(pods)
    # one that only judges again, and has no place, must not keep others from being built: it may wait for an approval
    running = tuple(
        RunningBuild(job[1], job[2], placed.get(job[0], "")) for job in jobs if job is not None and (placed.get(job[0]) or not job[3])
    )
    starts = [action for action in plan.actions if isinstance(action, StartBuild)]
    candidates = [_of_its_kind(nodes, action) for action in starts]
    taken = await occupancy(client, {name for names in candidates for name in names}, len(nodes))
    places: dict[str, Place] = {}
    for action, names in zip(starts, candidates, strict=True):
        spec = manifests.build_job(snapshot, action)["spec"]["template"]["spec"]
        for name in names:
            here = taken.get(name, [])
            serves = any(one.serves for one in here)
            places[name] = Place(why_not(spec, nodes[name], [one.amounts for one in here]), serves)
    return replace(snapshot, running=running, places=places)


async def rooms_for(client: ApiClient, nodes: Mapping[str, NodeView], pods: Collection[Object]) -> dict[str, tuple[str, ...]]:
    """For each build of a ModelDeployment that the scheduler finds no place for: nodes on which it would have one without what that one serves.

    `pods`: all of the ModelDeployment. Reads live, and only while such a build waits.
    """
    waiting = [pod for pod in pods if _role(pod) == "build" and (waiting_of(pod) or ("",))[0] == "Unschedulable"]
    ours = [pod for pod in pods if _role(pod) == "serve" and pod["spec"].get("nodeName") in nodes]
    if not waiting or not ours:
        return {}
    names = sorted({pod["spec"]["nodeName"] for pod in ours})[:MOST]
    leaving = {pod["metadata"]["uid"] for pod in ours}
    taken = await occupancy(client, names, len(nodes))
    others = {name: [one.amounts for one in taken.get(name, ()) if one.uid not in leaving] for name in names}
    return {
        pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]: tuple(n for n in names if not why_not(pod["spec"], nodes[n], others[n]))
        for pod in waiting
    }


def _role(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get(labels.ROLE, ""))


def _of_its_kind(nodes: Mapping[str, NodeView], action: StartBuild) -> list[str]:
    """Ready nodes of the fingerprint that is built for."""
    key = labels.fp_key(action.spec.hardware_class, action.spec.image_digest)
    return sorted(name for name, view in nodes.items() if view.labels.get(key) == action.spec.fingerprint and view.ready)[:MOST]


def _job(job: Object) -> tuple[str, str, str, bool] | None:
    """(uid, class, ModelDeployment, whether it only judges) of a Job that has not ended."""
    if ended(job):
        return None
    meta = job["metadata"]
    have = meta.get("labels", {})
    model = f"{meta['namespace']}/{have.get(labels.MODEL_DEPLOYMENT, '')}"
    return meta["uid"], have.get(labels.HARDWARE_CLASS, ""), model, labels.CONTEXT in meta.get("annotations", {})


def _placed(pod: Object) -> tuple[str, str]:
    """(uid of its Job, node)"""
    owner = next((o["uid"] for o in pod["metadata"].get("ownerReferences", ()) if o.get("kind") == "Job"), "")
    return owner, pod["spec"].get("nodeName", "")
