"""Claims: one builder among all that share a store.

A claim is an object that is created when absent, renewed by replacing the version that we wrote, and taken over by replacing one that expired.
Every step is one conditional write, so of two racers one wins. Times are the store's (Store.now), not the machines'.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from enginefleet_api.documents import Claim
from enginefleet_api.errors import EngineFleetError, TransientFault

from . import layout
from .base import Store
from .records import parse

HEARTBEATS_A_CLAIM = 4
"""A claim is renewed this often before it would expire: three heartbeats may fail."""
RELEASE_PATIENCE = 5.0
"""Seconds that a release waits for a heartbeat that hangs at a store that is down."""


class ClaimHeld(TransientFault):
    """Another builder is at work. `claim` says who; `wait_seconds` is when it expires without a further heartbeat."""

    def __init__(self, claim: Claim, wait_seconds: float) -> None:
        super().__init__(
            "ClaimHeld",
            f"{claim.holder} builds this engine; its claim runs for another {wait_seconds:.0f} s.",
            "The next attempt adopts its result when it is there.",
        )
        self.claim = claim
        self.wait_seconds = wait_seconds


class HeldClaim:
    """A claim that is ours and renewed in the background. A context manager: leaving it releases the claim.

    `assert_held` before anything that others must not do at the same time.
    """

    def __init__(self, store: Store, key: str, claim: Claim, etag: str, seconds: float) -> None:
        self.claim = claim
        self._store, self._key, self._etag, self._seconds = store, key, etag, seconds
        self._renewed = time.monotonic()
        self._lost: TransientFault | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="claim-heartbeat", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Taken over by another, or not renewed for so long that it may have been. Makes no request."""
        return self._lost is not None or time.monotonic() - self._renewed >= self._seconds

    def assert_held(self) -> None:
        """Renew the claim now; TransientFault `ClaimLost` when it is another's by now."""
        self._renew()
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Let others have it at once. Without effect when it is lost; a store that is down leaves it to expire."""
        self._done.set()
        self._thread.join(RELEASE_PATIENCE)
        if self._lost is None and not self._thread.is_alive():
            freed = self.claim.model_copy(update={"expires": "0"})
            try:
                self._store.replace_if(self._key, self._etag, _encoded(freed))
            except EngineFleetError:
                return

    def _beat(self) -> None:
        while not self._done.wait(self._seconds / HEARTBEATS_A_CLAIM):
            try:
                self._renew()
            except EngineFleetError:
                continue  # the store is down: `lost` turns true by time alone
            if self._lost is not None:
                return

    def _renew(self) -> None:
        with self._lock:
            if self._lost is not None:
                return
            started = time.monotonic()
            renewed = _running(self._store, self.claim.holder, self._seconds, self.claim.takeovers)
            etag = self._store.replace_if(self._key, self._etag, _encoded(renewed))
            if etag is None and (own := self._own_version()) is not None:
                etag = self._store.replace_if(self._key, own, _encoded(renewed))
            if etag is None:
                self._lost = TransientFault(
                    "ClaimLost",
                    f"the claim of {self.claim.holder} expired and another builder took it over.",
                    "Nothing was published; the next attempt adopts the other's result.",
                )
                return
            self.claim, self._etag, self._renewed = renewed, etag, started

    def _own_version(self) -> str | None:
        """The etag of the standing claim when it is ours after all: a heartbeat was stored and its answer lost."""
        stored = self._store.get(self._key)
        if stored is None:
            return None
        standing = parse(self._key, stored.body, Claim)
        same = (standing.holder, standing.takeovers) == (self.claim.holder, self.claim.takeovers)
        return stored.etag if same else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def acquire(store: Store, engine_key: str, holder: str, seconds: float) -> HeldClaim:
    """The claim on an engine key, for `seconds` from the last heartbeat; raises ClaimHeld when another builder has it.

    `holder` names this attempt and no other (the pod, say).
    """
    key = layout.claim(engine_key)
    while True:
        stored = store.get(key)
        if stored is None:
            claim = _running(store, holder, seconds, 0)
            if not store.put_if_absent(key, _encoded(claim)):
                continue
            now = store.get(key)
            etag = now.etag if now is not None and now.body == _encoded(claim) else None
        else:
            standing = parse(key, stored.body, Claim)
            left = float(standing.expires) - store.now()
            if left > 0:
                raise ClaimHeld(standing, left)
            takeovers = standing.takeovers + (standing.expires != "0")
            claim = _running(store, holder, seconds, takeovers)
            etag = store.replace_if(key, stored.etag, _encoded(claim))
        if etag is not None:
            return HeldClaim(store, key, claim, etag, seconds)


def _running(store: Store, holder: str, seconds: float, takeovers: int) -> Claim:
    now = store.now()
    return Claim(holder=holder, heartbeat=f"{now:.3f}", expires=f"{now + seconds:.3f}", takeovers=takeovers)


def _encoded(claim: Claim) -> bytes:
    return claim.model_dump_json(by_alias=True).encode()
