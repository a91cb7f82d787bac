"""Downloads from S3: in parts side by side, hashed in order as they complete, each resumed where its body broke off."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError

from enginefleet_api.errors import TransientFault
from enginefleet_builder.io import Progress

from .base import CHUNK, BlobDamaged, ObjectMissing, verify
from .client import classify, delay, is_missing, is_precondition

if TYPE_CHECKING:
    from .s3 import S3Store

MOST_STALLS = 5
"""Attempts in a row that bring no byte more."""
PART = 8 << 20
CONNECTIONS = 4
"""One connection to S3 gives some 50 to 90 MB/s; four fill a gigabit and leave cores to a serving node."""


def download_object(store: S3Store, key: str, path: Path, *, sha256: str, size: int | None, progress: Progress) -> str:
    """Write the object to `path`; see Store.download.

    A body that breaks off is resumed where it ended, of the same version (If-Match). Bytes that arrive whole but wrong are fetched once
    more: what altered them may have been on the way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        for last in (False, True):
            try:
                found, done = _Transfer(store, key, progress).into(partial)
                verify(key, found, done, sha256, size)
                break
            except BlobDamaged:
                if last:
                    raise
        partial.replace(path)
        return found
    finally:
        partial.unlink(missing_ok=True)


class _Transfer:
    """One version of one object on its way to a file."""

    def __init__(self, store: S3Store, key: str, progress: Progress) -> None:
        self._store, self._key, self._progress = store, key, progress
        self._stop = threading.Event()
        self._total, self._etag = store.head(key)

    def into(self, partial: Path) -> tuple[str, int]:
        """sha256 in hex and size."""
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(CHUNK))
        with partial.open("w+b", buffering=0) as file:
            handle = file.fileno()
            starts = range(0, self._total, PART)
            pool = ThreadPoolExecutor(min(CONNECTIONS, max(1, len(starts))), thread_name_prefix="download")
            try:
                parts = [pool.submit(self._part, handle, start, min(start + PART, self._total)) for start in starts]
                for part in parts:
                    at, end = part.result()
                    # Read again for hashing: it is in the page cache, and holding parts would cost memory.
                    while at < end:
                        count = os.preadv(handle, [buffer[: min(CHUNK, end - at)]], at)
                        digest.update(buffer[:count])
                        at += count
                    self._progress("download", at, self._total)
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
        return digest.hexdigest(), self._total

    def _part(self, handle: int, start: int, end: int) -> tuple[int, int]:
        """Write the bytes from `start` to before `end` where they belong."""
        at, stalls = start, 0
        while not self._stop.is_set():
            before = at
            try:
                for chunk in self._chunks(at, end):
                    os.pwrite(handle, chunk, at)
                    at += len(chunk)
                if at >= end:
                    break
                raise _EndedEarly
            except (ClientError, BotoCoreError, _EndedEarly) as error:
                fault = self._fault(error, at)
                stalls = 0 if at > before else stalls + 1
                if stalls >= MOST_STALLS or not isinstance(fault, TransientFault):
                    raise fault from error
            self._progress.check()
            self._stop.wait(delay(stalls))
        return start, end

    def _chunks(self, at: int, end: int) -> Iterator[bytes]:
        with self._store.open_range(self._key, at, end, self._etag)["Body"] as body:
            while at < end and not self._stop.is_set() and (chunk := body.read(min(CHUNK, end - at))):
                at += len(chunk)
                yield chunk

    def _fault(self, error: Exception, at: int) -> Exception:
        if isinstance(error, _EndedEarly | IncompleteReadError | ResponseStreamingError):
            return TransientFault(
                "StoreTruncated",
                f"{self._key} broke off at byte {at} of {self._total}, {MOST_STALLS} times in a row.",
                "Look for a proxy that cuts connections when this stays.",
            )
        if isinstance(error, ClientError):
            if is_missing(error):
                return ObjectMissing(self._store.name, self._key)
            if is_precondition(error):
                return TransientFault("StoreObjectChanged", f"{self._key} was replaced while it was read.")
        assert isinstance(error, ClientError | BotoCoreError)
        return classify(error, self._store.name)


class _EndedEarly(Exception):
    """The body was shorter than its announced length, without an error of the connection."""
