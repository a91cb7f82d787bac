"""The init container of every serving pod: brings one proven engine, or says why not.

The device is checked first, then the verdict, then the bytes. When the store does not answer, an engine that the node's cache holds together
with its passed verdict is served all the same: a site without a link keeps working.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from enginefleet_api import fingerprint
from enginefleet_api.documents import Answer, BuildRecord, Verdict
from enginefleet_api.errors import EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.jobs import EngineManifest, FetchReport, FetchRequest, StoreRef

from . import device, probe
from .cache import CHUNK, NodeCache
from .io import Progress
from .layouts import engine_file, finish
from .store.base import Store
from .store.layout import digest_hex
from .store.records import Records

MODEL_NAME_VARIABLE = "ENGINEFLEET_MODEL_NAME"
MANIFEST = "engine.json"
RUNTIME_CHECK = ".enginefleet/runtime_check.py"
"""Copied beside the engine, so that the runtime check can run in images that know nothing of EngineFleet."""

CACHED_PATIENCE = 5.0
"""Seconds for the store to answer when the node's cache holds the engine and its passed verdict."""

OpenStore = Callable[[StoreRef, float, Progress], Store]


def open_for_reading(ref: StoreRef, patience: float, progress: Progress) -> Store:
    # Imported here: a pod that serves from the cache alone still pays for boto3, but `--help` does not.
    from .store import open_store

    return open_store(ref, progress=progress, writes=False, patience=patience)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What allows the engine: the verdict's name (`cached` when the store could not be asked), and what goes into the cache."""

    name: str
    verdict: Verdict | None
    record: BuildRecord | None


def fetch(request: FetchRequest, progress: Progress, open_store: OpenStore = open_for_reading) -> FetchReport:
    """Raises EnvironmentFault `WrongDevice`, `DiskFull`; PermanentError `NotProven`, `BlobDamaged`, `ObjectMissing`; TransientFault; layouts' errors."""
    started = time.monotonic()
    progress("check the device")
    check_device(request, progress)
    cache = NodeCache(Path(request.cache_path) if request.cache_path else None, request)
    name = os.environ.get(MODEL_NAME_VARIABLE) or request.model_name
    folder = Path(request.engine_path)
    engine = folder / engine_file(request.layout, name, request.facts)
    try:
        engine.parent.mkdir(parents=True, exist_ok=True)
        # A node that has everything asks the store only briefly: after a reboot without a link each second counts.
        patience = CACHED_PATIENCE if cache.passed() and cache.blob.is_file() else request.patience_seconds or request.timeout_seconds / 4
        store = open_store(request.store, patience, progress)
        allowed = _allowed(request, cache, store, progress)
        from_cache = _from_cache(request, cache, engine, progress)
        if not from_cache:
            progress("fetch the engine from the store")
            Records(store).fetch_blob(request.blob, engine, size=request.size, progress=progress)
        _keep(cache, allowed, engine, progress)
        finish(request.layout, engine, allowed.record)
        _write_manifest(request, name, folder, engine, allowed.record)
    except OSError as error:
        where = error.filename or request.engine_path
        raise EnvironmentFault(
            "DiskFull" if error.errno == 28 else "VolumeNotWritable", f"{where}: {error.strerror}.", "Check the volume."
        ) from error
    return FetchReport(
        blob=request.blob, source="cache" if from_cache else "store", verdict=allowed.name, seconds=f"{time.monotonic() - started:.2f}"
    )


def check_device(request: FetchRequest, progress: Progress) -> None:
    """What this init container can see: the host, and the GPU where it was given to this container too."""
    probe.check_device(request.facts, probe.host_facts())
    if fingerprint.runs_on_gpu(request.facts):
        seen = device.cuda()
        if seen["gpus"]:
            probe.check_gpu(request.facts, {"gpus": device.gpus(seen)})
        else:
            progress.log(
                f"the GPU is not checked before loading, as this container has none: {seen.get('error') or 'CUDA counts 0 devices'}"
            )


def _allowed(request: FetchRequest, cache: NodeCache, store: Store, progress: Progress) -> _Allowed:
    progress("ask the store for the verdict")
    records = Records(store)
    try:
        found = records.newest_verdict(request.engine_key, request.gate_key, request.blob)
        record = records.build(request.engine_key, request.blob)
    except TransientFault as fault:
        progress.check()
        if not cache.passed():
            raise
        progress.log(f"{fault.message} The node's cache holds the verdict.")
        return _Allowed("cached", None, cache.build_record())
    if found is None:
        raise _not_proven(request, "has no verdict")
    key, verdict = found
    if verdict.answer is not Answer.PASS:
        raise _not_proven(request, f"was judged {verdict.answer} ({'; '.join(verdict.reasons[:3]) or 'no reason given'})")
    if verdict.fingerprint != request.fingerprint or verdict.blob != request.blob:
        raise _not_proven(request, f"was judged on {verdict.fingerprint}, not on {request.fingerprint}")
    return _Allowed(key.rpartition("/")[2], verdict, record)


def _not_proven(request: FetchRequest, found: str) -> PermanentError:
    return PermanentError("NotProven", f"engine {request.blob[:19]}… {found}.", "It is not served; the operator builds or judges it again.")


def _from_cache(request: FetchRequest, cache: NodeCache, engine: Path, progress: Progress) -> bool:
    """Copy the engine out of the cache; False when it is not there or damaged (then it is removed)."""
    try:
        source = cache.blob.open("rb")
    except OSError:
        return False
    partial = engine.with_name(engine.name + ".partial")
    digest = hashlib.sha256()
    try:
        with source, partial.open("wb") as target:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                target.write(chunk)
                progress("copy from the node's cache", target.tell(), request.size)
        if digest.hexdigest() == digest_hex(request.blob):
            partial.replace(engine)
            return True
    finally:
        partial.unlink(missing_ok=True)
    progress.log(f"the node's cache holds {cache.blob.name} with sha256 {digest.hexdigest()}: removed")
    cache.forget_blob()
    return False


def _keep(cache: NodeCache, allowed: _Allowed, engine: Path, progress: Progress) -> None:
    """A cache that cannot be written costs a download next time, not this pod."""
    if allowed.verdict is None:
        return
    try:
        cache.keep_blob(engine)
        cache.keep_documents(allowed.verdict, allowed.record)
    except OSError as error:
        progress.log(f"the node's cache is not written: {error}")


def _write_manifest(request: FetchRequest, name: str, folder: Path, engine: Path, record: BuildRecord | None) -> None:
    """Last of all: a server that finds it finds the whole engine."""
    manifest = EngineManifest(
        model_name=name,
        engine_key=request.engine_key,
        blob=request.blob,
        size=request.size,
        fingerprint=request.fingerprint,
        file=engine.relative_to(folder).as_posix(),
        layout=request.layout,
        facts=request.facts,
        recipe=record.recipe if record else {},
        precision=record.precision if record else "",
        preprocessing=request.preprocessing,
    )
    check = folder / RUNTIME_CHECK
    check.parent.mkdir(exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("runtime_check.py"), check)
    partial = folder / (MANIFEST + ".partial")
    partial.write_text(manifest.model_dump_json(by_alias=True, indent=1))
    partial.replace(folder / MANIFEST)
