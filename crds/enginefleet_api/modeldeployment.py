"""The spec of ModelDeployment: how to build, where, how pods serve and how a release reaches the nodes.

Defaults stand in the models and nowhere else; each rule stands beside the model that it checks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Contract, DurationText, Rule, matching
from .fields import ClassName, CountOrPercent, FreeObject, LabelSelector, LocalRef, Percent, Text, Window, checked, list_map, list_set
from .judging import Benchmark, Validation
from .layouts import Layout
from .model import Calibration, InputSpec, Model, Preprocessing


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


class Auto(Contract):
    """What `precision: auto` may choose from."""

    candidates: Annotated[list[Literal["int8", "fp8", "fp16", "bf16", "tf32", "fp32"]], list_set(max_length=6)] = Field(
        default_factory=list
    )
    """In the order in which they are tried, the fastest first; empty: int8 where there is a calibration, fp16, fp32."""


class Target(Contract):
    """Devices to build for: a HardwareClass by name, or all that carry labels."""

    hardware_class: ClassName | None = None
    """Name of a HardwareClass."""
    hardware_class_selector: LabelSelector | None = None
    """All HardwareClasses with these labels that allow the namespace, also those that come later."""

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
    layout: Layout = "plain"
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
        Rule("self.mode != 'None' || self.layout == 'plain'", "mode None runs no pods: leave layout out", ".layout"),
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
    """Absent: one node of each fingerprint, without soak."""
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
    on_failure: Literal["Rollback", "Pause"] = "Rollback"
    """Rollback: back to the last good release, where there is one. Pause: stop and wait."""
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
    """auto: the fastest that passes the gate, for each kind of device."""
    auto: Auto = Field(default_factory=Auto)
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
            "!has(self.build.dla) || self.precision in ['auto', 'fp16', 'int8']",
            "a DLA computes in fp16 and int8 only: write one of them, or auto, or leave build.dla out",
            ".precision",
        ),
        Rule(
            "self.precision == 'auto' || size(self.auto.candidates) == 0",
            "candidates are for precision: auto: write it, or leave auto out",
            ".auto",
        ),
        Rule(
            "has(self.calibration) || !self.auto.candidates.exists(c, c in ['int8', 'fp8'])",
            "this candidate needs scales: write spec.calibration, or leave int8 and fp8 out of auto.candidates",
            ".auto",
        ),
        Rule(
            "self.inputs.all(i, size(i.profiles) == size(self.inputs[0].profiles))",
            "the inputs differ in their number of profiles: write as many for each input; the first of all go together, the second, and so on",
            ".inputs",
        ),
    )
