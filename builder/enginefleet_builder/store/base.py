"""What a store can do, and how its failures are told apart.

A store maps keys (relative POSIX paths) to bytes. Writes are conditional: an object is created once, or replaced when it is still the one
that was read. A reader sees a whole object or none.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_builder.io import Progress

Body: TypeAlias = bytes | Path
CHUNK = 1 << 20
SMALL_OBJECT_LIMIT = 64 << 20
"""`get` holds an object in memory; records and manifests stay far below this."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A small object as it was read. `etag` names this version for `replace_if`."""

    body: bytes
    etag: str


class BlobDamaged(PermanentError):
    """Bytes in the store do not have the digest they are stored under. A rebuild replaces them."""

    def __init__(self, key: str, found: str, expected: str) -> None:
        super().__init__(
            "BlobDamaged",
            f"{key} in the store has sha256 {found}, expected {expected}.",
            "A build replaces it; look for what altered the bucket's objects.",
        )


class ObjectMissing(PermanentError):
    """An object that must be there is not."""

    def __init__(self, where: str, key: str) -> None:
        super().__init__(
            "ObjectMissing",
            f"{key} is not in the store {where}.",
            "Was it removed by hand or by a lifecycle rule of the bucket? A rebuild restores it.",
        )


class StoreUnavailable(TransientFault):
    """The store did not answer, or answered that it cannot now."""

    def __init__(self, where: str, found: str) -> None:
        super().__init__(
            "StoreUnavailable",
            f"the store {where} does not answer: {found}.",
            "Check the endpoint and the network when this stays.",
        )


class Store(ABC):
    """Keys are relative to the store's prefix. Errors: see the module; all others are EngineFleetError too."""

    name: str
    """For messages: the URI."""

    @abstractmethod
    def put_if_absent(self, key: str, body: Body, *, sha256: str = "") -> bool:
        """Create the object; False when the key is taken (whatever it holds). `sha256`: hex digest of the body where known."""

    @abstractmethod
    def replace_if(self, key: str, etag: str, body: Body, *, sha256: str = "") -> str | None:
        """Replace the object that `etag` names; the new etag, or None when it is another one by now or gone."""

    @abstractmethod
    def get(self, key: str) -> Stored | None:
        """The object, or None when there is none. For small objects."""

    @abstractmethod
    def version(self, key: str) -> str | None:
        """The object's etag, without reading it; None when there is none."""

    def exists(self, key: str) -> bool:
        return self.version(key) is not None

    @abstractmethod
    def list(self, prefix: str) -> Iterator[str]:
        """Keys that start with `prefix`, sorted."""

    @abstractmethod
    def download(self, key: str, path: Path, *, sha256: str = "", size: int | None = None, progress: Progress | None = None) -> str:
        """Write the object to `path`, in bounded memory; returns its sha256 in hex.

        Raises ObjectMissing, BlobDamaged (digest or size differ from what is given), TransientFault `StoreTruncated` or StoreUnavailable.
        `path` is written only in whole: on failure it is left as it was.
        """

    @abstractmethod
    def verify(self, key: str, scratch: Path, *, sha256: str, size: int) -> None:
        """Raises ObjectMissing, BlobDamaged when the object is not there with these bytes, or TransientFault. `scratch`: a folder.

        What the store itself keeps a digest of need not be read for that.
        """

    @abstractmethod
    def now(self) -> float:
        """Seconds since the epoch by the store's clock: claims are compared across machines whose clocks may be wrong."""


def check_key(key: str) -> str:
    """`key`, or ValueError when it could leave the store's prefix."""
    if not key or key.startswith("/") or "\\" in key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"store key {key!r}: expected a relative POSIX path without '.' or '..'")
    if not key.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in key):
        raise ValueError(f"store key {key!r}: expected a name in UTF-8")
    return key


def sha256_of(body: Body) -> str:
    """Hex digest of bytes or of a file, in bounded memory."""
    if isinstance(body, bytes):
        return hashlib.sha256(body).hexdigest()
    with body.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify(key: str, found: str, found_size: int, sha256: str, size: int | None) -> None:
    """Raise BlobDamaged when a finished download is not what it must be."""
    if sha256 and found != sha256:
        raise BlobDamaged(key, found, sha256)
    if size is not None and found_size != size:
        raise BlobDamaged(key, f"{found} and {found_size} bytes", f"{size} bytes")
