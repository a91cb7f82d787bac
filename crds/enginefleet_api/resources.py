"""The resources of enginefleet.io/v1alpha1 as pydantic models: what the API server's schema is generated from.

Defaults stand in the models and nowhere else; CEL rules stand beside the model that they check (`RULES`), see `schema.py`. The spec of
ModelDeployment is in `model.py`, `judging.py` and `modeldeployment.py`, shared fields are in `fields.py`; all are to be had from here too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Contract, NameText, QuantityText, Rule, matching
from .fields import (
    CountOrPercent,
    Endpoint,
    FreeObject,
    Image,
    LabelSelector,
    LocalRef,
    OptionalImage,
    Percent,
    Text,
    Uri,
    Window,
    checked,
    list_map,
    list_set,
)
from .judging import (
    AccuracyAcceptance,
    Benchmark,
    Decoder,
    ExpectedBaseline,
    OnDevice,
    OperatingPoint,
    PythonMetric,
    SpeedAcceptance,
    Subgroups,
    Validation,
)
from .model import Calibration, Exclude, InputSpec, Model, ModelExport, Preprocessing, Profile, Shape
from .modeldeployment import BuildSettings, Canary, Dla, ModelDeploymentSpec, Rollout, Serving, Target

GROUP = "enginefleet.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

__all__ = [
    "API_VERSION", "GROUP", "VERSION",
    "AccuracyAcceptance", "AttemptState", "Benchmark", "BuildSettings", "Builds", "Calibration", "Canary", "ClassFingerprint",
    "ClassStatus", "Condition", "CountOrPercent", "Decoder", "Dla", "Endpoint", "EngineBuildSpec", "EngineBuildStatus", "EngineStoreSpec",
    "EngineStoreStatus", "Exclude", "ExpectedBaseline", "FailureRecord", "FingerprintStatus", "FreeObject", "HardwareClassSpec",
    "HardwareClassStatus", "Host", "IdentitySettings", "Image", "InputSpec", "JudgedContext", "LabelSelector", "LocalRef", "Model", "ModelDeploymentSpec",
    "ModelDeploymentStatus", "ModelExport", "NodeCounts", "NodeEngine", "NodeFingerprintSpec", "NodeFingerprintStatus", "NodeTrouble", "Observation",
    "OnDevice", "OperatingPoint", "OptionalImage", "Percent", "PrepareSettings", "Preprocessing", "ProbeState", "ProbedRuntime", "Profile", "PythonMetric",
    "Resolved", "Rollout", "RolloutStatus", "Runtime", "SecretKeyRef", "Serving", "Shape", "Signing", "SpeedAcceptance", "StoreCheck", "Subgroups", "Target",
    "Text", "Trust", "Uri", "Validation", "Window",
]  # fmt: skip


# ---- what several kinds report ----


class Condition(Contract):
    """metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str


class FailureRecord(Contract):
    """The last failure of a Job, kept where the Job may vanish."""

    failure_class: str
    reason: str
    message: str
    hint: str = ""
    log_tail: list[str] = Field(default_factory=list)
    at: str = ""


class AttemptState(Contract):
    """Attempts of one Job: how many failed, the last failure, when the next may start. `counted`: transient ones in a row."""

    job: str = ""
    attempts: int = 0
    in_a_row: int = 0
    last_failure: FailureRecord | None = None
    next_attempt_at: str = ""


class RefusedTarget(Contract):
    """Kinds of device that preflight found a model unfit for. `variants`: which of them cannot be had there; none named: any."""

    targets: list[str]
    """`id` of the PreflightTarget of each."""
    variants: list[str] = Field(default_factory=list)
    reason: str
    message: str
    hint: str = ""

    @property
    def text(self) -> str:
        return f"{self.reason}: {self.message} {self.hint}".rstrip()


class Resolved(Contract):
    """What mutable inputs were resolved to, pinned until `inputs_key` changes."""

    inputs_key: str
    model: str
    calibration: str | None = None
    validation: str | None = None
    prepare_recipe: int
    engine_recipe: int
    prepared: list[dict[str, Any]] = Field(default_factory=list)
    """[{flavour, variant, precision, preparedKey, model, exclude, failure}]: one that could not be made has a failure and no key."""
    refused: list[RefusedTarget] = Field(default_factory=list)
    unfit_layouts: dict[str, str] = Field(default_factory=dict)
    """Layout → why the model cannot be served in it."""
    baseline_key: str | None = None
    baseline_metric: str = ""
    baseline_value: str = ""


class NodeCounts(Contract):
    total: int = 0
    updated: int = 0
    ready: int = 0
    waiting: int = 0
    unreachable: int = 0
    failed: int = 0


class Attempted(Contract):
    """One variant that a fingerprint went through."""

    variant: str
    state: str
    message: Annotated[str, Field(max_length=512)] = ""


class FingerprintStatus(Contract):
    id: str
    summary: str = ""
    nodes: int = 0
    state: str = ""
    engine_build: str = ""
    blob: str = ""
    precision: str = ""
    """Of the engine that serves, or of the one that is worked on."""
    variant: str = ""
    """How it was made: int8-entropy, int8-max, int8-repaired, fp16, fp32 …"""
    tried: list[Attempted] = Field(default_factory=list)
    """What was tried before, and why it was not taken."""
    speedup: str = ""
    """Against FP32, measured beside it."""
    accuracy: dict[str, Any] | None = None
    latency: list[dict[str, Any]] = Field(default_factory=list)
    message: str = ""


class NodeTrouble(Contract):
    node: str
    state: str
    reason: str
    message: str = ""


class RefusedRelease(Contract):
    """A release that a class went back from, or stopped at: not tried again until the spec changes, or `enginefleet.io/retry`."""

    release: str
    reason: str
    """CanaryFailed, TooManyFailures or Aborted."""
    message: str = ""
    at: str = ""


class RolloutStatus(Contract):
    release: str = ""
    """What the nodes move to."""
    stable_release: str = ""
    """What they would go back to: the last release that every node served."""
    history: list[str] = Field(default_factory=list)
    """Releases that every node served, the newest first."""
    refused: RefusedRelease | None = None
    step: str = ""
    """canary, a percentage, rollback, or done."""
    started_at: str = ""
    eta: str = ""
    """When it will be done if it goes on as fast; empty: not known."""
    paused_reason: str = ""
    promoted: str = ""
    """The release whose canary and steps are skipped, because of `enginefleet.io/promote`."""
    excused: Annotated[list[str], Field(max_length=100)] = Field(default_factory=list)
    """Nodes that could not serve before this rollout either: they say nothing about the release."""


class CandidateStatus(Contract):
    """How the engines of one class stand under its candidate image: built and judged, not rolled out."""

    image: str
    state: str = ""
    """Ready: for all nodes that can be reached there is an engine that passed. Waiting, or Failed: no waiting will cure it."""
    nodes: int = 0
    ready: int = 0
    """Nodes for which an engine passed."""
    reason: str = ""
    message: Annotated[str, Field(max_length=512)] = ""
    fingerprints: list[FingerprintStatus] = Field(default_factory=list)


class ClassStatus(Contract):
    name: str
    nodes: NodeCounts = Field(default_factory=NodeCounts)
    fingerprints: list[FingerprintStatus] = Field(default_factory=list)
    candidate: CandidateStatus | None = None
    """While the class has a `runtime.candidateImage`."""
    rollout: RolloutStatus = Field(default_factory=RolloutStatus)
    failing_nodes: Annotated[list[NodeTrouble], Field(max_length=20)] = Field(default_factory=list)


class StoreCheck(Contract):
    """The last look at whether the engines that may serve are in the store as they were published."""

    at: str = ""
    verified: int = 0
    lost: Annotated[list[str], Field(max_length=25)] = Field(default_factory=list)
    """`<EngineBuild>: <reason>` of those that were not: they are built again."""
    attempt: AttemptState | None = None


class ModelDeploymentStatus(Contract):
    observed_generation: int = -1
    summary: str = ""
    engines: str = ""
    precision: str = ""
    """What was asked for; with auto: the variants that were chosen."""
    rollout: str = ""
    revision: str = ""
    retry_token: str = ""
    promote_token: str = ""
    abort_token: str = ""
    approve_token: str = ""
    refresh_token: str = ""
    """Values of the annotations `enginefleet.io/retry`, `promote`, `abort`, `approve` and `refresh` that were last acted on."""
    resolved: Resolved | None = None
    prepare: AttemptState | None = None
    prepare_inputs_key: str = ""
    """The inputs that `prepare` is about."""
    store_check: StoreCheck | None = None
    classes: Annotated[list[ClassStatus], list_map("name")] = Field(default_factory=list)
    conditions: Annotated[list[Condition], list_map("type")] = Field(default_factory=list)


# ---- HardwareClass ----


class Runtime(Contract):
    """The image in which engines of a class are built and judged, and how its pods run."""

    image: Image
    """Image with the backend, best with its digest."""
    candidate_image: OptionalImage = ""
    """Built and judged beside `image`, and nothing of it is rolled out. To promote it, write it as `image` and leave this out: what was proven is
    taken as it is."""
    python: Annotated[str, matching(r"^(/.*|[a-z0-9.]+)$", "an absolute path or a command, like /usr/bin/python3", max_length=512)] = (
        "python3"
    )
    """The interpreter that owns the backend's bindings."""
    runtime_class_name: Annotated[str, Field(max_length=253)] = ""
    """RuntimeClass of the pods, like nvidia."""
    resources: FreeObject = Field(default_factory=dict)
    """Requests and limits of probe, build and serving containers. May be empty: a Jetson often has no device plugin."""
    tolerations: Annotated[list[FreeObject], Field(max_length=32)] = Field(default_factory=list)
    """Tolerations of the pods, as in a pod's spec."""
    supplemental_groups: Annotated[list[Annotated[int, Field(ge=1, le=2147483647)]], Field(max_length=16)] = Field(default_factory=list)
    """Ids of groups that may open the devices, like 44 (video) on a Jetson: pods do not run as root."""


class Builds(Contract):
    """When and how many engines of a class are built at a time."""

    max_concurrent: Annotated[int, Field(ge=1, le=100)] = 1
    """Builds of the class at a time."""
    windows: Annotated[list[Window], Field(max_length=32)] = Field(default_factory=list)
    """When builds may start; empty: always."""
    when_busy: Literal["Auto", "Wait"] = "Auto"
    """Auto: where no node of the fingerprint has room, a serving pod makes way for the build, within maxUnavailable. Wait: until there is room."""
    memory_reserve: QuantityText = "1Gi"
    """Memory of the node that a build by TensorRT leaves free: below it the build ends by itself."""
    compute_capability: Annotated[str, matching(r"^([0-9]{1,2}\.[0-9])?$", "the compute capability of a GPU, like 8.6", max_length=4)] = ""
    """Build for GPUs of this compute capability, which the nodes of the class do not have. Only TensorRT for RTX can; nothing is run, so no pod gets it."""


class PrepareSettings(Contract):
    """Where models for this class are prepared. FromStore: elsewhere, for boards that are too small."""

    mode: Literal["Local", "FromStore"] = "Local"
    """Local: on a node of the cluster. FromStore: taken from the store only."""
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=16)] = Field(default_factory=dict)
    """Labels of the nodes that prepare Jobs may run on; empty: the class's."""
    resources: FreeObject = Field(default_factory=dict)
    """Requests and limits of prepare Jobs. Devices are left out: nothing is prepared on a GPU."""
    image: OptionalImage = ""
    """Image of prepare Jobs; empty: the one that the operator was started with, else the runtime's."""


class IdentitySettings(Contract):
    """Facts that enter the fingerprint beyond the standard ones, or do not enter it."""

    include: Annotated[list[Text], list_set(max_length=16)] = Field(default_factory=list)
    """Names of context facts that decide about an engine here, like driver."""
    exclude: Annotated[list[Text], list_set(max_length=16)] = Field(default_factory=list)
    """Names of facts that do not decide here."""

    RULES = (Rule("!self.include.exists(fact, fact in self.exclude)", "a fact stands in include and in exclude: write it in one of them"),)


class HardwareClassSpec(Contract):
    """Which nodes belong to the class, and what runs there."""

    node_selector: LabelSelector
    allowed_namespaces: LabelSelector | None = None
    """Namespaces that may build and serve on this hardware; absent: all."""
    backend: Literal["tensorrt", "tensorrt-rtx", "onnxruntime"]
    """What builds and runs the engines."""
    execution_provider: Literal["CPU", "CUDA", "TensorRT", "OpenVINO", "CoreML"] = "CPU"
    """Execution provider of ONNX Runtime."""
    runtime: Runtime
    builds: Builds = Field(default_factory=Builds)
    prepare: PrepareSettings = Field(default_factory=PrepareSettings)
    on_version_change: Literal["Rebuild", "Hold"] = "Rebuild"
    """When the fingerprint of nodes that serve changes. Hold: nothing is built for the new one until the ModelDeployment gets the annotation
    enginefleet.io/approve; what serves stays."""
    identity: IdentitySettings = Field(default_factory=IdentitySettings)

    RULES = (
        Rule(
            "self.backend == 'onnxruntime' || self.executionProvider == 'CPU'",
            "executionProvider is for backend: onnxruntime: leave it out, or write backend: onnxruntime",
            ".executionProvider",
        ),
        Rule(
            "self.backend == 'tensorrt-rtx' || !has(self.builds) || self.builds.computeCapability == ''",
            "only TensorRT for RTX builds for a GPU that is not there: leave computeCapability out, or write backend: tensorrt-rtx",
            ".builds",
        ),
        Rule(
            "self.backend == oldSelf.backend && self.executionProvider == oldSelf.executionProvider",
            "backend and executionProvider do not change, engines that are served are of them: write another HardwareClass",
        ),
        Rule(
            "self.runtime.candidateImage == '' || self.runtime.candidateImage != self.runtime.image",
            "the candidate is the image in use: write another image in runtime.candidateImage, or leave it out",
            ".runtime",
        ),
    )


class ProbedRuntime(Contract):
    """What a probe Job found in a runtime image on one hardware group."""

    image: str
    image_digest: str
    host_digest: str
    asked: str = ""
    """Backend, provider and interpreter, where it was not ONNX Runtime on the CPU."""
    runtime: dict[str, Any]
    at: str = ""


class ProbeState(AttemptState):
    """Attempts to probe one image on one hardware group."""

    image: str = ""
    host_digest: str = ""
    asked: str = ""
    node: str = ""


class ClassFingerprint(Contract):
    id: str
    summary: str = ""
    nodes: int = 0


class CandidateModel(Contract):
    """How one ModelDeployment stands under the candidate image of a class."""

    model_deployment: str
    """namespace/name"""
    state: str
    """Ready, Waiting or Failed: as in the ModelDeployment's status."""
    nodes: int = 0
    ready: int = 0
    """Nodes for which an engine passed."""
    reason: str = ""
    message: str = ""


class ClassCandidate(Contract):
    """The candidate image of a class: what its nodes are under it, and which ModelDeployments are ready for it."""

    image: str
    models: str = ""
    """Ready ones of all that target the class, like 2/3."""
    failed: int = 0
    fingerprints: list[ClassFingerprint] = Field(default_factory=list)
    model_deployments: Annotated[list[CandidateModel], Field(max_length=50)] = Field(default_factory=list)
    """Failed ones first, then those that wait."""


class HardwareClassStatus(Contract):
    observed_generation: int = -1
    nodes: int = 0
    summary: str = ""
    fingerprints: list[ClassFingerprint] = Field(default_factory=list)
    candidate: ClassCandidate | None = None
    probed: list[ProbedRuntime] = Field(default_factory=list)
    probes: list[ProbeState] = Field(default_factory=list)
    retry_token: str = ""
    """Value of `enginefleet.io/retry` that was last acted on."""
    conditions: Annotated[list[Condition], list_map("type")] = Field(default_factory=list)


# ---- EngineStore ----


class SecretKeyRef(Contract):
    """One key of a Secret of the same namespace."""

    name: NameText
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Key in the Secret."""


class Signing(Contract):
    """The private key that build records and verdicts are signed with; read by build Jobs only."""

    key_secret_ref: SecretKeyRef | None = None


PublicKey = Annotated[
    str,
    checked(
        Rule(
            "!self.contains('PRIVATE KEY')",
            "this is a private key, and is known to all readers now: replace it, and write the public key's PEM text here",
        ),
        Rule(
            "self.contains('PRIVATE KEY') || self.startsWith('-----BEGIN ')", "write the PEM text, starting with -----BEGIN PUBLIC KEY-----"
        ),
        max_length=4096,
    ),
]


class Trust(Contract):
    """Whose engines may be loaded."""

    require: bool = False
    """True: an engine without a signature of one of the keys is not loaded."""
    public_keys: Annotated[list[PublicKey], Field(max_length=32)] = Field(default_factory=list)
    """PEM texts of public keys."""

    RULES = (
        Rule(
            "!self.require || size(self.publicKeys) > 0",
            "require without keys would trust nobody: write the PEM text of a key below publicKeys",
        ),
    )


class EngineStoreSpec(Contract):
    """A bucket with conditional writes (If-None-Match, If-Match), and a prefix in it."""

    uri: Annotated[
        str,
        checked(
            Rule(
                "self.matches(r'^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?$')",
                "write s3://<bucket>/<prefix>/: a bucket's name has 3 to 63 lower-case letters, digits, '.' and '-'",
            ),
            Rule("!self.matches(r'/[.]{1,2}(/|$)')", "'.' and '..' are no folders in a bucket: write the prefix without them"),
            max_length=1024,
        ),
    ]
    """Bucket and prefix, like s3://engines/vision/. Namespaces with prefixes of their own do not see each other's engines."""
    endpoint: Endpoint = ""
    """Empty: the provider's own."""
    region: Annotated[str, Field(max_length=64)] = "us-east-1"
    """Region of the bucket."""
    ca_bundle: Annotated[
        str,
        checked(Rule("self == '' || self.contains('-----BEGIN CERTIFICATE-----')", "write the certificates' PEM text"), max_length=65536),
    ] = ""
    """PEM text of the authorities that the endpoint's certificate is checked with; empty: the system's."""
    credentials_secret_ref: LocalRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; absent: the pod's own identity."""
    read_credentials_secret_ref: LocalRef | None = None
    """The same with read access, for serving pods; absent: `credentialsSecretRef`."""
    signing: Signing | None = None
    trust: Trust = Field(default_factory=Trust)


class EngineStoreStatus(Contract):
    observed_generation: int = -1
    conditions: Annotated[list[Condition], list_map("type")] = Field(default_factory=list)


# ---- NodeFingerprint ----


class Host(Contract):
    """What the node agent saw: `digest` groups nodes of equal hardware (see fingerprint.host_digest)."""

    digest: str
    summary: str = ""
    facts: dict[str, Any]
    context: dict[str, Any] = Field(default_factory=dict)


class Observation(Contract):
    """One device under one runtime image; list map keyed by class, imageDigest and device."""

    hardware_class: str = Field(alias="class")
    image_digest: str
    device: str = "cpu"
    id: str
    summary: str = ""
    facts: dict[str, Any]
    host_digest: str = ""


class NodeFingerprintSpec(Contract):
    """What was observed on one node, written when it changes. `host` is the agent's, each observation its probe's."""

    node: NameText
    boot_id: Text = ""
    host: Host | None = None
    observations: Annotated[list[Observation], list_map("class", "imageDigest", "device", max_length=256)] = Field(default_factory=list)


class NodeEngine(Contract):
    """How the engine of one ModelDeployment stands for what the node is now."""

    model_deployment: str
    """namespace/name"""
    hardware_class: str = Field(alias="class")
    fingerprint: str = ""
    """Empty: not known yet."""
    state: str
    """Passed, or why not: as in the ModelDeployment's status, Unknown where the device is not known."""
    message: str = ""


class NodeFingerprintStatus(Contract):
    engines: Annotated[list[NodeEngine], Field(max_length=50)] = Field(default_factory=list)
    """Of the ModelDeployments that target the node, those first that have not passed."""
    conditions: Annotated[list[Condition], list_map("type")] = Field(default_factory=list)


# ---- EngineBuild ----


class EngineBuildSpec(Contract):
    """Immutable. A changed gate is another EngineBuild, which adopts the engine that is there."""

    model_deployment: Text
    revision: Text
    hardware_class: Text = Field(alias="class")
    image: Text
    image_digest: Text
    fingerprint: Text
    summary: Text = ""
    precision: Text
    variant: Text = ""
    prepared_key: Text
    prepared_model: Text
    engine_key: Text
    gate_key: Text
    request: dict[str, Any]
    """The BuildRequest less holder and node."""

    RULES = (Rule("self == oldSelf", "an EngineBuild does not change: delete it, and the operator makes another one"),)


class JudgedContext(Contract):
    """A context (driver, power mode) of nodes of the fingerprint, and how the published engine was judged there."""

    key: str
    facts: dict[str, str] = Field(default_factory=dict)
    answer: Literal["", "Pass", "Fail", "Inconclusive", "Assumed"] = ""
    """Empty: not judged yet. Assumed: it served there before contexts were looked at."""
    reasons: list[str] = Field(default_factory=list)
    at: str = ""
    node: str = ""
    attempt: AttemptState | None = None
    """Of the Jobs that judge it again; none for the context in which it was built."""
    message: str = ""
    """While it is not judged: what it waits for."""


class EngineBuildStatus(Contract):
    phase: Literal["", "Waiting", "Building", "Passed", "Failed", "Inconclusive"] = ""
    candidate: bool = False
    """Wanted for the candidate image of its class only: it may not serve."""
    node: str = ""
    build: AttemptState | None = None
    retry_token: str = ""
    engine: dict[str, Any] | None = None
    """{blob, size, adopted}"""
    passed_at: str = ""
    accuracy: dict[str, Any] | None = None
    latency: list[dict[str, Any]] = Field(default_factory=list)
    speedup: str = ""
    """Against FP32, measured beside it; empty: not measured."""
    contexts: Annotated[list[JudgedContext], list_map("key", max_length=20)] = Field(default_factory=list)
    """In which the engine was judged, the newest last."""
    paused_for: str = ""
    """uid of the Job for which a serving pod made way: that is done once for a Job."""
    durations: dict[str, str] = Field(default_factory=dict)
    reasons: list[str] = Field(default_factory=list)
    message: str = ""
    conditions: Annotated[list[Condition], list_map("type")] = Field(default_factory=list)
