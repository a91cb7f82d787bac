"""What a ModelDeployment builds: the model, its shapes, what happens to pictures before it, where int8 scales come from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Contract, Digest, FractionText, Rule
from .fields import PLAIN_HTTP, Endpoint, LocalRef, OptionalUri, Text, Uri

Shape = Annotated[list[Annotated[int, Field(ge=1, le=2**31 - 1)]], Field(max_length=8)]


class ModelExport(Contract):
    """How a PyTorch file (.pt of Ultralytics, .pt2 of torch.export) becomes ONNX. Such a file is code: it runs in a process of its own, without credentials."""

    trust: Literal["isolated", "trusted"] = "isolated"
    """isolated: without network too, and refused where the kernel cannot cut it off. trusted: the file is your own; it may be opened with network."""
    size: Annotated[list[Annotated[int, Field(ge=1, le=16384)]], Field(max_length=2)] = Field(default_factory=list)
    """Height and width in pixels, for .pt; empty: what the file says."""
    nms: Literal["default", "true", "false"] = "default"
    """For .pt: whether suppression stands in the graph. default, true and false give three different heads in some models."""
    opset: Annotated[int, Field(ge=11, le=30)] = 17
    """Opset of the exported model."""

    RULES = (Rule("size(self.size) != 1", "size has one number: write size: [height, width]", ".size"),)


class Model(Contract):
    """What to build: one ONNX model."""

    uri: Uri
    """An .onnx file, or a folder with exactly one and its external data: s3://bucket/path or https://host/path. See export for .pt files."""
    digest: Digest | None = None
    """Tree digest that the model must have; absent: what is found first is pinned in status.resolved."""
    credentials_secret_ref: LocalRef | None = None
    """Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; absent: the pod's own identity."""
    endpoint: Endpoint = ""
    """S3 endpoint; empty: the store's endpoint for s3:// without own credentials, else the provider's own."""
    region: Text = ""
    """Region of the S3 endpoint; empty: the store's."""
    export: ModelExport | None = None
    """Allows a .pt or .pt2 file, which is exported in the prepare Job; absent: such files are refused."""

    RULES = (PLAIN_HTTP,)


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
    interpolation: Literal["auto", "linear", "antialias", "bicubic"] = "auto"
    """linear: OpenCV's, as Ultralytics has it (auto for letterbox); antialias: Pillow's bilinear, as torchvision has it (auto for the others)."""
    shorter_side: Annotated[int, Field(ge=0, le=16384)] = 0
    """center-crop: pixels that the shorter side is resized to before the crop, like 256 for a size of 224; 0: as few as cover size."""
    align: Literal["center", "top-left"] = "center"
    """letterbox: where the picture lies."""
    fill: Annotated[int, Field(ge=0, le=255)] = 114
    """letterbox: grey of the bars."""
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
            "self.shorterSide == 0 || self.resize == 'center-crop'",
            "shorterSide is resized to before a crop: write resize: center-crop, or leave it out",
            ".shorterSide",
        ),
        Rule(
            "(self.align == 'center' && self.fill == 114) || self.resize == 'letterbox'",
            "align and fill place a picture between bars: write resize: letterbox, or leave them out",
        ),
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
    """A folder of images, COCO json or YOLO data.yaml with theirs, or an .npz or .npy file."""
    digest: Digest | None = None
    """Tree digest that the data set must have; absent: what is found first is pinned in status.resolved."""
    credentials_secret_ref: LocalRef | None = None
    method: Literal["auto", "entropy", "max"] = "auto"
    """How ranges are found from samples; auto: the target's usual one."""
    min_samples: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    """With fewer samples the prepare Job fails."""
    exclude: Exclude = Field(default_factory=Exclude)

    RULES = (
        PLAIN_HTTP,
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
