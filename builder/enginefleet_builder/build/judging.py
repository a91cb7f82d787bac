"""Judging an engine as it was read back: accuracy on the validation set, speed, and the verdict, which is written last."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginefleet_api.base import seconds
from enginefleet_api.documents import Accuracy, Baseline, Latency, Metric, Speedup, Verdict, WorstSample
from enginefleet_api.errors import PermanentError
from enginefleet_api.keys import gate_thresholds
from enginefleet_api.resources import Validation

from ..backends.base import Session
from ..backends.threads import resolve_threads
from ..gate import latency as speeds
from ..gate import score
from ..gate.datasets import Dataset, open_dataset
from ..gate.evaluate import evaluate
from ..gate.metrics import Reference, text
from ..gate.preprocessing import Preprocessor
from ..gate.tasks import Record, open_task, require_supported
from ..gate.verdict import decide
from ..report.job import write_report
from ..sources import fetch_source
from ..store import layout
from .engine import Engine, Work, main_file

COMPARED = 64
"""Samples whose outputs are compared with the baseline's number by number: for people, and cheap on small boards."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of an engine; None and empty where there is no validation set."""

    candidate: Metric | None = None
    paired: Metric | None = None
    accuracy: Accuracy | None = None
    worst: list[WorstSample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Speed:
    latency: list[Latency]
    speedup: Speedup | None


@dataclass(slots=True)
class Cost:
    """What judging took: seconds by stage, bytes by what was moved."""

    seconds: dict[str, str] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)

    def timed(self, stage: str, started: float) -> None:
        self.seconds[stage] = f"{time.monotonic() - started:.2f}"


def judge_engine(work: Work, engine: Engine) -> Verdict:
    """Measure, decide, and append the verdict. Raises EngineFleetError when the engine's process dies or the data cannot be read."""
    request, progress = work.request, work.progress
    if request.validation is not None:
        require_supported(request.validation)
    cost = Cost(bytes={"engine": engine.record.size})
    started = time.monotonic()
    progress("judge: fetch validation set")
    baseline = work.records.baseline(request.baseline_key) if request.baseline_key else None
    with tempfile.TemporaryDirectory(dir=work.folder, prefix="validation-") as folder:
        dataset = _dataset(work, baseline, Path(folder), cost)
        cost.timed("fetch", started)
        progress("judge: load the engine")
        with work.backend.load(engine.path, request.recipe, progress) as session:
            measured = _measure(work, session, dataset, baseline, cost)
            work.timed("judge", started)
            started = time.monotonic()
            latency = _benchmark(work, session, dataset)
            work.timed("benchmark", started)
            cost.timed("benchmark", started)
            speed = Speed(latency, _speedup(work, session, dataset, latency, cost))
        verdict = _verdict(work, engine, measured, speed, cost)
        progress("publish the verdict")
        key = work.records.add_verdict(verdict)
        write_report(work, engine, key, verdict, dataset)
    return verdict


def _verdict(work: Work, engine: Engine, measured: Measured, speed: Speed, cost: Cost) -> Verdict:
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
        # through JSON: the verdict is the same before it is stored and after it was read
        thresholds=json.loads(json.dumps(gate_thresholds(request.validation, request.benchmark))),
        accuracy=accuracy,
        latency=speed.latency,
        speedup=speed.speedup,
        worst=measured.worst,
        context=request.context,
        evidence=_evidence(work, engine, measured, cost),
        time=layout.timestamp(work.records.store.now()),
        holder=request.holder,
        node=request.node,
    )


def _dataset(work: Work, baseline: Baseline | None, folder: Path, cost: Cost) -> Dataset | None:
    """Raises PermanentError `DataSetChanged` when the baseline was measured on other data."""
    request = work.request
    if request.validation is None or request.validation_source is None:
        return None
    allow_file = request.store.uri.startswith("file:")
    fetched = fetch_source(request.validation_source, folder, progress=work.progress, allow_file=allow_file)
    cost.bytes["validation"] = sum(entry.size for entry in fetched.files)
    if baseline is not None and baseline.validation != fetched.digest:
        message = f"the validation set has the digest {fetched.digest}, the baseline was measured on {baseline.validation}."
        raise PermanentError("DataSetChanged", message, "Restore the set, or have it resolved again with enginefleet.io/refresh.")
    return open_dataset(fetched.folder, Preprocessor.of(request.preprocessing), request.validation.task)


def _measure(work: Work, session: Session, dataset: Dataset | None, baseline: Baseline | None, cost: Cost) -> Measured:
    validation: Validation | None = work.request.validation
    if validation is None or dataset is None:
        return Measured()
    indices = score.device_indices(validation, dataset, baseline)
    if not indices:
        return Measured()
    groups = score.groups_of(validation, dataset)
    seed = score.seed_of(work.request.gate_key)
    with open_task(validation, dataset, work.progress, baseline) as task:
        started = time.monotonic()
        after: list[Record] = []
        distances: list[tuple[float, float]] = []
        reference = None if baseline is None else Reference.of(baseline)
        shown = _shown(work)
        for sample in evaluate(session.run, dataset, indices, session.inputs, work.request.inputs, shown):
            after.append(task.record(sample.outputs, sample.index, sample.shape))
            if reference is not None and len(distances) < COMPARED:
                far = reference.distance(sample.outputs, sample.index, validation.decoder.outputs)
                distances += [] if far is None else [far]
        cost.timed("accuracy", started)
        started = time.monotonic()
        work.progress("judge: statistics")
        engine = task.scores(after, indices)
        paired, worst = None, []
        if baseline is not None and len(baseline.records) == dataset.size and baseline.metric.name == validation.metric:
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
        cost.timed("statistics", started)
    known: dict[str, object] = {"available": dataset.size}
    if distances:
        known |= {
            "compared": len(distances),
            "cosine_min": text(min(cosine for cosine, _ in distances)),
            "max_abs_error": text(max(error for _, error in distances)),
        }
    return Measured(candidate, paired, accuracy.model_copy(update=known), worst)


def _shown(work: Work) -> Callable[[int, int], None]:
    return lambda done, total: work.progress("judge: accuracy", done, total)


def _benchmark(work: Work, session: Session, dataset: Dataset | None) -> list[Latency]:
    benchmark, inputs = work.request.benchmark, work.request.inputs
    speeds.require_batch_sizes(benchmark.batch_sizes, session.inputs, inputs)
    measured = []
    for count, batch in enumerate(benchmark.batch_sizes, start=1):
        work.progress("benchmark", count, len(benchmark.batch_sizes))
        feeds = speeds.benchmark_feeds(batch, session.inputs, inputs, dataset)
        sustained = seconds(benchmark.sustained)
        times = session.timings(feeds, warm_up=speeds.WARM_UP, iterations=speeds.ITERATIONS, seconds=sustained)
        measured.append(speeds.summarize(batch, times))
    return measured


def _speedup(work: Work, session: Session, dataset: Dataset | None, latency: list[Latency], cost: Cost) -> Speedup | None:
    """Against the model in FP32, built here and thrown away: None when no partner is given, or it cannot be built (a warning says why)."""
    request, progress = work.request, work.progress
    if request.partner_prepared_key is None:
        return None
    acceptance = request.benchmark.acceptance
    batch = acceptance.batch_size if acceptance is not None else request.benchmark.batch_sizes[0]
    if request.partner_prepared_key == request.prepared_key:
        return next((speeds.itself(item) for item in latency if item.batch == batch), None)
    started = time.monotonic()
    try:
        manifest = work.records.prepared(request.partner_prepared_key)
        if manifest is None:
            raise PermanentError("PreparedMissing", f"the FP32 partner {request.partner_prepared_key} is not in the store.", "Prepare it.")
        with tempfile.TemporaryDirectory(dir=work.folder, prefix="partner-") as name:
            folder = Path(name)
            source = folder / "prepared"
            source.mkdir()
            progress("benchmark: fetch the FP32 partner")
            work.records.fetch_prepared(manifest, source, progress=progress)
            cost.bytes["partner"] = sum(entry.size for entry in manifest.files)
            progress("benchmark: build the FP32 partner")
            built = work.backend.build(source / main_file(manifest), request.recipe, folder, progress)
            with work.backend.load(built.file, request.recipe, progress) as partner:
                progress("benchmark: engine and FP32 partner in turns")
                feeds = [speeds.benchmark_feeds(batch, side.inputs, request.inputs, dataset) for side in (session, partner)]
                return speeds.measure_in_turns(batch, session, partner, feeds[0], feeds[1], score.seed_of(request.gate_key))
    except PermanentError as error:
        warning = f"no speed-up over FP32 was measured: {error.reason}: {error.message}"
        work.warnings.append(warning)
        progress.log(warning)
        return None
    finally:
        cost.timed("partner", started)


def _evidence(work: Work, engine: Engine, measured: Measured, cost: Cost) -> Mapping[str, Any]:
    metrics = {"candidate": measured.candidate, "baseline": measured.paired}
    return {
        "tools": work.backend.versions(),
        "providers": engine.record.providers,
        "threads": resolve_threads(str(work.request.recipe.get("threads", "auto"))),
        "seconds": cost.seconds,
        "bytes": cost.bytes,
        **{name: metric.to_json_dict() for name, metric in metrics.items() if metric is not None},
    }
