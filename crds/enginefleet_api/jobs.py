"""Requests that the operator hands to a Job and reports that come back in its termination message.

A request is one JSON document in the environment variable `ENGINEFLEET_REQUEST` (or a file given with `--request`). A report is one JSON
document of at most `REPORT_LIMIT` bytes in the container's termination message. Neither holds a secret: credentials come in environment
variables `ENGINEFLEET_<WHO>_ACCESS_KEY_ID` and `…_SECRET_ACCESS_KEY`, WHO being STORE, MODEL, CALIBRATION or VALIDATION.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import Contract
from .documents import Accuracy, Answer, Latency, Metric
from .errors import EngineFleetError, FailureClass
from .layouts import Layout
from .resources import Benchmark, Calibration, InputSpec, ModelExport, Preprocessing, RefusedTarget, Validation
from .variants import Variant

REQUEST_VARIABLE = "ENGINEFLEET_REQUEST"
TABLES_VARIABLE = "ENGINEFLEET_TABLES"
"""Names the folder whose failures.json and targets.json, where they are there, replace the builder's own."""
REPORT_LIMIT = 4000
"""The kubelet keeps 4096 bytes of a termination message."""
TERMINATION_LOG = "/dev/termination-log"


def clip(text: str, size: int) -> str:
    """`text` if its JSON form has at most `size` bytes, else its beginning and `…`; text without a UTF-8 form (lone surrogates) gets `?`."""
    text = text.encode("utf-8", "replace").decode()
    if _json_size(text) <= size:
        return text
    room = size - _json_size("…")
    for end, character in enumerate(text):
        room -= _json_size(character)
        if room < 0:
            return text[:end] + "…"
    return text


def _json_size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - len('""')


class StoreRef(Contract):
    """Where engines live: `s3://bucket/prefix/` (endpoint, region, CA bundle as text) or `file:///folder/` (command line and tests)."""

    uri: str
    endpoint: str = ""
    region: str = ""
    ca_bundle: str = ""


class Source(Contract):
    """A model or data set to fetch. `digest` is asserted when given. `credentials`: which environment variables to use."""

    uri: str
    digest: str | None = None
    endpoint: str = ""
    region: str = ""
    credentials: Literal["model", "calibration", "validation", "store", "ambient"] = "ambient"


class PreflightTarget(Contract):
    """A kind of device that the model is checked for. None is unknown: what hangs on it is not checked."""

    id: str = ""
    """What the report calls it by; empty: its name."""
    name: str
    """Of the HardwareClass, for people."""
    backend: Literal["tensorrt", "tensorrt-rtx", "onnxruntime"]
    version: str | None = None
    """Of the backend, as the loaded library or the image's name tells it."""
    compute_capability: str | None = None
    l4t: str | None = None
    image: str = ""
    dla: bool = False
    """Whether spec.build.dla asks for it."""
    plugins: tuple[str, ...] = ()
    """Shared libraries of spec.build.plugins: an operator that the parser lacks may be theirs."""


class PrepareRequest(Contract):
    kind: Literal["Prepare"] = "Prepare"
    name: str = ""
    """For people: namespace/name of the ModelDeployment."""
    model: Source
    export: ModelExport | None = None
    """Allows a .pt or .pt2 file."""
    variants: Annotated[list[Variant], Field(min_length=1)]
    """What to make of the model, for each flavour."""
    best_effort: bool = False
    """A variant that cannot be made of this model is reported with its failure; the Job does not fail for it."""
    flavours: list[str]
    """Target flavours: `onnxruntime`, `tensorrt-10` or `tensorrt-8`. Each gives one prepared model a variant."""
    targets: list[PreflightTarget] = Field(default_factory=list)
    """For preflight only: they are in no key."""
    batch_sizes: list[int] = Field(default_factory=list)
    """That the model will be asked for, for preflight only."""
    inputs: list[InputSpec] = Field(default_factory=list)
    preprocessing: Preprocessing | None = None
    calibration: Calibration | None = None
    calibration_source: Source | None = None
    validation: Validation | None = None
    validation_source: Source | None = None
    store: StoreRef
    holder: str
    timeout_seconds: int = 3600


class ResolvedPrepared(Contract):
    flavour: str
    precision: str
    variant: str
    """`Variant.id`."""
    prepared_key: str = ""
    model: str = ""
    """Tree digest of the prepared files."""
    failure: str = ""
    """`Reason: message` when it could not be made, and there is no key."""
    exclude: dict[str, list[str]] = Field(default_factory=dict)
    """For a repaired variant the exclusions that were found, as spec.calibration.exclude takes them. Left out of a message that is too long:
    the prepared manifest's recipe has them."""


class PrepareReport(Contract):
    kind: Literal["Prepare"] = "Prepare"
    model: str
    """Tree digest of the model as given."""
    calibration: str | None = None
    validation: str | None = None
    prepared: list[ResolvedPrepared]
    refused: list[RefusedTarget] = Field(default_factory=list)
    """Targets that the model is unfit for. What no target is left for is not in `prepared`."""
    baseline_key: str | None = None
    """None, too, where nothing was prepared."""
    unfit_layouts: dict[str, str] = Field(default_factory=dict)
    """Layout (spec.serving.layout) → `Reason: why` this model cannot be served in it, for those that it cannot."""
    baseline: Metric | None = None
    advised_samples: int | None = None
    """About how many an engine that is as good as FP32 needs, to pass the gate's maxDrop (builder: gate/advice.py)."""
    reused: bool = False
    """True when everything was in the store already."""
    notes: list[str] = Field(default_factory=list)
    seconds: str = ""


class BuildRequest(Contract):
    """Build or adopt one engine, then judge it. Also what `judge` takes.

    `Judge`: judge `blob`, an engine that is published, in another context than before. Its verdict is recorded beside those that decide whether
    the engine may be loaded, and is none of them.
    """

    kind: Literal["Build", "Judge"] = "Build"
    name: str = ""
    """For people: namespace/name of the ModelDeployment, by hand what its manifest says; servers call the model by the last part."""
    engine_key: str
    gate_key: str
    baseline_key: str | None = None
    prepared_key: str
    prepared_model: str
    precision: str
    partner_prepared_key: str | None = None
    """The same model prepared in FP32: built in a temporary folder, measured in turns with the engine, never published."""
    backend: str
    execution_provider: str = "CPU"
    python: str = "python3"
    """The interpreter that owns the bindings of TensorRT."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    fingerprint: str
    facts: dict[str, Any]
    inputs: list[InputSpec] = Field(default_factory=list)
    preprocessing: Preprocessing | None = None
    validation: Validation | None = None
    validation_source: Source | None = None
    benchmark: Benchmark = Field(default_factory=Benchmark)
    store: StoreRef
    holder: str
    node: str = ""
    blob: str = ""
    """The engine to judge, of kind Judge."""
    context: dict[str, Any] = Field(default_factory=dict)
    """Of the node, as far as it is known before the Job runs; see hostfiles.context."""
    timeout_seconds: int = 3600
    claim_seconds: int = 120
    memory_reserve: str = ""
    """Memory, as a quantity, that a build by TensorRT leaves free on the node: below it the build ends by itself. Empty: no limit."""


class BuildReport(Contract):
    kind: Literal["Build"] = "Build"
    engine_key: str
    gate_key: str
    blob: str
    size: int
    adopted: bool
    """True when a proven or completed build was found in the store and nothing was compiled."""
    answer: Answer
    reasons: list[str] = Field(default_factory=list)
    lasting: bool = False
    """As of the verdict: judging again would tell no more."""
    accuracy: Accuracy | None = None
    latency: list[Latency] = Field(default_factory=list)
    speedup: str | None = None
    """Against the FP32 partner, where one was given."""
    context: dict[str, str] = Field(default_factory=dict)
    """In which the verdict was reached, as far as it tells; see fingerprint.judged_context."""
    durations: dict[str, str] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)


class ProbeRequest(Contract):
    kind: Literal["Probe"] = "Probe"
    backend: str
    execution_provider: str = "CPU"
    python: str = "python3"
    """The interpreter that owns the bindings of TensorRT."""
    compute_capability: str = ""
    """Of a GPU that is not here and that is built for; then none is looked for."""


class ProbeReport(Contract):
    """What the loaded library says of itself, and what this pod can see of the host (for the re-check only)."""

    kind: Literal["Probe"] = "Probe"
    runtime: dict[str, Any]
    host: dict[str, Any] = Field(default_factory=dict)
    context: dict[str, str] = Field(default_factory=dict)
    """The GPU's driver, clocks and memory at that moment, for people."""


class FetchRequest(Contract):
    """What an init container needs to bring one proven engine to a pod."""

    kind: Literal["Fetch"] = "Fetch"
    engine_key: str
    gate_key: str
    blob: str
    size: int
    fingerprint: str
    facts: dict[str, Any]
    store: StoreRef
    engine_path: str = "/engine"
    layout: Layout = "plain"
    """spec.serving.layout."""
    model_name: str = ""
    """Of the ModelDeployment: what servers call the model."""
    cache_path: str = ""
    """Node cache folder; empty: none."""
    preprocessing: Preprocessing | None = None
    """Left beside the engine for the server."""
    timeout_seconds: int = 110
    patience_seconds: int | None = None
    """How long the store may not answer; None: a quarter of timeout_seconds. Not sent where there is none: older images do not know it."""


class FetchReport(Contract):
    kind: Literal["Fetch"] = "Fetch"
    blob: str
    source: Literal["cache", "store"]
    verdict: str = ""
    """Name of the verdict that allowed it, or `cached` when the store could not be asked."""
    seconds: str = ""


class PublishedEngine(Contract):
    """What pods would fetch."""

    engine_key: str
    gate_key: str
    blob: str
    size: int


class VerifyRequest(Contract):
    """Look whether published engines are in the store as they were published."""

    kind: Literal["Verify"] = "Verify"
    engines: Annotated[list[PublishedEngine], Field(min_length=1, max_length=25)]
    """As many as the report has room for, if all of them are lost."""
    store: StoreRef
    timeout_seconds: int = 3600


class VerifyReport(Contract):
    kind: Literal["Verify"] = "Verify"
    verified: int
    lost: dict[str, str] = Field(default_factory=dict)
    """Blob → reason, as a fetch would give it: ObjectMissing, BlobDamaged, NotProven …"""
    seconds: str = ""


class RuntimeCheckRequest(Contract):
    kind: Literal["RuntimeCheck"] = "RuntimeCheck"
    backend: str
    version: str


class EngineManifest(Contract):
    """`<engine path>/engine.json`, written beside the engine for the server."""

    schema_version: Literal[1] = 1
    model_name: str = ""
    engine_key: str
    blob: str
    size: int
    fingerprint: str
    file: str
    """Relative to the folder of engine.json."""
    layout: Layout = "plain"
    facts: dict[str, Any]
    recipe: dict[str, Any] = Field(default_factory=dict)
    precision: str = ""
    preprocessing: Preprocessing | None = None
    """From a picture to the model's input, as it was calibrated and judged."""


class JobFailure(Contract):
    """A failed Job's termination message."""

    kind: Literal["Failure"] = "Failure"
    failure_class: FailureClass
    reason: str
    message: str
    hint: str = ""
    log_tail: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, error: EngineFleetError, log_tail: list[str] | None = None) -> JobFailure:
        return cls(failure_class=error.failure_class, reason=error.reason, message=error.message, hint=error.hint, log_tail=log_tail or [])


class Termination(Contract):
    """The envelope of every termination message: exactly one of report or failure."""

    schema_version: Literal[1] = 1
    report: PrepareReport | BuildReport | ProbeReport | FetchReport | VerifyReport | None = Field(default=None, discriminator="kind")
    failure: JobFailure | None = None

    def to_message(self, limit: int = REPORT_LIMIT) -> str:
        """JSON of at most `limit` bytes. Lines for people (log, notes, warnings, reasons) are cut first, then what the store holds too.

        Raises ValueError when the rest is too large even so: keys, digests and the facts of a probe are never cut.
        """
        for lines, width, text in ((20, 2000, 2000), (8, 400, 1600), (3, 200, 1200), (0, 120, 800)):
            message = self._cut(lines, width, text).model_dump_json(by_alias=True, exclude_none=True)
            if len(message.encode()) <= limit:
                return message
        raise ValueError(f"a report of {len(message.encode())} bytes does not fit into {limit}, with all texts for people cut")

    def _cut(self, lines: int, width: int, text: int) -> Termination:
        """At most `lines` lines of `width` bytes in each list, the last ones; at most `text` bytes in a sentence."""

        def cut(items: list[str]) -> list[str]:
            return [clip(item, width) for item in items[-lines:]] if lines else []

        last = not lines
        report, failure = self.report, self.failure
        if failure is not None:
            changes: dict[str, Any] = {"log_tail": cut(failure.log_tail), "notes": cut(failure.notes)}
            changes |= {"reason": clip(failure.reason, 128), "message": clip(failure.message, text), "hint": clip(failure.hint, text)}
            failure = failure.model_copy(update=changes)
        if isinstance(report, PrepareReport):
            baseline = report.baseline
            if baseline is not None and lines <= 8:
                baseline = baseline.model_copy(update={"per_class": {}, "class_samples": {}, "per_group": {}, "group_samples": {}})
            prepared = report.prepared if lines > 3 else [item.model_copy(update={"exclude": {}}) for item in report.prepared]
            room = (240 if last else text) // max(len(report.refused), 1)
            refused = [
                item.model_copy(update={"message": clip(item.message, room), "hint": clip(item.hint, 0 if last else room // 2)})
                for item in report.refused
            ]
            layouts = {layout: clip(why, 60 if last else 300) for layout, why in report.unfit_layouts.items()}
            changes = {"notes": cut(report.notes), "baseline": baseline, "prepared": prepared, "refused": refused, "unfit_layouts": layouts}
            report = report.model_copy(update=changes)
        elif isinstance(report, ProbeReport):
            report = report.model_copy(update={"context": {} if last else report.context})
        elif isinstance(report, BuildReport):
            changes = {"warnings": cut(report.warnings), "reasons": [clip(reason, width) for reason in report.reasons[: 4 if last else 8]]}
            if last:
                changes |= {"latency": report.latency[:4], "durations": {}}
            report = report.model_copy(update=changes)
        return self.model_copy(update={"report": report, "failure": failure})

    @classmethod
    def parse(cls, text: str) -> Termination | None:
        """None when the text is not such a message (cut off, another program's, empty): unreadable is never success."""
        try:
            value = cls.model_validate_json(text)
        except ValueError:
            return None
        return value if (value.report is None) != (value.failure is None) else None
