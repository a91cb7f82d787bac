"""The resources of enginefleet.io/v1alpha1 as pydantic models: what the API server's schema is generated from.

Defaults stand here and nowhere else; CEL rules stand beside the model that they check (`RULES`), see `crd.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Contract, DecimalText, Digest, DurationText, FractionText, NameText, QuantityText

GROUP = "enginefleet.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

Text = Annotated[str, Field(max_length=1024)]
Uri = Annotated[str, Field(min_length=1, max_length=2048)]
Shape = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=8)]
Percent = Annotated[str, Field(pattern=r"^(100|[1-9]?[0-9])%$")]
CountOrPercent = Annotated[int, Field(ge=0, le=100000)] | Percent
FreeObject = dict[str, Any]
"""An object that the API server keeps as it is (x-kubernetes-preserve-unknown-fields)."""


class LocalRef(Contract):
    name: NameText


class LabelSelector(Contract):
    match_labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(default_factory=dict)


# ---- ModelDeployment ----


class Model(Contract):
    uri: Uri
    digest: Digest | None = None
    credentials_secret_ref: LocalRef | None = None
    endpoint: Text = ""
    """S3 endpoint; empty: the store's endpoint for s3:// without own credentials, else the provider's own."""
    region: Text = ""


class Profile(Contract):
    min: Shape
    opt: Shape
    max: Shape


class InputSpec(Contract):
    name: Annotated[str, Field(min_length=1, max_length=253)]
    profiles: Annotated[list[Profile], Field(min_length=1, max_length=8)]


class Preprocessing(Contract):
    resize: Literal["none", "letterbox", "stretch", "center-crop"] = "none"
    size: Annotated[list[Annotated[int, Field(ge=1, le=16384)]], Field(max_length=2)] = Field(default_factory=list)
    """Height and width in pixels."""
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    scale: FractionText = "1"
    mean: Annotated[list[FractionText], Field(max_length=4)] = Field(default_factory=list)
    std: Annotated[list[FractionText], Field(max_length=4)] = Field(default_factory=list)


class Exclude(Contract):
    nodes: Annotated[list[Text], Field(max_length=64)] = Field(default_factory=list)
    op_types: Annotated[list[Text], Field(max_length=64)] = Field(default_factory=list)


class Calibration(Contract):
    source: Literal["dataset", "model"] = "dataset"
    uri: Annotated[str, Field(max_length=2048)] = ""
    digest: Digest | None = None
    credentials_secret_ref: LocalRef | None = None
    method: Literal["auto", "entropy", "max"] = "auto"
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    exclude: Exclude = Field(default_factory=Exclude)


class Decoder(Contract):
    kind: Literal["logits", "yolo", "yolov5", "yolo_end2end", "boxes_scores_labels", "detr", "python"] = "logits"
    nms_iou: DecimalText = "0.7"
    confidence: DecimalText = "0.001"
    max_detections: Annotated[int, Field(ge=1, le=10000)] = 300


class Subgroups(Contract):
    column: Annotated[str, Field(min_length=1, max_length=253)]


class OnDevice(Contract):
    max_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000


class ExpectedBaseline(Contract):
    expected: DecimalText
    tolerance: DecimalText = "0.02"


class OperatingPoint(Contract):
    confidence: DecimalText
    max_recall_drop: DecimalText = "0.01"


class AccuracyAcceptance(Contract):
    minimum: DecimalText | None = None
    max_drop: DecimalText | None = None
    max_drop_per_class: DecimalText | None = None
    operating_point: OperatingPoint | None = None


class Validation(Contract):
    uri: Uri
    digest: Digest | None = None
    credentials_secret_ref: LocalRef | None = None
    task: Literal["classification", "detection", "segmentation", "outputs"] = "classification"
    metric: Literal["top1", "top5", "map50", "map50_95", "miou", "cosine", "max_abs_error"] = "top1"
    decoder: Decoder = Field(default_factory=Decoder)
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    required_classes: Annotated[list[Text], Field(max_length=1000)] = Field(default_factory=list)
    subgroups: Subgroups | None = None
    on_device: OnDevice = Field(default_factory=OnDevice)
    baseline: ExpectedBaseline | None = None
    acceptance: AccuracyAcceptance = Field(default_factory=AccuracyAcceptance)


class SpeedAcceptance(Contract):
    batch_size: Annotated[int, Field(ge=1, le=65536)] = 1
    p95: DurationText | None = None
    throughput: DecimalText | None = None
    min_speedup: DecimalText | None = None


class Benchmark(Contract):
    batch_sizes: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], Field(min_length=1, max_length=16)] = Field(default_factory=lambda: [1])
    acceptance: SpeedAcceptance | None = None
    sustained: DurationText = "0s"


class Dla(Contract):
    core: Annotated[int, Field(ge=0, le=7)] = 0
    allow_gpu_fallback: bool = True


class BuildSettings(Contract):
    workspace: Annotated[str, Field(pattern=r"^(auto|[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?)$", max_length=32)] = "auto"
    optimization_level: Annotated[int, Field(ge=0, le=5)] = 3
    dla: Dla | None = None
    plugins: Annotated[list[Text], Field(max_length=32)] = Field(default_factory=list)
    tactic_sources: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    threads: Annotated[str, Field(pattern=r"^(auto|[1-9][0-9]{0,2})$")] = "auto"
    """Intra-op threads of the ONNX Runtime CPU backend."""


class Target(Contract):
    hardware_class: NameText | None = None
    hardware_class_selector: LabelSelector | None = None


class Serving(Contract):
    mode: Literal["DaemonSet", "Deployment", "None"] = "DaemonSet"
    replicas: Annotated[int, Field(ge=0, le=10000)] | None = None
    engine_path: Annotated[str, Field(pattern=r"^/[^:]*$", max_length=1024)] = "/engine"
    layout: Literal["plain", "triton", "ultralytics"] = "plain"
    runtime_check: Literal["Enforce", "Declare"] = "Enforce"
    template: FreeObject | None = None


class Canary(Contract):
    count: Annotated[int, Field(ge=0, le=10000)] | None = None
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    soak: DurationText = "0s"
    node_selector: LabelSelector | None = None


class Window(Contract):
    days: Annotated[list[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]], Field(min_length=1, max_length=7)]
    start: Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    duration: DurationText
    time_zone: Annotated[str, Field(max_length=64)] = "UTC"


class Rollout(Contract):
    canary: Canary | None = None
    steps: Annotated[list[Percent], Field(max_length=20)] = Field(default_factory=list)
    max_unavailable: CountOrPercent = "10%"
    max_failures: Annotated[int, Field(ge=0, le=100000)] = 1
    progress_deadline: DurationText = "10m"
    on_failure: Literal["Rollback", "Pause"] = "Pause"
    windows: Annotated[list[Window], Field(max_length=32)] = Field(default_factory=list)


class ModelDeploymentSpec(Contract):
    model: Model
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"] = "fp32"
    inputs: Annotated[list[InputSpec], Field(max_length=32)] = Field(default_factory=list)
    preprocessing: Preprocessing = Field(default_factory=Preprocessing)
    calibration: Calibration | None = None
    validation: Validation | None = None
    benchmark: Benchmark = Field(default_factory=Benchmark)
    build: BuildSettings = Field(default_factory=BuildSettings)
    targets: Annotated[list[Target], Field(min_length=1, max_length=32)]
    store_ref: LocalRef = Field(default_factory=lambda: LocalRef(name="default"))
    serving: Serving = Field(default_factory=Serving)
    rollout: Rollout = Field(default_factory=Rollout)
    paused: bool = False
    history_limit: Annotated[int, Field(ge=1, le=20)] = 3


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


class Resolved(Contract):
    """What mutable inputs were resolved to, pinned until `inputs_key` changes."""

    inputs_key: str
    model: str
    calibration: str | None = None
    validation: str | None = None
    prepare_recipe: int
    engine_recipe: int
    prepared: list[dict[str, Any]] = Field(default_factory=list)
    """[{flavour, precision, preparedKey, model}]"""
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


class FingerprintStatus(Contract):
    id: str
    summary: str = ""
    nodes: int = 0
    state: str = ""
    engine_build: str = ""
    blob: str = ""
    precision: str = ""
    accuracy: dict[str, Any] | None = None
    latency: list[dict[str, Any]] = Field(default_factory=list)
    message: str = ""


class NodeTrouble(Contract):
    node: str
    state: str
    reason: str
    message: str = ""


class RolloutStatus(Contract):
    release: str = ""
    stable_release: str = ""
    step: str = ""
    started_at: str = ""
    paused_reason: str = ""


class ClassStatus(Contract):
    name: str
    nodes: NodeCounts = Field(default_factory=NodeCounts)
    fingerprints: list[FingerprintStatus] = Field(default_factory=list)
    rollout: RolloutStatus = Field(default_factory=RolloutStatus)
    failing_nodes: Annotated[list[NodeTrouble], Field(max_length=20)] = Field(default_factory=list)


class ModelDeploymentStatus(Contract):
    observed_generation: int = -1
    summary: str = ""
    engines: str = ""
    rollout: str = ""
    revision: str = ""
    retry_token: str = ""
    resolved: Resolved | None = None
    prepare: AttemptState | None = None
    prepare_inputs_key: str = ""
    """The inputs that `prepare` is about."""
    classes: list[ClassStatus] = Field(default_factory=list)
    conditions: list[Condition] = Field(default_factory=list)


# ---- HardwareClass ----


class Runtime(Contract):
    image: Annotated[str, Field(min_length=1, max_length=512)]
    candidate_image: Annotated[str, Field(max_length=512)] = ""
    python: Annotated[str, Field(pattern=r"^(/.*|[a-z0-9.]+)$", max_length=512)] = "python3"
    runtime_class_name: Annotated[str, Field(max_length=253)] = ""
    resources: FreeObject = Field(default_factory=dict)
    tolerations: Annotated[list[FreeObject], Field(max_length=32)] = Field(default_factory=list)


class Builds(Contract):
    max_concurrent: Annotated[int, Field(ge=1, le=100)] = 1
    windows: Annotated[list[Window], Field(max_length=32)] = Field(default_factory=list)
    when_busy: Literal["Auto", "Wait"] = "Wait"
    memory_reserve: QuantityText = "1Gi"


class PrepareSettings(Contract):
    mode: Literal["Local", "FromStore"] = "Local"
    node_selector: dict[str, Annotated[str, Field(max_length=63)]] = Field(default_factory=dict)
    resources: FreeObject = Field(default_factory=dict)


class IdentitySettings(Contract):
    include: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    exclude: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)


class HardwareClassSpec(Contract):
    node_selector: LabelSelector
    allowed_namespaces: LabelSelector | None = None
    backend: Literal["tensorrt", "tensorrt-rtx", "onnxruntime"]
    execution_provider: Literal["CPU", "CUDA", "TensorRT", "OpenVINO", "CoreML"] = "CPU"
    runtime: Runtime
    builds: Builds = Field(default_factory=Builds)
    prepare: PrepareSettings = Field(default_factory=PrepareSettings)
    on_version_change: Literal["Rebuild", "Hold"] = "Rebuild"
    identity: IdentitySettings = Field(default_factory=IdentitySettings)


class ProbedRuntime(Contract):
    """What a probe Job found in a runtime image on one hardware group."""

    image: str
    image_digest: str
    host_digest: str
    runtime: dict[str, Any]
    at: str = ""


class ProbeState(AttemptState):
    """Attempts to probe one image on one hardware group."""

    image: str = ""
    host_digest: str = ""
    node: str = ""


class ClassFingerprint(Contract):
    id: str
    summary: str = ""
    nodes: int = 0


class HardwareClassStatus(Contract):
    observed_generation: int = -1
    nodes: int = 0
    summary: str = ""
    fingerprints: list[ClassFingerprint] = Field(default_factory=list)
    probed: list[ProbedRuntime] = Field(default_factory=list)
    probes: list[ProbeState] = Field(default_factory=list)
    conditions: list[Condition] = Field(default_factory=list)


# ---- EngineStore ----


class SecretKeyRef(Contract):
    name: NameText
    key: Annotated[str, Field(min_length=1, max_length=253)]


class Signing(Contract):
    key_secret_ref: SecretKeyRef | None = None


class Trust(Contract):
    require: bool = False
    public_keys: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=32)] = Field(default_factory=list)


class EngineStoreSpec(Contract):
    uri: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$", max_length=1024)]
    endpoint: Annotated[str, Field(pattern=r"^(https?://.+)?$", max_length=1024)] = ""
    region: Annotated[str, Field(max_length=64)] = "us-east-1"
    ca_bundle: Annotated[str, Field(max_length=65536)] = ""
    credentials_secret_ref: LocalRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; absent: the pod's own identity."""
    read_credentials_secret_ref: LocalRef | None = None
    signing: Signing | None = None
    trust: Trust = Field(default_factory=Trust)


class EngineStoreStatus(Contract):
    observed_generation: int = -1
    conditions: list[Condition] = Field(default_factory=list)


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
    node: str
    boot_id: str = ""
    host: Host | None = None
    observations: list[Observation] = Field(default_factory=list)


class NodeFingerprintStatus(Contract):
    conditions: list[Condition] = Field(default_factory=list)


# ---- EngineBuild ----


class EngineBuildSpec(Contract):
    """Immutable. A changed gate is another EngineBuild, which adopts the engine that is there."""

    model_deployment: str
    revision: str
    hardware_class: str = Field(alias="class")
    image: str
    image_digest: str
    fingerprint: str
    summary: str = ""
    precision: str
    prepared_key: str
    prepared_model: str
    engine_key: str
    gate_key: str
    request: dict[str, Any]
    """The BuildRequest less holder and node."""


class EngineBuildStatus(Contract):
    phase: Literal["", "Waiting", "Building", "Passed", "Failed", "Inconclusive"] = ""
    node: str = ""
    build: AttemptState | None = None
    retry_token: str = ""
    engine: dict[str, Any] | None = None
    """{blob, size, adopted}"""
    accuracy: dict[str, Any] | None = None
    latency: list[dict[str, Any]] = Field(default_factory=list)
    durations: dict[str, str] = Field(default_factory=dict)
    reasons: list[str] = Field(default_factory=list)
    message: str = ""
    conditions: list[Condition] = Field(default_factory=list)
