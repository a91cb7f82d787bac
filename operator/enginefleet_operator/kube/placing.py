"""What a build needs to know of the cluster before it starts: which others run, and what its nodes look like now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .. import labels
from ..planning.model import Place, Plan, RunningBuild, Snapshot, StartBuild
from ..render import manifests
from .client import ApiClient, Object
from .fitting import occupancy, why_not
from .kinds import JOBS, PODS
from .nodes import NodeView

MOST = 50
"""So many nodes of a fingerprint are looked at, those that come first by name: a build needs one of them."""


async def with_builds(client: ApiClient, nodes: Mapping[str, NodeView], snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot with the builds that run anywhere, and the places that those of the plan could take. Reads live."""
    selector = f"{labels.ROLE}=build"
    jobs, _ = await client.list(JOBS, label_selector=selector, project=_job)
    pods, _ = await client.list(PODS, label_selector=selector, project=_placed)
    placed = dict(pods)
    running = tuple(RunningBuild(job[1], job[2], placed.get(job[0], "")) for job in jobs if job is not None)
    places: dict[str, Place] = {}
    for action in plan.actions:
        if not isinstance(action, StartBuild):
            continue
        key = labels.fp_key(action.spec.hardware_class, action.spec.image_digest)
        kind = sorted(name for name, view in nodes.items() if view.labels.get(key) == action.spec.fingerprint and view.ready)[:MOST]
        spec = manifests.build_job(snapshot, action)["spec"]["template"]["spec"]
        taken = await occupancy(client, kind)
        for name in kind:
            here = taken.get(name, [])
            serves = any(one.serves for one in here)
            places[name] = Place(why_not(spec, nodes[name], [one.amounts for one in here]), serves)
    return replace(snapshot, running=running, places=places)


def _job(job: Object) -> tuple[str, str, str] | None:
    """(uid, class, ModelDeployment) of a Job that has not ended."""
    if any(c.get("status") == "True" and c["type"] in ("Complete", "Failed") for c in job.get("status", {}).get("conditions", ())):
        return None
    meta = job["metadata"]
    have = meta.get("labels", {})
    return meta["uid"], have.get(labels.HARDWARE_CLASS, ""), f"{meta['namespace']}/{have.get(labels.MODEL_DEPLOYMENT, '')}"


def _placed(pod: Object) -> tuple[str, str]:
    """(uid of its Job, node)"""
    owner = next((o["uid"] for o in pod["metadata"].get("ownerReferences", ()) if o.get("kind") == "Job"), "")
    return owner, pod["spec"].get("nodeName", "")
