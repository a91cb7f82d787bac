"""Records in, one report out: pure. A report is what the page shows, and the JSON beside it.

Everything is bounded: a report of a model with 10,000 classes is as small as that of one with 50, and says how many rows were left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any, TypeVar

from enginefleet_api.documents import Accuracy, Baseline, Latency, Metric, Part, Speedup, Verdict, WorstSample
from enginefleet_api.jobs import BuildRequest, StoreRef, clip
from enginefleet_api.keys import GATE_DEFAULTS

from ..gate.conditions import kinds
from ..store import layout
from . import by_hand
from .data import (
    MOST_BATCHES,
    MOST_BOXES,
    MOST_FACTS,
    MOST_MARKS,
    MOST_PARTS,
    MOST_PRECISIONS,
    MOST_WORST,
    NAME,
    SHOWN_CONFIDENCE,
    Box,
    Judged,
    Picture,
    Precision,
    ReportData,
    Step,
    Stored,
    Threshold,
    Worst,
    number,
)
from .facts import environment, exclude, facts, inputs, leaves, lines, machine, recipe, text
from .layers import Layers, wider

INSPECTED = "engine inspector"
"""The record of what the library itself says of the layers."""
Figure = TypeVar("Figure", Latency, Speedup)
MIN_INSTANCES = GATE_DEFAULTS["minInstances"]


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
    inspected: bool = False
    """Whether the library's own account of the layers stands beside the report."""
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
        precision=clip(manifest.precision if manifest else build.precision if build else "", NAME),
        device=clip(sources.device, NAME),
        fingerprint=verdict.fingerprint,
        answer=verdict.answer,
        reasons=lines(verdict.reasons),
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
        latency=[_bounded_marks(item) for item in verdict.latency[:MOST_BATCHES]],
        speedup=_bounded_marks(verdict.speedup) if verdict.speedup else None,
        worst=[_worst(item, sources.pictures, _confidence(verdict)) for item in verdict.worst[:MOST_WORST]],
        memory={clip(name, NAME): held for name, held in list(verdict.memory.items())[:MOST_FACTS]},
        conditions=machine(verdict.conditions),
        layers=sources.layers,
        wider=wider(sources.layers, manifest.precision) if sources.layers and manifest else None,
        providers={clip(name, NAME): nodes for name, nodes in list(build.providers.items())[:MOST_FACTS]} if build else {},
        excluded=[clip(name, NAME) for name in build.excluded[:MOST_FACTS]] if build else [],
        excluded_left_out=max(0, len(build.excluded) - MOST_FACTS) if build else 0,
        inputs=facts(inputs(engine, sources.baseline, request)),
        recipe=facts(recipe(engine)),
        exclude=exclude(manifest),
        environment=facts(environment(verdict, build)),
        durations=facts(({**(build.durations if build else {}), **sources.durations}).items()),
        warnings=lines([*sources.warnings, *(build.warnings if build else [])]),
        notes=lines(manifest.notes if manifest else []),
        steps=[
            Step(title=title, explanation=explanation, command=command)
            for title, explanation, command in by_hand.steps(verdict, sources.store, build, manifest, request, sources.baseline)
        ],
        request=by_hand.judge_request(request) if request else None,
    )


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
        latency=[_bounded_marks(item).headline() for item in verdict.latency[:MOST_BATCHES]],
        speedup=_bounded_marks(verdict.speedup) if verdict.speedup else None,
    )


def _bounded(accuracy: Accuracy | None) -> Accuracy | None:
    if accuracy is None:
        return None
    changes: dict[str, Any] = {"classes": _parts(accuracy.classes), "groups": _parts(accuracy.groups)}
    if accuracy.not_finite is not None:
        changes["not_finite"] = {clip(name, NAME): samples for name, samples in list(accuracy.not_finite.items())[:MOST_PARTS]}
    if accuracy.consistency is not None:
        changes["consistency"] = accuracy.consistency.model_copy(update={"worst": clip(accuracy.consistency.worst, NAME)})
    return accuracy.model_copy(update=changes)


def _parts(parts: Sequence[Part]) -> list[Part]:
    """Those that lost most, first; those that cannot be compared last."""

    def order(part: Part) -> tuple[bool, Decimal, str]:
        drop = number(part.drop)
        return (drop is None, -(drop or Decimal(0)), part.name)

    return [part.model_copy(update={"name": clip(part.name, NAME)}) for part in sorted(parts, key=order)[:MOST_PARTS]]


def _bounded_marks(figure: Figure) -> Figure:
    return figure.model_copy(update={"marks": [clip(mark, NAME) for mark in figure.marks[:MOST_MARKS]]}) if figure.marks else figure


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
    return ", ".join(f"{name} {text(value)}" for name, value in record.items() if not isinstance(value, list | Mapping))


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
    beside = [("this report", "json"), *([(INSPECTED, "layers.json")] if sources.inspected else [])]
    found += [(what, layout.report(verdict.engine_key, verdict.gate_key, f"{name}.{suffix}")) for what, suffix in beside]
    return [Stored(what=what, key=key) for what, key in found]


# ---- thresholds ----


def _thresholds(verdict: Verdict) -> Iterable[Threshold]:
    """Every leaf of what the gate key is made of, with what was measured where one number answers it."""
    measured = dict(_measured(verdict))
    for path, value in leaves(verdict.thresholds):
        yield measured.get(path, Threshold(field=path, limit="")).model_copy(update={"limit": clip(text(value), NAME)})


Row = tuple[str, Threshold]


def _row(
    path: str,
    value: str | None,
    interval: Sequence[str] = (),
    samples: int | None = None,
    of: str = "",
    marks: Sequence[str] | None = None,
) -> Row:
    doubts = sorted(kinds([clip(mark, NAME) for mark in (marks or [])[:MOST_MARKS]]))
    return path, Threshold(field=path, limit="", measured=value, of=of, interval=list(interval), samples=samples, marks=doubts)


def _measured(verdict: Verdict) -> Iterable[Row]:
    if verdict.accuracy is not None:
        yield from _measured_accuracy(verdict.accuracy, verdict.thresholds)
    yield from _measured_speed(verdict)


def _measured_accuracy(found: Accuracy, thresholds: Mapping[str, Any]) -> Iterable[Row]:
    yield _row("accuracy.minimum", found.value, found.interval, found.samples)
    yield _row("accuracy.maxDrop", found.drop, found.drop_interval, found.samples)
    yield _row("minSamples", str(found.samples), samples=found.samples)
    yield _row("onDevice", str(found.samples), samples=found.samples)
    enough = int(thresholds.get("minInstances", MIN_INSTANCES))
    subgroups = thresholds.get("subgroups") or {}
    for kind, parts, required, path in (
        ("Class", found.classes, thresholds.get("requiredClasses"), "requiredClasses"),
        ("Subgroup", found.groups, subgroups.get("required"), "subgroups.required"),
    ):
        names = [part.name for part in parts if part.samples >= enough]
        judged = [part for part in parts if part.name in names and part.name in (required or names)]
        if required:
            yield _row(path, f"{len(judged)} of {len(required)} have at least {enough}")
        if lost := max((part for part in judged if number(part.drop) is not None), key=lambda part: Decimal(part.drop or 0), default=None):
            yield _row(f"accuracy.maxDropPer{kind}", lost.drop, lost.drop_interval, lost.samples, clip(lost.name, NAME))
        if least := min(
            (part for part in judged if number(part.value) is not None), key=lambda part: Decimal(part.value or 0), default=None
        ):
            yield _row(f"accuracy.minimumPer{kind}", least.value, (), least.samples, clip(least.name, NAME))
    if found.classes:
        fewest = min(found.classes, key=lambda part: part.samples)
        yield _row("minInstances", str(fewest.samples), of=clip(fewest.name, NAME))
    if found.groups:
        yield _row("subgroups.column", f"{len(found.groups)} subgroups")
    if (point := found.operating_point) is not None:
        yield _row("accuracy.operatingPoint.maxRecallDrop", point.recall_drop, point.drop_interval, point.truths)


def _measured_speed(verdict: Verdict) -> Iterable[Row]:
    yield _row("batchSizes", text([item.batch for item in verdict.latency])) if verdict.latency else _row("batchSizes", None)
    speed = verdict.thresholds.get("speed") or {}
    mine = next((item for item in verdict.latency if item.batch == speed.get("batchSize", 1)), None)
    if mine is not None:
        yield _row("speed.p95", f"{mine.p95} ms", samples=mine.iterations, marks=mine.marks)
        yield _row("speed.throughput", mine.throughput, samples=mine.iterations, marks=mine.marks)
    if verdict.speedup is not None:
        found = verdict.speedup
        yield _row("speed.minSpeedup", found.speedup, found.interval, found.blocks, marks=found.marks)
    for item in verdict.latency:
        if item.first is not None:
            yield _row("sustained", f"p95 {item.p95} ms in the last minute", samples=item.iterations)
        if item.paced is not None:
            yield _row("paced.rate", f"{item.paced.late} late", samples=item.paced.iterations)
        if item.end_to_end is not None:
            yield _row("endToEnd", f"p50 {item.end_to_end.whole.p50} ms", samples=item.end_to_end.whole.iterations)
        if item.cuda_graph is not None:
            yield _row("cudaGraph", text(item.cuda_graph))
