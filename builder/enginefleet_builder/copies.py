"""Validation sets from elsewhere, copied into the store: a site that shares a store fetches each once, whatever lies between it and the source.

Only what anybody may fetch is copied: whoever reads the store could read the copy (docs/decisions/0015).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import Source, StoreRef

from .http_source import require_space, same_origin
from .io import Progress
from .sources import SIZE_LIMIT, Fetched, fetch_source
from .store.records import Records

COPY_LIMIT = 8 << 30
"""Bytes of a set that is copied; a larger one is fetched from its source each time."""


def is_open(source: Source, store: StoreRef) -> bool:
    """Whether a copy tells nobody what he could not fetch himself, and is nearer: a web address without login, on another server than the store.

    An address with a query may be a signed one. s3:// is read with somebody's keys: the store's, then it is as near as the store, or others.
    """
    parts = urlsplit(source.uri)
    plain = parts.scheme in ("https", "http") and not parts.query and parts.username is None
    return plain and source.credentials == "ambient" and not same_origin(parts, store.endpoint)


def keep(records: Records, source: Source, store: StoreRef, fetched: Fetched, progress: Progress) -> str | None:
    """Copy the set into the store, where that is allowed and it is not there: a note that says so, else None.

    Raises TransientFault of a store that does not answer; done again, it goes on where it ended.
    """
    if not is_open(source, store):
        return None
    if not _publish(records, fetched, progress):
        return None
    size = sum(entry.size for entry in fetched.files)
    return f"the validation set ({size} bytes) was copied into the store: builds read it there"


def fetch_validation(
    records: Records, source: Source, store: StoreRef, digest: str | None, folder: Path, *, allow_file: bool, progress: Progress
) -> Fetched:
    """The set from the store where a copy of it stands, else from its source, with a line in the log. `digest`: what is expected; None: unknown.

    A copy that is missing or damaged is made anew. Raises EngineFleetError as fetch_source does, and that of a store that does not answer.
    """
    if digest is None or not is_open(source, store):
        return fetch_source(source, folder, progress=progress, allow_file=allow_file)
    try:
        found, damaged = _copy(records, digest, folder, progress), False
        if found is not None:
            return found
        progress.log(f"the store has no copy of the validation set: it is fetched from {source.uri}")
    except PermanentError as error:
        damaged = True
        progress.log(f"the store's copy of the validation set cannot be used: {error.message} It is fetched from {source.uri}.")
        shutil.rmtree(folder)
    fetched = fetch_source(source, folder, progress=progress, allow_file=allow_file)
    if fetched.digest == digest:
        _publish(records, fetched, progress, anew=damaged)
    return fetched


def _publish(records: Records, fetched: Fetched, progress: Progress, *, anew: bool = False) -> bool:
    """Whether a copy was made. One that is refused fails no Job: it is a convenience, and a bucket's policy may name the folders to write to."""
    size = sum(entry.size for entry in fetched.files)
    if size > COPY_LIMIT:
        progress.log(f"the validation set has {size} bytes, more than {COPY_LIMIT}: it is not copied into the store")
        return False
    try:
        return records.publish_dataset(fetched.digest, fetched.files, fetched.folder, anew=anew, progress=progress)
    except PermanentError as error:
        progress.log(f"the validation set is not copied into the store: {error.message}")
        return False


def _copy(records: Records, digest: str, folder: Path, progress: Progress) -> Fetched | None:
    manifest = records.dataset(digest)
    if manifest is None:
        return None
    size = sum(entry.size for entry in manifest.files)
    if size > SIZE_LIMIT:
        raise PermanentError("SourceTooLarge", f"it has {size} bytes, expected at most {SIZE_LIMIT}.", "Remove it from the store.")
    require_space(folder / "any", size)
    records.fetch_dataset(manifest, folder, progress=progress)
    return Fetched(folder, digest, tuple(manifest.files))
