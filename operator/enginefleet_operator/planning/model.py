"""What decisions read (the snapshot) and what they answer (the plan): frozen data, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.errors import FailureClass
from enginefleet_api.flavours import ONNXRUNTIME
from enginefleet_api.jobs import BuildReport, PrepareReport, ProbeReport, PublishedEngine, VerifyReport
from enginefleet_api.resources import (
    EngineBuildSpec,
    EngineBuildStatus,
    EngineStoreSpec,
    HardwareClassSpec,
    HardwareClassStatus,
    ModelDeploymentSpec,
    ModelDeploymentStatus,
    NodeFingerprintSpec,
    Observation,
    ProbedRuntime,
    Resolved,
)
from enginefleet_api.variants import Variant


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator was started with, as far as decisions depend on it."""

    namespace: str = "enginefleet-system"
    retry_base: float = 30.0
    """Seconds before the first retry of a transient failure; doubled up to an hour."""
    job_ttl: int = 86400
    cache_path: str = "/var/lib/enginefleet/cache"
    leave_grace: float = 3600.0
    """Seconds for which a node that no longer matches its class keeps its labels: discovery restarts, labels come back."""
    prepare_image: str = ""
    """Image of prepare Jobs whose class names none; "": the class's runtime image."""
    check_hours: float = 24.0
    """Hours between two looks at whether published engines are in the store as they were published; 0: none."""
    tables: str = "enginefleet-tables"
    """Name of the ConfigMaps whose files replace the builder's tables, each for Jobs of its namespace; "": none is mounted."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    resource_version: str
    labels: Mapping[str, str]
    ready: bool
    unschedulable: bool = False
    since: float = 0.0
    """Since when it is ready, or not."""
    labelled_at: float = 0.0
    """When a label of ours was last written there: no label of ours is younger."""
    boot_id: str = ""
    """As the kubelet says it."""


@dataclass(frozen=True, slots=True)
class HardwareClass:
    name: str
    uid: str
    generation: int
    spec: HardwareClassSpec
    status: HardwareClassStatus
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    digests: Mapping[str, str] = field(init=False, compare=False, repr=False)
    """host digest → image digest of the *current* image, as far as probed."""

    def __post_init__(self) -> None:
        # it is asked for each of thousands of nodes
        object.__setattr__(self, "digests", {p.host_digest: p.image_digest for p in self.status.probed if self.is_current(p)})

    @property
    def runs_on_gpu(self) -> bool:
        return fingerprint.runs_on_gpu({"backend": self.spec.backend, "executionProvider": self.spec.execution_provider})

    @property
    def asked(self) -> str:
        """What a probe is told beside the image; "" for ONNX Runtime on the CPU."""
        python = self.spec.runtime.python if self.spec.backend != "onnxruntime" else ""
        elsewhere = f"for {self.spec.builds.compute_capability}" if self.spec.builds.compute_capability else ""
        text = " ".join(filter(None, (self.spec.backend, self.spec.execution_provider, python, elsewhere)))
        return text if text != "onnxruntime CPU" else ""

    def is_current(self, probed: ProbedRuntime) -> bool:
        """Whether a probe was of the image, and asked what it would be asked now."""
        return probed.image == self.spec.runtime.image and probed.asked == self.asked

    @property
    def candidate(self) -> HardwareClass | None:
        """The class as it would be with its candidate image; None where it has none."""
        runtime = self.spec.runtime
        if not runtime.candidate_image:
            return None
        tried = runtime.model_copy(update={"image": runtime.candidate_image, "candidate_image": ""})
        return replace(self, spec=self.spec.model_copy(update={"runtime": tried}))


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a Job failed, whoever noticed."""

    failure_class: FailureClass
    reason: str
    message: str
    hint: str = ""
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A Job with what its pods said. One that is finished has a report or a failure (see kube.views); only a preload has nothing to report."""

    name: str
    uid: str
    role: str
    attempt: int
    build: str = ""
    inputs_key: str = ""
    blob: str = ""
    """The engine that it brings to a node."""
    active: bool = True
    deleting: bool = False
    live_pods: int = 0
    node: str = ""
    created: float = 0.0
    ended: float = 0.0
    report: PrepareReport | BuildReport | ProbeReport | VerifyReport | None = None
    failure: Failure | None = None
    image_id: str = ""
    waiting: tuple[str, str] | None = None
    """(reason, message) when its pod can't start."""
    context: str = ""
    """Of a build Job that only judges: the context."""


@dataclass(frozen=True, slots=True)
class EngineBuild:
    name: str
    uid: str
    created: str
    spec: EngineBuildSpec
    status: EngineBuildStatus
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet that serves one engine."""

    name: str
    uid: str
    hardware_class: str
    fingerprint: str
    label: str
    """Value of the release label that it selects."""
    build: str
    image_digest: str
    blob: str
    deleting: bool = False
    desired: int = 0
    """Nodes on which the DaemonSet controller wants a pod of it."""


@dataclass(frozen=True, slots=True)
class Revision:
    """A ControllerRevision that keeps the DaemonSet of one engine, under the same name: what a rollback makes it from again."""

    name: str
    uid: str
    hardware_class: str
    fingerprint: str
    label: str
    image_digest: str
    created: float
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ServingPod:
    name: str
    uid: str
    node: str
    workload_label: str
    ready: bool
    deleting: bool = False
    since: float = 0.0
    """Since when it is ready, or not; not before its engine was fetched."""
    loading: bool = False
    """Its images or its engine are on their way."""
    trouble_at: float = 0.0
    """When the trouble was last seen to happen."""
    trouble: tuple[str, str] | None = None
    """(reason, message) when it can't serve: a refused fetch, a crash loop, an image that can't be pulled."""


@dataclass(frozen=True, slots=True)
class OrphanPod:
    """A pod of a Job that was deleted under it: it may still work, so nothing else may yet."""

    role: str
    engine_key: str
    """First 16 digits, as in its label; "" for prepare."""
    node: str


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """Another pod that holds the device a build waits for."""

    node: str
    resource: str
    pod: str
    """namespace/name"""
    since: str
    ours: bool


@dataclass(frozen=True, slots=True)
class RunningBuild:
    """A build Job of any ModelDeployment that has not ended. `node` is "" while its pod has no place."""

    hardware_class: str
    model: str
    """namespace/name of its ModelDeployment"""
    node: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A node as a build would find it. why_not: why its pod would not run there now; serves: some engine is served there."""

    why_not: str = ""
    serves: bool = False

    @property
    def is_idle(self) -> bool:
        return not self.why_not and not self.serves


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that decisions about one ModelDeployment read, gathered at one time."""

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: Mapping[str, str]
    spec: ModelDeploymentSpec
    status: ModelDeploymentStatus
    classes: Mapping[str, HardwareClass]
    """Every HardwareClass of the cluster by name."""
    namespace_labels: Mapping[str, str]
    store: EngineStoreSpec | None
    nodes: tuple[Node, ...]
    fingerprints: Mapping[str, NodeFingerprintSpec]
    """By node name."""
    builds: tuple[EngineBuild, ...] = ()
    jobs: tuple[Job, ...] = ()
    workloads: tuple[Workload, ...] = ()
    revisions: tuple[Revision, ...] = ()
    pods: tuple[ServingPod, ...] = ()
    orphans: tuple[OrphanPod, ...] = ()
    holders: tuple[DeviceHolder, ...] = ()
    refused: tuple[str, str] | None = None
    """(reason, message) of a write that the API server refused in this very pass."""
    rooms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name of a build Job that has no place: nodes on which it would have one without what this ModelDeployment serves there."""
    has_service: bool = False
    running: tuple[RunningBuild, ...] | None = None
    """Builds of the whole cluster; None: not looked up yet, and then no build starts for good (see kube.reconcile)."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Nodes that a build may be put on, as far as they were looked at."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Nodes that serve and on which the new pod would not run, and why: they keep what they have."""
    settings: Settings = field(default_factory=Settings)


# ---- the plan ----


@dataclass(frozen=True, slots=True)
class Need:
    """A variant in one flavour, which prepare has to make."""

    flavour: str
    variant: Variant

    @property
    def id(self) -> str:
        return self.variant.id if self.flavour == ONNXRUNTIME else f"{self.flavour}/{self.variant.id}"


@dataclass(frozen=True, slots=True)
class StartPrepare:
    job: str
    attempt: int
    inputs_key: str
    needs: tuple[Need, ...]
    """What to make now."""
    pinned: Resolved | None = None
    """What was resolved before, where these are further variants of it."""


@dataclass(frozen=True, slots=True)
class CreateBuild:
    """Create an EngineBuild."""

    name: str
    spec: EngineBuildSpec


@dataclass(frozen=True, slots=True)
class Judge:
    """A published engine, to be judged in a context that `nodes` are in."""

    context: str
    blob: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartBuild:
    job: str
    attempt: int
    build: str
    build_uid: str
    spec: EngineBuildSpec
    avoid: tuple[str, ...] = ()
    """Nodes where it failed last for reasons of their own."""
    node: str = ""
    """The node it runs on; "": where the scheduler finds room."""
    judge: Judge | None = None
    """Only judge: nothing is built."""


@dataclass(frozen=True, slots=True)
class StartVerify:
    """Look whether these engines are in the store as they were published."""

    job: str
    attempt: int
    engines: tuple[PublishedEngine, ...]


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the DaemonSet of one engine: nothing in it ever changes afterwards."""

    name: str
    hardware_class: str
    release: str
    label: str
    """Value of the release label that its nodes carry."""
    build: str
    spec: EngineBuildSpec
    blob: str
    size: int


@dataclass(frozen=True, slots=True)
class StartPreload:
    """Bring the engine of `workload` to a node's cache, before what serves there ends."""

    job: str
    node: str
    workload: CreateWorkload


@dataclass(frozen=True, slots=True)
class KeepRevision:
    """Keep the DaemonSet of one engine as a ControllerRevision, for a rollback."""

    workload: CreateWorkload

    @property
    def name(self) -> str:
        return self.workload.name


@dataclass(frozen=True, slots=True)
class RestoreWorkload:
    """Make a DaemonSet again from the ControllerRevision of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateService:
    name: str


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Probe an image of a class, the current or the candidate one, on one node of a hardware group."""

    job: str
    attempt: int
    host_digest: str
    node: str
    image: str


@dataclass(frozen=True, slots=True)
class WriteObservations:
    """All observations of one node that this operator makes: what is not listed is taken back."""

    node: str
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class WriteEngines:
    """The status of one node's NodeFingerprint."""

    node: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    kind: str
    """Job | DaemonSet | ControllerRevision | EngineBuild | Pod"""
    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class LabelNode:
    """Set (or, with None, remove) labels of a node as it was at `resource_version`."""

    node: str
    resource_version: str
    labels: Mapping[str, str | None]
    why: str


@dataclass(frozen=True, slots=True)
class WriteBuildStatus:
    name: str
    status: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    reason: str
    message: str
    warning: bool = False


Action = (
    StartPrepare
    | CreateBuild
    | StartBuild
    | StartVerify
    | CreateWorkload
    | StartPreload
    | KeepRevision
    | RestoreWorkload
    | CreateService
    | StartProbe
    | WriteObservations
    | Delete
    | LabelNode
    | WriteBuildStatus
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now: actions in this order, then the status (None: unchanged), then events. `wake_at`: look again then."""

    actions: tuple[Action, ...] = ()
    status: Mapping[str, Any] | None = None
    events: tuple[Event, ...] = ()
    wake_at: float | None = None
