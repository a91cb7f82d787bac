"""The periodic look at what is published: would a pod that is made now get its engine?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from enginefleet_api.documents import Answer
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import PublishedEngine, VerifyReport, VerifyRequest

from .io import Progress
from .store import layout, open_store
from .store.records import Records

PATIENCE = 60.0
"""Seconds for the store to answer: the operator has it looked at again."""


def verify(request: VerifyRequest, progress: Progress) -> VerifyReport:
    """Every engine, whatever the one before is. Raises TransientFault when the store does not answer: then nothing is known of any."""
    started = time.monotonic()
    patience = min(PATIENCE, request.timeout_seconds / 4)
    records = Records(open_store(request.store, progress=progress, writes=False, patience=patience))
    lost: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        for number, engine in enumerate(request.engines, start=1):
            progress("verify", number, len(request.engines))
            try:
                _verify(records, engine, Path(folder))
            except PermanentError as error:
                progress.log(f"{engine.blob}: {error.reason}: {error.message}")
                lost[engine.blob] = error.reason
    return VerifyReport(verified=len(request.engines), lost=lost, seconds=f"{time.monotonic() - started:.2f}")


def _verify(records: Records, engine: PublishedEngine, scratch: Path) -> None:
    """As fetch would: the verdict that decides about this engine, then its bytes."""
    standing = records.newest_verdict(engine.engine_key, engine.gate_key, engine.blob)
    if standing is None or standing[1].answer is not Answer.PASS:
        raise PermanentError(
            "NotProven", "no passed verdict about it decides.", "Build it again: what passed is adopted, and the verdict is published anew."
        )
    if records.build(engine.engine_key, engine.blob) is None:
        raise PermanentError("ObjectMissing", "its build record is not in the store.", "A rebuild restores it.")
    records.store.verify(layout.blob(engine.blob), scratch, sha256=layout.digest_hex(engine.blob), size=engine.size)
