"""Downloads from S3: streamed, hashed on the way, resumed where a body broke off."""

from __future__ import annotations

import hashlib
import os
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
        self._etag = ""
        self._done = 0
        self._total: int | None = None
        self._digest = hashlib.sha256()

    def into(self, partial: Path) -> tuple[str, int]:
        """sha256 in hex and size."""
        stalls, before = 0, 0
        with partial.open("wb", buffering=0) as file:
            while True:
                try:
                    self._read(file.fileno())
                    return self._digest.hexdigest(), self._done
                except (ClientError, BotoCoreError, _EndedEarly) as error:
                    fault = self._fault(error)
                    stalls = 0 if self._done > before else stalls + 1
                    if stalls >= MOST_STALLS or not isinstance(fault, TransientFault):
                        raise fault from error
                before = self._done
                self._progress.wait(delay(stalls))

    def _read(self, file: int) -> None:
        """One request from where we are to the end of the object."""
        answer = self._store.open_range(self._key, self._done, etag=self._etag)
        self._etag = answer["ETag"]
        self._total = self._done + int(answer["ContentLength"])
        with answer["Body"] as body:
            while chunk := body.read(CHUNK):
                os.write(file, chunk)
                self._digest.update(chunk)
                self._done += len(chunk)
                self._progress("download", self._done, self._total)
        if self._done != self._total:
            raise _EndedEarly

    def _fault(self, error: Exception) -> Exception:
        if isinstance(error, _EndedEarly | IncompleteReadError | ResponseStreamingError):
            return TransientFault(
                "StoreTruncated",
                f"{self._key} broke off at {self._done} of {self._total} bytes.",
                "It is tried again; look for a proxy that cuts connections when this stays.",
            )
        if isinstance(error, ClientError):
            if is_missing(error):
                return ObjectMissing(self._store.name, self._key)
            if is_precondition(error):
                return TransientFault("StoreObjectChanged", f"{self._key} was replaced while it was read.", "It is tried again.")
        assert isinstance(error, ClientError | BotoCoreError)
        return classify(error, self._store.name)


class _EndedEarly(Exception):
    """The body was shorter than its announced length, without an error of the connection."""
