"""Timing caches: what earlier builds for a fingerprint measured, so that the next one need not measure it again.

Caches lie by content; a pointer names the newest and is moved by If-Match, so that of two builders that end together neither wipes out what the
other measured. A cache only saves time: nothing here ever fails a build.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from enginefleet_api.base import Contract, Digest
from enginefleet_api.errors import EngineFleetError, PermanentError
from enginefleet_builder.io import Progress

from . import layout
from .base import Store, sha256_of
from .records import parse

MOST_BYTES = 512 << 20
"""A larger cache is neither fetched nor published. Caches hold compiled kernels too and were seen to grow with every build."""
MOST_TRIES = 5
"""Other builders that may publish before us while we publish."""

Merge = Callable[[Path, Path, Path], bool]
"""(ours, theirs, target): writes both into `target`; False when the library says that they do not go together."""


class TimingCachePointer(Contract):
    """`timing-caches/<fingerprint>/newest.json`."""

    schema_version: Literal[1] = 1
    digest: Digest
    size: Annotated[int, Field(ge=0)]
    time: str
    holder: str


class TimingCaches:
    """The caches of one fingerprint, for one Job. What goes wrong is a line for `warnings`; only cancellation is raised."""

    def __init__(self, store: Store, fingerprint: str, holder: str, progress: Progress, warnings: list[str]) -> None:
        self._store, self._fingerprint, self._holder = store, fingerprint, holder
        self._progress, self._warnings = progress, warnings
        self._pointer = layout.timing_cache_pointer(fingerprint)
        self._etag: str | None = None
        """Of the pointer as last seen; None: there was none."""
        self._held: set[str] = set()
        """Digests of caches that are part of what we publish: those that were fetched or published."""

    def fetch(self, path: Path) -> Path | None:
        """The newest cache, written to `path`; None when there is none that is sound."""
        try:
            digest = self._fetch(path)
        except EngineFleetError as error:
            self._warn("the timing cache in the store is not used", error)
            return None
        self._held |= {digest} if digest else set()
        return path if digest else None

    def publish(self, file: Path, merge: Merge) -> None:
        """Make `file` the newest, together with what others published since `fetch`."""
        try:
            self._publish(file, merge)
        except (EngineFleetError, OSError) as error:
            self._warn("the timing cache was not published", error)

    def _warn(self, what: str, error: EngineFleetError | OSError | str) -> None:
        # a cancelled build is no build without a cache
        self._progress.check()
        said = f"{error.reason}: {error.message}" if isinstance(error, EngineFleetError) else f"{error}."
        self._warnings.append(f"{what}: {said}")
        self._progress.log(self._warnings[-1])

    def _fetch(self, path: Path) -> str:
        """The digest of what was fetched; empty: there is none."""
        stored = self._store.get(self._pointer)
        # known even when what it names turns out bad, so that it can be replaced
        self._etag = None if stored is None else stored.etag
        if stored is None:
            return ""
        pointer = parse(self._pointer, stored.body, TimingCachePointer)
        if pointer.size > MOST_BYTES:
            self._warn("the timing cache in the store is not used", f"it has {pointer.size} bytes, expected at most {MOST_BYTES}")
            return ""
        key = layout.timing_cache(self._fingerprint, pointer.digest)
        self._store.download(key, path, sha256=layout.digest_hex(pointer.digest), size=pointer.size, progress=self._progress)
        return pointer.digest

    def _publish(self, file: Path, merge: Merge) -> None:
        ours = file
        for attempt in range(MOST_TRIES):
            size = ours.stat().st_size
            if size > MOST_BYTES:
                self._warn("the timing cache was not published", f"it has {size} bytes, expected at most {MOST_BYTES}")
                return
            digest = "sha256:" + sha256_of(ours)
            if digest in self._held:
                return
            self._store.put_if_absent(layout.timing_cache(self._fingerprint, digest), ours, sha256=layout.digest_hex(digest))
            if self._point_to(digest, size):
                self._held.add(digest)
                return
            theirs = file.with_name(f"{file.name}.theirs-{attempt}")
            try:
                other = self._fetch(theirs)
            except PermanentError:
                continue  # damaged or missing: replaced
            if not other or other in self._held:
                continue
            merged = file.with_name(f"{file.name}.merged-{attempt}")
            if not merge(ours, theirs, merged):
                # of another version, say: theirs stays, ours is measured again
                return
            ours = merged
            self._held.add(other)
        self._warn("the timing cache was not published", f"{MOST_TRIES} times another builder was faster")

    def _point_to(self, digest: str, size: int) -> bool:
        """Move the pointer, when it is still the one that was read."""
        pointer = TimingCachePointer(digest=digest, size=size, time=layout.timestamp(self._store.now()), holder=self._holder)
        body = pointer.model_dump_json(by_alias=True).encode()
        if self._etag is None:
            return self._store.put_if_absent(self._pointer, body)
        moved = self._store.replace_if(self._pointer, self._etag, body)
        self._etag = moved or self._etag
        return moved is not None
