"""The spec of ModelDeployment. Defaults stand here and nowhere else; each rule stands beside the model that it checks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Contract, DecimalText, Digest, DurationText, FractionText, Rule, matching
from .fields import (
    ClassName,
    CountOrPercent,
    Endpoint,
    FreeObject,
    LabelSelector,
    LocalRef,
    OptionalUri,
    Percent,
    Text,
    Uri,
    Window,
    checked,
    list_map,
    list_set,
)

Shape = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=8)]


class Model(Contract):
    """What to build: one ONNX model."""

    uri: Uri
    """An .onnx file, or a folder with exactly one and its external data: s3://bucket/path or https://host/path."""
    digest: Digest | None = None
    """Tree digest that the model must have; absent: what is found first is pinned in status.resolved."""
    credentials_secret_ref: LocalRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; absent: the pod's own identity."""
    endpoint: Endpoint = ""
    """S3 endpoint; empty: the store's endpoint for s3:// without own credentials, else the provider's own."""
    region: Text = ""
    """Region of the S3 endpoint; empty: the store's."""


class Profile(Contract):
    """The shapes that an engine takes for one input, and the one that it is tuned for."""

    min: Shape
    """The smallest shape, one number a dimension."""
    opt: Shape
    """The shape that the engine is tuned for."""
    max: Shape
    """The largest shape."""

    RULES = (
        Rule(
            "size(self.min) == size(self.opt) && size(self.opt) == size(self.max)",
            "min, opt and max differ in rank: write as many numbers in each, one a dimension of the input",
        ),
        Rule(
            "[0, 1, 2, 3, 4, 5, 6, 7].all(i, i >= size(self.min) || i >= size(self.opt) || i >= size(self.max)"
            " || (self.min[i] <= self.opt[i] && self.opt[i] <= self.max[i]))",
            "in each dimension write min <= opt <= max",
        ),
    )


class InputSpec(Contract):
    """Shapes of one input of the model. Needed for each input that has a dynamic dimension."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the input in the model."""
    profiles: Annotated[list[Profile], Field(min_length=1, max_length=8)]
    """Ranges of shapes; those of all inputs go together, the first with the first and so on."""


class Preprocessing(Contract):
    """From a picture to the model's input: value = (pixel x scale - mean) / std. One definition for calibration, baseline, gate and server."""

    resize: Literal["none", "letterbox", "stretch", "center-crop"] = "none"
    """letterbox keeps the proportions and fills up with grey; stretch does not; center-crop cuts off what is too much."""
    size: Annotated[list[Annotated[int, Field(ge=1, le=16384)]], Field(max_length=2)] = Field(default_factory=list)
    """Height and width in pixels."""
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    """Order of the channels."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of the axes: batch, channels, height, width."""
    scale: FractionText = "1"
    """Factor for pixel values of 0 to 255, like "1/255"."""
    mean: Annotated[list[FractionText], Field(max_length=4)] = Field(default_factory=list)
    """One value, or one a channel; empty: 0."""
    std: Annotated[list[FractionText], Field(max_length=4)] = Field(default_factory=list)
    """One value, or one a channel; empty: 1."""

    RULES = (
        Rule("self.resize == 'none' || size(self.size) == 2", "a resize needs size: write size: [height, width]", ".size"),
        Rule("size(self.size) != 1", "size has one number: write size: [height, width]", ".size"),
        Rule(
            "size(self.mean) == 0 || size(self.std) == 0 || size(self.mean) == size(self.std)",
            "mean and std differ in length: write as many values in both, one a channel",
        ),
        Rule(
            "self.color != 'GRAY' || (size(self.mean) <= 1 && size(self.std) <= 1)",
            "GRAY has one channel: write one value in mean and std",
        ),
        Rule("self.std.all(value, !value.matches(r'^-?0+([.]0+)?(/|$)'))", "std divides: write values other than 0", ".std"),
        Rule("!self.scale.matches(r'^-?0+([.]0+)?(/|$)')", 'scale 0 makes every pixel the same: write "1" or "1/255"', ".scale"),
    )


class Exclude(Contract):
    """Nodes that keep high precision. A pattern that matches nothing fails the prepare Job."""

    nodes: Annotated[list[Text], Field(max_length=64)] = Field(default_factory=list)
    """Regular expressions of node names."""
    op_types: Annotated[list[Text], Field(max_length=64)] = Field(default_factory=list)
    """Operators of ONNX, like Softmax."""


class Calibration(Contract):
    """Where the scales of int8 and fp8 come from: a data set, or the model itself when it was trained with them (QAT)."""

    source: Literal["dataset", "model"] = "dataset"
    """dataset: measured on samples. model: the model holds its scales (Q/DQ nodes)."""
    uri: OptionalUri = ""
    """A folder of images or an .npz file."""
    digest: Digest | None = None
    """Tree digest that the data set must have; absent: what is found first is pinned in status.resolved."""
    credentials_secret_ref: LocalRef | None = None
    method: Literal["auto", "entropy", "max"] = "auto"
    """How ranges are found from samples; auto: the target's usual one."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """With fewer samples the prepare Job fails."""
    exclude: Exclude = Field(default_factory=Exclude)

    RULES = (
        Rule(
            "self.source != 'dataset' || self.uri != ''",
            "source dataset needs uri: write the data set's s3:// or https:// address, or source: model when the model holds its scales (QAT)",
            ".uri",
        ),
        Rule(
            "self.source != 'model' || self.uri == ''",
            "source model takes the scales from the model: leave uri out, or write source: dataset",
            ".uri",
        ),
    )


class Decoder(Contract):
    """From the model's outputs to predictions."""

    kind: Literal["logits", "yolo", "yolov5", "yolo_end2end", "boxes_scores_labels", "detr", "python"] = "logits"
    """The form of the outputs: logits or masks, one of the box formats, or python."""
    nms_iou: DecimalText = "0.7"
    """Overlap from which non-maximum suppression drops the weaker box."""
    confidence: DecimalText = "0.001"
    """Boxes below it are dropped."""
    max_detections: Annotated[int, Field(ge=1, le=10000)] = 300
    """Boxes kept a picture."""

    RULES = (
        Rule("self.nmsIou.matches(r'^(0([.][0-9]+)?|1([.]0+)?)$')", 'write a share from 0 to 1, like "0.7"', ".nmsIou"),
        Rule("self.confidence.matches(r'^(0([.][0-9]+)?|1([.]0+)?)$')", 'write a share from 0 to 1, like "0.001"', ".confidence"),
    )


class Subgroups(Contract):
    """Parts of the validation set that are judged one by one."""

    column: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the label that tells the parts apart."""


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
    )


_SHARE = "matches(r'^-?(0([.][0-9]+)?|1([.]0+)?)$')"


class Validation(Contract):
    """The labelled data that an engine is judged with, and what it must reach."""

    uri: Uri
    """An .npz file with labels, a folder of images per class, COCO json, or YOLO data.yaml."""
    digest: Digest | None = None
    """Tree digest that the data set must have; absent: what is found first is pinned in status.resolved."""
    credentials_secret_ref: LocalRef | None = None
    task: Literal["classification", "detection", "segmentation", "outputs"] = "classification"
    """`outputs` needs no labels: it compares the outputs with those of FP32."""
    metric: Literal["top1", "top5", "map50", "map50_95", "miou", "cosine", "max_abs_error"] = "top1"
    """What is measured; it must fit the task."""
    decoder: Decoder = Field(default_factory=Decoder)
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """With fewer samples the gate is inconclusive."""
    required_classes: Annotated[list[Text], list_set(max_length=1000)] = Field(default_factory=list)
    """Classes that must be judged: one with too few instances makes the gate inconclusive. Others are reported."""
    subgroups: Subgroups | None = None
    on_device: OnDevice = Field(default_factory=OnDevice)
    baseline: ExpectedBaseline | None = None
    acceptance: AccuracyAcceptance = Field(default_factory=AccuracyAcceptance)

    RULES = (
        Rule(
            "self.task != 'classification' || self.metric in ['top1', 'top5']", "task classification: write metric: top1 or top5", ".metric"
        ),
        Rule(
            "self.task != 'detection' || self.metric in ['map50', 'map50_95']", "task detection: write metric: map50 or map50_95", ".metric"
        ),
        Rule("self.task != 'segmentation' || self.metric == 'miou'", "task segmentation: write metric: miou", ".metric"),
        Rule(
            "self.task != 'outputs' || self.metric in ['cosine', 'max_abs_error']",
            "task outputs: write metric: cosine or max_abs_error",
            ".metric",
        ),
        Rule(
            "self.task != 'detection' || self.decoder.kind != 'logits'",
            "task detection: write decoder.kind: yolo, yolov5, yolo_end2end, boxes_scores_labels, detr or python",
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
            "self.metric != 'max_abs_error' || !has(self.acceptance.minimum)",
            "max_abs_error is better when lower: write acceptance.maxDrop instead of minimum",
            ".acceptance",
        ),
        Rule(
            f"self.metric == 'max_abs_error' || ((!has(self.acceptance.minimum) || self.acceptance.minimum.{_SHARE})"
            f" && (!has(self.acceptance.maxDrop) || self.acceptance.maxDrop.{_SHARE}))",
            'metrics are shares from 0 to 1, not percent: write "0.95" for 95 %',
            ".acceptance",
        ),
        Rule(
            "self.task != 'outputs' || (size(self.requiredClasses) == 0 && !has(self.acceptance.maxDropPerClass))",
            "task outputs knows no classes: leave requiredClasses and acceptance.maxDropPerClass out",
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


class Benchmark(Contract):
    """What is measured on the device, and what must be reached."""

    batch_sizes: Annotated[list[Annotated[int, Field(ge=1, le=65536)]], list_set(min_length=1, max_length=16)] = Field(
        default_factory=lambda: [1]
    )
    """Batch sizes that are measured."""
    acceptance: SpeedAcceptance | None = None
    sustained: DurationText = "0s"
    """Minutes of load show throttling; p95 of the last minute counts."""

    RULES = (
        Rule(
            "!has(self.acceptance) || self.acceptance.batchSize in self.batchSizes",
            "acceptance.batchSize is not measured: add it to batchSizes, or write one of them",
            ".acceptance",
        ),
    )


class Dla(Contract):
    """Build for a Deep Learning Accelerator of Jetson."""

    core: Annotated[int, Field(ge=0, le=7)] = 0
    """Number of the accelerator."""
    allow_gpu_fallback: bool = True
    """Whether layers that it cannot run may run on the GPU."""


class BuildSettings(Contract):
    """How a backend builds. Settings that a backend does not know are named in the conditions."""

    workspace: Annotated[
        str, matching(r"^(auto|[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?)$", "auto, or a quantity like 2Gi", max_length=32)
    ] = "auto"
    """Memory that TensorRT may use while building."""
    optimization_level: Annotated[int, Field(ge=0, le=5)] = 3
    """Builder optimization level of TensorRT: higher builds longer for faster engines."""
    dla: Dla | None = None
    plugins: Annotated[list[Text], Field(max_length=32)] = Field(default_factory=list)
    """Shared libraries with TensorRT plugins, as paths in the runtime image."""
    tactic_sources: Annotated[list[Text], Field(max_length=16)] = Field(default_factory=list)
    """Tactic sources of TensorRT; empty: its own choice."""
    threads: Annotated[str, matching(r"^(auto|[1-9][0-9]{0,2})$", 'auto, or a number in quotes like "4"', max_length=4)] = "auto"
    """Intra-op threads of the ONNX Runtime CPU backend."""


class Target(Contract):
    """Devices to build for: a HardwareClass by name, or all that carry labels."""

    hardware_class: ClassName | None = None
    """Name of a HardwareClass."""
    hardware_class_selector: LabelSelector | None = None

    RULES = (
        Rule(
            "has(self.hardwareClass) != has(self.hardwareClassSelector)",
            "write exactly one of hardwareClass and hardwareClassSelector",
        ),
    )


TARGETS_RULE = Rule(
    "self.all(t, self.exists_one(u, has(t.hardwareClass) == has(u.hardwareClass)"
    " && (!has(t.hardwareClass) || t.hardwareClass == u.hardwareClass)"
    " && (!has(t.hardwareClassSelector) || !has(u.hardwareClassSelector) || t.hardwareClassSelector == u.hardwareClassSelector)))",
    "a target stands twice: write each hardwareClass or hardwareClassSelector once",
)


class Serving(Contract):
    """The pods that use the engines."""

    mode: Literal["DaemonSet", "Deployment", "None"] = "DaemonSet"
    """None publishes engines only."""
    replicas: Annotated[int, Field(ge=0, le=10000)] | None = None
    """For mode Deployment; absent: left alone, so that an autoscaler may own it."""
    engine_path: Annotated[str, matching(r"^/[^:]*$", "an absolute path without ':', like /engine", max_length=1024)] = "/engine"
    """Folder in the serving container where engine and engine.json appear."""
    layout: Literal["plain", "triton", "ultralytics"] = "plain"
    """plain: the engine file. triton: a model repository with config.pbtxt. ultralytics: with the header that its loader reads."""
    runtime_check: Literal["Enforce", "Declare"] = "Enforce"
    """Enforce: an init container finds out which runtime the serving image holds, and refuses another one than the engine's."""
    template: FreeObject | None = None
    """A PodTemplateSpec; absent: the reference server."""

    RULES = (
        Rule(
            "!has(self.replicas) || self.mode == 'Deployment'",
            "replicas is for mode: Deployment: leave it out (a DaemonSet runs one pod a node), or write mode: Deployment",
            ".replicas",
        ),
        Rule(
            "self.mode != 'None' || !has(self.template)",
            "mode None runs no pods: leave template out, or write mode: DaemonSet or Deployment",
            ".template",
        ),
        Rule(
            r"!self.enginePath.matches(r'/[.][.](/|$)') && !self.enginePath.matches(r'^/+((proc|sys|dev|etc|bin|lib|lib64|usr)(/|$)|$)')",
            "the engine's volume is mounted there and would hide a system folder: write a folder of its own, like /engine, without '..'",
            ".enginePath",
        ),
    )


class Canary(Contract):
    """The nodes that move first: at least one of every fingerprint."""

    count: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Nodes of a class."""
    percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Share of the nodes of a class."""
    soak: DurationText = "0s"
    """How long canary nodes must have been ready before others move."""
    node_selector: LabelSelector | None = None

    RULES = (Rule("has(self.count) != has(self.percent)", "write exactly one of count and percent"),)


class Rollout(Contract):
    """How a new release reaches the nodes."""

    canary: Canary | None = None
    steps: Annotated[
        list[Percent],
        checked(
            Rule(
                "!self.all(s, s.matches(r'^[0-9]{1,3}%$')) || ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].all(i,"
                " i + 1 >= size(self) || int(self[i].replace('%', '')) < int(self[i + 1].replace('%', ''))))",
                "steps do not rise: write them in ascending order, like [10%, 50%, 100%]",
            ),
            Rule("!self.exists(s, s == '0%')", "a step of 0% moves nothing: start with 1% or more"),
            max_length=20,
        ),
    ] = Field(default_factory=list)
    """Shares of the nodes of a class; empty: all within maxUnavailable."""
    max_unavailable: CountOrPercent = "10%"
    """Nodes of a class that may be out of service because of the rollout. Percentages round up, never below 1."""
    max_failures: Annotated[int, Field(ge=0, le=100000)] = 1
    """More failed nodes than this, and `onFailure` happens."""
    progress_deadline: DurationText = "10m"
    """How long a node may take to get ready, image pull and fetch not counted."""
    on_failure: Literal["Rollback", "Pause"] = "Pause"
    """Rollback: back to the last good release. Pause: stop and wait."""
    windows: Annotated[list[Window], Field(max_length=32)] = Field(default_factory=list)
    """When nodes may move; empty: always. A rollback never waits."""

    RULES = (
        Rule("self.progressDeadline.matches('[1-9]')", "nothing is ready in no time: write a duration like 10m", ".progressDeadline"),
        Rule(
            "type(self.maxUnavailable) == int ? self.maxUnavailable != 0 : self.maxUnavailable != '0%'",
            "with 0 nothing could ever move: write a number from 1, or a percentage from 1%; set paused: true to stop a rollout",
            ".maxUnavailable",
        ),
    )


class ModelDeploymentSpec(Contract):
    """What to build, how to judge it, where to run it."""

    model: Model
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16", "int8", "fp8"] = "fp32"
    """auto: the fastest that passes the gate."""
    inputs: Annotated[list[InputSpec], list_map("name", max_length=32)] = Field(default_factory=list)
    """Shapes of the inputs that have dynamic dimensions."""
    preprocessing: Preprocessing = Field(default_factory=Preprocessing)
    calibration: Calibration | None = None
    validation: Validation | None = None
    benchmark: Benchmark = Field(default_factory=Benchmark)
    build: BuildSettings = Field(default_factory=BuildSettings)
    targets: Annotated[list[Target], checked(TARGETS_RULE, min_length=1, max_length=32)]
    """The devices to build for."""
    store_ref: LocalRef = Field(default_factory=lambda: LocalRef(name="default"))
    """The EngineStore of this namespace that engines are published in."""
    serving: Serving = Field(default_factory=Serving)
    rollout: Rollout = Field(default_factory=Rollout)
    paused: bool = False
    """Starts no Job and moves no node; what runs goes on."""
    history_limit: Annotated[int, Field(ge=1, le=20)] = 3
    """Past releases that are kept for a rollback."""

    RULES = (
        Rule(
            "!(self.precision in ['int8', 'fp8']) || has(self.calibration)",
            "this precision needs scales: write spec.calibration with the uri of a data set, or with source: model when the model holds them (QAT)",
            ".precision",
        ),
        Rule(
            "self.inputs.all(i, size(i.profiles) == size(self.inputs[0].profiles))",
            "the inputs differ in their number of profiles: write as many for each input; the first of all go together, the second, and so on",
            ".inputs",
        ),
    )
