"""Fetching models and data sets: one file or a folder, from s3://, https:// or (command line only) file://, into a directory.

A single .onnx file brings the external data that it names. What arrives has a tree digest (identity.tree_digest). Archives are not unpacked.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from enginefleet_api.documents import FileEntry
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.identity import tree_digest
from enginefleet_api.jobs import Source

from .http_source import disk_full, fetch_web, require_space, too_large
from .io import Progress
from .store.base import check_key, sha256_of

if TYPE_CHECKING:
    from .store.client import Who

SIZE_LIMIT = 64 << 30
FILE_LIMIT = 200_000
EXTERNAL_LIMIT = 10_000
"""Files of external data beside one model: exporters write one, or one a tensor."""
LFS_MARK = b"version https://git-lfs.github.com/spec/"
SNIFF = 512
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
"""Names of archives. They are not unpacked: what one holds, and how much, would be known too late."""
ARCHIVE_MARKS = ((0, b"PK\x03\x04", "ZIP"), (0, b"7z\xbc\xaf", "7z"), (0, b"\x1f\x8b", "gzip"), (257, b"ustar", "tar"))
"""(offset, bytes, kind)"""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A tree of files below `folder`; `digest` is its tree digest."""

    folder: Path
    digest: str
    files: tuple[FileEntry, ...]


def fetch_source(
    source: Source,
    folder: Path,
    *,
    progress: Progress | None = None,
    allow_file: bool = False,
    size_limit: int = SIZE_LIMIT,
) -> Fetched:
    """Fetch `source` into `folder` (made when absent). An URI that ends in a slash names a folder, else a file.

    Raises PermanentError `SourceNotFound`, `SourceAccessDenied`, `SourceNotAllowed`, `SourceTooLarge`, `SourceIsLfsPointer`, `SourceIsHtml`,
    `SourceIsArchive`, `SourceUnreadable`, `SourceEmpty`, `DigestMismatch`, `ExternalDataMissing`; EnvironmentFault `DiskFull`; TransientFault
    `SourceUnavailable`, `SourceTruncated`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shown = progress or Progress()
    try:
        files = list(_fetched(source, folder, shown, size_limit, allow_file))
        if names := _external_data(source, folder, files):
            files += _beside(source, folder, shown, size_limit - files[0].size, allow_file, names)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(folder, error) from error
        message = f"{source.uri} cannot be read: {error.strerror or error}."
        raise PermanentError("SourceUnreadable", message, "Correct its name or its permissions.") from error
    for entry in files:
        _recognise(source.uri, folder / entry.path, entry)
    if len(files) == 1:
        _refuse_archive(source.uri, folder / files[0].path)
    digest = tree_digest((entry.path, entry.sha256) for entry in files)
    if source.digest is not None and digest != source.digest:
        raise PermanentError(
            "DigestMismatch",
            f"{source.uri} has the digest {digest}, expected {source.digest}.",
            "The source changed: correct the digest, or restore what was there.",
        )
    return Fetched(folder, digest, tuple(files))


def fetch_files(source: Source, folder: Path, names: Sequence[str], progress: Progress) -> list[FileEntry]:
    """Some files of a folder in S3, by their names below it. Raises as fetch_source does."""
    return list(_from_s3(source, folder, progress, SIZE_LIMIT, names)) if names else []


def _fetched(
    source: Source, folder: Path, progress: Progress, size_limit: int, allow_file: bool, beside: Sequence[str] = ()
) -> Iterator[FileEntry]:
    """What the URI names; with `beside`, those files instead, named as seen from the folder that holds the URI's file."""
    scheme = urlsplit(source.uri).scheme
    match scheme:
        case "s3":
            return _from_s3(source, folder, progress, size_limit, beside)
        case "https" | "http":
            return _from_web(source, folder, progress, size_limit, beside)
        case "file" if allow_file:
            return _from_folder(source, folder, progress, size_limit, beside)
    hint = "Use s3://bucket/key, s3://bucket/folder/ or https://host/file."
    raise PermanentError("SourceNotAllowed", f"{source.uri!r} has the scheme {scheme or 'none'!r}, expected s3 or https.", hint)


def _external_data(source: Source, folder: Path, files: Sequence[FileEntry]) -> list[str]:
    """Files that the .onnx file which the URI names keeps its tensors in.

    None of a model that cannot be read, and none that leads out of its folder: preflight says so, with all else that is wrong.
    """
    named = unquote(urlsplit(source.uri).path).rpartition("/")[2]
    if [entry.path for entry in files] != [named] or not named.lower().endswith(".onnx"):
        return []
    # Imported here: onnx takes half a second, and data sets do not need it.
    from .prepare import model as models

    try:
        found = models.external(models.read_model(folder / files[0].path))
    except PermanentError:
        return []
    return sorted({PurePosixPath(item.location).as_posix() for item in found if item.safe} - {files[0].path})


def _beside(source: Source, folder: Path, progress: Progress, size_limit: int, allow_file: bool, names: Sequence[str]) -> list[FileEntry]:
    if len(names) > EXTERNAL_LIMIT:
        message = f"the model of {source.uri} keeps its tensors in {len(names)} files, expected at most {EXTERNAL_LIMIT}."
        raise PermanentError("SourceTooLarge", message, "Save it with its external data in one file.")
    try:
        return list(_fetched(source, folder, progress, size_limit, allow_file, names))
    except PermanentError as error:
        if error.reason != "SourceNotFound":
            raise
        message = f"the model of {source.uri} keeps tensors in a file that is not beside it: {error.message}"
        raise PermanentError("ExternalDataMissing", message, "Upload it beside the .onnx file.") from error


def model_files(folder: Path) -> Path:
    """The one .onnx file below `folder`; PermanentError `ModelNotFound` or `ModelAmbiguous` naming what is there."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() == ".onnx" and path.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.relative_to(folder).as_posix() for path in found[:8])
        raise PermanentError(
            "ModelAmbiguous", f"{len(found)} .onnx files, expected one: {names}.", "Point the URI at a folder with one model."
        )
    names = ", ".join(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())[:8])
    raise PermanentError(
        "ModelNotFound", f"no .onnx file; found: {names or 'nothing'}.", "Point the URI at an .onnx file or at its folder."
    )


# ---- s3 ----


def _from_s3(source: Source, folder: Path, progress: Progress, size_limit: int, beside: Sequence[str]) -> Iterator[FileEntry]:
    # Imported here: boto3 takes half a second, and not every source is in S3.
    from .store.client import s3_client
    from .store.s3 import S3Store

    parts = urlsplit(source.uri)
    key = unquote(parts.path).removeprefix("/")
    if not parts.netloc or parts.query or parts.fragment:
        raise PermanentError("SourceNotFound", f"{source.uri!r} is not an S3 address.", "Write s3://bucket/key or s3://bucket/folder/.")
    prefix, _, name = key.rpartition("/")
    client = s3_client(_credentials(source), endpoint=source.endpoint, region=source.region)
    bucket = S3Store(client, parts.netloc, prefix and prefix + "/", progress=progress)
    left = size_limit
    try:
        # "folder/" keeps an object of its own where a console made the folder
        names = list(beside) or ([name] if name else [found for found in bucket.list("") if found and not found.endswith("/")])
        if not names:
            raise PermanentError("SourceNotFound", f"{source.uri} holds no objects.", "Correct the URI; a folder ends in a slash.")
        _check_count(source.uri, len(names))
        for found in names:
            target = _target(folder, found, source.uri)
            size, _ = bucket.head(found)
            left -= size
            if left < 0:
                raise too_large(source.uri, size_limit - left, size_limit)
            require_space(target, size)
            sha256 = bucket.download(found, target, progress=progress)
            yield FileEntry(path=found, sha256=sha256, size=target.stat().st_size)
    except EngineFleetError as error:
        raise _as_source_failure(error) from error


def _credentials(source: Source) -> Who:
    """Whose environment variables to use: the source's own where set, else the store's."""
    own = f"ENGINEFLEET_{source.credentials.upper()}_ACCESS_KEY_ID"
    return "store" if source.credentials not in ("store", "ambient") and own not in os.environ else source.credentials


def _as_source_failure(error: EngineFleetError) -> EngineFleetError:
    """The store's failures under the source's names: `StoreNotFound` is `SourceNotFound`."""
    reason = "SourceNotFound" if error.reason == "ObjectMissing" else error.reason.replace("Store", "Source", 1)
    hint = "Correct the URI; a folder ends in a slash." if error.reason == "ObjectMissing" else error.hint
    if reason == error.reason:
        return error
    return _base_class(error)(reason, error.message.replace("the store ", "the source "), hint)


def _base_class(error: EngineFleetError) -> type[EngineFleetError]:
    return next(kind for kind in (PermanentError, EnvironmentFault, TransientFault) if isinstance(error, kind))


# ---- http(s) and file ----


def _from_web(source: Source, folder: Path, progress: Progress, size_limit: int, beside: Sequence[str]) -> Iterator[FileEntry]:
    parts = urlsplit(source.uri)
    above, _, last = parts.path.rpartition("/")
    name = unquote(last)
    if not name:
        hint = "Name one file; a folder can be fetched from s3:// only."
        raise PermanentError("SourceNotAllowed", f"{source.uri} names no file.", hint)
    left, plain = size_limit, source.digest is not None
    # what stands after the question mark is often what lets one in
    uris = {other: parts._replace(path=f"{above}/{quote(other)}", fragment="").geturl() for other in beside} or {name: source.uri}
    for found, uri in uris.items():
        target = _target(folder, found, source.uri)
        sha256, size = fetch_web(uri, target, endpoint=source.endpoint, limit=left, progress=progress, plain=plain)
        left -= size
        yield FileEntry(path=found, sha256=sha256, size=size)


def _from_folder(source: Source, folder: Path, progress: Progress, size_limit: int, beside: Sequence[str]) -> Iterator[FileEntry]:
    origin = Path(url2pathname(urlsplit(source.uri).path))
    if not origin.exists():
        raise PermanentError("SourceNotFound", f"{origin} does not exist.", "Correct the path.")
    above = origin.parent if origin.is_file() else origin
    own = [above / name for name in beside] or [origin]
    paths = own if origin.is_file() else sorted(path for path in origin.rglob("*") if path.is_file())
    if not paths:
        raise PermanentError("SourceNotFound", f"{origin} holds no files.", "Correct the path.")
    if missing := [path for path in paths if not path.is_file()]:
        raise PermanentError("SourceNotFound", f"{missing[0]} does not exist.", "Correct the path.")
    _check_count(source.uri, len(paths))
    total = sum(path.stat().st_size for path in paths)
    if total > size_limit:
        raise too_large(source.uri, total, size_limit)
    require_space(folder / "any", total)
    for count, path in enumerate(paths, start=1):
        name = path.relative_to(above).as_posix()
        target = _target(folder, name, source.uri)
        shutil.copyfile(path, target)
        progress("copy", count, len(paths))
        yield FileEntry(path=name, sha256=sha256_of(target), size=target.stat().st_size)


# ---- checks ----


def _target(folder: Path, name: str, uri: str) -> Path:
    try:
        target = folder / check_key(name)
    except ValueError as error:
        raise PermanentError("SourceNotAllowed", f"{uri} holds {name!r}: {error}.", "Rename the object.") from error
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _check_count(uri: str, found: int) -> None:
    if found > FILE_LIMIT:
        message = f"{uri} holds {found} files, expected at most {FILE_LIMIT}."
        raise PermanentError("SourceTooLarge", message, "Pack samples into .npz files, or point at a smaller folder.")


def _refuse_archive(uri: str, path: Path) -> None:
    """An archive in place of a folder, by its name or by how it begins. Checkpoints and .npz files are ZIP archives by nature."""
    name = path.name.lower()
    kind = next((suffix.removeprefix(".") for suffix in ARCHIVES if name.endswith(suffix)), None)
    if kind is None and path.suffix == "":
        with path.open("rb") as file:
            start = file.read(SNIFF)
        kind = next((kind for offset, mark, kind in ARCHIVE_MARKS if start[offset : offset + len(mark)] == mark), None)
    if kind is not None:
        raise PermanentError(
            "SourceIsArchive",
            f"{path.name} of {uri} is an archive ({kind.upper()}), expected a file or folder; archives are not unpacked.",
            "Unpack it, upload its files below one prefix, and name that: s3://bucket/folder/.",
        )


def _recognise(uri: str, path: Path, entry: FileEntry) -> None:
    """Name what is often fetched in place of a file."""
    if entry.size == 0:
        if path.suffix.lower() in (".onnx", ".npz", ".npy"):
            raise PermanentError("SourceEmpty", f"{entry.path} of {uri} is empty.", "Was its upload cut off?")
        return
    with path.open("rb") as file:
        start = file.read(SNIFF)
    if start.startswith(LFS_MARK):
        raise PermanentError(
            "SourceIsLfsPointer",
            f"{entry.path} of {uri} is a git-lfs pointer of {entry.size} bytes, not the file.",
            "Run `git lfs pull` before uploading, or use the address of the media file.",
        )
    if path.suffix.lower() not in (".html", ".htm") and start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise PermanentError(
            "SourceIsHtml",
            f"{entry.path} of {uri} is an HTML page, not the file.",
            "The host shows a login or preview page: use the download address.",
        )
