"""Keeps the node's NodeFingerprint equal to what the host is: writes on change only, and again when somebody deletes or alters it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from .api import Api, ApiFault
from .facts import HostView

logger = logging.getLogger(__name__)

FIRST_BACKOFF = 1.0
LONGEST_BACKOFF = 60.0


class Reporter:
    """`wake` is set when the object was changed by others; sync() then looks and repairs."""

    def __init__(self, api: Api, node: str, wake: threading.Event) -> None:
        self._api = api
        self._node = node
        self._wake = wake
        self._stale = True
        self._view: HostView | None = None
        self._version = ""
        self._listening = threading.Event()

    def sync(self, view: HostView) -> bool:
        """Write the object when it differs from `view`; without news neither reads nor writes. True when it wrote. Raises ApiFault."""
        if not self._stale and view == self._view:
            return False
        # cleared before reading: a change that arrives while we read is looked at again
        self._stale = False
        try:
            spec = {"node": self._node, "bootID": view.boot_id, "host": view.host}
            found = self._api.fingerprint(self._node)
            changed = found is None or not _same(found, spec)
            if changed:
                found = self._api.apply(self._node, spec)
                logger.info("NodeFingerprint %s written: %s", self._node, view.host["summary"])
        except ApiFault:
            self._stale = True
            raise
        assert found is not None
        self._view, self._version = view, found["metadata"]["resourceVersion"]
        self._listening.set()
        return changed

    def listen(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Watch the object for ever, in a thread of its own; each change, and each gap in the watch, wakes sync()."""
        self._listening.wait()
        failures = 0
        while True:
            began = time.monotonic()
            try:
                for event, version in self._api.changes(self._node, self._version):
                    # our own write comes back here with the version that its answer had
                    news = event != "BOOKMARK" and version != self._version
                    if version:
                        self._version, failures = version, 0
                    if news:
                        self._look()
            except ApiFault as fault:
                logger.info("watch: %s", fault)
            # the gap between two watches may have held a change
            self._look()
            if time.monotonic() - began < LONGEST_BACKOFF:
                sleep(backoff(failures))
                failures += 1

    def _look(self) -> None:
        self._stale = True
        self._wake.set()


def backoff(failures: int) -> float:
    """Seconds before the next attempt: 1 s doubling to 60 s, half of it at random, so that a fleet does not come at once."""
    return min(FIRST_BACKOFF * (1 << min(failures, 8)), LONGEST_BACKOFF) * (0.5 + random.random() / 2)  # noqa: S311  spreads load, hides nothing


def _same(found: dict[str, Any], spec: dict[str, Any]) -> bool:
    return all(found.get("spec", {}).get(name) == value for name, value in spec.items())
