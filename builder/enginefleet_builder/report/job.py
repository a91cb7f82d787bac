"""Making reports: reading the store, and writing page and JSON. All I/O of this package is here and in pictures.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from enginefleet_api import fingerprint
from enginefleet_api.documents import Verdict
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError
from enginefleet_api.jobs import BuildRequest, StoreRef

from ..backends.base import Inspecting
from ..build.engine import Engine, Work
from ..gate.evaluate import batch_size
from ..gate.latency import benchmark_feeds
from ..gate.samples import Dataset
from ..io import Progress
from ..store import layout, open_store
from ..store.records import Records
from .data import MOST_PRECISIONS, Judged, Picture, ReportData
from .html import page
from .layers import Layers, summarize
from .model import INSPECTED, Sources, report_of
from .pictures import pictures

PROFILED_RUNS = 20
PROFILED_BYTES = 512 * 1024**2
"""Larger engines are not loaded a second time for their report."""
STORED_LIMIT = 4 * 1024**2
"""Bytes of an earlier report that is still read."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What only the Job that judged has seen, and a report keeps: pictures, layers, the request."""

    pictures: dict[int, Picture] = field(default_factory=dict)
    layers: Layers | None = None
    inspected: bool = False
    request: BuildRequest | None = None
    durations: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


# ---- in the build Job ----


def write_report(work: Work, engine: Engine, verdict_key: str, verdict: Verdict, dataset: Dataset | None) -> None:
    """Page and JSON about `verdict`, which stands under `verdict_key`. Whatever goes wrong is a warning: the verdict stands."""
    try:
        work.progress("report")
        _write(work, engine, verdict_key, verdict, dataset)
    except Exception as error:  # noqa: BLE001 - nothing that a report is made of may fail what was proven
        warning = f"ReportNotWritten: {error.message if isinstance(error, EngineFleetError) else f'{type(error).__name__}: {error}'}"
        work.warnings.append(warning)
        work.progress.log(warning)


def _write(work: Work, engine: Engine, verdict_key: str, verdict: Verdict, dataset: Dataset | None) -> None:
    request, records = work.request, work.records
    with work.durations.timing("report"):
        judged = Judged(verdict_key, verdict, engine.record, records.prepared(engine.record.prepared_key))
        shown = pictures(dataset, (item.index for item in verdict.worst)) if dataset is not None else {}
        layers, warnings = _layers(work, engine, dataset, judged)
    inspected = work.backend.inspected if layers is not None and isinstance(work.backend, Inspecting) else None
    seen = Seen(shown, layers, inspected is not None, request, dict(work.durations), (*work.warnings, *warnings))
    if judged.manifest is not None:
        records.add_variant(judged.manifest.source_model, judged.verdict.fingerprint, request.engine_key)
    data = report_of(_sources(records, request.store, judged, seen, compare=()))
    name = verdict_key.rpartition("/")[2].removesuffix(".json")
    texts = {"html": page(data), "json": to_json(data)}
    if inspected is not None:
        texts["layers.json"] = json.dumps(inspected, indent=1)
    for suffix, body in texts.items():
        records.put_report(request.engine_key, request.gate_key, f"{name}.{suffix}", body.encode())


def _layers(work: Work, engine: Engine, dataset: Dataset | None, judged: Judged) -> tuple[Layers | None, list[str]]:
    """(layers, why there are none)"""
    if engine.record.size > PROFILED_BYTES:
        return None, [f"layers were not measured: the engine has {engine.record.size} bytes, at most {PROFILED_BYTES} are loaded again"]
    if judged.manifest is None:
        return None, ["layers were not measured: the prepared model is not in the store any more"]
    inputs, profiles = judged.manifest.inputs, work.request.inputs
    batch = min(work.request.benchmark.batch_sizes, default=batch_size(inputs, profiles))
    feeds = benchmark_feeds(batch, inputs, profiles, dataset)
    try:
        nodes = work.backend.profile(engine.path, work.request.recipe, feeds, PROFILED_RUNS, work.progress)
    except EngineFleetError as error:
        return None, [f"layers were not measured: {error.message}"]
    return summarize(nodes, source=f"the profiler of {work.backend.name}", batch=batch, runs=PROFILED_RUNS), []


# ---- by hand ----


def make_report(store: StoreRef, engine_key: str, gate_key: str | None, compare: Iterable[str], progress: Progress) -> ReportData:
    """The report about the newest verdict of an engine, with what was judged since. Raises PermanentError `VerdictMissing`."""
    progress("read the store")
    _require_keys(engine_key, *([gate_key] if gate_key else []), *compare)
    records = Records(open_store(store, progress=progress, writes=False))
    gates = [gate_key] if gate_key else records.gates(engine_key)
    judged = _judged(records, engine_key, gates[-1]) if gates else None
    if judged is None:
        raise _missing(records, store, engine_key, gate_key)
    return report_of(_sources(records, store, judged, _seen(records, judged), compare=compare))


def _missing(records: Records, store: StoreRef, engine_key: str, gate_key: str | None) -> PermanentError:
    """What there is instead of the verdict."""
    gates = records.gates(engine_key) if gate_key else []
    if gates:
        message = f"{store.uri} holds no verdict of the gate {gate_key} about the engine {engine_key}; those of {', '.join(gates[-5:])} are there."
        return PermanentError("VerdictMissing", message, "Name one of these with --gate, or leave it out for the last one.")
    if records.builds(engine_key):
        message = f"the engine {engine_key} in {store.uri} was built, but no verdict about it is there."
        return PermanentError("VerdictMissing", message, "Wait for the Job that judges it, or judge it with `enginefleet judge`.")
    hint = "`enginefleet build` prints the keys; in a cluster they stand in the spec of the EngineBuild."
    return PermanentError("VerdictMissing", f"{store.uri} holds no engine with the key {engine_key}.", hint)


def write_by_hand(
    store: StoreRef, engine_key: str, gate_key: str | None, compare: Sequence[str], target: Path, as_json: bool, progress: Progress
) -> dict[str, Any] | None:
    """Page or JSON into `target`, `-` being standard output; what a person is told. Raises EnvironmentFault `FileNotWritable`."""
    data = make_report(store, engine_key, gate_key, compare, progress)
    text = to_json(data) if as_json else page(data)
    progress.close()
    if str(target) == "-":
        sys.stdout.write(text)
        return None
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault("FileNotWritable", f"cannot write {target}: {error.strerror}.", "Name another file with --out.") from error
    return {"report": str(target), "answer": data.answer, "precisions": [row.label for row in data.precisions]}


def to_json(data: ReportData) -> str:
    return data.model_dump_json(by_alias=True, exclude_none=True, indent=1) + "\n"


def _require_keys(*keys: str) -> None:
    for key in keys:
        try:
            layout.gates(key)
        except ValueError as error:
            raise PermanentError("BadRequest", f"{error}.", "Write the whole key.") from error


def _seen(records: Records, judged: Judged) -> Seen:
    """What the report of the same verdict kept; without one there are no pictures and no layers."""
    verdict = judged.verdict
    name = judged.verdict_key.rpartition("/")[2]
    body = records.report(verdict.engine_key, verdict.gate_key, name)
    if body is None:
        return Seen(warnings=("the Job that judged left no report: pictures, layers and its request are not known",))
    try:
        if len(body) > STORED_LIMIT:
            raise ValueError(f"it has {len(body)} bytes")
        kept = ReportData.model_validate_json(body)
        request = BuildRequest.model_validate(kept.request) if kept.request else None
    except (ValueError, ValidationError) as error:
        return Seen(
            warnings=(f"{layout.report(verdict.engine_key, verdict.gate_key, name)} cannot be read ({str(error).splitlines()[0]})",)
        )
    return Seen(
        {item.index: item.picture for item in kept.worst if item.picture is not None},
        kept.layers,
        any(item.what == INSPECTED for item in kept.records),
        request,
        {fact.name: fact.value for fact in kept.durations},
        tuple(kept.warnings),
    )


# ---- both ----


def _sources(records: Records, store: StoreRef, judged: Judged, seen: Seen, *, compare: Iterable[str]) -> Sources:
    verdict, request = judged.verdict, seen.request
    facts = judged.build.facts if judged.build else request.facts if request else None
    baseline = records.baseline(request.baseline_key) if request and request.baseline_key else None
    others, warnings = _others(records, judged, compare)
    return Sources(
        engine=judged,
        others=others,
        store=store,
        made=layout.timestamp(records.store.now()),
        device=fingerprint.summary(facts) if facts else verdict.fingerprint,
        baseline=baseline,
        request=request,
        pictures=seen.pictures,
        layers=seen.layers,
        inspected=seen.inspected,
        durations=seen.durations,
        warnings=(*seen.warnings, *warnings),
    )


def _others(records: Records, judged: Judged, compare: Iterable[str]) -> tuple[list[Judged], list[str]]:
    """Engines of the same model on the same kind of device, by the same gate; one that cannot be read is a warning."""
    asked = list(compare)
    keys = list(asked)
    if judged.manifest is not None:
        keys += records.variants(judged.manifest.source_model, judged.verdict.fingerprint)
    found, warnings = [], []
    for key in list(dict.fromkeys(key for key in keys if key != judged.verdict.engine_key))[: 4 * MOST_PRECISIONS]:
        try:
            other = _judged(records, key, judged.verdict.gate_key)
        except EngineFleetError as error:
            warnings.append(f"{error.reason}: {error.message}")
            continue
        if other is not None:
            found.append(other)
        elif key in asked:
            warnings.append(f"engine {key} was not judged by this gate: its numbers cannot be compared")
    return found, warnings


def _judged(records: Records, engine_key: str, gate_key: str) -> Judged | None:
    """The engine of the newest verdict. Raises PermanentError `StoreRecordUnreadable` for a verdict that stands under another's key."""
    standing = records.newest_verdict(engine_key, gate_key)
    if standing is None:
        return None
    key, verdict = standing
    if (verdict.engine_key, verdict.gate_key, verdict.blob) != (engine_key, gate_key, layout.verdict_blob(key)):
        raise PermanentError(
            "StoreRecordUnreadable", f"{key} is about another engine or gate.", "Remove the object; the engine is judged again."
        )
    build = records.build(engine_key, verdict.blob)
    return Judged(key, verdict, build, records.prepared(build.prepared_key) if build else None)
