"""From API objects to what decisions read: one function a kind, no requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from enginefleet_api import labels
from enginefleet_api.base import Contract
from enginefleet_api.errors import FailureClass, failure_class_of_exit
from enginefleet_api.jobs import Termination
from enginefleet_api.resources import (
    EngineBuildSpec,
    EngineBuildStatus,
    HardwareClassSpec,
    HardwareClassStatus,
    ModelDeploymentSpec,
    ModelDeploymentStatus,
    NodeFingerprintSpec,
    NodeFingerprintStatus,
)

from ..planning import engines
from ..planning.engines import Recorded
from ..planning.model import EngineBuild, Failure, HardwareClass, Job, OrphanPod, Revision, ServingPod, Workload
from ..planning.serving import BROKEN
from .nodes import epoch

Object = Mapping[str, Any]
M = TypeVar("M", bound=Contract)


def parse(model: type[M], value: Any) -> M | None:
    """None where another version of the CRD let something through that this one cannot read: it is as if it were not written."""
    try:
        return model.model_validate(value or {})
    except ValidationError:
        return None


def hardware_class(obj: Object) -> HardwareClass | None:
    spec = parse(HardwareClassSpec, obj.get("spec"))
    if spec is None:
        return None
    meta = obj["metadata"]
    status = parse(HardwareClassStatus, obj.get("status")) or HardwareClassStatus()
    return HardwareClass(
        meta["name"], meta["uid"], meta.get("generation", 0), spec, status, meta.get("annotations", {}), meta.get("labels", {})
    )


def node_fingerprint(obj: Object) -> Recorded | None:
    spec = parse(NodeFingerprintSpec, obj.get("spec"))
    if spec is None:
        return None
    status = parse(NodeFingerprintStatus, obj.get("status")) or NodeFingerprintStatus()
    return Recorded(spec, obj["metadata"].get("generation", 0), tuple(status.conditions), engines.told(status))


def model(obj: Object) -> engines.Model | None:
    spec = parse(ModelDeploymentSpec, obj.get("spec"))
    if spec is None:
        return None
    meta = obj["metadata"]
    status = parse(ModelDeploymentStatus, obj.get("status")) or ModelDeploymentStatus()
    return engines.model(f"{meta['namespace']}/{meta['name']}", meta.get("generation", 0), spec, status)


def engine_build(obj: Object) -> EngineBuild | None:
    spec = parse(EngineBuildSpec, obj.get("spec"))
    if spec is None:
        return None
    meta = obj["metadata"]
    status = parse(EngineBuildStatus, obj.get("status")) or EngineBuildStatus()
    return EngineBuild(meta["name"], meta["uid"], meta["creationTimestamp"], spec, status, "deletionTimestamp" in meta)


def workload(obj: Object) -> Workload:
    meta = obj["metadata"]
    return Workload(
        **_engine_of(meta),
        build=meta.get("labels", {}).get(labels.ENGINE_BUILD, ""),
        blob=meta.get("annotations", {}).get(labels.BLOB, ""),
        desired=obj.get("status", {}).get("desiredNumberScheduled", 0),
    )


def revision(obj: Object) -> tuple[str, Revision]:
    """A ControllerRevision and the uid of its owner; its content is read only when a rollback needs it."""
    meta = obj["metadata"]
    owner = next((o["uid"] for o in meta.get("ownerReferences", ())), "")
    return owner, Revision(**_engine_of(meta), created=epoch(meta.get("creationTimestamp")))


def _engine_of(meta: Object) -> dict[str, Any]:
    """What a DaemonSet, and the revision that keeps it, say in their metadata of the engine that is pinned there."""
    have = meta.get("labels", {})
    return {
        "name": meta["name"],
        "uid": meta["uid"],
        "hardware_class": have.get(labels.HARDWARE_CLASS, ""),
        "fingerprint": have.get(labels.FINGERPRINT, ""),
        "label": have.get(labels.RELEASE, ""),
        "image_digest": meta.get("annotations", {}).get(labels.IMAGE_DIGEST, ""),
        "deleting": "deletionTimestamp" in meta,
    }


def ended(job: Object) -> dict[str, Object]:
    """The conditions by which a Job has ended: Complete or Failed; none while it runs."""
    conditions = job.get("status", {}).get("conditions", ())
    return {c["type"]: c for c in conditions if c.get("status") == "True" and c["type"] in ("Complete", "Failed")}


def job(obj: Object, pods: Iterable[Object]) -> Job:
    """A Job with its pods. Finished means: the Job controller says so, or its only pod has ended and left a message."""
    meta = obj["metadata"]
    have, notes = meta.get("labels", {}), meta.get("annotations", {})
    mine = [p for p in pods if p["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == meta["name"]]
    mine = [p for p in mine if any(o.get("uid") == meta["uid"] for o in p["metadata"].get("ownerReferences", ()))]
    mine.sort(key=lambda p: p["metadata"]["creationTimestamp"])
    last = mine[-1] if mine else None
    how = ended(obj)
    live = sum(1 for p in mine if p.get("status", {}).get("phase") not in ("Succeeded", "Failed"))
    outcome = Termination()
    failure: Failure | None = None
    if how:
        outcome, failure = _outcome(meta["name"], last, how.get("Failed"))
    return Job(
        name=meta["name"],
        uid=meta["uid"],
        role=have.get(labels.ROLE, ""),
        attempt=int(notes.get(labels.ATTEMPT, "1")),
        build=have.get(labels.ENGINE_BUILD, ""),
        inputs_key=notes.get(labels.INPUTS_KEY, ""),
        blob=notes.get(labels.BLOB, ""),
        active=not how,
        deleting="deletionTimestamp" in meta,
        live_pods=live,
        node=(last or {}).get("spec", {}).get("nodeName", ""),
        created=epoch(meta.get("creationTimestamp")),
        ended=max((epoch(c.get("lastTransitionTime")) for c in how.values()), default=0.0),
        report=None if outcome.report is None or outcome.report.kind == "Fetch" else outcome.report,
        failure=failure,
        image_id=next((c.get("imageID", "") for c in (last or {}).get("status", {}).get("containerStatuses", ())), ""),
        waiting=waiting(last) if not how and last is not None else None,
        context=notes.get(labels.CONTEXT, ""),
    )


def _outcome(name: str, pod: Object | None, failed: Object | None) -> tuple[Termination, Failure | None]:
    """What an ended Job's pod left: a report, a failure of its own words, or what can be said from outside."""
    if pod is None:
        said = (failed or {}).get("message", "")
        return Termination(), Failure(
            FailureClass.TRANSIENT, "PodLost", f"The pod of Job {name} is gone and left no message. {said}".rstrip()
        )
    ended = _terminated(pod)
    parsed = Termination.parse(ended.get("message", "")) if ended else None
    if parsed is not None and parsed.failure is not None:
        f = parsed.failure
        return parsed, Failure(f.failure_class, f.reason, f.message, f.hint, tuple(f.log_tail))
    code = int(ended.get("exitCode", -1)) if ended else -1
    if parsed is not None and code == 0:
        return parsed, None
    return Termination(), _from_outside(name, pod, ended, code)


def _from_outside(name: str, pod: Object, ended: Object | None, code: int) -> Failure:
    status = pod.get("status", {})
    where = f"Job {name}" + (f" on node {pod['spec']['nodeName']}" if pod.get("spec", {}).get("nodeName") else "")
    reason, message = status.get("reason", ""), status.get("message", "")
    if reason == "Evicted":
        kind = "DiskFull" if "ephemeral" in message else "Evicted"
        failure_class = FailureClass.ENVIRONMENT if kind == "DiskFull" else FailureClass.TRANSIENT
        return Failure(failure_class, kind, f"{where} was evicted: {message}")
    if reason == "DeadlineExceeded":
        return Failure(FailureClass.TRANSIENT, "DeadlineExceeded", f"{where} ran past its deadline: {message}")
    if ended is None:
        return Failure(
            FailureClass.TRANSIENT, "PodLost", f"{where} ended without a word{': ' + reason if reason else ''}. {message}".rstrip()
        )
    if ended.get("reason") == "OOMKilled":
        return Failure(
            FailureClass.PERMANENT,
            "OutOfMemory",
            f"{where} was killed: it needs more memory than its limit.",
            "Raise runtime.resources of the class.",
        )
    if code == 137:
        return Failure(FailureClass.TRANSIENT, "Killed", f"{where} was killed (exit code 137) by something outside of it.")
    if code == 0:
        return Failure(FailureClass.TRANSIENT, "ReportMissing", f"{where} exited with 0 but left no readable report: that is no success.")
    text = str(ended.get("message", "")).strip().splitlines()
    tail = f": {text[-1][:300]}" if text else ""
    return Failure(
        failure_class_of_exit(code) or FailureClass.TRANSIENT, "JobFailed", f"{where} exited with {code}{tail}.", log_tail=tuple(text[-5:])
    )


def _terminated(pod: Object) -> Object | None:
    for c in pod.get("status", {}).get("containerStatuses", ()):
        if ended := c.get("state", {}).get("terminated"):
            return dict(ended)
    return None


def waiting(pod: Object) -> tuple[str, str] | None:
    """(reason, message) when a pod can't start, as far as its status tells: not scheduled, image, secret."""
    status = pod.get("status", {})
    for c in status.get("conditions", ()):
        if c.get("type") == "PodScheduled" and c.get("status") == "False":
            return "Unschedulable", f"pod {pod['metadata']['name']} waits for a node: {c.get('message', '')}"
    for c in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        state = c.get("state", {}).get("waiting")
        if state and state.get("reason") in BROKEN:
            reason, message = state["reason"], state.get("message", "")
            if reason == "CreateContainerConfigError" and "secret" in message:
                return "SecretNotFound", f"{message}: create it or correct the reference; the pod goes on by itself."
            return ("ImagePullFailed" if "Image" in reason else reason), f"{c.get('image', '')}: {message}"
    return None


def orphan_pods(pods: Iterable[Object], jobs: Iterable[Object]) -> tuple[OrphanPod, ...]:
    """Unfinished pods of prepare and build Jobs that are not there any more: they work on until the garbage collector gets to them."""
    known = {j["metadata"]["uid"] for j in jobs}
    found = []
    for pod in pods:
        meta = pod["metadata"]
        have = meta.get("labels", {})
        if have.get(labels.ROLE) not in ("prepare", "build") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        if not any(o.get("uid") in known for o in meta.get("ownerReferences", ())):
            found.append(OrphanPod(have[labels.ROLE], have.get(labels.ENGINE_KEY, ""), pod.get("spec", {}).get("nodeName", "")))
    return tuple(found)


def serving_pod(obj: Object) -> ServingPod:
    meta, status = obj["metadata"], obj.get("status", {})
    condition: Object = next((c for c in status.get("conditions", ()) if c.get("type") == "Ready"), {})
    ready = condition.get("status") == "True"
    loading, loaded = _loading(status)
    trouble, at = (None, 0.0) if ready else serving_trouble(obj)
    return ServingPod(
        name=meta["name"],
        uid=meta["uid"],
        node=_meant_for(obj),
        workload_label=meta.get("labels", {}).get(labels.RELEASE, ""),
        ready=ready and "deletionTimestamp" not in meta,
        deleting="deletionTimestamp" in meta,
        since=max(epoch(condition.get("lastTransitionTime") or meta.get("creationTimestamp")), 0.0 if ready else loaded),
        loading=loading and not ready,
        trouble_at=at,
        trouble=trouble,
    )


def _loading(status: Object) -> tuple[bool, float]:
    """Whether images are pulled, or the engine is fetched still, and when the last init container ended: what a slow link takes, no deadline counts."""
    inits = [c.get("state", {}) for c in status.get("initContainerStatuses", ())]
    ended = [state["terminated"] for state in inits if state.get("terminated", {}).get("exitCode") == 0]
    loaded = max((epoch(one.get("finishedAt")) for one in ended), default=0.0)
    states = [c.get("state", {}) for c in status.get("containerStatuses", ())]
    creating = not states or any(state.get("waiting", {}).get("reason") in ("ContainerCreating", "PodInitializing") for state in states)
    return len(ended) < len(inits) or creating, loaded


def _meant_for(pod: Object) -> str:
    """The node that a DaemonSet's pod runs on, or was made for while it waits to be placed there."""
    spec = pod.get("spec", {})
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", ()):
        for field in term.get("matchFields", ()):
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def serving_trouble(pod: Object) -> tuple[tuple[str, str] | None, float]:
    """Why a serving pod can't serve, and since when: what its init containers said, in their own words, before what the kubelet says."""
    status = pod.get("status", {})
    for c in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        current = c.get("state", {})
        if "running" in current or current.get("terminated", {}).get("exitCode") == 0:
            continue  # what it said before it got better is past
        for state in (current, c.get("lastState", {})):
            ended = state.get("terminated")
            if ended and ended.get("exitCode") != 0:
                said = Termination.parse(ended.get("message", ""))
                if said is not None and said.failure is not None:
                    return (said.failure.reason, f"{said.failure.message} {said.failure.hint}".rstrip()), epoch(ended.get("finishedAt"))
                # between its end and the kubelet's word for it a container that ended before has stopped for good as well
                again = "terminated" in current and c.get("restartCount", 0) > 0
                if again or current.get("waiting", {}).get("reason") in BROKEN:
                    message = f"container {c['name']} exits with {ended.get('exitCode')} ({c.get('restartCount', 0)} restarts)."
                    return ("CrashLoopBackOff", message), epoch(ended.get("finishedAt"))
    return waiting(pod), 0.0
