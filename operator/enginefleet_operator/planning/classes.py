"""Decisions about one HardwareClass: which runtime images are to be probed where, what its nodes are, and the labels that say so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from enginefleet_api import fingerprint, labels
from enginefleet_api.errors import FailureClass
from enginefleet_api.flavours import release_refused
from enginefleet_api.identity import object_name
from enginefleet_api.jobs import ProbeReport
from enginefleet_api.resources import (
    ClassCandidate,
    ClassFingerprint,
    HardwareClassStatus,
    NodeFingerprintSpec,
    Observation,
    ProbedRuntime,
    ProbeState,
)

from . import retry, stages, support
from .candidates import CANDIDATE_READY, of_class
from .engines import Model
from .model import Action, Delete, Event, Failure, HardwareClass, Job, LabelNode, Node, Plan, Settings, StartProbe, WriteObservations
from .status import Say, merge_conditions

MAX_UNKNOWN = 3
"""Nodes of a class that may have engines of their own because a hard fact of them is unknown."""


@dataclass(frozen=True, slots=True)
class ClassSnapshot:
    hardware_class: HardwareClass
    nodes: tuple[Node, ...]
    """Those that match the class, carry labels of it, or have something recorded under it."""
    fingerprints: Mapping[str, NodeFingerprintSpec]
    jobs: tuple[Job, ...] = ()
    """Probe Jobs of this class."""
    images_in_use: frozenset[str] = frozenset()
    """Digests of images whose engines some workload of this class still serves."""
    models: tuple[Model, ...] = ()
    """ModelDeployments that target the class."""
    settings: Settings = field(default_factory=Settings)


def decide_class(s: ClassSnapshot, now: float) -> Plan:
    """Probe what is unknown, derive each node's observations from host and runtime facts, label the nodes, report."""
    hwc = s.hardware_class
    refused = list(support.unsupported_class(hwc.spec))
    mine = sorted((n for n in s.nodes if stages.matches(hwc, n)), key=lambda n: n.name)
    actions: list[Action] = []
    events: list[Event] = []
    probed = list(hwc.status.probed)
    token = hwc.annotations.get(labels.RETRY, "")
    again = token not in ("", hwc.status.retry_token)
    states = {(p.image, p.host_digest): retry.forget(p) if again else p for p in hwc.status.probes if p.asked == hwc.asked}
    wakes: list[float] = []
    groups: dict[str, list[Node]] = {}
    for node in mine:
        nf = s.fingerprints.get(node.name)
        if nf is not None and nf.host is not None:
            groups.setdefault(nf.host.digest, []).append(node)
    # the class as it is, and as it would be with its candidate image: probed, observed and labelled alike
    views = [hwc, *([candidate] if (candidate := hwc.candidate) is not None else [])]
    images = [view.spec.runtime.image for view in views]
    waiting: dict[str, list[str]] = {image: [] for image in images}
    asked: set[str] = set()
    for view in [] if refused else views:
        image = view.spec.runtime.image
        for host_digest, members in sorted(groups.items()):
            if any(view.is_current(p) and p.host_digest == host_digest for p in probed):
                continue
            state = states.get((image, host_digest))
            asked.add(_probe_name(view, host_digest, state))
            found = _probe(s, view, host_digest, members, state, now)
            actions += found.actions
            events += found.events
            if found.state is not None:
                states[image, host_digest] = found.state
            if found.probed is not None:
                # what another interpreter or backend found in the same image is over
                probed = [*(p for p in probed if (p.image, p.host_digest) != (image, host_digest)), found.probed]
            else:
                waiting[image].append(found.message)
            if found.wake_at is not None:
                wakes.append(found.wake_at)
    members_of = {node.name for node in mine}
    actions += [
        Delete("Job", j.name, j.uid, "nobody asks what is in its image any more")
        for j in s.jobs
        # of a node that has just lost its label nothing is known: it may come back
        if j.active and not j.deleting and j.name not in asked and (not j.node or j.node in members_of)
    ]
    # what no node of ours and no workload needs is forgotten: a class's status must not grow with its history
    live_hosts = set(groups)
    recent = _recent([p for p in probed if p.image not in images[1:]])
    probed = [
        p for p in probed if p.image in images or p.image_digest in s.images_in_use or (p.host_digest in live_hosts and p.image in recent)
    ]
    kept_states = [p for (i, h), p in sorted(states.items()) if i in images and h in live_hosts]
    keep_digests = {p.image_digest for p in probed if p.image in images} | s.images_in_use
    counts: dict[str, ClassFingerprint] = {}
    candidates: dict[str, ClassFingerprint] = {}
    seen_on = {node.name: _observe(hwc, s.fingerprints.get(node.name), probed, keep_digests) for node in mine}
    known = [(node.name, seen_on[node.name]) for members in groups.values() for node in members]
    now_on = {name: _under(hwc, seen, probed) for name, seen in known}
    then_on = {name: _under(candidate, seen, probed) for name, seen in known} if candidate is not None else {}
    unknown, unknown_then = _unknown(hwc.name, mine, now_on), _unknown(hwc.name, mine, then_on, labelled_by_image=True)
    for node in s.nodes:
        member = node.name in seen_on
        observations, current, then = seen_on.get(node.name, ()), now_on.get(node.name), then_on.get(node.name)
        if node.name in unknown[MAX_UNKNOWN:]:
            observations, current, then = tuple(o for o in observations if "node" not in o.facts), None, None
        if node.name in unknown_then[MAX_UNKNOWN:]:
            observations, then = tuple(o for o in observations if o != then), None
        nf = s.fingerprints.get(node.name)
        if nf is not None:
            before = tuple(o for o in nf.observations if o.hardware_class == hwc.name)
            if before != observations:
                actions.append(WriteObservations(node.name, observations))
        _count(counts, current)
        _count(candidates, then)
        # a host that is not known at this moment keeps its labels: the agent may just be restarting
        changes: dict[str, str | None] = {}
        if not member:
            changes, wake = _leave(hwc.name, node, now, s.settings.leave_grace)
            wakes += [wake] if wake is not None else []
        elif nf is not None and nf.host is not None and nf.host.digest in {p.host_digest for p in probed}:
            changes = _labels(hwc.name, node, observations, current)
        if member and labels.LEFT_PREFIX + hwc.name in node.labels:
            changes[labels.LEFT_PREFIX + hwc.name] = None
        if changes:
            actions.append(LabelNode(node.name, node.resource_version, changes, "its fingerprint under this class"))
    told = _unknown_words(unknown, now_on)
    if candidate is not None:
        candidate = replace(candidate, status=candidate.status.model_copy(update={"probed": probed}))
    tried, ready = of_class(candidate, s.models, refused, groups, waiting[images[-1]], candidates)
    status = _status(s, refused, mine, groups, waiting[images[0]], counts, probed, kept_states, told, tried, ready, now)
    changed = status.to_json_dict()
    return Plan(tuple(actions), None if changed == hwc.status.to_json_dict() else changed, tuple(events), min(wakes, default=None))


def _recent(probed: list[ProbedRuntime]) -> list[str]:
    """The last two images stay known, so that going back to one needs no probe."""
    return list(dict.fromkeys(p.image for p in reversed(probed)))[:2]


def _count(counts: dict[str, ClassFingerprint], o: Observation | None) -> None:
    if o is not None:
        seen = counts.get(o.id)
        counts[o.id] = ClassFingerprint(id=o.id, summary=o.summary, nodes=(seen.nodes if seen else 0) + 1)


@dataclass(frozen=True, slots=True)
class _Probe:
    state: ProbeState | None = None
    probed: ProbedRuntime | None = None
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    message: str = ""
    wake_at: float | None = None


def _probe_name(hwc: HardwareClass, host_digest: str, state: ProbeState | None) -> str:
    number = (state.attempts if state else 0) + 1
    return object_name(f"{hwc.name}-probe", hwc.uid, hwc.spec.runtime.image, host_digest, *filter(None, (hwc.asked,)), str(number))


def _probe(s: ClassSnapshot, hwc: HardwareClass, host_digest: str, members: list[Node], state: ProbeState | None, now: float) -> _Probe:
    """`hwc`: the class with the image that is looked into."""
    image = hwc.spec.runtime.image
    number = (state.attempts if state else 0) + 1
    name = _probe_name(hwc, host_digest, state)
    job = next((j for j in s.jobs if j.name == name), None)
    if job is None or job.deleting:
        due = retry.due_at(state)
        if retry.is_permanent(state):
            return _Probe(state, message=state.last_failure.message if state and state.last_failure else "")
        if due is not None and now < due:
            last = state.last_failure if state else None
            return _Probe(
                state,
                message=f"{last.reason}: {last.message} Attempt {number} at {state.next_attempt_at if state else ''}." if last else "",
                wake_at=due,
            )
        if job is not None:
            return _Probe(state, message="its last probe Job is being deleted")
        ready = [n for n in members if n.ready and not n.unschedulable]
        if not ready:
            return _Probe(state, message=f"no node of hardware group {host_digest} is Ready and schedulable")
        ready.sort(key=lambda n: (state is not None and n.name == state.node, hashlib.sha256(f"{n.name} {image}".encode()).hexdigest()))
        event = Event("ProbeStarted", f"Job {name} looks into {image} on node {ready[0].name}.")
        return _Probe(
            state, actions=(StartProbe(name, number, host_digest, ready[0].name, image),), events=(event,), message=f"Job {name} starts"
        )
    if job.active:
        if job.node and not any(n.name == job.node for n in s.nodes):
            return _Probe(state, actions=(Delete("Job", job.name, job.uid, "its node is gone"),), message="its node is gone")
        return _Probe(state, message="{}: {}".format(*job.waiting) if job.waiting else f"Job {job.name} runs")
    digest = image_digest(job.image_id, image)
    if isinstance(job.report, ProbeReport) and digest:
        record = ProbedRuntime(
            image=image, image_digest=digest, host_digest=host_digest, asked=hwc.asked, runtime=job.report.runtime, at=retry.timestamp(now)
        )
        done = ProbeState(job=job.name, attempts=number, image=image, host_digest=host_digest, node=job.node, asked=hwc.asked)
        return _Probe(done, record)
    failure = job.failure or Failure(
        FailureClass.TRANSIENT, "ReportMissing", f"Job {name} ended without a readable report or image digest."
    )
    after = retry.after_failure(state, name, failure, now, s.settings.retry_base)
    kept = ProbeState.model_validate(
        {**after.model_dump(), "image": image, "host_digest": host_digest, "node": job.node, "asked": hwc.asked}
    )
    event = Event(failure.reason, f"Probing {image} failed: {failure.message}", warning=True)
    return _Probe(kept, events=(event,), message=f"{failure.reason}: {failure.message}", wake_at=retry.due_at(after))


def image_digest(image_id: str, image: str) -> str:
    """`sha256:…` of a resolved image: from the reference where it is pinned there, else from what the kubelet reports; "" when neither has one.

    Kubelets report `name@sha256:…`, `docker-pullable://name@sha256:…` or a bare `sha256:…`.
    """
    for text in (image, image_id):
        _, mark, digest = text.rpartition("sha256:")
        if mark and len(digest) == 64 and all(c in "0123456789abcdef" for c in digest):
            return f"sha256:{digest}"
    return ""


def _observe(
    hwc: HardwareClass, nf: NodeFingerprintSpec | None, probed: list[ProbedRuntime], keep: set[str] | frozenset[str]
) -> tuple[Observation, ...]:
    """Observations of one node, sorted by image digest."""
    if nf is None or nf.host is None:
        return tuple(o for o in nf.observations if o.hardware_class == hwc.name) if nf is not None else ()
    found: dict[str, Observation] = {}
    for p in probed:
        if p.host_digest != nf.host.digest or p.image_digest not in keep:
            continue
        facts = fingerprint.of_node(fingerprint.combine(nf.host.facts, p.runtime), nf.node)
        o = Observation.model_validate(
            {
                "class": hwc.name,
                "imageDigest": p.image_digest,
                "device": "gpu" if fingerprint.runs_on_gpu(facts) else "cpu",
                "id": fingerprint.identify(facts),
                "summary": fingerprint.summary(facts),
                "facts": facts,
                "hostDigest": nf.host.digest,
            }
        )
        found[p.image_digest] = o
    return tuple(found[digest] for digest in sorted(found))


def _under(hwc: HardwareClass, observations: tuple[Observation, ...], probed: list[ProbedRuntime]) -> Observation | None:
    """The one of a node's observations that was made in the image of `hwc`."""
    digests = {(p.host_digest, p.image_digest) for p in probed if hwc.is_current(p)}
    return next((o for o in observations if (o.host_digest, o.image_digest) in digests), None)


def _unknown(name: str, mine: list[Node], current: Mapping[str, Observation | None], *, labelled_by_image: bool = False) -> list[str]:
    """Names of the nodes of which a hard fact is unknown; those that have an engine of their own already come first."""
    found = [
        (n.labels.get(labels.fp_key(name, o.image_digest) if labelled_by_image else labels.fp_key(name)) != o.id, n.name)
        for n in mine
        if (o := current.get(n.name)) and "node" in o.facts
    ]
    return [node for _, node in sorted(found)]


def _unknown_words(nodes: list[str], current: Mapping[str, Observation | None]) -> Say | None:
    """What the class says of nodes with unknown facts; None when there are none."""
    if not nodes:
        return None
    paths = dict.fromkeys(path for node in nodes if (o := current[node]) for path in fingerprint.unknowns(o.facts))
    text = f"{', '.join(paths)} is unknown on {', '.join(nodes[:3])}{' …' if len(nodes) > 3 else ''}: an engine made there is for that node only"
    if len(nodes) <= MAX_UNKNOWN:
        return Say(True, "FactsUnknown", f"{text}.")
    return Say(False, "FactsUnknown", f"{text}, and no more than {MAX_UNKNOWN} of {len(nodes)} nodes get one.")


def _leave(name: str, node: Node, now: float, grace: float) -> tuple[dict[str, str | None], float | None]:
    """Labels of a node that does not match (any more), and when to look again.

    Discovery restarts, a label is lost for minutes, and the DaemonSet controller kills pods at once: so the node keeps what is ours until
    the grace has passed since it was first seen outside.
    """
    plain, left = labels.fp_key(name), labels.LEFT_PREFIX + name
    ours = [key for key in node.labels if key == plain or key.startswith(plain + ".")]
    if not ours:
        return ({left: None} if left in node.labels else {}), None
    since = node.labels.get(left, "")
    if not since.isdigit():
        return {left: str(int(now))}, now + grace
    until = int(since) + grace
    return (dict.fromkeys([*ours, left]), None) if now >= until else ({}, until)


def _labels(name: str, node: Node, observations: tuple[Observation, ...], current: Observation | None) -> dict[str, str | None]:
    """What must change so that the node carries one label an image, and the plain one for people."""
    wanted: dict[str, str] = {labels.fp_key(name, o.image_digest): o.id for o in observations}
    plain = labels.fp_key(name)
    if current is not None:
        wanted[plain] = current.id
    elif plain in node.labels:
        wanted[plain] = node.labels[plain]  # the new image is not probed yet: the old truth stands until then
    have = {key: value for key, value in node.labels.items() if key == plain or key.startswith(plain + ".")}
    changes: dict[str, str | None] = {key: value for key, value in wanted.items() if have.get(key) != value}
    changes |= {key: None for key in have if key not in wanted}
    return changes


def _status(
    s: ClassSnapshot,
    refused: list[str],
    mine: list[Node],
    groups: Mapping[str, list[Node]],
    waiting: list[str],
    counts: Mapping[str, ClassFingerprint],
    probed: list[ProbedRuntime],
    states: list[ProbeState],
    unknown: Say | None,
    candidate: ClassCandidate | None,
    candidate_ready: Say,
    now: float,
) -> HardwareClassStatus:
    hwc = s.hardware_class
    silent = len(mine) - sum(len(members) for members in groups.values())
    releases = [p.runtime.get("backendVersion") for p in probed if hwc.is_current(p) and p.host_digest in groups]
    old = [why for release in releases if (why := release_refused(hwc.spec.backend, release))]
    if refused:
        say = Say(False, "NotYetSupported", "; ".join(refused) + ".")
    elif not mine:
        say = Say(False, "NoMatchingNodes", "No node has the labels of spec.nodeSelector.")
    elif waiting:
        say = Say(False, "Probing", waiting[0])
    elif old:
        say = Say(False, "ReleaseNotSupported", f"{old[0]}.")
    elif silent:
        say = Say(False, "AgentSilent", f"The node agent has not reported on {silent} of {len(mine)} nodes.")
    else:
        say = unknown or Say(True, "Observed", f"{len(mine)} nodes, {len(counts)} fingerprints.")
    stalled = bool(refused) or bool(old) or any(retry.is_permanent(p) for p in states if p.image == hwc.spec.runtime.image)
    conditions = {
        "Ready": say,
        "Reconciling": Say(not say.status and not stalled, say.reason if not say.status else "Idle", ""),
        "Stalled": Say(stalled, say.reason if stalled else "Progressing", say.message if stalled else ""),
        # nothing of the conditions above hangs on it: a candidate that fails takes nothing from what serves
        CANDIDATE_READY: candidate_ready,
    }
    return HardwareClassStatus(
        observed_generation=hwc.generation,
        nodes=len(mine),
        summary="; ".join(f"{c.nodes}x {c.summary}" for c in sorted(counts.values(), key=lambda c: c.id))[:512] or say.message,
        fingerprints=sorted(counts.values(), key=lambda c: c.id),
        candidate=candidate,
        probed=probed,
        probes=states,
        retry_token=hwc.annotations.get(labels.RETRY, hwc.status.retry_token),
        conditions=merge_conditions(hwc.status.conditions, conditions, hwc.generation, now),
    )


def orphaned_labels(
    nodes: tuple[Node, ...], model_deployments: frozenset[str], classes: frozenset[str], selected: frozenset[str] = frozenset()
) -> list[LabelNode]:
    """Labels of ours that nobody owns any more: of ModelDeployments (by release key) and HardwareClasses that are gone.

    A fingerprint label that the nodeSelector of a workload names (`selected`) stays: a class that was deleted may come back in a minute.
    """
    found: list[LabelNode] = []
    for node in nodes:
        gone: dict[str, str | None] = {}
        for key in node.labels:
            if key in selected:
                continue
            release = key.startswith(labels.RELEASE_PREFIX) and key not in model_deployments
            observed = key.startswith(labels.FP_PREFIX) and key.removeprefix(labels.FP_PREFIX).partition(".")[0] not in classes
            left = key.startswith(labels.LEFT_PREFIX) and key.removeprefix(labels.LEFT_PREFIX) not in classes
            if release or observed or left:
                gone[key] = None
        if gone:
            found.append(LabelNode(node.name, node.resource_version, gone, "its owner is gone"))
    return found
