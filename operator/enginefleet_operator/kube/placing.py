"""What a build needs to know of the cluster before it starts: which others run, and what its nodes look like now."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from enginefleet_api import labels

from ..planning import queue
from ..planning.model import Place, Plan, RunningBuild, Snapshot, StartBuild
from ..render import manifests
from .client import ApiClient, Object
from .fitting import occupancy, why_not
from .kinds import JOBS, PODS
from .nodes import NodeView
from .views import ended
from .views import waiting as waiting_of

MOST = 50
"""So many nodes of a fingerprint are looked at, those that come first in the build's own order: it needs one of them."""
FIRST = 5
"""So many of them at first: as long as one of these is idle, no other one is asked about."""


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
    busy = {node for node in placed.values() if node}
    places: dict[str, Place] = {}
    for action in starts:
        names = _of_its_kind(nodes, action)
        spec = manifests.build_job(snapshot, action)["spec"]["template"]["spec"]
        for some in (names[:FIRST], names[FIRST:]):
            taken = await occupancy(client, some, len(nodes))
            for name in some:
                here = taken.get(name, [])
                places[name] = Place(why_not(spec, nodes[name], [one.amounts for one in here]), any(one.serves for one in here))
            if any(places[name].is_idle and name not in busy and name not in action.avoid for name in some):
                break  # the first in the order is the one that is taken
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
    """Nodes of the fingerprint that is built for, or of the context that is judged in, as far as a pod may come to them."""
    key = labels.fp_key(action.spec.hardware_class, action.spec.image_digest)
    of = (nodes[name] for name in action.judge.nodes if name in nodes) if action.judge is not None else nodes.values()
    found = (v.name for v in of if v.labels.get(key) == action.spec.fingerprint and v.ready and not v.unschedulable)
    name = f"{action.build} {action.judge.context}" if action.judge is not None else action.build
    return sorted(found, key=lambda node: queue.order(node, name))[:MOST]


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
