"""Build or adopt one engine, then judge it; or judge one that is there."""

from __future__ import annotations

import tempfile
from pathlib import Path

from enginefleet_api.base import quantity
from enginefleet_api.documents import Verdict
from enginefleet_api.errors import PermanentError
from enginefleet_api.fingerprint import judged_context
from enginefleet_api.jobs import BuildReport, BuildRequest

from ..backends.registry import backend_for
from ..gate.latency import require_batch_sizes
from ..io import Progress
from ..store import open_store
from ..store.records import Records
from .device import check_cross, check_here
from .elsewhere import leave_open
from .engine import Engine, Work, adopt, adopt_or_build, published
from .judging import judge_engine
from .watch import Watch, watch_for


def build(request: BuildRequest, progress: Progress, watch: Watch | None = None) -> BuildReport:
    """Adopt or build, publish, judge as read back, verdict last. A verdict of this gate that passed or failed is taken as it stands.

    `watch`: who looks at the machine while speed is measured. Raises EngineFleetError: see device.py, engine.py, judging.py.
    """
    with tempfile.TemporaryDirectory(prefix="build-") as folder:
        work = _begin(request, Path(folder), progress, watch)
        with work.durations.timing("adopt"):
            engine = adopt_or_build(work)
        if not engine.adopted:
            # the stages of building tell more
            del work.durations["adopt"]
        return _report(work, engine, engine.verdict or _judged(work, engine))


def judge(request: BuildRequest, progress: Progress, watch: Watch | None = None) -> BuildReport:
    """Judge an engine that is in the store, whatever verdicts stand; `watch` as in build.

    Raises PermanentError `EngineMissing`, and where one engine is named (kind Judge) `ObjectMissing`, `BlobDamaged`.
    """
    with tempfile.TemporaryDirectory(prefix="judge-") as folder:
        work = _begin(request, Path(folder), progress, watch)
        engine = published(work, request.blob) if request.kind == "Judge" else adopt(work)
        if engine is None:
            damaged = f" ({'; '.join(work.warnings)})" if work.warnings else ""
            message = f"no sound engine of the key {request.engine_key} is in the store{damaged}."
            raise PermanentError("EngineMissing", message, "Build it first.")
        return _report(work, engine, _judged(work, engine))


def _begin(request: BuildRequest, folder: Path, progress: Progress, watch: Watch | None) -> Work:
    reserve = int(quantity(request.memory_reserve or "0"))
    backend = backend_for(request.backend, request.execution_provider, request.python, reserve)
    progress("check the device")
    check_here(request)
    records = Records(open_store(request.store, progress=progress))
    # before anything is built; an engine that is adopted does not need its prepared model any more, and is checked when it is measured
    if (manifest := records.prepared(request.prepared_key)) is not None:
        require_batch_sizes(request.benchmark.batch_sizes, manifest.inputs, request.inputs)
    return Work(request, records, backend, folder, progress, watch=watch or watch_for(request.facts))


def _judged(work: Work, engine: Engine) -> Verdict:
    elsewhere = check_cross(work.request)
    return judge_engine(work, engine) if elsewhere is None else leave_open(work, engine, elsewhere)


def _report(work: Work, engine: Engine, verdict: Verdict) -> BuildReport:
    return BuildReport(
        engine_key=work.request.engine_key,
        gate_key=work.request.gate_key,
        blob=engine.record.blob,
        size=engine.record.size,
        adopted=engine.adopted,
        answer=verdict.answer,
        reasons=verdict.reasons,
        lasting=verdict.lasting,
        accuracy=verdict.accuracy and verdict.accuracy.headline(),
        latency=[item.headline() for item in verdict.latency],
        speedup=verdict.speedup and verdict.speedup.speedup,
        context=judged_context(verdict.context, work.request.facts),
        durations=work.durations,
        warnings=work.warnings,
    )
