"""How engines are judged: the validation set with what it must show, and the speed that is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Contract, DecimalText, Digest, DurationText, QuantityText, Rule
from .fields import PLAIN_HTTP, LocalRef, Text, Uri, list_set


class Decoder(Contract):
    """From the model's outputs to predictions."""

    kind: Literal["logits", "yolo", "yolov5", "yolox", "yolo_end2end", "boxes_scores_labels", "detr", "python"] = "logits"
    """The form of the outputs: logits or masks, one of the box formats, or python (validation.python has the code)."""
    nms_iou: DecimalText = "0.7"
    """Overlap from which non-maximum suppression drops the weaker box."""
    confidence: DecimalText = "0.001"
    """Boxes below it are dropped."""
    max_detections: Annotated[int, Field(ge=1, le=10000)] = 300
    """Boxes kept a picture."""
    activation: Literal["auto", "none", "sigmoid", "softmax"] = "auto"
    """What makes scores of the outputs; auto: softmax for detr, none for the others."""
    box_format: Literal["auto", "xyxy", "xywh", "cxcywh"] = "auto"
    """What four numbers mean: two corners, corner and size, or centre and size; auto: what the kind usually has."""
    normalized: bool | None = None
    """Whether boxes are shares of the input's width and height instead of pixels; absent: what the kind usually has."""
    first_label: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number that boxes_scores_labels gives to the first class: 1 where 0 is the background."""
    outputs: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    """Names of the outputs that are decoded, in the order that the kind has (boxes, scores, labels); empty: found by name and shape."""

    RULES = (
        Rule("self.nmsIou.matches(r'^(0([.][0-9]+)?|1([.]0+)?)$')", 'write a share from 0 to 1, like "0.7"', ".nmsIou"),
        Rule("self.confidence.matches(r'^(0([.][0-9]+)?|1([.]0+)?)$')", 'write a share from 0 to 1, like "0.001"', ".confidence"),
    )


class PythonMetric(Contract):
    """Code of your own. It runs in a process of its own, without network and credentials.

    decode(outputs) -> what the task's own metric takes (decoder.kind python); sample(outputs, truth) -> a number or JSON a sample, and
    value(records) -> the metric on any part of the samples, where it is not their mean (metric python). Arrays are numpy's.
    """

    code: Annotated[str, Field(min_length=1, max_length=32768)]
    """Python source; numpy can be imported."""
    higher_is_better: bool = True
    """Whether an engine with a greater value is better."""
    memory: QuantityText = "1Gi"
    """Address space that the process may use."""
    timeout: DurationText = "10m"
    """Time for all samples."""


class Subgroups(Contract):
    """Parts of the validation set that are judged one by one."""

    column: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the label that tells the parts apart."""
    required: Annotated[list[Text], list_set(max_length=1000)] = Field(default_factory=list)
    """Subgroups that must be judged: one with too few samples makes the gate inconclusive. Empty: all that have enough."""


class OnDevice(Contract):
    """How much of the validation set runs on the device."""

    max_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Samples that run on the device, chosen so that classes keep their shares."""


class ExpectedBaseline(Contract):
    """What FP32 must reproduce: the training figure. Catches wrong preprocessing before anything is built."""

    expected: DecimalText
    """The metric's value as training reported it."""
    tolerance: DecimalText = "0.02"
    """How far FP32 may be away from it."""

    RULES = (Rule("!self.tolerance.startsWith('-')", 'write a tolerance of at least 0, like "0.02"', ".tolerance"),)


class OperatingPoint(Contract):
    """Recall at the confidence that is used in production."""

    confidence: DecimalText
    """Confidence that production uses."""
    max_recall_drop: DecimalText = "0.01"
    """How much worse than the FP32 baseline recall may be there."""


class AccuracyAcceptance(Contract):
    """How good an engine must be, in the metric's own unit: shares from 0 to 1, not percent."""

    minimum: DecimalText | None = None
    """The least value of the metric."""
    max_drop: DecimalText | None = None
    """How much worse than the FP32 baseline it may be."""
    max_drop_per_class: DecimalText | None = None
    """How much worse any class (or, when there are some, any required class) may be."""
    minimum_per_class: DecimalText | None = None
    """The least value of any class (or, when there are some, any required class)."""
    max_drop_per_subgroup: DecimalText | None = None
    """How much worse any subgroup (or, when there are some, any required one) may be."""
    minimum_per_subgroup: DecimalText | None = None
    """The least value of any subgroup (or, when there are some, any required one)."""
    operating_point: OperatingPoint | None = None

    RULES = (
        Rule(
            "!has(self.maxDrop) || !self.maxDrop.startsWith('-')",
            'a drop is not negative: write "0" when the engine must be as good',
            ".maxDrop",
        ),
        Rule(
            "!has(self.maxDropPerClass) || !self.maxDropPerClass.startsWith('-')",
            'a drop is not negative: write "0" or more',
            ".maxDropPerClass",
        ),
        Rule(
            "!has(self.maxDropPerSubgroup) || !self.maxDropPerSubgroup.startsWith('-')",
            'a drop is not negative: write "0" or more',
            ".maxDropPerSubgroup",
        ),
    )


_SHARE = "matches(r'^-?(0([.][0-9]+)?|1([.]0+)?)$')"

CopyToStore = Literal["Auto", "Always", "Never"]


class Validation(Contract):
    """The labelled data that an engine is judged with, and what it must reach."""

    uri: Uri
    """An .npz file with labels, a folder of images per class, COCO json, or YOLO data.yaml."""
    digest: Digest | None = None
    """Tree digest that the data set must have; absent: what is found first is pinned in status.resolved."""
    credentials_secret_ref: LocalRef | None = None
    copy_to_store: CopyToStore = "Auto"
    """Whether builds read a copy in the store. Auto: of what anybody may fetch. Always: also of data behind a Secret, which the store's readers see then."""
    task: Literal["classification", "detection", "segmentation", "outputs"] = "classification"
    """`outputs` needs no labels: it compares the outputs with those of FP32."""
    metric: Literal["top1", "top5", "map50", "map50_95", "miou", "cosine", "max_abs_error", "python"] = "top1"
    """What is measured; it must fit the task. python: your own, by the code in `python`."""
    decoder: Decoder = Field(default_factory=Decoder)
    python: PythonMetric | None = None
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """With fewer samples the gate is inconclusive."""
    required_classes: Annotated[list[Text], list_set(max_length=1000)] = Field(default_factory=list)
    """Classes that must be judged: one with too few instances makes the gate inconclusive. Others are reported."""
    min_instances: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Fewer instances of a class, or samples of a subgroup, say nothing about it."""
    subgroups: Subgroups | None = None
    on_device: OnDevice = Field(default_factory=OnDevice)
    baseline: ExpectedBaseline | None = None
    acceptance: AccuracyAcceptance = Field(default_factory=AccuracyAcceptance)

    RULES = (
        PLAIN_HTTP,
        Rule(
            "self.task != 'classification' || self.metric in ['top1', 'top5', 'python']",
            "task classification: write metric: top1, top5 or python",
            ".metric",
        ),
        Rule(
            "self.task != 'detection' || self.metric in ['map50', 'map50_95', 'python']",
            "task detection: write metric: map50, map50_95 or python",
            ".metric",
        ),
        Rule(
            "self.task != 'segmentation' || self.metric in ['miou', 'python']", "task segmentation: write metric: miou or python", ".metric"
        ),
        Rule(
            "self.task != 'outputs' || self.metric in ['cosine', 'max_abs_error', 'python']",
            "task outputs: write metric: cosine, max_abs_error or python",
            ".metric",
        ),
        Rule(
            "self.task != 'detection' || self.metric == 'python' || self.decoder.kind != 'logits'",
            "task detection: write decoder.kind: yolo, yolov5, yolox, yolo_end2end, boxes_scores_labels, detr or python",
            ".decoder",
        ),
        Rule(
            "self.task in ['detection'] || self.decoder.kind in ['logits', 'python']",
            "this decoder gives boxes: write decoder.kind: logits or python, or task: detection",
            ".decoder",
        ),
        Rule(
            "has(self.acceptance.minimum) || has(self.acceptance.maxDrop)",
            "without a threshold no engine can pass: write acceptance.minimum or acceptance.maxDrop",
            ".acceptance",
        ),
        Rule(
            "(self.metric == 'python' || self.decoder.kind == 'python') == has(self.python)",
            "metric: python and decoder.kind: python need python.code, and nothing else does: write validation.python, or leave it out",
            ".python",
        ),
        Rule(
            "has(self.subgroups) || (!has(self.acceptance.maxDropPerSubgroup) && !has(self.acceptance.minimumPerSubgroup))",
            "which subgroups are meant is not said: write subgroups.column",
            ".acceptance",
        ),
        Rule(
            "self.metric != 'max_abs_error' || !has(self.acceptance.minimum)",
            "max_abs_error is better when lower: write acceptance.maxDrop instead of minimum",
            ".acceptance",
        ),
        Rule(
            f"self.metric in ['max_abs_error', 'python'] || ((!has(self.acceptance.minimum) || self.acceptance.minimum.{_SHARE})"
            f" && (!has(self.acceptance.maxDrop) || self.acceptance.maxDrop.{_SHARE}))",
            'metrics are shares from 0 to 1, not percent: write "0.95" for 95 %',
            ".acceptance",
        ),
        Rule(
            "self.task != 'outputs' || (size(self.requiredClasses) == 0 && !has(self.acceptance.maxDropPerClass)"
            " && !has(self.acceptance.minimumPerClass))",
            "task outputs knows no classes: leave requiredClasses, acceptance.maxDropPerClass and minimumPerClass out",
            ".requiredClasses",
        ),
        Rule(
            "self.task == 'detection' || !has(self.acceptance.operatingPoint)",
            "an operating point needs task: detection: leave acceptance.operatingPoint out",
            ".acceptance",
        ),
    )


class SpeedAcceptance(Contract):
    """How fast an engine must be at one batch size."""

    batch_size: Annotated[int, Field(ge=1, le=65536)] = 1
    """One of benchmark.batchSizes."""
    p95: DurationText | None = None
    """95th percentile of the latency of one batch."""
    throughput: DecimalText | None = None
    """Samples a second."""
    min_speedup: DecimalText | None = None
    """Against an interleaved FP32 partner."""

    RULES = (
        Rule(
            "has(self.p95) || has(self.throughput) || has(self.minSpeedup)",
            "no limit is set: write p95, throughput or minSpeedup, or leave benchmark.acceptance out",
        ),
        Rule("!has(self.p95) || self.p95.matches('[1-9]')", "no engine takes no time: write a duration above zero, like 12ms", ".p95"),
        Rule("!has(self.throughput) || !self.throughput.startsWith('-')", 'write samples a second, like "96"', ".throughput"),
        Rule("!has(self.minSpeedup) || !self.minSpeedup.startsWith('-')", 'write a factor, like "1.5"', ".minSpeedup"),
    )


class PacedRun(Contract):
    """Runs at the rhythm in which pictures come from cameras."""

    rate: DecimalText
    """Samples a second: a batch comes each batchSize / rate seconds."""
    duration: DurationText = "10s"
    """How long."""

    RULES = (
        Rule("!self.rate.startsWith('-') && self.rate.matches('[1-9]')", 'write samples a second above zero, like "30"', ".rate"),
        Rule(
            "self.duration.matches('[1-9]') && duration(self.duration) <= duration('30m')",
            "write a duration above zero and of at most 30m, like 10s",
            ".duration",
        ),
    )


class Benchmark(Contract):
    """What is measured on the device, and what must be reached."""

    batch_sizes: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], list_set(min_length=1, max_length=16)] = Field(
        default_factory=lambda: [1]
    )
    """Batch sizes that are measured."""
    acceptance: SpeedAcceptance | None = None
    sustained: DurationText = "0s"
    """Minutes of load show throttling; p95 of the last minute counts."""
    paced: PacedRun | None = None
    """A run at the cameras' rate beside the others; absent: none."""
    end_to_end: bool = False
    """Whether decoding, preprocessing and postprocessing are timed beside the model; needs a validation set."""
    cuda_graph: bool = False
    """Whether engines run from a captured CUDA graph, for servers that do so too; without an effect where the backend knows none."""

    RULES = (
        Rule(
            "!has(self.acceptance) || self.acceptance.batchSize in self.batchSizes",
            "acceptance.batchSize is not measured: add it to batchSizes, or write one of them",
            ".acceptance",
        ),
        Rule("duration(self.sustained) <= duration('30m')", "write at most 30m, like 5m", ".sustained"),
    )
