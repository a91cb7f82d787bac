"""Measuring an engine's speed on its device: what the spec asks for, and under which conditions. What is not asked for is not run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from enginefleet_api.base import seconds
from enginefleet_api.documents import Latency, Speedup
from enginefleet_api.errors import PermanentError

from ..backends.base import Session
from ..gate import end_to_end, score
from ..gate import latency as speeds
from ..gate.conditions import Reading, marks
from ..gate.preprocessing import Preprocessor
from ..gate.samples import Dataset
from ..gate.tasks import open_task
from .engine import Work, compile_model, main_file


@dataclass(frozen=True, slots=True)
class Speed:
    """See Verdict."""

    latency: list[Latency] = field(default_factory=list)
    speedup: Speedup | None = None
    memory: dict[str, int] = field(default_factory=dict)
    conditions: dict[str, dict[str, str]] = field(default_factory=dict)


def measure_speed(work: Work, session: Session, dataset: Dataset | None, idle: Reading) -> Speed:
    """Each batch size of the spec, and at the one that is judged all else. `idle`: read before the engine was loaded."""
    benchmark, inputs = work.request.benchmark, work.request.inputs
    speeds.require_batch_sizes(benchmark.batch_sizes, session.inputs, inputs)
    measured: list[Latency] = []
    readings: list[Reading] = []
    for count, batch in enumerate(benchmark.batch_sizes, start=1):
        work.progress("benchmark: warm up", count, len(benchmark.batch_sizes))
        feeds = speeds.benchmark_feeds(batch, session.inputs, inputs, dataset)
        warm = speeds.warm_up(session, feeds, cuda_graph=benchmark.cuda_graph)
        before = work.watch.look(session)
        work.progress("benchmark: measure", count, len(benchmark.batch_sizes))
        sustained = seconds(benchmark.sustained) if batch == judged_batch(work) else 0.0
        found = speeds.measure(session, batch, feeds, sustained=sustained, cuda_graph=benchmark.cuda_graph)
        after = work.watch.look(session)
        readings += [before, after]
        doubts = [*warm.marks(), *marks(idle, before, after)]
        found = found.model_copy(update={"warm_up": f"{warm.seconds:.2f}", "marks": doubts or None})
        measured.append(_beside(work, session, dataset, feeds, found) if batch == judged_batch(work) else found)
    _warn(work, measured)
    speedup = _speedup(work, session, dataset, measured, idle)
    named = {"idle": idle, "before": readings[0], "after": readings[-1]}
    conditions = {name: dict(reading.context) for name, reading in named.items() if reading.context}
    return Speed(measured, speedup, work.watch.memory(session), conditions)


def judged_batch(work: Work) -> int:
    """The batch size of the acceptance, else the first."""
    benchmark = work.request.benchmark
    return benchmark.acceptance.batch_size if benchmark.acceptance is not None else benchmark.batch_sizes[0]


def _beside(work: Work, session: Session, dataset: Dataset | None, feeds: speeds.Feeds, found: Latency) -> Latency:
    """`found` with the paced run and the stages around the model, where they are asked for."""
    request, benchmark, progress = work.request, work.request.benchmark, work.progress
    changes: dict[str, object] = {}
    if (paced := benchmark.paced) is not None:
        progress(f"benchmark: {paced.rate} samples a second for {paced.duration}")
        changes["paced"] = speeds.measure_paced(
            session, found.batch, feeds, paced.rate, seconds(paced.duration), progress.wait, cuda_graph=benchmark.cuda_graph
        )
    if benchmark.end_to_end and (request.validation is None or dataset is None or not dataset.size):
        _warning(work, "benchmark.endToEnd was not measured: it needs a validation set")
    elif benchmark.end_to_end and request.validation is not None and dataset is not None:
        progress("benchmark: end to end")
        baseline = work.records.baseline(request.baseline_key) if request.baseline_key else None
        preprocessor = Preprocessor.of(request.preprocessing)
        with open_task(request.validation, dataset, progress, baseline) as task:
            stages = end_to_end.measure(session, dataset, task, preprocessor, found.batch, progress.check, cuda_graph=benchmark.cuda_graph)
        if stages is None:
            _warning(work, f"benchmark.endToEnd was not measured: outputs have no batch axis at batch {found.batch}")
        changes["end_to_end"] = stages
    return found.model_copy(update=changes)


def _warn(work: Work, measured: list[Latency]) -> None:
    """What a person would want to change."""
    for item in measured:
        at = f"at batch {item.batch}"
        if item.bound == "host":
            cure = "" if item.cuda_graph else ", or a CUDA graph (benchmark.cudaGraph)"
            _warning(work, f"{at} the host needs {item.enqueue} ms to enqueue a run: the device waits for it; a larger batch{cure} helps")
        if work.request.benchmark.cuda_graph and item.cuda_graph is not True:
            _warning(work, f"{at} the engine ran without a CUDA graph: the backend knows none, or it cannot capture this engine")


def _warning(work: Work, text: str) -> None:
    work.warnings.append(text)
    work.progress.log(text)


# ---- against FP32 ----


def _speedup(work: Work, session: Session, dataset: Dataset | None, latency: list[Latency], idle: Reading) -> Speedup | None:
    """Against the model in FP32, built here and thrown away: None when no partner is given, or it cannot be built (a warning says why)."""
    request = work.request
    if request.partner_prepared_key is None:
        return None
    batch = judged_batch(work)
    if request.partner_prepared_key == request.prepared_key:
        return next((speeds.itself(item) for item in latency if item.batch == batch), None)
    cuda_graph = request.benchmark.cuda_graph
    try:
        with work.durations.timing("partner"), _partner(work, request.partner_prepared_key) as partner:
            work.progress("benchmark: engine and FP32 partner in turns")
            feeds = [speeds.benchmark_feeds(batch, side.inputs, request.inputs, dataset) for side in (session, partner)]
            for side, arrays in zip((session, partner), feeds, strict=True):
                speeds.warm_up(side, arrays, cuda_graph=cuda_graph)
            before = work.watch.look(session)
            seed = score.seed_of(request.gate_key)
            found = speeds.measure_in_turns(batch, session, partner, feeds[0], feeds[1], seed, cuda_graph=cuda_graph)
            doubts = marks(idle, before, work.watch.look(session), engines=2)
            return found.model_copy(update={"marks": doubts or None})
    except PermanentError as error:
        _warning(work, f"no speed-up over FP32 was measured: {error.reason}: {error.message}")
        return None


@contextmanager
def _partner(work: Work, prepared_key: str) -> Iterator[Session]:
    """The partner, built and loaded."""
    progress, asked = work.progress, work.request.recipe
    # the same settings, for FP32: TensorRT is told by name, and a DLA computes in lower ones only
    recipe = {**asked, "precision": "fp32", "dla": None} if "precision" in asked else asked
    manifest = work.records.prepared(prepared_key)
    if manifest is None:
        raise PermanentError("PreparedMissing", f"the FP32 partner {prepared_key} is not in the store.", "Prepare it.")
    with tempfile.TemporaryDirectory(dir=work.folder, prefix="partner-") as name:
        folder = Path(name)
        source = folder / "prepared"
        source.mkdir()
        progress("benchmark: fetch the FP32 partner")
        work.records.fetch_prepared(manifest, source, progress=progress)
        work.moved["partner"] = sum(entry.size for entry in manifest.files)
        progress("benchmark: build the FP32 partner")
        built = compile_model(work, source / main_file(manifest), folder, recipe)
        with work.backend.load(built.file, recipe, progress) as partner:
            yield partner
