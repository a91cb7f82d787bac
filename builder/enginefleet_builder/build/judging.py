"""Judging an engine as it was read back: accuracy on the validation set, speed, and the verdict, which is written last."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from enginefleet_api.base import seconds
from enginefleet_api.documents import Accuracy, Baseline, Latency, Metric, Verdict
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import AccuracyAcceptance, Validation

from ..backends.base import Session
from ..backends.threads import resolve_threads
from ..gate import latency as speeds
from ..gate import score
from ..gate.datasets import Dataset, open_dataset
from ..gate.evaluate import evaluate
from ..gate.metrics import require_supported
from ..gate.preprocessing import Preprocessor
from ..gate.verdict import decide_verdict
from ..sources import fetch_source
from ..store import layout
from .engine import Engine, Work


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of an engine; None where there is no validation set."""

    candidate: Metric | None = None
    paired: Metric | None = None
    accuracy: Accuracy | None = None


def judge_engine(work: Work, engine: Engine) -> Verdict:
    """Measure, decide, and append the verdict. Raises EngineFleetError when the engine's process dies or the data cannot be read."""
    request, progress = work.request, work.progress
    if request.validation is not None:
        require_supported(request.validation)
    started = time.monotonic()
    progress("judge: fetch validation set")
    baseline = work.records.baseline(request.baseline_key) if request.baseline_key else None
    with tempfile.TemporaryDirectory(dir=work.folder, prefix="validation-") as folder:
        dataset = _dataset(work, baseline, Path(folder))
        progress("judge: load the engine")
        with work.backend.load(engine.path, request.recipe, progress) as session:
            measured = _measure(work, session, dataset, baseline)
            work.timed("judge", started)
            started = time.monotonic()
            latency = _benchmark(work, session, dataset)
            work.timed("benchmark", started)
    validation = request.validation
    answer, reasons = decide_verdict(
        measured.paired,
        measured.candidate,
        validation.acceptance if validation else AccuracyAcceptance(),
        validation.min_samples if validation else 0,
        required_classes=validation.required_classes if validation else [],
        latency=latency,
        speed=request.benchmark.acceptance,
    )
    verdict = Verdict(
        engine_key=request.engine_key,
        gate_key=request.gate_key,
        blob=engine.record.blob,
        fingerprint=request.fingerprint,
        answer=answer,
        reasons=reasons,
        accuracy=measured.accuracy,
        latency=latency,
        context=request.context,
        evidence=_evidence(work, measured),
        time=layout.timestamp(work.records.store.now()),
        holder=request.holder,
        node=request.node,
    )
    progress("publish the verdict")
    work.records.add_verdict(verdict)
    return verdict


def _dataset(work: Work, baseline: Baseline | None, folder: Path) -> Dataset | None:
    """Raises PermanentError `DataSetChanged` when the baseline was measured on other data."""
    request = work.request
    if request.validation is None or request.validation_source is None:
        return None
    allow_file = request.store.uri.startswith("file:")
    fetched = fetch_source(request.validation_source, folder, progress=work.progress, allow_file=allow_file)
    if baseline is not None and baseline.validation != fetched.digest:
        message = f"the validation set has the digest {fetched.digest}, the baseline was measured on {baseline.validation}."
        raise PermanentError("DataSetChanged", message, "Restore the set, or have it resolved again with enginefleet.io/refresh.")
    return open_dataset(fetched.folder, Preprocessor.of(request.preprocessing), request.validation.task)


def _measure(work: Work, session: Session, dataset: Dataset | None, baseline: Baseline | None) -> Measured:
    validation: Validation | None = work.request.validation
    if validation is None or dataset is None:
        return Measured()
    indices = score.device_indices(validation, dataset, baseline)
    if not indices:
        return Measured()
    outputs = evaluate(
        session.run,
        dataset,
        indices,
        session.inputs,
        work.request.inputs,
        lambda done, total: work.progress("judge: accuracy", done, total),
    )
    candidate = score.candidate(validation, outputs, dataset, indices, baseline)
    paired = score.paired_baseline(validation, baseline, dataset, indices)
    return Measured(candidate, paired, score.accuracy(validation, baseline, paired, candidate, outputs, indices))


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


def _evidence(work: Work, measured: Measured) -> dict[str, object]:
    metrics = {"candidate": measured.candidate, "baseline": measured.paired}
    return {
        "tools": work.backend.versions(),
        "threads": resolve_threads(str(work.request.recipe.get("threads", "auto"))),
        **{name: metric.to_json_dict() for name, metric in metrics.items() if metric is not None},
    }
