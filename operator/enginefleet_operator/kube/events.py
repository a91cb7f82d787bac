"""Events of events.k8s.io/v1 on transitions, none repeated within ten minutes, and never a reason for a reconcile to fail."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from enginefleet_api.identity import short_hash

from .client import ApiClient, Object
from .errors import ApiError
from .kinds import EVENTS

logger = logging.getLogger(__name__)

CONTROLLER = "enginefleet.io/operator"
QUIET_SECONDS = 600.0
REMEMBERED = 4096
"""Distinct events remembered for the quiet time; the oldest is forgotten first."""
PENDING = 256
"""Events waiting to be written; when the API server is slower than that, the oldest is dropped."""
NOTE_LIMIT = 1024
"""Bytes of a note, by the API's validation."""


class EventRecorder:
    """record() never blocks and never fails; run() writes what was recorded, in order. `clock` gives seconds that only go forward."""

    def __init__(self, client: ApiClient, *, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._instance = instance[:128]
        self._clock = clock
        self._recent: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        self._pending: deque[Object] = deque(maxlen=PENDING)
        self._wake = asyncio.Event()
        self.dropped = 0

    def record(
        self, regarding: Mapping[str, Any], kind: Literal["Normal", "Warning"], reason: str, message: str, *, action: str = "Reconcile"
    ) -> bool:
        """Queue an event about a whole object (apiVersion, kind, metadata). False when the same was said in the last ten minutes."""
        metadata, now = regarding["metadata"], self._clock()
        said = (metadata["uid"], reason, short_hash(message))
        if now - self._recent.get(said, float("-inf")) < QUIET_SECONDS:
            return False
        self._recent[said] = now
        self._recent.move_to_end(said)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        if len(self._pending) == PENDING:
            self.dropped += 1
        self._pending.append(self._event(regarding, kind, reason, message, action))
        self._wake.set()
        return True

    async def run(self) -> None:
        """Write recorded events until cancelled; one that is refused is logged and dropped."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                event = self._pending.popleft()
                try:
                    await self._client.create(event)
                except ApiError as error:
                    logger.warning("event %s about %s not written: %s", event["reason"], event["regarding"]["name"], error)

    def _event(self, regarding: Mapping[str, Any], kind: str, reason: str, message: str, action: str) -> Object:
        metadata = regarding["metadata"]
        # events about cluster-scoped objects live in "default", as client-go's do
        namespace = metadata.get("namespace", "default")
        subject = {"apiVersion": regarding["apiVersion"], "kind": regarding["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        if "namespace" in metadata:
            subject["namespace"] = namespace
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": f"{metadata['name'][:200].rstrip('-.')}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": action,
            "reason": reason,
            "type": kind,
            "regarding": subject,
            "note": message.encode()[:NOTE_LIMIT].decode(errors="ignore"),
        }
