"""Reads the API server's audit log: who wrote what, and how often."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from localcluster.controlplane import WRITES


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One answered request; `received` is when it arrived, in UTC."""

    user: str
    verb: str
    resource: str
    """plural, with the subresource behind a slash: pods/status"""
    namespace: str
    name: str
    status: int
    """HTTP status of the answer"""
    received: datetime
    user_agent: str

    @property
    def is_write(self) -> bool:
        """Whether the request could change something (it may have failed, see status)."""
        return self.verb in WRITES


def read(path: Path) -> Iterator[AuditEvent]:
    """Every event so far, oldest first. A line that is still being written is left out."""
    if not path.exists():
        return
    with path.open() as lines:
        for line in lines:
            if not line.endswith("\n"):
                return
            event = json.loads(line)
            target = event.get("objectRef", {})
            resource = target.get("resource", event.get("requestURI", ""))
            yield AuditEvent(
                user=event.get("user", {}).get("username", ""),
                verb=event["verb"],
                resource=f"{resource}/{target['subresource']}" if "subresource" in target else resource,
                namespace=target.get("namespace", ""),
                name=target.get("name", ""),
                status=event.get("responseStatus", {}).get("code", 0),
                received=datetime.fromisoformat(event["requestReceivedTimestamp"]),
                user_agent=event.get("userAgent", ""),
            )
