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
    flavour: str
    files: list[FileEntry]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    qdq_nodes: int = 0
    tools: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class Metric(Contract):
    """A metric's value as decimal text, with what it was computed from."""

    name: str
    value: str
    samples: int
    per_class: dict[str, str] = Field(default_factory=dict)
    class_samples: dict[str, int] = Field(default_factory=dict)
    interval: list[str] = Field(default_factory=list)
    """95 % confidence interval [low, high], where one was computed."""


class Baseline(Contract):
    """`baselines/<baseline key>.json`: how the FP32 model does on the validation set, in ONNX Runtime on a CPU."""

    schema_version: Literal[1] = 1
    baseline_key: str
    model: str
    validation: str
    metric: Metric
    outputs_digest: str
    sample_indices: list[int] = Field(default_factory=list)
    sample_outputs: list[list[float]] = Field(default_factory=list)
    """First output, flattened, of the samples named in `sample_indices`: what a candidate's output distance is measured against."""
    correct: str = ""
    """One character a sample, `1` where the baseline was right: lets a drop be judged on paired samples."""


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
    tools: dict[str, str] = Field(default_factory=dict)
    log_digest: str = ""
    durations: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    time: str
    holder: str
    node: str = ""


class Accuracy(Contract):
    metric: str
    baseline: str | None = None
    value: str | None = None
    drop: str | None = None
    samples: int = 0
    interval: list[str] = Field(default_factory=list)
    worst_class: str | None = None
    worst_class_drop: str | None = None
    cosine_min: str | None = None
    max_abs_error: str | None = None


class Latency(Contract):
    """Milliseconds as decimal text, after warm-up; throughput in samples a second."""

    batch: int
    p50: str
    p95: str
    p99: str
    throughput: str
    iterations: int


class Verdict(Contract):
    """`engines/<engine key>/verdicts/<gate key>/<blob>-<time>-<holder>.json`: append-only; the newest of a gate key decides."""

    schema_version: Literal[1] = 1
    engine_key: str
    gate_key: str
    blob: str
    fingerprint: str
    answer: Answer
    reasons: list[str] = Field(default_factory=list)
    accuracy: Accuracy | None = None
    latency: list[Latency] = Field(default_factory=list)
    context: dict[str, Any] = Field(default_factory=dict)
    evidence: dict[str, Any] = Field(default_factory=dict)
    time: str
    holder: str
    node: str = ""
