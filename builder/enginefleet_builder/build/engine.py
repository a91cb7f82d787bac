"""One engine, from the store when it is there, else built under a claim: one builder among all that share the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginefleet_api.documents import Answer, BuildRecord, PreparedManifest, Verdict
from enginefleet_api.errors import PermanentError
from enginefleet_api.identity import sha256_hex
from enginefleet_api.jobs import BuildRequest

from ..backends.base import Backend, BuiltEngine, TimingCaching
from ..io import Progress
from ..store import BlobDamaged, ObjectMissing, claims, layout
from ..store.records import Records
from ..store.timing_caches import TimingCaches
from .watch import Watch

WAIT_SHARE = 0.5
"""Share of the timeout that is spent waiting for another builder: the rest must do for building here."""
LONGEST_PAUSE = 5.0
"""Seconds between two looks at another's claim."""


@dataclass(slots=True)
class Engine:
    """An engine as read back from the store, at `path`. `verdict`: one that stands and decides, so that nothing need be judged."""

    record: BuildRecord
    path: Path
    adopted: bool
    verdict: Verdict | None = None


class Stopwatch(dict[str, str]):
    """Seconds as decimal text, by stage."""

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self[stage] = f"{time.monotonic() - started:.2f}"


@dataclass(slots=True)
class Work:
    """What one Job works with. `warnings`, `durations` and `moved` (bytes, by what was fetched to judge) grow as it goes."""

    request: BuildRequest
    records: Records
    backend: Backend
    folder: Path
    progress: Progress
    warnings: list[str] = field(default_factory=list)
    durations: Stopwatch = field(default_factory=Stopwatch)
    moved: dict[str, int] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)


def adopt(work: Work) -> Engine | None:
    """An engine that was built already and whose bytes are sound; that of the newest verdict first. None: there is none."""
    request, records = work.request, work.records
    builds = {record.blob: record for record in records.builds(request.engine_key)}
    standing = records.newest_verdict(request.engine_key, request.gate_key)
    verdict = standing[1] if standing else None
    order = [blob for blob in reversed(builds) if verdict is None or blob != verdict.blob]
    if verdict is not None and verdict.blob in builds:
        order.insert(0, verdict.blob)
    for blob in order:
        record = builds[blob]
        path = work.folder / "engine"
        work.progress("adopt: read the engine")
        try:
            records.fetch_blob(blob, path, size=record.size, progress=work.progress)
        except (BlobDamaged, ObjectMissing) as error:
            warning = f"{error.reason}: {error.message}"
            if warning not in work.warnings:
                work.warnings.append(warning)
                work.progress.log(warning)
            continue
        # inconclusive is never final
        decides = verdict is not None and verdict.blob == blob and verdict.answer in (Answer.PASS, Answer.FAIL)
        return Engine(record, path, adopted=True, verdict=verdict if decides else None)
    return None


def published(work: Work, blob: str) -> Engine:
    """This very engine, read from the store. Raises ObjectMissing, BlobDamaged: it is not there any more as it was published."""
    records = work.records
    record = records.build(work.request.engine_key, blob)
    if record is None:
        raise ObjectMissing(work.request.store.uri, layout.build(work.request.engine_key, blob))
    path = work.folder / "engine"
    work.progress("read the engine")
    records.fetch_blob(blob, path, size=record.size, progress=work.progress)
    return Engine(record, path, adopted=True)


def adopt_or_build(work: Work) -> Engine:
    """Raises ClaimHeld when another builder is at it for too long, and whatever building raises."""
    waiting_since = time.monotonic()
    while True:
        if (found := adopt(work)) is not None:
            return found
        try:
            held = claims.acquire(work.records.store, work.request.engine_key, work.request.holder, work.request.claim_seconds)
        except claims.ClaimHeld as error:
            pause = min(LONGEST_PAUSE, error.wait_seconds + 0.05)
            if time.monotonic() - waiting_since + pause > WAIT_SHARE * work.request.timeout_seconds:
                raise
            work.progress(f"wait for {error.claim.holder}, which builds this engine")
            work.progress.wait(pause)
            continue
        with held:
            # between the look and the claim another may have finished
            return adopt(work) or _build(work, held.assert_held)


def _build(work: Work, assert_held: Callable[[], None]) -> Engine:
    request, records, progress = work.request, work.records, work.progress
    manifest = prepared(work)
    source = work.folder / "prepared"
    source.mkdir(exist_ok=True)
    progress("fetch prepared model")
    with work.durations.timing("fetch"):
        records.fetch_prepared(manifest, source, progress=progress)
    progress("build")
    with work.durations.timing("build"):
        built = compile_model(work, source / main_file(manifest), work.folder, request.recipe)
    work.warnings += built.warnings
    if built.compile_seconds is not None:
        work.durations["compile"] = f"{built.compile_seconds:.2f}"
    assert_held()
    progress("publish")
    path = work.folder / "engine"
    with work.durations.timing("publish"):
        blob = records.publish_blob(built.file, path, progress=progress)
    record = BuildRecord(
        engine_key=request.engine_key,
        blob=blob,
        size=path.stat().st_size,
        fingerprint=request.fingerprint,
        facts=request.facts,
        prepared_key=request.prepared_key,
        prepared_model=request.prepared_model,
        precision=request.precision,
        recipe=request.recipe,
        inputs=manifest.inputs,
        outputs=manifest.outputs,
        metadata=manifest.metadata,
        tools=work.backend.versions(),
        providers=dict(built.providers),
        log_digest="sha256:" + sha256_hex(built.log.encode()),
        durations=dict(work.durations),
        warnings=work.warnings,
        excluded=built.excluded,
        shape_tensors=built.shape_tensors,
        time=layout.timestamp(records.store.now()),
        holder=request.holder,
        node=request.node,
    )
    records.add_build(record)
    if built.log:
        records.put_report(request.engine_key, request.gate_key, f"build-{layout.digest_hex(blob)}.log", built.log.encode())
    return Engine(record, path, adopted=False)


def compile_model(work: Work, model: Path, folder: Path, recipe: Mapping[str, Any]) -> BuiltEngine:
    """Build into `folder`, quicker with what earlier builds for this fingerprint measured, where the backend measures."""
    request, backend, progress = work.request, work.backend, work.progress
    if not (isinstance(backend, TimingCaching) and backend.timing_caches):
        return backend.build(model, recipe, folder, progress)
    caches = TimingCaches(work.records.store, request.fingerprint, request.holder, progress, work.warnings)
    known, measured = caches.fetch(folder / "timing-cache"), folder / "timing-cache.new"
    try:
        built = backend.build(model, recipe, folder, progress, timing_cache=known, timing_cache_out=measured)
    except PermanentError as error:
        if known is None or error.reason != "EngineCrashed":
            raise
        warning = f"the build crashed, and is tried again without the timing cache: {error.message}"
        work.warnings.append(warning)
        progress.log(warning)
        built = backend.build(model, recipe, folder, progress, timing_cache_out=measured)
    if measured.is_file():
        caches.publish(measured, lambda ours, theirs, target: backend.merge_timing_caches(ours, theirs, target, progress))
    return built


def prepared(work: Work) -> PreparedManifest:
    """The manifest of the prepared model. Raises PermanentError `PreparedMissing`, `PreparedChanged`."""
    request = work.request
    manifest = work.records.prepared(request.prepared_key)
    if manifest is None:
        message = f"the prepared model {request.prepared_key} is not in the store."
        raise PermanentError("PreparedMissing", message, "It is prepared again on enginefleet.io/refresh.")
    if manifest.model != request.prepared_model:
        message = f"the prepared model in the store has the digest {manifest.model}, expected {request.prepared_model}."
        raise PermanentError("PreparedChanged", message, "It is resolved again on enginefleet.io/refresh.")
    return manifest


def main_file(manifest: PreparedManifest) -> str:
    return next(entry.path for entry in manifest.files if entry.path.endswith(".onnx"))
