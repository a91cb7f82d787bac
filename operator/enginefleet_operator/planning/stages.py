"""The stages of one ModelDeployment, each a small function over the snapshot: admission, prepare, builds, workloads.

Each returns what it wants done and what it says to people; `decide.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from enginefleet_api import labels
from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.fields import LabelSelector
from enginefleet_api.fingerprint import cross_capability
from enginefleet_api.identity import object_name, short_hash
from enginefleet_api.jobs import BuildReport, PrepareReport, VerifyReport
from enginefleet_api.resources import (
    AttemptState,
    EngineBuildSpec,
    EngineBuildStatus,
    ModelDeploymentSpec,
    NodeFingerprintSpec,
    Observation,
    RefusedTarget,
    Resolved,
)
from enginefleet_api.variants import Variant

from . import contexts, pausing, queue, requests, retry, support, templates, windows
from .ladder import Ladder, climb
from .model import (
    Action,
    Delete,
    EngineBuild,
    Event,
    Failure,
    HardwareClass,
    Job,
    Need,
    Node,
    RunningBuild,
    Snapshot,
    StartBuild,
    WriteBuildStatus,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a ModelDeployment from going on. `stalled`: no waiting will cure it."""

    reason: str
    message: str
    stalled: bool = False


# ---- admission: what the schema cannot see ----


def admission(s: Snapshot) -> Iterator[Problem]:
    for text in support.unsupported_model_deployment(s.spec, [c.spec.backend for c in targets(s)]):
        yield Problem("NotYetSupported", f"{text}.", stalled=True)
    for text in templates.problems(s.spec.serving.template):
        yield Problem("InvalidTemplate", f"spec.serving.template: {text}.", stalled=True)
    for zone in windows.unknown_zones(s.spec.rollout.windows):
        text = f"spec.rollout.windows: no time zone is called {zone}: write an IANA name like Europe/Berlin, or UTC."
        yield Problem("UnknownTimeZone", text, stalled=True)
    if s.store is None:
        yield Problem("StoreNotFound", f"EngineStore {s.spec.store_ref.name!r} does not exist in namespace {s.namespace}: create it.")
    else:
        for text in support.unsupported_store(s.store):
            yield Problem("NotYetSupported", f"EngineStore {s.spec.store_ref.name}: {text}.", stalled=True)
    known = ", ".join(sorted(s.classes)) or "none"
    for target in s.spec.targets:
        name = target.hardware_class or ""
        if name and name not in s.classes:
            yield Problem(
                "HardwareClassNotFound", f"HardwareClass {name!r} does not exist (there are: {known}): create it or correct spec.targets."
            )
    if not targets(s) and not has_missing(s):
        for target in s.spec.targets:
            if target.hardware_class_selector is not None:
                wanted = _said(target.hardware_class_selector)
                text = f"no HardwareClass that allows namespace {s.namespace} has the labels {wanted} (there are: {known})"
                yield Problem("HardwareClassNotFound", f"{text}: label one, or correct spec.targets.")
    for found in targets(s):
        allowed = found.spec.allowed_namespaces
        if allowed is not None and not allowed.matches(s.namespace_labels):
            yield Problem(
                "NamespaceNotAllowed",
                f"HardwareClass {found.name!r} allows namespaces with the labels {_said(allowed)}; {s.namespace} is not one.",
            )
        for text in support.unsupported_class(found.spec):
            yield Problem("NotYetSupported", f"HardwareClass {found.name}: {text}.", stalled=True)
    yield from _overlap(s)


def _said(selector: LabelSelector) -> str:
    return ", ".join(f"{k}={v}" for k, v in sorted(selector.match_labels.items()))


def _overlap(s: Snapshot) -> Iterator[Problem]:
    chosen = targets(s)
    for node in s.nodes:
        mine = [c.name for c in chosen if matches(c, node)]
        if len(mine) > 1:
            yield Problem(
                "AmbiguousHardwareClass",
                f"node {node.name} matches the HardwareClasses {' and '.join(mine)}: narrow a nodeSelector or drop a target.",
                stalled=True,
            )
            return


def targets(s: Snapshot) -> list[HardwareClass]:
    """The classes of spec.targets that exist, in the order written."""
    return targeted(s.spec, s.classes, s.namespace_labels)


def targeted(spec: ModelDeploymentSpec, classes: Mapping[str, HardwareClass], namespace_labels: Mapping[str, str]) -> list[HardwareClass]:
    """Named ones, and those whose labels are selected, by name; a selector passes over classes that do not allow the namespace."""
    found: dict[str, HardwareClass] = {}
    for target in spec.targets:
        if target.hardware_class_selector is None:
            chosen = [classes[name] for name in (target.hardware_class,) if name and name in classes]
        else:
            chosen = [
                one
                for _, one in sorted(classes.items())
                if target.hardware_class_selector.matches(one.labels)
                and (one.spec.allowed_namespaces is None or one.spec.allowed_namespaces.matches(namespace_labels))
            ]
        for one in chosen:
            found.setdefault(one.name, one)
    return list(found.values())


def candidates(s: Snapshot) -> list[HardwareClass]:
    """The classes of spec.targets as they would be with their candidate images."""
    return [candidate for one in targets(s) if (candidate := one.candidate) is not None]


def has_missing(s: Snapshot) -> bool:
    """Whether a class that is targeted by name does not exist; it may come back in a minute."""
    return any(t.hardware_class and t.hardware_class not in s.classes for t in s.spec.targets)


def matches(hardware_class: HardwareClass, node: Node) -> bool:
    return hardware_class.spec.node_selector.matches(node.labels)


def nodes_of(s: Snapshot, hardware_class: HardwareClass) -> list[Node]:
    """Nodes that match, in name order."""
    return sorted((n for n in s.nodes if matches(hardware_class, n)), key=lambda n: n.name)


def devices_of(s: Snapshot, hardware_class: HardwareClass) -> list[Observation]:
    """What is known of the class's devices, each kind once, by fingerprint."""
    found = {o.id: o for node in nodes_of(s, hardware_class) if (o := observation(s, hardware_class, node)) is not None}
    return [found[fingerprint] for fingerprint in sorted(found)]


def observation(s: Snapshot, hardware_class: HardwareClass, node: Node) -> Observation | None:
    """What the node is under the class's current image; None while it is not known."""
    return observed(s.fingerprints.get(node.name), hardware_class)


def observed(found: NodeFingerprintSpec | None, hardware_class: HardwareClass) -> Observation | None:
    """The same of what is recorded of one node."""
    if found is None or found.host is None:
        return None
    digest = hardware_class.digests.get(found.host.digest)
    for o in found.observations:
        if o.hardware_class == hardware_class.name and o.image_digest == digest and o.host_digest == found.host.digest:
            return o
    return None


# ---- attempts of a Job: one automaton for prepare and build ----


@dataclass(frozen=True, slots=True)
class Attempt:
    """Where an attempt stands. `start`: name of the Job to create now."""

    state: AttemptState | None
    start: str = ""
    number: int = 0
    running: Job | None = None
    report: PrepareReport | BuildReport | VerifyReport | None = None
    failed: Failure | None = None
    """Set when this pass saw the failure first."""
    drop: Job | None = None
    """A Job that is given up: its node is lost."""
    wake_at: float | None = None


NODE_LOST_AFTER = 300.0
"""Seconds that a node may be away before its Job is given up: the deadline in the pod is the kubelet's to keep, and that one is away."""


def _lost_at(s: Snapshot, node: str) -> float | None:
    """When work on a node counts as lost: None while the node is there, or nothing is known of one."""
    if not node:
        return None
    found = next((n for n in s.nodes if n.name == node), None)
    if found is None:
        return 0.0
    return None if found.ready else found.since + NODE_LOST_AFTER


def _is_lost(s: Snapshot, node: str, now: float) -> bool:
    at = _lost_at(s, node)
    return at is not None and now >= at


def orphans(s: Snapshot, role: str, engine_key: str, now: float) -> bool:
    """Whether a pod of a deleted Job may still be working on the same thing."""
    return any(o.role == role and o.engine_key == engine_key and not _is_lost(s, o.node, now) for o in s.orphans)


def attempt(s: Snapshot, jobs: list[Job], state: AttemptState | None, stem: str, identity: tuple[str, ...], now: float) -> Attempt:
    """Look at the Jobs of one thing to do: is one running, done, failed, due?

    The Job's name holds the number of attempts recorded as failed or done, so that a restart between any two writes finds the same name.
    """
    number = (state.attempts if state else 0) + 1
    name = object_name(stem, s.uid, *identity, str(number))
    current = next((j for j in jobs if j.name == name and not j.deleting), None)
    jobs = [j for j in jobs if j is current or not _is_lost(s, j.node, now)]
    if current is None:
        if any(j.live_pods or (j.active and not j.deleting) for j in jobs):
            return Attempt(state, running=next(j for j in jobs if j.live_pods or (j.active and not j.deleting)))
        due = retry.due_at(state)
        if retry.is_permanent(state):
            return Attempt(state)
        if due is not None and now < due:
            return Attempt(state, wake_at=due)
        if any(j.name == name for j in jobs):
            return Attempt(state)  # being deleted: its going wakes us
        return Attempt(state, start=name, number=number)
    if current.active:
        if not _is_lost(s, current.node, now):
            return Attempt(state, running=current, wake_at=_lost_at(s, current.node))
        failure = Failure(
            FailureClass.TRANSIENT, "NodeLost", f"node {current.node} of Job {name} is gone or not Ready for {NODE_LOST_AFTER:.0f} s."
        )
        after = retry.after_failure(state, name, failure, now, s.settings.retry_base)
        return Attempt(after, failed=failure, drop=current, wake_at=retry.due_at(after))
    if current.failure is None and isinstance(current.report, PrepareReport | BuildReport | VerifyReport):
        return Attempt(retry.after_success(state, name), report=current.report)
    failure = current.failure or Failure(FailureClass.TRANSIENT, "ReportMissing", f"Job {name} ended without a readable report.")
    after = retry.after_failure(state, name, failure, now, s.settings.retry_base)
    return Attempt(after, failed=failure, wake_at=retry.due_at(after))


def dropped(found: Attempt) -> tuple[Action, ...]:
    """What ends the Job that is given up."""
    return (Delete("Job", found.drop.name, found.drop.uid, "its node is lost"),) if found.drop is not None else ()


# ---- prepare ----


@dataclass(frozen=True, slots=True)
class Prepared:
    """`resolved` is None until prepare has succeeded for the present inputs."""

    key: str
    """What `state` is about: the inputs, and the further variants if it is those."""
    resolved: Resolved | None
    state: AttemptState | None
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    start: str = ""
    number: int = 0
    needs: tuple[Need, ...] = ()
    """What the Job makes."""
    running: Job | None = None
    wake_at: float | None = None
    idle: bool = False
    """Nothing can be prepared, because no device is known that could run anything of what is asked."""
    refused: tuple[Problem, ...] = ()
    """Devices that can't."""


def _first_needs(s: Snapshot) -> tuple[tuple[Need, ...], tuple[Problem, ...]]:
    """What the devices that are known need, and those that can run nothing of what is asked."""
    needs: list[Need] = []
    refused: list[Problem] = []
    for hardware_class in targets(s):
        # what runs in ONNX Runtime is prepared before anything is probed
        for facts, summary in [(o.facts, o.summary) for o in devices_of(s, hardware_class)] or [({}, "")]:
            found = requests.first_needs(s.spec, hardware_class, facts)
            needs += found
            if not found and (why := requests.refusals(s.spec, hardware_class, facts)):
                refused.append(Problem(_reason_of(why), _nothing_for(hardware_class, summary, why), stalled=True))
    return tuple(needs), tuple(refused)


def _nothing_for(hardware_class: HardwareClass, summary: str, why: Mapping[str, str]) -> str:
    """`why`: by variant."""
    device = f" for {summary}" if summary else ""
    alike: dict[str, list[str]] = {}
    for variant, text in why.items():
        alike.setdefault(text, []).append(variant)
    told = "; ".join(f"{', '.join(variants)}: {text}" for text, variants in alike.items())
    return f"{hardware_class.name}: no variant could be prepared{device}: {told}"


def _reason_of(why: Mapping[str, str], refused: Sequence[RefusedTarget] = ()) -> str:
    """The one reason for which every variant was refused, of the class or by preflight (`refused`)."""
    reasons = {text.partition(":")[0] for text in why.values()}
    of_classes = {"PrecisionNotSupported", "ReleaseNotSupported", "LayoutNotPossible", "NotUltralytics", *(one.reason for one in refused)}
    return reasons.pop() if len(reasons) == 1 and reasons <= of_classes else "NothingPrepared"


def prepare(s: Snapshot, needs: tuple[Need, ...], now: float) -> Prepared:
    """`needs`: what is lacking in what is resolved already; the rest goes on meanwhile."""
    assert s.store is not None
    inputs = requests.inputs_key(s.spec, s.store, refresh_token(s))
    jobs = [j for j in s.jobs if j.role == "prepare"]
    outdated: tuple[Action, ...] = tuple(
        Delete("Job", j.name, j.uid, "its inputs have changed")
        for j in jobs
        if j.inputs_key.partition(".")[0] != inputs and j.active and not j.deleting
    )
    pinned = s.status.resolved if s.status.resolved is not None and s.status.resolved.inputs_key == inputs else None
    if pinned is not None and not needs:
        return Prepared(s.status.prepare_inputs_key or inputs, pinned, s.status.prepare, outdated)
    state = s.status.prepare
    refused: tuple[Problem, ...] = ()
    if pinned is None:
        needs, refused = _first_needs(s)
        if not needs:
            return Prepared(inputs, None, state, outdated, idle=True, refused=refused)
    needs = requests.together(needs)
    key = f"{inputs}.{short_hash(*(need.id for need in needs))}" if pinned is not None else inputs
    if pinned is not None and (other := _other_needs(s, pinned, [j for j in jobs if j.inputs_key.startswith(f"{inputs}.")], key, now)):
        return replace(other, actions=outdated)
    if s.status.prepare_inputs_key not in ("", key):
        state = retry.reset(state)  # a failure of other inputs says nothing of these
    if s.annotations.get(labels.RETRY, "") not in ("", s.status.retry_token):
        state = retry.reset(state)
    found = attempt(s, [j for j in jobs if j.inputs_key == key], state, f"{s.name}-prepare", (key,), now)
    if found.start and orphans(s, "prepare", "", now):
        found = Attempt(found.state)  # its end is an event that brings us back
    outdated += dropped(found)
    events: tuple[Event, ...] = ()
    if found.start:
        events = (Event("PrepareStarted", f"Job {found.start} prepares the model (attempt {found.number})."),)
    if isinstance(found.report, PrepareReport):
        now_pinned = requests.with_more(pinned, found.report) if pinned is not None else requests.resolved(key, found.report)
        events = _prepared_events(found.report)
        if pinned is None and refresh_token(s) != s.status.refresh_token and s.status.resolved is not None:
            events = (*events, _refreshed(s.status.resolved, now_pinned))
        return Prepared(key, now_pinned, found.state, outdated, events)
    if found.failed is not None:
        events = (Event(found.failed.reason, f"Prepare failed: {found.failed.message}", warning=True),)
    return Prepared(key, pinned, found.state, outdated, events, found.start, found.number, needs, found.running, found.wake_at)


def refresh_token(s: Snapshot) -> str:
    """Of `enginefleet.io/refresh`; where the annotation is gone the one that was acted on: taking it away resolves nothing again."""
    return s.annotations.get(labels.REFRESH, s.status.refresh_token)


def _refreshed(before: Resolved, after: Resolved) -> Event:
    digests = ("model", "calibration", "validation")
    changed = [f"{name} {(getattr(after, name) or 'none')[:19]}" for name in digests if getattr(before, name) != getattr(after, name)]
    if changed:
        return Event("SourcesChanged", f"Resolved again, and other than before: {', '.join(changed)}.")
    return Event("SourcesUnchanged", "Resolved again: all sources are what they were, so nothing changes.")


def _other_needs(s: Snapshot, pinned: Resolved, jobs: list[Job], key: str, now: float) -> Prepared | None:
    """A Job for what was needed a moment ago: its end is awaited and its report taken, whatever else is needed by now."""
    for job in sorted(jobs, key=lambda j: j.name):
        if job.inputs_key == key:
            continue
        if job.active and not job.deleting and not _is_lost(s, job.node, now):
            return Prepared(job.inputs_key, pinned, s.status.prepare, running=job, wake_at=_lost_at(s, job.node))
        if isinstance(job.report, PrepareReport) and requests.has_more(pinned, job.report):
            state = retry.after_success(s.status.prepare, job.name)
            return Prepared(job.inputs_key, requests.with_more(pinned, job.report), state, events=_prepared_events(job.report))
    return None


TABLE_LEFT_ASIDE = "TargetsInvalid"
"""Reason of the note of a table that was mounted and is not used."""


def _prepared_events(report: PrepareReport) -> tuple[Event, ...]:
    how = "found in the store" if report.reused else f"done in {report.seconds or '?'} s"
    names = requests.names_of(report)
    made = [Event("Prepared", f"Model {report.model[:19]}… prepared as {', '.join(names)}: {how}.")] if names else []
    # a ConfigMap that somebody meant to be used: its Job went on without it
    notes = [note.removeprefix(f"{TABLE_LEFT_ASIDE}: ") for note in report.notes if note.startswith(f"{TABLE_LEFT_ASIDE}: ")]
    aside = [Event(TABLE_LEFT_ASIDE, note, warning=True) for note in notes]
    return (*made, *aside, *(Event(one.reason, f"{one.message} {one.hint}".rstrip(), warning=True) for one in report.refused))


# ---- builds ----


@dataclass(frozen=True, slots=True)
class Wanted:
    """An engine that should exist, for one fingerprint of a class in one variant."""

    name: str
    hardware_class: HardwareClass
    fingerprint: str
    summary: str
    image_digest: str
    nodes: tuple[str, ...]
    spec: EngineBuildSpec
    variant: Variant


@dataclass(frozen=True, slots=True)
class Unbuilt:
    """A fingerprint for which there is nothing to build: `waits` for prepare, else no variant could be prepared."""

    hardware_class: HardwareClass
    observation: Observation
    nodes: tuple[str, ...]
    reason: str
    message: str
    waits: bool


@dataclass(frozen=True, slots=True)
class BuildStage:
    wanted: tuple[Wanted, ...]
    """One a fingerprint: what may serve, else what is worked on."""
    passed: Mapping[str, EngineBuildStatus]
    """By EngineBuild name: those of `wanted` that may serve."""
    every: tuple[Wanted, ...] = ()
    """All that were tried and are being tried, those under candidate images as well."""
    ladders: Mapping[str, Ladder[Wanted]] = field(default_factory=dict)
    """By EngineBuild name of `wanted`."""
    needs: tuple[Need, ...] = ()
    """What prepare has to make."""
    unbuilt: tuple[Unbuilt, ...] = ()
    held: tuple[Unbuilt, ...] = ()
    """Fingerprints for which nothing is built until it is approved."""
    trial: BuildStage | None = None
    """The same under candidate images: built and judged, and nothing of it may serve."""
    cramped: tuple[pausing.Cramped, ...] = ()
    """Builds for which a serving pod could make way."""
    undecided: frozenset[str] = frozenset()
    """Nodes that an engine is still built for, or about to be; not those whose build runs on another node."""
    statuses: Mapping[str, EngineBuildStatus] = field(default_factory=dict)
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    start: tuple[StartBuild, ...] = ()
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    """Nodes of one class that are the same, and the engines that they may get."""

    s: Snapshot
    pinned: Resolved
    hardware_class: HardwareClass
    fingerprint: str
    observation: Observation
    nodes: tuple[str, ...]
    is_candidate: bool = False
    """What they are under a candidate image."""

    def want(self, variant: Variant) -> Wanted:
        s, o, hardware_class = self.s, self.observation, self.hardware_class
        assert s.store is not None
        request = requests.build_request(
            s.namespace,
            s.name,
            s.spec,
            s.store,
            self.pinned,
            hardware_class=hardware_class,
            fingerprint_id=self.fingerprint,
            facts=o.facts,
            variant=variant,
        )
        name = object_name(s.name, s.uid, hardware_class.name, o.image_digest, request.engine_key, request.gate_key, s.store.uri)
        spec = EngineBuildSpec.model_validate(
            {
                "modelDeployment": s.name,
                "revision": requests.revision(s.spec, self.pinned, hardware_class.spec.backend),
                "class": hardware_class.name,
                "image": hardware_class.spec.runtime.image,
                "imageDigest": o.image_digest,
                "fingerprint": self.fingerprint,
                "summary": o.summary,
                "precision": variant.precision,
                "variant": variant.id,
                "preparedKey": request.prepared_key,
                "preparedModel": request.prepared_model,
                "engineKey": request.engine_key,
                "gateKey": request.gate_key,
                "request": request.to_json_dict(),
            }
        )
        return Wanted(name, hardware_class, self.fingerprint, o.summary, o.image_digest, self.nodes, spec, variant)

    def made(self) -> dict[str, str]:
        """Variant id → why there is none for this device, "" where there is."""
        s, facts = self.s, self.observation.facts
        unfit = requests.unfit(s.spec, self.pinned, self.hardware_class, facts)
        return requests.made(self.pinned, self.flavour) | unfit | requests.refusals(s.spec, self.hardware_class, facts)

    @property
    def flavour(self) -> str | None:
        return requests.flavour(self.hardware_class, self.observation.facts)

    def needs(self, variant: Variant | None) -> tuple[Need, ...]:
        flavour = self.flavour
        return requests.needed(self.s.spec, flavour, variant, self.made()) if variant is not None and flavour is not None else ()

    def unbuilt(self, ladder: Ladder[Wanted]) -> Unbuilt:
        why = {rung.variant.id: rung.message for rung in ladder.rungs}
        if ladder.needs is not None:
            tried = "".join(f"; {variant}: {text}" for variant, text in why.items())
            message = f"{self.hardware_class.name}: {ladder.needs.id} is prepared for {self.observation.summary}{tried}"
            return Unbuilt(self.hardware_class, self.observation, self.nodes, "Preparing", message, waits=True)
        message = _nothing_for(self.hardware_class, self.observation.summary, why)
        return Unbuilt(self.hardware_class, self.observation, self.nodes, _reason_of(why, self.pinned.refused), message, waits=False)


HELD = "HeldForApproval"


def _is_held(s: Snapshot, one: _Fingerprint) -> bool:
    """Whether `onVersionChange: Hold` keeps this fingerprint from being built for.

    A change is what nodes that have a release become and nothing was built for yet: new nodes, other models and a class that has served
    nothing so far are none of it.
    """
    hardware_class = one.hardware_class
    if one.is_candidate or hardware_class.spec.on_version_change != "Hold" or pausing.approval(s):
        return False  # a candidate is proven because somebody asked for it
    name, key = hardware_class.name, labels.release_key(s.namespace, s.name)
    before = next((c.fingerprints for c in s.status.classes if c.name == name), [])
    # what was built for a candidate is proven and still not approved; what was not looked at yet may be of one
    mine = [b for b in s.builds if b.spec.hardware_class == name and b.status.phase]
    built = {b.spec.fingerprint for b in mine if not b.status.candidate}
    known = built | {f.id for f in before if f.state != "Held"}
    served = any(n.labels.get(key) for n in s.nodes if n.name in one.nodes)
    return served and one.fingerprint not in known


def _held(one: _Fingerprint) -> Unbuilt:
    nodes = f"{len(one.nodes)} {'nodes are' if len(one.nodes) > 1 else 'node is'}"
    text = (
        f"{one.hardware_class.name}: {nodes} {one.observation.summary} now, and onVersionChange is Hold: "
        f"annotate the ModelDeployment with {labels.APPROVE}=<any new value> to have an engine built for it and rolled out"
    )
    return Unbuilt(one.hardware_class, one.observation, one.nodes, HELD, text, waits=True)


def _fingerprints(s: Snapshot, pinned: Resolved) -> list[_Fingerprint]:
    found: list[_Fingerprint] = []
    # candidates last: what is to serve comes first where both wait for the same place
    for hardware_class, is_candidate in [*((c, False) for c in targets(s)), *((c, True) for c in candidates(s))]:
        groups: dict[str, list[tuple[str, Observation]]] = {}
        for node in nodes_of(s, hardware_class):
            if o := observation(s, hardware_class, node):
                groups.setdefault(o.id, []).append((node.name, o))
        for fingerprint, members in sorted(groups.items()):
            names = tuple(name for name, _ in members)
            found.append(_Fingerprint(s, pinned, hardware_class, fingerprint, members[0][1], names, is_candidate))
    return found


REFRESHED = frozenset({"PreparedMissing", "PreparedChanged", "DataSetChanged"})
"""Failures of a build for which `enginefleet.io/refresh` is the remedy: it is tried again after one."""
LOST_ENGINE = frozenset({"ObjectMissing", "BlobDamaged", "NotProven"})
"""What a fetch says when the store no longer holds what was published: the build is opened again, and adopts or rebuilds."""


def builds(s: Snapshot, pinned: Resolved, now: float) -> BuildStage:
    sorted_out = [(one, _is_held(s, one)) for one in _fingerprints(s, pinned)]
    known = [one for one, is_held in sorted_out if not is_held]
    present = {b.name: b for b in s.builds if not b.deleting}
    serving = frozenset(w.build for w in s.workloads if not w.deleting)
    order = requests.ladder(s.spec)
    # climbed twice, with what was known before and after this pass; an engine's spec is put together once
    wants = [(one.made(), cache(one.want)) for one in known]
    before = [climb(order, made, want, {b.name: b.status for b in present.values()}, serving) for made, want in wants]
    wanted: dict[str, Wanted] = {}
    for want in _tried(before):
        wanted.setdefault(want.name, want)
    # two images of one digest are one image: such a candidate wants what is wanted anyway
    own = {want.name for want in _tried([ladder for one, ladder in zip(known, before, strict=True) if not one.is_candidate])}
    # two classes that share hardware, image and gate want the same engine: one Job builds, the other adopts after it
    busy: set[str] = {j.build for j in s.jobs if j.role == "build" and j.active and not j.context}
    busy_keys = {present[name].spec.engine_key for name in busy if name in present}
    statuses: dict[str, EngineBuildStatus] = {}
    actions: list[Action] = []
    events: list[Event] = []
    start: list[StartBuild] = []
    running = running_builds(s)
    wakes: list[float] = []
    cramped: list[pausing.Cramped] = []
    for want in wanted.values():
        build = present.get(want.name)
        if build is None:
            continue  # created by decide; its own event brings us back
        told = len(events)
        status = build.status.model_copy(update={"candidate": want.name not in own})
        if s.annotations.get(labels.RETRY, "") not in ("", status.retry_token):
            phase = status.phase if status.phase == "Passed" else "Waiting"
            status = status.model_copy(
                update={
                    "build": retry.reset(status.build),
                    "contexts": contexts.again(status.contexts),
                    "retry_token": s.annotations.get(labels.RETRY, ""),
                    "phase": phase,
                }
            )
        last = status.build.last_failure if status.build is not None else None
        # in the pass in which the refresh is done: an operator that dies before it is written down does it again
        if last is not None and last.reason in REFRESHED and refresh_token(s) != s.status.refresh_token:
            status = status.model_copy(update={"build": retry.reset(status.build), "phase": "Waiting"})
        lost = _lost(s, want, status)
        if lost:
            status, event = lost_engine(want, status, lost)
            events.append(event)
        if status.phase != "Passed" and (status.phase != "Failed" or not retry.is_permanent(status.build)):
            jobs = [j for j in s.jobs if j.role == "build" and j.build == want.name and not j.context]
            found = attempt(s, jobs, status.build, want.name[:40], (want.name,), now)
            if found.start and not any(n.ready for n in s.nodes if n.name in want.nodes):
                found = Attempt(found.state)  # offline is not failed: it is built when a node of its kind is back
            actions += dropped(found)
            if found.running is not None:
                status, one = make_room(s, want, status, found.running, want.nodes)
                cramped += [one] if one is not None else []
            status, new_events = _advance(s, want, status, found, now)
            events += new_events if not found.start else ()
            if found.wake_at is not None:
                wakes.append(found.wake_at)
            if found.start:
                if want.spec.engine_key in busy_keys or orphans(s, "build", want.spec.engine_key[:16], now):
                    status = status.model_copy(
                        update={"phase": "Waiting", "message": "Waiting: another Job still works on the same engine."}
                    )
                elif not (where := _admit(s, want, _avoid(status), running, now)).ready:
                    status = status.model_copy(update={"phase": "Waiting", "message": f"{where.reason}: {where.message}"})
                    wakes += [where.wake_at] if where.wake_at is not None else []
                else:
                    events += new_events
                    busy_keys.add(want.spec.engine_key)
                    running.append(RunningBuild(want.hardware_class.name, f"{s.namespace}/{s.name}", where.node))
                    start.append(StartBuild(found.start, found.number, want.name, build.uid, want.spec, _avoid(status), where.node))
        if status.candidate:
            events[told:] = [replace(e, message=f"Candidate image {want.spec.image}: {e.message}") for e in events[told:]]
        statuses[want.name] = status
    ladders = [climb(order, made, want, statuses, serving) for made, want in wants]
    climbed = list(zip(known, ladders, strict=True))
    stage = _stage([(one, ladder) for one, ladder in climbed if not one.is_candidate], statuses)
    trial = _stage([(one, ladder) for one, ladder in climbed if one.is_candidate], statuses)
    every = tuple({want.name: want for want in (*trial.every, *stage.every)}.values())
    return replace(
        stage,
        every=every,
        needs=tuple(dict.fromkeys((*stage.needs, *trial.needs))),
        trial=trial,
        cramped=tuple(cramped),
        undecided=_undecided(s, every, statuses),
        held=tuple(_held(one) for one, is_held in sorted_out if is_held),
        actions=tuple(actions),
        events=tuple(events),
        start=tuple(start),
        wake_at=min(wakes, default=None),
    )


def _tried(ladders: Sequence[Ladder[Wanted]]) -> list[Wanted]:
    return [rung.want for ladder in ladders for rung in ladder.rungs if rung.want is not None]


def _stage(climbed: Sequence[tuple[_Fingerprint, Ladder[Wanted]]], statuses: Mapping[str, EngineBuildStatus]) -> BuildStage:
    """What came of some fingerprints, without what is to be done."""
    ladders = [ladder for _, ladder in climbed]
    current = {ladder.current.want.name: (ladder, ladder.current.want) for ladder in ladders if ladder.current and ladder.current.want}
    return BuildStage(
        wanted=tuple(want for _, want in current.values()),
        passed={r.want.name: r.status for ladder in ladders if (r := ladder.chosen) and r.want is not None and r.status is not None},
        every=tuple(_tried(ladders)),
        ladders={name: ladder for name, (ladder, _) in current.items()},
        needs=tuple(dict.fromkeys(need for one, ladder in climbed for need in one.needs(ladder.needs))),
        unbuilt=tuple(one.unbuilt(ladder) for one, ladder in climbed if ladder.current is None),
        statuses=statuses,
    )


def written(s: Snapshot, stage: BuildStage) -> list[Action]:
    """The statuses of EngineBuilds that differ from what stands there."""
    before = {b.name: b.status for b in s.builds}
    return [WriteBuildStatus(name, status.to_json_dict()) for name, status in stage.statuses.items() if status != before.get(name)]


def make_room(
    s: Snapshot, want: Wanted, status: EngineBuildStatus, job: Job, nodes: tuple[str, ...]
) -> tuple[EngineBuildStatus, pausing.Cramped | None]:
    """What a pause on one of `nodes` would help a Job of this engine: one is made for it once, which the status keeps in mind."""
    one = pausing.cramped(s, want.hardware_class, want.name, job, nodes)
    if one is None:
        return status, None
    if pausing.paused_nodes(s).intersection(nodes):
        return status.model_copy(update={"paused_for": job.uid}), None
    return status, replace(one, nodes=want.nodes) if status.paused_for != job.uid else None


def lost_engine(want: Wanted, status: EngineBuildStatus, why: str) -> tuple[EngineBuildStatus, Event]:
    """The store does not hold it any more as it was published: it is made again, and what serves goes on."""
    event = Event("EngineLost", f"{want.name}: {why}; building again.", warning=True)
    return status.model_copy(update={"phase": "Waiting", "engine": None, "message": why}), event


def _undecided(s: Snapshot, wanted: Sequence[Wanted], statuses: Mapping[str, EngineBuildStatus]) -> frozenset[str]:
    elsewhere = {j.build: j.node for j in s.jobs if j.role == "build" and j.active and j.node}
    names: set[str] = set()
    for want in wanted:
        status = statuses.get(want.name)
        if status is None or (status.phase != "Passed" and not retry.is_permanent(status.build)):
            names.update(node for node in want.nodes if elsewhere.get(want.name, node) == node)
    return frozenset(names)


def running_builds(s: Snapshot) -> list[RunningBuild]:
    """Builds of the cluster, else those that this ModelDeployment knows of itself."""
    if s.running is not None:
        return list(s.running)
    classes = {b.name: b.spec.hardware_class for b in s.builds}
    mine = [j for j in s.jobs if j.role == "build" and j.active and (j.node or not j.context)]
    return [RunningBuild(classes.get(j.build, ""), f"{s.namespace}/{s.name}", j.node) for j in mine]


def _admit(s: Snapshot, want: Wanted, avoid: tuple[str, ...], running: Sequence[RunningBuild], now: float) -> queue.Admission:
    names = frozenset(want.nodes)
    nodes = [node for node in s.nodes if node.name in names]
    return queue.admit(want.name, want.hardware_class, nodes, running, s.places, avoid, now)


def _lost(s: Snapshot, want: Wanted, status: EngineBuildStatus) -> str:
    blob = (status.engine or {}).get("blob", "")
    served = {
        w.label for w in s.workloads if (w.hardware_class, w.fingerprint, w.blob) == (want.hardware_class.name, want.fingerprint, blob)
    }
    passed_at = retry.seconds_of(status.passed_at) if status.passed_at else 0.0
    for job in s.jobs:
        said = job.failure if job.role == "preload" and job.blob == blob and job.ended > passed_at else None
        if said is not None and said.reason in LOST_ENGINE:
            return f"{said.reason}: {said.message}"
    for pod in s.pods:
        if pod.trouble_at <= passed_at:
            continue  # said before the engine was published again; the pod asks again by itself
        if pod.workload_label in served and pod.trouble is not None and pod.trouble[0] in LOST_ENGINE:
            return f"{pod.trouble[0]}: {pod.trouble[1]}"
    return ""


def _avoid(status: EngineBuildStatus) -> tuple[str, ...]:
    """The node of the last environment fault: another node of the same fingerprint first."""
    last = status.build.last_failure if status.build else None
    return (status.node,) if last is not None and last.failure_class == FailureClass.ENVIRONMENT and status.node else ()


def _advance(s: Snapshot, want: Wanted, status: EngineBuildStatus, found: Attempt, now: float) -> tuple[EngineBuildStatus, list[Event]]:
    """The EngineBuild's next status from where its attempt stands."""
    changes: dict[str, object] = {"build": found.state}
    events: list[Event] = []
    job = found.running
    if isinstance(found.report, BuildReport):
        report = found.report
        if report.engine_key != want.spec.engine_key or report.gate_key != want.spec.gate_key:
            failure = Failure(
                FailureClass.PERMANENT,
                "ForeignReport",
                f"the report is about engine {report.engine_key[:12]}, not {want.spec.engine_key[:12]}.",
            )
            changes["build"] = retry.after_failure(
                status.build, found.state.job if found.state else "", failure, now, s.settings.retry_base
            )
            changes |= {"phase": "Failed", "message": failure.message}
            return status.model_copy(update=changes), [Event(failure.reason, failure.message, warning=True)]
        changes |= {
            "accuracy": report.accuracy.to_json_dict() if report.accuracy else None,
            "latency": [item.to_json_dict() for item in report.latency],
            "speedup": report.speedup or "",
            "durations": report.durations,
            "reasons": report.reasons,
            "node": node_of(s, found) or status.node,
        }
        verb = "adopted" if report.adopted else "built"
        if report.answer is Answer.PASS:
            changes |= {"phase": "Passed", "passed_at": retry.timestamp(now)}
            changes |= {"engine": {"blob": report.blob, "size": report.size, "adopted": report.adopted}}
            at = node_of(s, found)
            own = contexts.of_node(s.fingerprints.get(at), want.spec.request["facts"])
            changes |= {"contexts": contexts.first(own, report.context, report.answer.value, at, now)}
            changes["message"] = (
                f"Passed: engine {verb}" + (f", {report.accuracy.metric} {report.accuracy.value}" if report.accuracy else "") + "."
            )
            events.append(Event("EngineAdopted" if report.adopted else "EngineBuilt", f"{want.name}: {changes['message']}"))
        else:
            said = "; ".join(report.reasons) or "no reason given"
            reason = "GateFailed" if report.answer is Answer.FAIL else "GateInconclusive"
            elsewhere = cross_capability(want.spec.request["facts"])
            if report.answer is Answer.INCONCLUSIVE and elsewhere is not None:
                # no waiting cures it
                reason = "NoDeviceToJudgeOn"
                said = f"{said}; no pod gets this engine, as no node of {want.hardware_class.name} has such a GPU"
            lasting = report.answer is Answer.FAIL or report.lasting or elsewhere is not None
            kind = FailureClass.PERMANENT if lasting else FailureClass.TRANSIENT
            job_name = found.state.job if found.state else ""
            failure = Failure(kind, reason, said)
            changes["build"] = retry.after_failure(status.build, job_name, failure, now, s.settings.retry_base)
            changes |= {
                "phase": "Failed" if report.answer is Answer.FAIL else "Inconclusive",
                "engine": None,
                "message": f"{reason}: {said}",
            }
            events.append(Event(reason, f"{want.name} ({want.hardware_class.name}): {said}", warning=True))
        return status.model_copy(update=changes), events
    if found.failed is not None:
        state = found.state
        assert state is not None
        permanent = retry.is_permanent(state)
        next_text = "" if permanent else f" Attempt {state.attempts + 1} at {state.next_attempt_at}."
        changes |= {
            "phase": "Failed" if permanent else "Waiting",
            "message": f"{found.failed.reason}: {found.failed.message} {found.failed.hint}".rstrip() + next_text,
            "node": node_of(s, found) or status.node,
        }
        events.append(Event(found.failed.reason, f"{want.name}: {found.failed.message}", warning=True))
    elif job is not None and job.waiting is not None:
        changes |= {"phase": "Waiting", "message": "{}: {}".format(*explain_waiting(s, want, status, job, now))}
    elif job is not None:
        changes |= {
            "phase": "Building",
            "node": job.node or status.node,
            "message": f"Job {job.name} runs" + (f" on {job.node}." if job.node else "."),
        }
    elif found.start:
        changes |= {"phase": "Building", "message": f"Job {found.start} starts."}
        events.append(Event("BuildStarted", f"Job {found.start} builds for {want.summary} (attempt {found.number})."))
    return status.model_copy(update=changes), events


def node_of(s: Snapshot, found: Attempt) -> str:
    """Where the attempt that ended ran."""
    name = found.state.job if found.state else ""
    return next((j.node for j in s.jobs if j.name == name), "")


def explain_waiting(s: Snapshot, want: Wanted, status: EngineBuildStatus, job: Job, now: float) -> tuple[str, str]:
    """Why a build's pod can't start, in words that name the holder of the device where there is one."""
    assert job.waiting is not None
    one = pausing.cramped(s, want.hardware_class, want.name, job, want.nodes) if status.paused_for != job.uid else None
    if one is not None and (said := pausing.explain(s, one, now)) is not None:
        return said
    for holder in s.holders:
        if holder.node in want.nodes:
            reason = "BuildNeedsOutage" if holder.ours else "WaitingForDevice"
            return (
                reason,
                f"{holder.resource} of node {holder.node} is held by pod {holder.pod} since {holder.since}; the build starts when it is free.",
            )
    return job.waiting


def obsolete_builds(s: Snapshot, stage: BuildStage) -> list[Action]:
    """EngineBuilds that nothing wants and no workload serves: the newest historyLimit of them stay; Jobs of unwanted ones are ended."""
    wanted = {w.name for w in stage.every}
    serving = {w.build for w in s.workloads if not w.deleting}
    # what a candidate was proven with before its promotion was held
    held = {(one.hardware_class.name, one.observation.id) for one in stage.held}
    wanted |= {b.name for b in s.builds if (b.spec.hardware_class, b.spec.fingerprint) in held and b.status.phase == "Passed"}
    old: list[EngineBuild] = [b for b in s.builds if b.name not in wanted and b.name not in serving and not b.deleting]
    old.sort(key=lambda b: (b.created, b.name), reverse=True)
    actions: list[Action] = [Delete("EngineBuild", b.name, b.uid, "older than historyLimit") for b in old[s.spec.history_limit :]]
    if not all_observed(s):
        return actions  # what a node wants is not known at this moment: a running build may be what it wants
    # the same of what it would want under a candidate image
    unsure = {(c.name, c.spec.runtime.image) for c in candidates(s) if not _is_observed(s, c)}
    kept = {b.name for b in s.builds if (b.spec.hardware_class, b.spec.image) in unsure}
    actions += [
        Delete("Job", j.name, j.uid, "nothing wants its engine any more")
        for j in s.jobs
        if j.role == "build" and j.build not in wanted and j.build not in kept and j.active and not j.deleting
    ]
    return actions


def all_observed(s: Snapshot) -> bool:
    return all(_is_observed(s, c) for c in targets(s))


def _is_observed(s: Snapshot, hardware_class: HardwareClass) -> bool:
    return all(observation(s, hardware_class, node) is not None for node in nodes_of(s, hardware_class))


def missing_builds(s: Snapshot, stage: BuildStage) -> list[Wanted]:
    present = {b.name for b in s.builds}
    return [w for w in stage.every if w.name not in present]
