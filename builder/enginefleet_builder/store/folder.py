"""A store in a folder: for the command line and tests. One file system, many processes.

Creation is os.link from a finished temporary file (atomic, fails when the name is taken); replacement holds a lock file per key, because a
file system has no compare-and-swap.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginefleet_api.errors import EnvironmentFault
from enginefleet_builder.io import Progress

from .base import CHUNK, Body, ObjectMissing, Store, Stored, check_key, sha256_of, verify

PRIVATE = ".enginefleet"
"""Folder for temporary files and locks; never listed."""


class FolderStore(Store):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.as_uri()

    def put_if_absent(self, key: str, body: Body, *, sha256: str = "") -> bool:  # noqa: ARG002
        target = self._path(key)
        if target.exists():
            return False
        with self._written(body) as temporary:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
        _sync_folder(target.parent)
        return True

    def replace_if(self, key: str, etag: str, body: Body, *, sha256: str = "") -> str | None:
        target = self._path(key)
        with self._locked(key), self._written(body) as temporary:
            if not target.is_file() or sha256_of(target) != etag:
                return None
            temporary.replace(target)
            _sync_folder(target.parent)
        return sha256 or sha256_of(body)

    def get(self, key: str) -> Stored | None:
        try:
            body = self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        return Stored(body, hashlib.sha256(body).hexdigest())

    def version(self, key: str) -> str | None:
        path = self._path(key)
        return sha256_of(path) if path.is_file() else None

    def exists(self, key: str) -> bool:
        return self._path(key).is_file()

    def list(self, prefix: str) -> Iterator[str]:
        start = self.root / prefix.rpartition("/")[0]
        found = (path.relative_to(self.root).as_posix() for path in start.rglob("*") if path.is_file())
        yield from sorted(key for key in found if key.startswith(prefix) and not key.startswith(PRIVATE + "/"))

    def verify(self, key: str, scratch: Path, *, sha256: str, size: int) -> None:  # noqa: ARG002
        path = self._path(key)
        if not path.is_file():
            raise ObjectMissing(self.name, key)
        verify(key, sha256_of(path), path.stat().st_size, sha256, size)

    def download(self, key: str, path: Path, *, sha256: str = "", size: int | None = None, progress: Progress | None = None) -> str:
        source, digest, done = self._path(key), hashlib.sha256(), 0
        partial = path.with_name(path.name + ".partial")
        try:
            with source.open("rb") as reader, partial.open("wb") as writer:
                total = os.fstat(reader.fileno()).st_size
                while chunk := reader.read(CHUNK):
                    digest.update(chunk)
                    writer.write(chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress("download", done, total)
            verify(key, digest.hexdigest(), done, sha256, size)
            partial.replace(path)
        except FileNotFoundError as error:
            raise ObjectMissing(self.name, key) from error
        finally:
            partial.unlink(missing_ok=True)
        return digest.hexdigest()

    def now(self) -> float:
        return time.time()

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _written(self, body: Body) -> Iterator[Path]:
        """A temporary file with the body, on disk (fsync) before anybody can see it."""
        temporary: Path | None = None
        try:
            handle, name = tempfile.mkstemp(dir=self._private("tmp"))
            temporary = Path(name)
            with os.fdopen(handle, "wb") as writer:
                if isinstance(body, bytes):
                    writer.write(body)
                else:
                    with body.open("rb") as reader:
                        shutil.copyfileobj(reader, writer, CHUNK)
                writer.flush()
                os.fchmod(writer.fileno(), 0o644)
                os.fsync(writer.fileno())
            yield temporary
        except OSError as error:
            raise EnvironmentFault(
                "StoreNotWritable", f"cannot write into {self.root}: {error.strerror or error}.", "Check space and permissions."
            ) from error
        finally:
            if temporary is not None:
                temporary.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """The kernel frees the lock of a killed holder."""
        with (self._private("locks") / hashlib.sha256(key.encode()).hexdigest()).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _private(self, name: str) -> Path:
        """Made when something is written: who only reads leaves no trace."""
        folder = self.root / PRIVATE / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
