"""Records in, one report out: pure. A report is what the page shows, and the JSON beside it.

Everything is bounded: a report of a model with 10,000 classes is as small as that of one with 50, and says how many rows were left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Literal

from pydantic import Field

from enginefleet_api.base import Contract
from enginefleet_api.documents import (
    Accuracy,
    Answer,
    Baseline,
    BuildRecord,
    Latency,
    Metric,
    Part,
    PreparedManifest,
    Speedup,
    Verdict,
    WorstSample,
)
from enginefleet_api.jobs import BuildRequest, StoreRef, clip

from ..store import layout
from . import by_hand
from .layers import Layers

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
    layers: Layers | None = None
    inputs: list[Fact]
    recipe: list[Fact]
    environment: list[Fact]
    durations: list[Fact]
    """Seconds."""
    warnings: list[str]
    notes: list[str]
    steps: list[Step]
    request: dict[str, Any] | None = None
    """What `enginefleet judge --request` takes; no secrets are in it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One engine with its verdict; what is not in the store any more is None."""

    verdict_key: str
    verdict: Verdict
    build: BuildRecord | None
    manifest: PreparedManifest | None


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that a report is made of. `made`: when, as of layout.timestamp. `warnings`: of making it."""

    engine: Judged
    others: Sequence[Judged]
    store: StoreRef
    made: str
    device: str = ""
    baseline: Baseline | None = None
    request: BuildRequest | None = None
    pictures: Mapping[int, Picture] = field(default_factory=dict)
    layers: Layers | None = None
    durations: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def report_of(sources: Sources) -> ReportData:
    engine, request = sources.engine, sources.request
    verdict, build, manifest = engine.verdict, engine.build, engine.manifest
    precisions = sorted(
        (_precision(item, item is engine) for item in (engine, *sources.others)), key=lambda row: (not row.this, row.label, row.time)
    )
    accuracy = verdict.accuracy
    return ReportData(
        name=clip(request.name, NAME) if request else "",
        label=clip(_label(engine), NAME),
        device=clip(sources.device, NAME),
        fingerprint=verdict.fingerprint,
        answer=verdict.answer,
        reasons=_lines(verdict.reasons),
        judged=verdict.time,
        made=sources.made,
        store=sources.store.uri,
        engine_key=verdict.engine_key,
        gate_key=verdict.gate_key,
        blob=verdict.blob,
        size=build.size if build else None,
        records=_records(sources),
        thresholds=list(_thresholds(verdict)),
        metric=accuracy.metric if accuracy else "",
        baseline=_bounded_metric(sources.baseline.metric) if sources.baseline else None,
        accuracy=_bounded(accuracy),
        classes_left_out=max(0, len(accuracy.classes) - MOST_PARTS) if accuracy else 0,
        groups_left_out=max(0, len(accuracy.groups) - MOST_PARTS) if accuracy else 0,
        precisions=precisions[:MOST_PRECISIONS],
        precisions_left_out=max(0, len(precisions) - MOST_PRECISIONS),
        latency=verdict.latency,
        speedup=verdict.speedup,
        worst=[_worst(item, sources.pictures, _confidence(verdict)) for item in verdict.worst[:MOST_WORST]],
        layers=sources.layers,
        inputs=_facts(_inputs(sources)),
        recipe=_facts(_recipe(engine)),
        environment=_facts(_environment(verdict, build)),
        durations=_facts(({**(build.durations if build else {}), **sources.durations}).items()),
        warnings=_lines([*sources.warnings, *(build.warnings if build else [])]),
        notes=_lines(manifest.notes if manifest else []),
        steps=[
            Step(title=title, explanation=explanation, command=command)
            for title, explanation, command in by_hand.steps(verdict, sources.store, build, manifest, request)
        ],
        request=by_hand.judge_request(request) if request else None,
    )


def number(text: str | None) -> Decimal | None:
    """None for what is missing, NaN, infinite, or of more digits than anything that is measured: `1e999999` would be written out."""
    try:
        value = Decimal(text) if text is not None else None
    except InvalidOperation:
        return None
    return value if value is not None and value.is_finite() and abs(value.adjusted()) <= MOST_DIGITS else None


def _label(judged: Judged) -> str:
    if judged.manifest is not None:
        return judged.manifest.variant or judged.manifest.precision
    return judged.build.precision if judged.build else "unknown precision"


def _precision(judged: Judged, this: bool) -> Precision:
    verdict = judged.verdict
    return Precision(
        label=clip(_label(judged), NAME),
        this=this,
        engine_key=verdict.engine_key,
        verdict=judged.verdict_key,
        answer=verdict.answer,
        time=verdict.time,
        size=judged.build.size if judged.build else None,
        accuracy=verdict.accuracy.headline() if verdict.accuracy else None,
        latency=verdict.latency,
        speedup=verdict.speedup,
    )


def _bounded(accuracy: Accuracy | None) -> Accuracy | None:
    if accuracy is None:
        return None
    return accuracy.model_copy(update={"classes": _parts(accuracy.classes), "groups": _parts(accuracy.groups)})


def _parts(parts: Sequence[Part]) -> list[Part]:
    """Those that lost most, first; those that cannot be compared last."""

    def order(part: Part) -> tuple[bool, Decimal, str]:
        drop = number(part.drop)
        return (drop is None, -(drop or Decimal(0)), part.name)

    return [part.model_copy(update={"name": clip(part.name, NAME)}) for part in sorted(parts, key=order)[:MOST_PARTS]]


def _bounded_metric(metric: Metric) -> Metric:
    return metric.model_copy(update={"per_class": {}, "class_samples": {}, "per_group": {}, "group_samples": {}})


def _worst(item: WorstSample, pictures: Mapping[int, Picture], confidence: str) -> Worst:
    baseline_boxes, engine_boxes = (_boxes(record, confidence) for record in (item.baseline, item.engine))
    return Worst(
        index=item.index,
        identity=clip(item.identity, NAME),
        loss=item.loss,
        why=clip(item.why, NAME),
        baseline=clip(_scalars(item.baseline), NAME),
        engine=clip(_scalars(item.engine), NAME),
        baseline_boxes=baseline_boxes,
        engine_boxes=engine_boxes,
        confidence=confidence if baseline_boxes or engine_boxes else "",
        picture=pictures.get(item.index),
    )


def _scalars(record: Mapping[str, Any]) -> str:
    """What of a record can be said in words; boxes are drawn, and counts a class are in the table of classes."""
    return ", ".join(f"{name} {_text(value)}" for name, value in record.items() if not isinstance(value, list | Mapping))


def _boxes(record: Mapping[str, Any], confidence: str) -> list[Box]:
    """Boxes of a detection's record that production would see, the surest first."""
    least = number(confidence) or Decimal(0)
    try:
        found = [
            tuple(map(float, box)) for box, score in zip(record.get("boxes", []), record.get("scores", []), strict=False) if score >= least
        ]
    except (TypeError, ValueError):
        return []
    return [(x1, y1, x2, y2) for x1, y1, x2, y2 in (box for box in found if len(box) == 4 and all(map(isfinite, box)))][:MOST_BOXES]


def _confidence(verdict: Verdict) -> str:
    """Where production cuts off, or what the gate ranks worst samples by where it is not told."""
    point = (verdict.thresholds.get("accuracy") or {}).get("operatingPoint") or {}
    return str(point.get("confidence", SHOWN_CONFIDENCE))


def _records(sources: Sources) -> list[Stored]:
    engine = sources.engine
    verdict = engine.verdict
    found = [("verdict", engine.verdict_key), ("engine", layout.blob(verdict.blob))]
    found.append(("build record", layout.build(verdict.engine_key, verdict.blob)))
    if engine.build is not None:
        found.append(("prepared model", layout.prepared_manifest(engine.build.prepared_key)))
    if sources.baseline is not None:
        found.append(("baseline", layout.baseline(sources.baseline.baseline_key)))
    name = engine.verdict_key.rpartition("/")[2].removesuffix(".json")
    found.append(("this report", layout.report(verdict.engine_key, verdict.gate_key, f"{name}.json")))
    return [Stored(what=what, key=key) for what, key in found]


# ---- thresholds ----


def _thresholds(verdict: Verdict) -> Iterable[Threshold]:
    """Every leaf of what the gate key is made of, with what was measured where one number answers it."""
    measured = dict(_measured(verdict))
    for path, value in _leaves(verdict.thresholds):
        if path not in ("batchSizes", "speed.batchSize"):
            yield measured.get(path, Threshold(field=path, limit="")).model_copy(update={"limit": clip(_text(value), NAME)})


def _measured(verdict: Verdict) -> Iterable[tuple[str, Threshold]]:
    def row(path: str, value: str | None, interval: Sequence[str] = (), samples: int | None = None, of: str = "") -> tuple[str, Threshold]:
        return path, Threshold(field=path, limit="", measured=value, of=of, interval=list(interval), samples=samples)

    if (found := verdict.accuracy) is not None:
        yield row("accuracy.minimum", found.value, found.interval, found.samples)
        yield row("accuracy.maxDrop", found.drop, found.drop_interval, found.samples)
        yield row("minSamples", str(found.samples), samples=found.samples)
        for path, parts in (("Class", found.classes), ("Subgroup", found.groups)):
            worst = min((part for part in parts if number(part.drop) is not None), key=lambda part: -Decimal(part.drop or 0), default=None)
            if worst is not None:
                yield row(f"accuracy.maxDropPer{path}", worst.drop, worst.drop_interval, worst.samples, clip(worst.name, NAME))
        if (point := found.operating_point) is not None:
            yield row("accuracy.operatingPoint.maxRecallDrop", point.recall_drop, point.drop_interval, point.truths)
    speed = verdict.thresholds.get("speed") or {}
    mine = next((item for item in verdict.latency if item.batch == speed.get("batchSize", 1)), None)
    if mine is not None:
        yield row("speed.p95", f"{mine.p95} ms", samples=mine.iterations)
        yield row("speed.throughput", mine.throughput, samples=mine.iterations)
    if verdict.speedup is not None:
        yield row("speed.minSpeedup", verdict.speedup.speedup, verdict.speedup.interval, verdict.speedup.blocks)


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _leaves(item, f"{prefix}{name}.")
        elif item not in ((), [], None):
            yield prefix + name, item


# ---- facts ----


def _inputs(sources: Sources) -> Iterable[tuple[str, Any]]:
    engine, request = sources.engine, sources.request
    if (manifest := engine.manifest) is not None:
        yield "model as given, tree digest", manifest.source_model
        yield "prepared model, tree digest", manifest.model
        yield "prepared key", manifest.prepared_key
        yield "flavour", manifest.flavour
        for kind, specs in (("input", manifest.inputs), ("output", manifest.outputs)):
            for spec in specs[:8]:
                yield f"{kind} {clip(spec.name, NAME)}", f"{spec.dtype} {_text(['?' if size is None else size for size in spec.shape])}"
    elif engine.build is not None:
        yield "prepared model, tree digest", engine.build.prepared_model
        yield "prepared key", engine.build.prepared_key
    if sources.baseline is not None:
        yield "validation set, tree digest", sources.baseline.validation
        yield "baseline key", sources.baseline.baseline_key
        yield "FP32 outputs, digest", sources.baseline.outputs_digest
    if request is not None:
        if request.validation is not None:
            yield "validation set, address", request.validation.uri
            yield "task", request.validation.task
        yield (
            "preprocessing",
            request.preprocessing.to_json_dict() if request.preprocessing else "none: samples are as the model reads them",
        )
    yield "engine, sha256", engine.verdict.blob
    yield "fingerprint", engine.verdict.fingerprint


def _recipe(judged: Judged) -> Iterable[tuple[str, Any]]:
    if (manifest := judged.manifest) is not None:
        yield "precision", manifest.precision
        yield "QuantizeLinear and DequantizeLinear nodes", manifest.qdq_nodes
        if manifest.share:
            yield "share of the worthwhile nodes in the lower precision", manifest.share
        yield from ((f"prepared: {name}", value) for name, value in _leaves(manifest.recipe))
        yield from ((f"made with {tool}", version) for tool, version in manifest.tools.items())
    if judged.build is not None:
        yield from ((f"built: {name}", value) for name, value in _leaves(judged.build.recipe))
        yield from ((f"built with {tool}", version) for tool, version in judged.build.tools.items())


def _environment(verdict: Verdict, build: BuildRecord | None) -> Iterable[tuple[str, Any]]:
    yield "judged on node", verdict.node or "not named"
    yield "judged by", verdict.holder
    yield from _leaves(build.facts if build else {})
    yield from ((f"context: {name}", value) for name, value in _leaves(verdict.context))
    yield from ((name, value) for name, value in _leaves({name: verdict.evidence[name] for name in verdict.evidence if name not in _BULKY}))


_BULKY = ("candidate", "baseline")
"""Whole metrics, which the page has as tables."""


def _facts(items: Iterable[tuple[str, Any]]) -> list[Fact]:
    found = list(items)
    facts = [Fact(name=clip(name, NAME), value=clip(_text(value), TEXT)) for name, value in found[:MOST_FACTS]]
    if len(found) > MOST_FACTS:
        facts.append(Fact(name="more", value=f"{len(found) - MOST_FACTS} lines are left out"))
    return facts


def _lines(lines: Sequence[str]) -> list[str]:
    unique = list(dict.fromkeys(lines))
    kept = [clip(line, TEXT) for line in unique[:MOST_LINES]]
    return kept if len(unique) <= MOST_LINES else [*kept, f"and {len(unique) - MOST_LINES} more"]


def _text(value: Any) -> str:
    """For people: lists by commas, mappings as `name value`."""
    match value:
        case str():
            return value
        case Mapping():
            return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
        case list() | tuple():
            return "[" + ", ".join(_text(item) for item in value) + "]"
        case None:
            return "unknown"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)
