"""What stands in the store: prepared manifest, baseline, claim, build record, verdict."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from .base import Contract


class Answer(StrEnum):
    """The gate has three answers; anything unknown is Inconclusive, never Pass."""

    PASS = "Pass"  # noqa: S105  # an answer, no password
    FAIL = "Fail"
    INCONCLUSIVE = "Inconclusive"


class TensorSpec(Contract):
    """One input or output of a model. `shape`: integers, names of dynamic dimensions, or null where unnamed."""

    name: str
    dtype: str
    shape: list[int | str | None]


class FileEntry(Contract):
    path: str
    sha256: str
    size: int


class PreparedManifest(Contract):
    """`prepared/<prepared key>/manifest.json`, written last: without it the prepared model does not exist."""

    schema_version: Literal[1] = 1
    prepared_key: str
    source_model: str
    """Tree digest of the model as the user gave it."""
    model: str
    """Tree digest of the prepared ONNX file(s): this, not the key, enters the engine key."""
    precision: str
    variant: str = ""
    """`Variant.id`."""
    flavour: str
    files: list[FileEntry]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    metadata: dict[str, str] = Field(default_factory=dict)
    """What the exporter wrote into the ONNX file (class names, stride …), as far as it fits: see models.kept_metadata in the builder."""
    qdq_nodes: int = 0
    share: str = ""
    """Part of the worthwhile nodes (Conv, Gemm, MatMul …) that run in the lower precision, as decimal text of 0 to 1; empty: nothing was converted."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """How it was made: {tool, method, exclude: {nodes, opTypes}, cosine, sensitivity: [...]}; the last for repaired variants."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """What it was made from, as `model` and `calibration` of a ModelDeployment's spec, with the digests that were found. Empty in records of
    older versions."""
    tools: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class DataSetManifest(Contract):
    """`datasets/<digest>/manifest.json`, written last: a data set's files as they were given, under their tree digest."""

    schema_version: Literal[1] = 1
    digest: str
    files: list[FileEntry]


class Metric(Contract):
    """A metric's value as decimal text, with what it was computed from."""

    name: str
    value: str
    samples: int
    per_class: dict[str, str] = Field(default_factory=dict)
    class_samples: dict[str, int] = Field(default_factory=dict)
    """Instances of each class: labelled samples, boxes, or pictures that show it."""
    per_group: dict[str, str] = Field(default_factory=dict)
    """By the value of the column that `validation.subgroups` names."""
    group_samples: dict[str, int] = Field(default_factory=dict)
    interval: list[str] = Field(default_factory=list)
    """95 % confidence interval [low, high], where one was computed."""
    counts: dict[str, int] = Field(default_factory=dict)
    """What was counted on the way, e.g. truths, detections."""


class KeptOutput(Contract):
    """One output of the model as given, for the samples that a baseline names in `sample_indices`."""

    name: str
    size: int
    """Numbers that the output has for one sample."""
    step: int = 1
    """Every step-th of them was kept, beginning with the first."""
    values: list[list[float]]
    """Float32 values, one row a sample."""


class Baseline(Contract):
    """`baselines/<baseline key>.json`: how the FP32 model does on the validation set, in ONNX Runtime on a CPU."""

    schema_version: Literal[1] = 1
    baseline_key: str
    model: str
    validation: str
    metric: Metric
    outputs_digest: str
    """Of all outputs of all samples, as float32."""
    sample_indices: list[int] = Field(default_factory=list)
    sample_outputs: list[KeptOutput] = Field(default_factory=list)
    """What a candidate's output distance is measured against."""
    records: list[dict[str, Any]] = Field(default_factory=list)
    """One a sample, in the data set's order; what stands in it depends on the task (builder: gate/tasks).

    The metric is a function of records and truths on any subset of the samples: baseline and candidate are compared on the same ones.
    """
    seconds: str = ""


class Claim(Contract):
    """`engines/<engine key>/claim.json`: who is building. Times are seconds since the epoch as decimal text."""

    schema_version: Literal[1] = 1
    holder: str
    heartbeat: str
    expires: str
    takeovers: int = 0


class BuildRecord(Contract):
    """`engines/<engine key>/builds/<blob digest>.json`: a build that completed and whose blob was read back."""

    schema_version: Literal[1] = 1
    engine_key: str
    blob: str
    size: int
    fingerprint: str
    facts: dict[str, Any]
    prepared_key: str
    prepared_model: str
    precision: str
    recipe: dict[str, Any]
    inputs: list[TensorSpec] = Field(default_factory=list)
    outputs: list[TensorSpec] = Field(default_factory=list)
    """Of the prepared model, as its metadata: what servers are told. Empty in records of older versions."""
    metadata: dict[str, str] = Field(default_factory=dict)
    tools: dict[str, str] = Field(default_factory=dict)
    providers: dict[str, int] = Field(default_factory=dict)
    """Nodes of the graph by ONNX Runtime's execution provider that took them; empty: not known, or another backend."""
    log_digest: str = ""
    durations: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    excluded: list[str] = Field(default_factory=list)
    """Nodes that the build left in higher precision than the prepared model has them, since the library has no kernel for them in that."""
    shape_tensors: list[str] = Field(default_factory=list)
    """Inputs and outputs of a TensorRT engine whose values are a shape. Empty in records of older versions."""
    time: str
    holder: str
    node: str = ""


class Part(Contract):
    """A class or a subgroup, judged alone. A drop is positive when the engine is worse."""

    name: str
    samples: int
    """Instances of a class, samples of a subgroup."""
    baseline: str | None = None
    value: str | None = None
    drop: str | None = None
    drop_interval: list[str] = Field(default_factory=list)
    """95 % interval [low, high] of the drop."""


class AtOperatingPoint(Contract):
    """Detections at the confidence that production uses: mAP does not see scores that shrank, production does."""

    confidence: str
    baseline_recall: str
    recall: str
    recall_drop: str
    drop_interval: list[str] = Field(default_factory=list)
    baseline_precision: str | None = None
    precision: str | None = None
    score_shift: str | None = None
    """Median of engine's less baseline's score, over the objects that both find."""
    truths: int = 0


class Consistency(Contract):
    """The same samples alone and among others in a batch: what is judged in batches must hold for single pictures too."""

    batches: list[int]
    """Batch sizes that were compared with the smallest that the model takes."""
    samples: int
    cosine_min: str
    """Of one output of one sample; `NaN` where it is finite alone and is not in a batch."""
    max_abs_error: str
    worst: str
    """Where: output, sample and batch size, in words."""


class Accuracy(Contract):
    """Status and termination messages hold the `headline`; a verdict holds all of it."""

    metric: str
    baseline: str | None = None
    value: str | None = None
    drop: str | None = None
    """Positive when the engine is worse."""
    samples: int = 0
    available: int | None = None
    """Samples of the validation set, of which `samples` were judged."""
    broken: int | None = None
    """Samples for which the engine's outputs hold NaN or infinite values."""
    interval: list[str] = Field(default_factory=list)
    """95 % interval [low, high] of the value."""
    drop_interval: list[str] = Field(default_factory=list)
    """95 % interval [low, high] of the drop, by paired bootstrap: the upper bound decides."""
    needed_samples: int | None = None
    """About so many samples would tell, where these are too few to."""
    worst_class: str | None = None
    worst_class_drop: str | None = None
    cosine_min: str | None = None
    max_abs_error: str | None = None
    compared: int | None = None
    """Samples whose outputs were compared with the baseline's, number by number."""
    classes: list[Part] = Field(default_factory=list)
    groups: list[Part] = Field(default_factory=list)
    operating_point: AtOperatingPoint | None = None
    not_finite: dict[str, int] | None = None
    """Outputs that hold NaN or infinite values where FP32's do not, judged or not: in how many samples."""
    consistency: Consistency | None = None
    """None: not measured, since the model takes one batch size of 1, or its outputs have no batch axis."""

    def headline(self) -> Accuracy:
        """Without the rows, which do not fit into a status."""
        return self.model_copy(update={"classes": [], "groups": [], "operating_point": None, "not_finite": None, "consistency": None})


class Spread(Contract):
    """Milliseconds as decimal text, of so many runs."""

    p50: str
    p95: str
    p99: str
    iterations: int


class Paced(Spread):
    """Runs that begin when a camera's next pictures are there; between them the device idles and may slow its clocks."""

    rate: str
    """Samples a second."""
    late: int
    """Runs that took longer than until the next ones."""


class EndToEnd(Contract):
    """One batch from stored pictures to predictions, one stage after another in one process, without network. Each stage has its own times."""

    decode: Spread | None = None
    """From the file's bytes to pixels; None where samples are stored as tensors."""
    preprocess: Spread
    infer: Spread
    """The model alone, as it runs right after preprocessing."""
    postprocess: Spread
    """From outputs to predictions: decoding of boxes, suppression, the best class."""
    whole: Spread
    """Their sum, batch by batch."""


class Latency(Contract):
    """Milliseconds as decimal text, after warm-up; throughput in samples a second. Of a sustained run the last minute.

    Status and termination messages hold the `headline`; a verdict holds all of it.
    """

    batch: int
    p50: str
    p95: str
    p99: str
    throughput: str
    iterations: int
    marks: list[str] | None = None
    """What makes these figures doubtful, `kind: sentence`; kinds: throttled, shared, unsettled. A headline has the kinds alone."""
    warm_up: str | None = None
    """Seconds of warm-up until the times settled."""
    first: Spread | None = None
    """Of a sustained run its first minute: how much slower the last one is shows throttling."""
    transfers: bool | None = None
    """Whether copying inputs to the device and outputs back is part of a run; None: there is nothing to copy."""
    device: Spread | None = None
    """The same without these copies: the device's own time."""
    cuda_graph: bool | None = None
    """Whether runs were launches of a captured CUDA graph; None: the backend knows none."""
    enqueue: str | None = None
    """Milliseconds that the host needs to enqueue a run, in the median."""
    bound: str | None = None
    """`host` where enqueueing takes as long as the run: the device waits for the host. Else `device`."""
    paced: Paced | None = None
    end_to_end: EndToEnd | None = None

    def headline(self) -> Latency:
        """What fits into a status."""
        kinds = None if self.marks is None else sorted({mark.partition(":")[0] for mark in self.marks})
        kept = {name: getattr(self, name) for name in ("batch", "p50", "p95", "p99", "throughput", "iterations")}
        return Latency(**kept, marks=kinds)


class Speedup(Contract):
    """Against the same model in FP32, built in the same Job and measured in turns with the engine, block by block."""

    batch: int
    speedup: str
    """Median over pairs of blocks of the partner's time by the engine's."""
    interval: list[str] = Field(default_factory=list)
    """95 % interval [low, high] of that median."""
    partner: Latency
    engine: Latency
    """In the same blocks."""
    blocks: int
    marks: list[str] | None = None
    """As a Latency's."""


class WorstSample(Contract):
    """A sample on which the engine lost most against the baseline."""

    index: int
    identity: str
    """Name of the file, or the index."""
    loss: str
    """How much, in the task's own terms; samples are sorted by it."""
    why: str
    baseline: dict[str, Any] = Field(default_factory=dict)
    engine: dict[str, Any] = Field(default_factory=dict)
    """The records of both."""


class Verdict(Contract):
    """`engines/<engine key>/verdicts/<gate key>/<blob>-<time>-<holder>.json`: append-only; the newest of a gate key decides."""

    schema_version: Literal[1] = 1
    engine_key: str
    gate_key: str
    blob: str
    fingerprint: str
    answer: Answer
    reasons: list[str] = Field(default_factory=list)
    lasting: bool = False
    """Inconclusive on the samples: judging them again tells no more. A speed that could not be judged may be, at another moment."""
    thresholds: dict[str, Any] = Field(default_factory=dict)
    """What it was judged by: exactly what the gate key is made of (keys.gate_thresholds)."""
    accuracy: Accuracy | None = None
    latency: list[Latency] = Field(default_factory=list)
    speedup: Speedup | None = None
    worst: list[WorstSample] = Field(default_factory=list)
    memory: dict[str, int] = Field(default_factory=dict)
    """Bytes that the loaded engine holds: `device` as the session tells it, `host` as its process has resident."""
    conditions: dict[str, dict[str, str]] = Field(default_factory=dict)
    """`before` and `after` measuring: clocks, power mode, temperature, other processes on the device, as far as this machine tells."""
    context: dict[str, Any] = Field(default_factory=dict)
    evidence: dict[str, Any] = Field(default_factory=dict)
    """Tools, threads, seconds and bytes that judging took, and the whole metrics of engine and baseline."""
    time: str
    holder: str
    node: str = ""
