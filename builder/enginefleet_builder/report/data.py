"""What a report is, as its JSON: bounded in every direction, and each number with samples and interval."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from pydantic import Field

from enginefleet_api.base import Contract
from enginefleet_api.documents import Accuracy, Answer, BuildRecord, Latency, Metric, PreparedManifest, Speedup, Verdict

from .layers import Layers, Wider

MOST_PARTS = 50
"""Classes, or subgroups, in one table: the ones that lost most."""
MOST_PRECISIONS = 24
MOST_LINES = 50
"""Warnings, notes, reasons."""
MOST_FACTS = 60
TEXT = 2000
"""Bytes of one sentence or value."""
NAME = 300
"""Bytes of one name."""
MOST_DIGITS = 30
MOST_WORST = 24
MOST_BATCHES = 16
MOST_MARKS = 8
MOST_BOXES = 30
SHOWN_CONFIDENCE = "0.25"
"""As gate/tasks/detection.py has it."""


Box = tuple[float, float, float, float]
"""x1, y1, x2, y2"""


class Picture(Contract):
    """A sample as a small picture: a `data:` URI, and the size in pixels of what was made small."""

    uri: str
    width: int
    height: int
    labelled: list[Box] = Field(default_factory=list)
    """The labelled boxes, in pixels of the size above."""


class Fact(Contract):
    name: str
    value: str


class Stored(Contract):
    """Where a record stands, below the store's address."""

    what: str
    key: str


class Threshold(Contract):
    """What was asked for before, and what was measured. `field`: its path in the verdict's thresholds."""

    field: str
    limit: str
    measured: str | None = None
    of: str = ""
    """The class or subgroup that was measured: the one that lost most."""
    interval: list[str] = Field(default_factory=list)
    """95 % interval [low, high] of what was measured."""
    samples: int | None = None
    marks: list[str] = Field(default_factory=list)
    """Kinds of what makes the figure doubtful, see documents.Latency."""


class Precision(Contract):
    """One engine of the same model, judged by the same gate."""

    label: str
    this: bool
    engine_key: str
    verdict: str
    """Key of the verdict in the store."""
    answer: Answer
    time: str
    size: int | None = None
    accuracy: Accuracy | None = None
    latency: list[Latency] = Field(default_factory=list)
    speedup: Speedup | None = None


class Worst(Contract):
    index: int
    identity: str
    loss: str
    why: str
    baseline: str
    """What the FP32 baseline made of it, in words."""
    engine: str
    baseline_boxes: list[Box] = Field(default_factory=list)
    """Those of at least `confidence`, in pixels of the picture."""
    engine_boxes: list[Box] = Field(default_factory=list)
    confidence: str = ""
    picture: Picture | None = None


class Step(Contract):
    """Something that a reader can do to check the report: a command for a shell."""

    title: str
    explanation: str
    command: str


class ReportData(Contract):
    """`reports/<engine key>/<gate key>/<name of the verdict>.json`"""

    kind: Literal["EngineReport"] = "EngineReport"
    schema_version: Literal[1] = 1
    name: str
    """namespace/name of the ModelDeployment; empty by hand."""
    label: str
    """The variant: fp32, int8-entropy, …"""
    precision: str = ""
    device: str
    fingerprint: str
    answer: Answer
    reasons: list[str]
    judged: str
    made: str
    store: str
    engine_key: str
    gate_key: str
    blob: str
    size: int | None = None
    records: list[Stored]
    thresholds: list[Threshold]
    metric: str
    baseline: Metric | None = None
    """FP32 over the whole validation set; `accuracy.baseline` is over the samples that were judged."""
    accuracy: Accuracy | None = None
    classes_left_out: int
    groups_left_out: int
    precisions: list[Precision]
    precisions_left_out: int
    latency: list[Latency]
    speedup: Speedup | None = None
    worst: list[Worst]
    memory: dict[str, int] = Field(default_factory=dict)
    """Bytes that the loaded engine holds, `device` and `host`."""
    conditions: dict[str, dict[str, str]] = Field(default_factory=dict)
    """`idle`, `before` and `after` measuring: as the verdict has them."""
    layers: Layers | None = None
    wider: Wider | None = None
    """Of `layers`: what ran in a wider type than `precision`; None: that cannot be told."""
    providers: dict[str, int] = Field(default_factory=dict)
    """Nodes by ONNX Runtime's execution provider."""
    excluded: list[str] = Field(default_factory=list)
    """Nodes that the build left in higher precision."""
    excluded_left_out: int = 0
    inputs: list[Fact]
    recipe: list[Fact]
    exclude: dict[str, list[str]] = Field(default_factory=dict)
    """Layers that were kept in higher precision, as spec.calibration.exclude takes them; empty: none."""
    environment: list[Fact]
    durations: list[Fact]
    """Seconds."""
    warnings: list[str]
    notes: list[str]
    steps: list[Step]
    request: dict[str, Any] | None = None
    """What `enginefleet judge --request` takes; no secrets are in it."""


def number(text: str | None) -> Decimal | None:
    """None for what is missing, NaN, infinite, or of more digits than anything that is measured: `1e999999` would be written out."""
    try:
        value = Decimal(text) if text is not None else None
    except InvalidOperation:
        return None
    return value if value is not None and value.is_finite() and abs(value.adjusted()) <= MOST_DIGITS else None


@dataclass(frozen=True, slots=True)
class Judged:
    """One engine with its verdict; what is not in the store any more is None."""

    verdict_key: str
    verdict: Verdict
    build: BuildRecord | None
    manifest: PreparedManifest | None
