"""Judging an engine as it was read back: accuracy on the validation set, speed, and the verdict, which is written last."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from enginefleet_api.documents import Accuracy, Baseline, Consistency, Metric, Verdict, WorstSample
from enginefleet_api.errors import PermanentError
from enginefleet_api.keys import gate_thresholds
from enginefleet_api.resources import Validation

from .. import copies
from ..backends.base import Session
from ..backends.threads import resolve_threads
from ..gate import consistency, score
from ..gate.datasets import Dataset, files_of, open_dataset
from ..gate.evaluate import evaluate
from ..gate.metrics import OutputChecks, Reference
from ..gate.preprocessing import Preprocessor
from ..gate.tasks import Record, open_task, require_supported
from ..gate.verdict import decide
from ..report.job import write_report
from .benchmark import Speed, measure_speed
from .engine import Engine, Work


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of an engine; None and empty where there is no validation set."""

    candidate: Metric | None = None
    paired: Metric | None = None
    accuracy: Accuracy | None = None
    worst: list[WorstSample] = field(default_factory=list)


def judge_engine(work: Work, engine: Engine) -> Verdict:
    """Measure, decide, and append the verdict. Raises EngineFleetError when the engine's process dies or the data cannot be read."""
    request, progress, durations = work.request, work.progress, work.durations
    if request.validation is not None:
        require_supported(request.validation)
    done = set(durations)
    work.moved["engine"] = engine.record.size
    progress("judge: fetch validation set")
    baseline = work.records.baseline(request.baseline_key) if request.baseline_key else None
    with tempfile.TemporaryDirectory(dir=work.folder, prefix="validation-") as folder:
        with durations.timing("validation"):
            dataset = _dataset(work, baseline, Path(folder))
        progress("judge: load the engine")
        idle = work.watch.look()
        with work.backend.load(engine.path, request.recipe, progress) as session:
            measured = _measure(work, session, dataset, baseline)
            with durations.timing("benchmark"):
                speed = measure_speed(work, session, dataset, idle)
        verdict = _verdict(work, engine, measured, speed, {name: took for name, took in durations.items() if name not in done})
        progress("publish the verdict")
        # in a context of its own it says nothing of others: no pod elsewhere may be refused for it
        key = work.records.add_verdict(verdict, decides=request.kind != "Judge")
        write_report(work, engine, key, verdict, dataset)
    return verdict


def _verdict(work: Work, engine: Engine, measured: Measured, speed: Speed, took: Mapping[str, str]) -> Verdict:
    request = work.request
    acceptance = request.benchmark.acceptance
    decision = decide(measured.accuracy, request.validation, latency=speed.latency, speedup=speed.speedup, speed=acceptance)
    accuracy = measured.accuracy and measured.accuracy.model_copy(update={"needed_samples": decision.needed})
    return Verdict(
        engine_key=request.engine_key,
        gate_key=request.gate_key,
        blob=engine.record.blob,
        fingerprint=request.fingerprint,
        answer=decision.answer,
        reasons=decision.reasons,
        lasting=decision.lasting,
        # through JSON: the verdict is the same before it is stored and after it was read
        thresholds=json.loads(json.dumps(gate_thresholds(request.validation, request.benchmark))),
        accuracy=accuracy,
        latency=speed.latency,
        speedup=speed.speedup,
        worst=measured.worst,
        memory=speed.memory,
        conditions=speed.conditions,
        context=request.context,
        evidence=_evidence(work, engine, measured, took),
        time=work.records.verdict_time(request.engine_key),
        holder=request.holder,
        node=request.node,
    )


def _dataset(work: Work, baseline: Baseline | None, folder: Path) -> Dataset | None:
    """Raises PermanentError `BaselineMismatch`, `DataSetChanged` when the baseline was measured with another metric or on other data."""
    request = work.request
    if request.validation is None or request.validation_source is None:
        return None
    if baseline is not None:
        score.require_metric(request.validation, baseline)
    allow_file = request.store.uri.startswith("file:")
    digest = baseline.validation if baseline is not None else request.validation_source.digest

    validation, preprocessor = request.validation, Preprocessor.of(request.preprocessing)

    def choose(folder: Path) -> set[str]:
        dataset = open_dataset(folder, preprocessor, validation.task)
        return files_of(dataset, score.device_indices(validation, dataset, baseline), validation.task)

    fetched = copies.fetch_validation(
        work.records,
        request.validation_source,
        request.store,
        digest,
        folder,
        allow_file=allow_file,
        progress=work.progress,
        choose=choose,
        asked=validation.copy_to_store,
    )
    work.moved["validation"] = sum(entry.size for entry in fetched.files)
    if baseline is not None and baseline.validation != fetched.digest:
        message = f"the validation set has the digest {fetched.digest}, the baseline was measured on {baseline.validation}."
        raise PermanentError("DataSetChanged", message, "Restore the set, or have it resolved again with enginefleet.io/refresh.")
    dataset = open_dataset(fetched.folder, preprocessor, validation.task)
    return replace(dataset, there=score.device_indices(validation, dataset, baseline))


def _measure(work: Work, session: Session, dataset: Dataset | None, baseline: Baseline | None) -> Measured:
    validation: Validation | None = work.request.validation
    if validation is None or dataset is None:
        return Measured()
    indices = score.device_indices(validation, dataset, baseline)
    if not indices:
        return Measured()
    groups = score.groups_of(validation, dataset)
    seed = score.seed_of(work.request.gate_key)
    with open_task(validation, dataset, work.progress, baseline) as task:
        after: list[Record] = []
        outputs = OutputChecks(None if baseline is None else Reference.of(baseline), validation.decoder.outputs)
        with work.durations.timing("accuracy"):
            for sample in evaluate(session.run, dataset, indices, session.inputs, work.request.inputs, _shown(work)):
                after.append(task.record(sample.outputs, sample.index, sample.shape))
                outputs.add(sample.outputs, sample.index)
            alike = _consistency(work, session, dataset, indices)
        work.progress("judge: statistics")
        with work.durations.timing("statistics"):
            engine = task.scores(after, indices)
            paired, worst = None, []
            if baseline is not None and len(baseline.records) == dataset.size:
                before = [baseline.records[index] for index in indices]
                pair = score.Pair(task.scores(before, indices), engine, task.rises)
                point = validation.acceptance.operating_point
                mine = None if groups is None else [groups[index] for index in indices]
                compared = score.compare(validation.metric, pair, mine, seed, point.confidence if point else None)
                accuracy, paired, candidate = compared.accuracy, compared.baseline, compared.engine
                worst = score.worst_samples(task, dataset, indices, before, after)
            else:
                candidate = score.metric(validation.metric, engine, score.value_interval(engine, seed))
                alone = {"value": candidate.value, "interval": candidate.interval, "broken": engine.broken or None}
                accuracy = Accuracy.model_validate({"metric": validation.metric, "samples": len(indices), **alone})
    known = {"available": dataset.size, "consistency": alike, **outputs.found()}
    return Measured(candidate, paired, accuracy.model_copy(update=known), worst)


SORTING = ("yolo_end2end", "boxes_scores_labels", "python")
"""Decoders of outputs whose rows stand in the order of their scores."""


def _consistency(work: Work, session: Session, dataset: Dataset, indices: Sequence[int]) -> Consistency | None:
    request = work.request
    assert request.validation is not None
    ordered = request.validation.task != "detection" or request.validation.decoder.kind not in SORTING
    work.progress("judge: alone and in a batch")
    asked = request.benchmark.batch_sizes
    return consistency.measure(session.run, dataset, indices, session.inputs, request.inputs, asked, ordered=ordered)


def _shown(work: Work) -> Callable[[int, int], None]:
    return lambda done, total: work.progress("judge: accuracy", done, total)


def _evidence(work: Work, engine: Engine, measured: Measured, took: Mapping[str, str]) -> Mapping[str, Any]:
    metrics = {"candidate": measured.candidate, "baseline": measured.paired}
    return {
        "tools": work.backend.versions(),
        "providers": engine.record.providers,
        "threads": resolve_threads(str(work.request.recipe.get("threads", "auto"))),
        "seconds": dict(took),
        "bytes": dict(work.moved),
        **{name: metric.to_json_dict() for name, metric in metrics.items() if metric is not None},
    }
