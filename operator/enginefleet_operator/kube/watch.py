"""A local copy of one kind, kept up to date by list and watch, holding projections instead of objects."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Generic, TypedDict, TypeVar

from .client import PAGE, ApiClient, Object
from .errors import ApiError, Gone
from .kinds import Resource, key_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_BACKOFF = 0.5
LONGEST_BACKOFF = 30.0


class Selectors(TypedDict):
    label_selector: str
    field_selector: str


class Reflector(Generic[T]):
    """Lists in chunks, then watches with bookmarks; `items` maps `namespace/name` (or the name) to what `project` made of the object.

    `on_event(old, new)` is called after `items` was changed: old is None for a new object, new is None for a deleted one. It is not
    called when the projection is equal to the one before, so fields left out of a projection's comparison are silent. An object that was
    replaced by one of the same name is a deletion and an addition. After a relist, what vanished meanwhile is reported as deleted.
    """

    def __init__(
        self,
        client: ApiClient,
        resource: Resource,
        *,
        project: Callable[[Object], T],
        on_event: Callable[[T | None, T | None], None],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.resource = resource
        self.items: dict[str, T] = {}
        self.synced = asyncio.Event()
        """Set by the first complete list."""
        self.trouble = ""
        """Why the last attempt failed; empty while all is well."""
        self._uids: dict[str, str] = {}
        self._client = client
        self._project = project
        self._on_event = on_event
        self._namespace = namespace
        self._selectors = Selectors(label_selector=label_selector, field_selector=field_selector)
        self._page = page
        self._jitter = jitter
        self._version = ""
        self._failures = 0
        self._last_heard = time.monotonic()

    def silent_for(self) -> float:
        """Seconds since the API server last answered this list or watch; bookmarks count."""
        return time.monotonic() - self._last_heard

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except Gone as error:
                logger.info("%s: listing again: %s", self.resource.plural, error.message)
                self._version = ""
                await self._pause(error)
            except ApiError as error:
                await self._pause(error)

    async def _pause(self, error: ApiError) -> None:
        if str(error) != self.trouble:
            logger.warning("%s: %s", self.resource.plural, error)
        self.trouble = str(error)
        delay = min(FIRST_BACKOFF * 2 ** min(self._failures, 8), LONGEST_BACKOFF) * (0.5 + self._jitter() / 2)
        self._failures += 1
        await asyncio.sleep(max(delay, getattr(error, "retry_after", None) or 0.0))

    def _heard(self) -> None:
        self._last_heard = time.monotonic()
        self._failures = 0
        self.trouble = ""

    async def _list(self) -> None:
        listed, self._version = await self._client.list(
            self.resource, self._namespace, **self._selectors, page=self._page, project=lambda obj: (*_identity(obj), self._project(obj))
        )
        self._heard()
        present = {key for key, _, _ in listed}
        for key in [key for key in self.items if key not in present]:
            self._remove(key)
        for key, uid, item in listed:
            self._put(key, uid, item)
        self.synced.set()

    async def _watch(self) -> None:
        began = time.monotonic()
        events = self._client.watch(self.resource, self._version, self._namespace, **self._selectors)
        # an async generator that is left by an exception closes its connection only when it is closed itself
        async with aclosing(events) as stream:
            async for kind, obj in stream:
                self._heard()
                self._version = obj["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._remove(key_of(obj))
                elif kind != "BOOKMARK":
                    self._put(*_identity(obj), self._project(obj))
        self._heard()
        # a server that ends each watch at once (it is shutting down, or a proxy cuts) must not be asked in a tight loop
        if time.monotonic() - began < 1.0:
            await asyncio.sleep(self._jitter())

    def _put(self, key: str, uid: str, item: T) -> None:
        old = self.items.get(key)
        if old is not None and self._uids[key] != uid:
            self._remove(key)
            old = None
        self.items[key] = item
        self._uids[key] = uid
        if old is None or old != item:
            self._on_event(old, item)

    def _remove(self, key: str) -> None:
        old = self.items.pop(key, None)
        self._uids.pop(key, None)
        if old is not None:
            self._on_event(old, None)


def _identity(obj: Object) -> tuple[str, str]:
    return key_of(obj), obj["metadata"]["uid"]
