"""Holds our own requests back, so that a storm of events never becomes one of requests: the API server belongs to everybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class TokenBucket:
    """`rate` requests a second in the long run, `burst` of them at once. Who has to wait waits in the order of asking. rate 0: no limit."""

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate, self._burst = rate, burst
        self._clock, self._sleep = clock, sleep
        self._free_at = clock() - burst / rate if rate else 0.0
        """When the bucket would have been empty: tokens come evenly from then on."""
        self.waited = 0.0
        """Seconds that requests were held back, all together."""

    async def take(self) -> None:
        """Returns when one more request may be sent."""
        if not self._rate:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - self._burst / self._rate) + 1 / self._rate
        if (wait := self._free_at - now) > 0:
            self.waited += wait
            await self._sleep(wait)
