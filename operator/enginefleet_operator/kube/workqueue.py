"""Which object to look at next: the semantics of client-go's rate-limiting work queue, for one event loop.

A key that is added while it waits is there once; a key that is added while a worker has it comes again when that worker is done, and no
two workers ever have the same key. Nothing added is lost.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from enginefleet_api.errors import EngineFleetError

from .errors import ApiUnavailable

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_BACKOFF = 0.2
LONGEST_BACKOFF = 60.0
LONGEST_REST = 5.0


class QueueClosed(Exception):
    """get() after close(): the worker ends."""


class WorkQueue(Generic[K]):
    """Keys to process, each by one worker at a time. `clock` gives seconds that only go forward, `jitter` a number in [0, 1)."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._jitter = jitter
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._rests: dict[K, float] = {}
        self._wake = asyncio.Event()
        self._closed = False
        self._waiting_since = 0.0

    def __len__(self) -> int:
        """Keys ready for a worker now; neither those being processed nor those due later."""
        self._promote()
        return len(self._ready)

    def add(self, key: K) -> None:
        """Have `key` processed soon; once, however often it is added before a worker takes it."""
        if key in self._dirty or self._closed:
            return
        if key not in self._processing and key in self._rests:
            if (left := self._rests[key] - self._clock()) > 0:
                self.add_after(key, left)
                return
            del self._rests[key]
        self._dirty.add(key)
        if key not in self._processing:
            self._enqueue(key)

    def add_after(self, key: K, delay: float) -> None:
        """Add `key` after `delay` seconds. Of several delays the earliest counts; add() meanwhile does not cancel it."""
        if delay <= 0:
            self.add(key)
            return
        due = self._clock() + delay
        if self._closed or due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._later, (due, self._sequence, key))
        self._wake.set()

    def add_failed(self, key: K) -> float:
        """Add `key` after its back-off: 0.2 s doubling to 60 s, each with 20 % jitter either way. Returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # 2**9 is beyond the longest; a larger power would only overflow one day
        delay = FIRST_BACKOFF * (1 << min(failures, 9)) * (0.8 + 0.4 * self._jitter())
        delay = min(max(delay, FIRST_BACKOFF), LONGEST_BACKOFF)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The next failure of `key` starts from the shortest back-off again."""
        self._failures.pop(key, None)

    def take(self) -> K | None:
        """The next key, None when none is ready. Whoever takes a key calls done()."""
        self._promote()
        if not self._ready:
            return None
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        self._waiting_since = self._clock()
        return key

    async def get(self) -> K:
        """Wait for the next key. Raises QueueClosed after close(), whatever still waits."""
        while not self._closed:
            key = self.take()
            if key is not None:
                return key
            self._wake.clear()
            pause = max(self._later[0][0] - self._clock(), 0.0) if self._later else None
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue
        raise QueueClosed

    def done(self, key: K, rest: float = 0.0) -> None:
        """The worker is finished with `key`; if it was added meanwhile it is ready again, but not before `rest` seconds have passed."""
        self._processing.discard(key)
        if self._closed:
            return
        if rest > 0:
            self._rests[key] = self._clock() + rest
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def stuck_for(self) -> float:
        """Seconds for which keys have been ready and no worker has taken any; 0 when nothing waits."""
        self._promote()
        return self._clock() - self._waiting_since if self._ready else 0.0

    def _enqueue(self, key: K) -> None:
        if not self._ready:
            self._waiting_since = self._clock()
        self._ready.append(key)
        self._wake.set()

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            # an entry that an earlier one has overtaken is stale
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)


Reconcile = Callable[[K], Awaitable[float | None]]
"""Looks at one key; returns after how many seconds to look again without an event, None for never."""
Outcome = Callable[[float, BaseException | None], None]
"""Told of each finished reconcile: seconds it took, what it raised."""


def first_of(error: Exception) -> Exception:
    """Of requests that went out together the error that counts: one that is no failure of the API's, if there is any."""
    while isinstance(error, ExceptionGroup):
        error = next((e for e in error.exceptions if not isinstance(e, EngineFleetError)), error.exceptions[0])
    return error


async def work(
    queue: WorkQueue[K], reconcile: Reconcile[K], *, outcome: Outcome | None = None, limit: float = 50.0, rest: float = 0.0
) -> None:
    """One worker: until the queue is closed take keys and reconcile them. This is where every failure of a reconcile ends up.

    A failed key comes back with back-off, or when the API server said so; one that takes longer than `limit` seconds is cut off and
    comes back too. `rest`: for so many times the time that a key took nobody takes it again, LONGEST_REST at most: a rollout over thousands of
    nodes sends events all the time, and what one of them costs must not be paid for each.
    """
    while True:
        try:
            key = await queue.get()
        except QueueClosed:
            return
        began = time.monotonic()
        failure: Exception | None = None
        try:
            async with asyncio.timeout(limit):
                again = await reconcile(key)
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        except Exception as error:
            failure = first_of(error)
            if isinstance(failure, ApiUnavailable) and failure.retry_after is not None:
                logger.warning("%s: %s", key, failure)
                queue.add_after(key, failure.retry_after)
            elif isinstance(failure, EngineFleetError):
                logger.warning("%s: %s (again in %.1f s)", key, failure, queue.add_failed(key))
            else:
                logger.exception("%s: reconcile failed, again in %.1f s", key, queue.add_failed(key))
        finally:
            queue.done(key, min((time.monotonic() - began) * rest, LONGEST_REST))
        if outcome is not None:
            outcome(time.monotonic() - began, failure)
