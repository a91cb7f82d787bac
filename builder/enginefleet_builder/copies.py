"""Validation sets from elsewhere, copied into the store: a site that shares a store fetches each once, whatever lies between it and the source.

Unless the spec says otherwise only what anybody may fetch is copied: whoever reads the store could read the copy (docs/decisions/0015).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import Source, StoreRef
from enginefleet_api.judging import CopyToStore

from .gate.readers.files import PICTURES
from .http_source import require_space, same_origin
from .io import Progress
from .sources import SIZE_LIMIT, Fetched, fetch_files, fetch_source
from .store.records import Records

Choose = Callable[[Path], set[str]]
"""A folder with all that tells of the samples, and an empty file for each picture → names of the pictures that are needed."""
COPY_LIMIT = 8 << 30
"""Bytes of a set that is copied; a larger one is fetched from its source each time."""


def is_copied(source: Source, store: StoreRef, asked: CopyToStore = "Auto") -> bool:
    """Whether builds read the set from a copy in the store. Never of what is as near as the store: a file here, an object on the store's server.

    Auto: only where a copy tells nobody what he could not fetch himself. An address with a query may be a signed one; s3:// is read with
    somebody's keys.
    """
    parts = urlsplit(source.uri)
    web = parts.scheme in ("https", "http")
    far = (
        not same_origin(parts, store.endpoint)
        if web
        else parts.scheme == "s3" and source.endpoint.rstrip("/") != store.endpoint.rstrip("/")
    )
    open_to_all = web and not parts.query and parts.username is None and source.credentials == "ambient"
    return far and asked != "Never" and (asked == "Always" or open_to_all)


def keep(
    records: Records, source: Source, store: StoreRef, fetched: Fetched, progress: Progress, asked: CopyToStore = "Auto"
) -> str | None:
    """Copy the set into the store, where that is asked for and it is not there: a note that says so, else None.

    Raises TransientFault of a store that does not answer; done again, it goes on where it ended.
    """
    if not is_copied(source, store, asked):
        if _is_folder(source):
            try:
                records.list_dataset(fetched.digest, fetched.files)
            except PermanentError as error:
                progress.log(f"builds will fetch the whole validation set: {error.message}")
        return None
    if not _publish(records, fetched, progress):
        return None
    size = sum(entry.size for entry in fetched.files)
    return f"the validation set ({size} bytes) was copied into the store: builds read it there"


def fetch_validation(
    records: Records,
    source: Source,
    store: StoreRef,
    digest: str | None,
    folder: Path,
    *,
    allow_file: bool,
    progress: Progress,
    choose: Choose | None = None,
    asked: CopyToStore = "Auto",
) -> Fetched:
    """The set from the store where a copy of it stands, else from its source, with a line in the log. `digest`: what is expected; None: unknown.

    With `choose`, of a folder of pictures whose files prepare listed only those that it names, and all that are no pictures.
    A copy that is missing or damaged is made anew. Raises EngineFleetError as fetch_source does, and that of a store that does not answer.
    """
    copied = is_copied(source, store, asked)
    if (
        digest is not None
        and choose is not None
        and (chosen := _chosen(records, source, copied, digest, folder, choose, progress)) is not None
    ):
        return chosen
    if digest is None or not copied:
        return fetch_source(source, folder, progress=progress, allow_file=allow_file)
    try:
        found, damaged = _copy(records, digest, folder, progress), False
        if found is not None:
            return found
        progress.log(f"the store has no copy of the validation set: it is fetched from {source.uri}")
    except PermanentError as error:
        damaged = True
        progress.log(f"the store's copy of the validation set cannot be used: {error.message} It is fetched from {source.uri}.")
        shutil.rmtree(folder, ignore_errors=True)
    fetched = fetch_source(source, folder, progress=progress, allow_file=allow_file)
    if fetched.digest == digest:
        _publish(records, fetched, progress, anew=damaged)
    return fetched


def _chosen(
    records: Records, source: Source, copied: bool, digest: str, folder: Path, choose: Choose, progress: Progress
) -> Fetched | None:
    """None: the whole set is to be fetched. Raises PermanentError `DataSetChanged` when a file at the source is not what the baseline saw."""
    if not (copied or _is_folder(source)):
        return None
    try:
        manifest = records.dataset(digest) if copied else records.dataset_listing(digest)
    except PermanentError:
        # of a copy it is said where the whole set is fetched
        return None
    try:
        files = {entry.path: entry for entry in manifest.files} if manifest is not None else {}
        if manifest is None or not any(_is_picture(name) for name in files):
            return None

        def fetch(names: Sequence[str]) -> None:
            if copied:
                records.fetch_dataset(manifest.model_copy(update={"files": [files[name] for name in names]}), folder, progress=progress)
                return
            for found in fetch_files(source, folder, names, progress):
                if (found.sha256, found.size) != (files[found.path].sha256, files[found.path].size):
                    message = f"{found.path} of {source.uri} is not the file that the baseline was measured on."
                    hint = "Restore the set, or have it resolved again with enginefleet.io/refresh."
                    raise PermanentError("DataSetChanged", message, hint)

        folder.mkdir(parents=True, exist_ok=True)
        require_space(folder / "any", sum(entry.size for name, entry in files.items() if not _is_picture(name)))
        first = [name for name in files if not _is_picture(name)]
        fetch(first)
        # readers look at names; an empty file that is taken for a picture is refused
        for name in files.keys() - set(first):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        chosen = sorted(choose(folder) & files.keys() - set(first))
        require_space(folder / "any", sum(files[name].size for name in chosen))
        fetch(chosen)
    except PermanentError as error:
        if not copied:
            raise
        progress.log(f"not all of the validation set's copy can be used: {error.message}")
        shutil.rmtree(folder, ignore_errors=True)
        return None
    progress.log(f"of the validation set's {len(files) - len(first)} pictures {len(chosen)} were fetched: they are judged")
    return Fetched(folder, digest, tuple(files[name] for name in (*first, *chosen)))


def _is_folder(source: Source) -> bool:
    parts = urlsplit(source.uri)
    return parts.scheme == "s3" and parts.path.endswith("/")


def _is_picture(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in PICTURES


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
