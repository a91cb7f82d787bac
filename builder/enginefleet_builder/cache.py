"""The node's cache of engines, as a pod uses it: a folder that outlives pods, trusted no further than its digests.

sha256/<digest>                                     engine bytes
verdicts/<engine key>/<gate key>/<digest>.json      the verdict that allowed it, under the name of its key
builds/<engine key>/<digest>.json                   its build record
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from enginefleet_api.base import Contract
from enginefleet_api.documents import Answer, BuildRecord, Verdict
from enginefleet_api.jobs import FetchRequest

from .store.layout import digest_hex

Document = TypeVar("Document", bound=Contract)
CHUNK = 1 << 20


class NodeCache:
    """`folder`: None when the pod was given none; then everything is absent and nothing is kept."""

    def __init__(self, folder: Path | None, request: FetchRequest) -> None:
        self._request = request
        name = digest_hex(request.blob)
        root = folder or Path("/nonexistent")
        self._usable = folder is not None
        self.blob = root / "sha256" / name
        self._verdict = root / "verdicts" / request.engine_key / request.gate_key / f"{name}.json"
        self._build = root / "builds" / request.engine_key / f"{name}.json"

    def passed(self) -> bool:
        """Whether the cached verdict allows this very engine on this fingerprint."""
        verdict, wanted = _read(self._verdict, Verdict), self._request
        return verdict is not None and (verdict.answer, verdict.blob, verdict.fingerprint, verdict.engine_key, verdict.gate_key) == (
            Answer.PASS,
            wanted.blob,
            wanted.fingerprint,
            wanted.engine_key,
            wanted.gate_key,
        )

    def build_record(self) -> BuildRecord | None:
        return _read(self._build, BuildRecord)

    def forget_blob(self) -> None:
        """Remove a damaged engine, so that nobody checks it again."""
        with suppress(OSError):
            self.blob.unlink(missing_ok=True)

    def keep_documents(self, verdict: Verdict, record: BuildRecord | None) -> None:
        """Raises OSError when the cache cannot be written."""
        if not self._usable:
            return
        _write(self._verdict, verdict.model_dump_json(by_alias=True, exclude_none=True).encode())
        if record is not None:
            _write(self._build, record.model_dump_json(by_alias=True, exclude_none=True).encode())

    def keep_blob(self, engine: Path) -> None:
        """Copy a verified engine in; it appears in whole. Raises OSError when the cache cannot be written."""
        if self._usable and not self.blob.exists():
            self.blob.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.blob.parent, prefix=".", delete=False) as file:
                try:
                    with engine.open("rb") as reader:
                        while chunk := reader.read(CHUNK):
                            file.write(chunk)
                    file.flush()
                    _finish(file.fileno(), Path(file.name), self.blob)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise


def _read(path: Path, kind: type[Document]) -> Document | None:
    """None when it is absent or unreadable: the cache is a copy."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
        file.write(body)
        file.flush()
        _finish(file.fileno(), Path(file.name), path)


def _finish(handle: int, temporary: Path, target: Path) -> None:
    os.fchmod(handle, 0o644)
    os.fsync(handle)
    temporary.replace(target)
