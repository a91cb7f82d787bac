"""One operator a cluster: leader election by a Lease of coordination.k8s.io.

Clock steps do no harm: a foreign lease is expired when it has not *changed* for its duration of our own monotonic time, and our own is
lost by the same clock; the times in the object are for people.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from .client import ApiClient, Object
from .errors import AlreadyExists, ApiError, Conflict
from .kinds import LEASES

logger = logging.getLogger(__name__)


def own_identity() -> str:
    """The pod's name where there is one: a container that restarts in its pod takes its own lease up at once, and a pod never runs two.

    Elsewhere a name that no other process has.
    """
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A holder that could not renew for `deadline` stops; others wait for `duration`; the gap is its time to stop."""

    duration: int = 45
    deadline: float = 30.0
    renew: float = 15.0
    retry: float = 2.0


class LeaderElection:
    """Holds the Lease `namespace/name`. Give it an ApiClient of its own: a busy connection pool must not cost the lease."""

    def __init__(
        self,
        client: ApiClient,
        *,
        namespace: str,
        name: str = "enginefleet-operator",
        identity: str | None = None,
        on_lost: Callable[[str], None],
        timing: Timing = Timing(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity or own_identity()
        self.held = asyncio.Event()
        """Set once we are the leader."""
        self.lost = ""
        """Why leadership was lost; empty before it was won and while it is held."""
        self._client = client
        self._namespace = namespace
        self._name = name
        self._on_lost = on_lost
        self._timing = timing
        self._clock = clock
        self._version = ""
        self._seen_at = 0.0
        self._renewed_at = 0.0

    async def run(self) -> None:
        """Wait for the lease, hold it, return after calling `on_lost(why)`. Cancelled, it leaves the lease as it is: see release()."""
        while True:
            if await self._attempt():
                break
            await asyncio.sleep(self._timing.retry)
        logger.info("%s holds the lease %s/%s", self.identity, self._namespace, self._name)
        self.held.set()
        while not self.lost:
            await asyncio.sleep(self._timing.renew if self._version else self._timing.retry)
            await self._renew()
        self._on_lost(self.lost)

    async def release(self) -> None:
        """Hand the lease over without the wait, on a clean shutdown; after the last write of ours."""
        if not self.held.is_set() or self.lost:
            return
        self.lost = "released"
        try:
            await self._patch({"holderIdentity": "", "leaseDurationSeconds": 1}, self._version)
        except ApiError as error:
            logger.warning("the lease was not released, a successor waits %d s: %s", self._timing.duration, error)

    async def _attempt(self) -> bool:
        """Try to become the leader once."""
        asked_at = self._clock()
        try:
            lease = await self._client.get(LEASES, self._name, self._namespace)
            if lease is None:
                lease = await self._client.create(self._new_lease())
            elif self._is_free(lease):
                transitions = lease["spec"].get("leaseTransitions", 0) + 1
                spec = self._spec() | {"acquireTime": _now(), "leaseTransitions": transitions}
                lease = await self._patch(spec, lease["metadata"]["resourceVersion"])
            else:
                return False
        except AlreadyExists:
            return False
        except ApiError as error:
            logger.warning("lease %s/%s: %s", self._namespace, self._name, error)
            return False
        self._renewed_at, self._version = asked_at, lease["metadata"]["resourceVersion"]
        return True

    def _is_free(self, lease: Object) -> bool:
        """Nobody's, ours, or unchanged for its whole duration since we saw it first."""
        spec, version = lease.get("spec", {}), lease["metadata"]["resourceVersion"]
        if version != self._version:
            self._version, self._seen_at = version, self._clock()
        duration = spec.get("leaseDurationSeconds") or self._timing.duration
        return spec.get("holderIdentity", "") in ("", self.identity) or self._clock() - self._seen_at > duration

    async def _renew(self) -> None:
        # counted from before the request: the server may have stored it long before we hear of it
        asked_at = self._clock()
        left = self._timing.deadline - (asked_at - self._renewed_at)
        try:
            async with asyncio.timeout(max(left, 0.0)):
                if not self._version:
                    self._version = await self._version_while_ours()
                if self._version:
                    lease = await self._patch(self._spec(), self._version)
                    self._renewed_at, self._version = asked_at, lease["metadata"]["resourceVersion"]
        except Conflict:
            # somebody else wrote it, or our own write was stored and its answer lost: look
            self._version = ""
        except (ApiError, TimeoutError) as error:
            self._version = ""
            logger.warning("lease %s/%s not renewed: %r", self._namespace, self._name, error)
        silent = self._clock() - self._renewed_at
        if not self.lost and silent >= self._timing.deadline:
            self.lost = f"it could not be renewed for {silent:.0f} s"

    async def _version_while_ours(self) -> str:
        """The lease's version; empty and `lost` set when it is another's or gone."""
        lease = await self._client.get(LEASES, self._name, self._namespace)
        holder = (lease or {}).get("spec", {}).get("holderIdentity", "")
        if lease is None or holder != self.identity:
            self.lost = f"it is held by {holder or 'nobody'}"
            return ""
        return str(lease["metadata"]["resourceVersion"])

    def _spec(self) -> Object:
        return {"holderIdentity": self.identity, "leaseDurationSeconds": self._timing.duration, "renewTime": _now()}

    def _new_lease(self) -> Object:
        metadata = {"name": self._name, "namespace": self._namespace}
        spec = self._spec() | {"acquireTime": _now(), "leaseTransitions": 0}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    async def _patch(self, spec: Object, version: str) -> Object:
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        return await self._client.merge_patch(LEASES, self._name, body, self._namespace)


def _now() -> str:
    """A MicroTime, as Lease and Event want it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
