"""The four requests that the agent sends to the API server, with the standard library only.

Requests are minutes apart, so each has a connection of its own; token and CA are read from their files each time, as both rotate.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

FIELD_MANAGER = "enginefleet-agent"
FINGERPRINTS = "/apis/enginefleet.io/v1alpha1/nodefingerprints"
REQUEST_SECONDS = 20.0
WATCH_SECONDS = 1800
SILENCE_SECONDS = 150.0
"""Bookmarks come about once a minute; longer silence is a dead connection."""


class ApiFault(Exception):
    """The API server did not answer, or refused; the text says which request and why. Retried with back-off."""


@dataclass(frozen=True, slots=True)
class Api:
    """`credentials` is a folder with `token` and `ca.crt`, as a service account's is mounted."""

    host: str
    port: int
    credentials: Path

    def fingerprint(self, node: str) -> dict[str, Any] | None:
        """The node's NodeFingerprint, None when there is none."""
        return self._json("GET", f"{FINGERPRINTS}/{quote(node)}")

    def node_labels(self, node: str) -> dict[str, str] | None:
        """The labels of a Node, None when it is gone."""
        found = self._json("GET", f"/api/v1/nodes/{quote(node)}")
        return None if found is None else found["metadata"].get("labels", {})

    def apply(self, node: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Server-side apply of the agent's fields; observations of others stay. Returns the whole object."""
        body = {"apiVersion": "enginefleet.io/v1alpha1", "kind": "NodeFingerprint", "metadata": {"name": node}, "spec": spec}
        path = f"{FINGERPRINTS}/{quote(node)}?{urlencode({'fieldManager': FIELD_MANAGER, 'force': 'true'})}"
        applied = self._json("PATCH", path, body)
        if applied is None:
            raise ApiFault("NodeFingerprint is not a kind of this cluster: install EngineFleet's CustomResourceDefinitions.")
        return applied

    def changes(self, node: str, version: str) -> Iterator[tuple[str, str]]:
        """(event type, resourceVersion) about the node's NodeFingerprint after `version`, bookmarks included, until the server ends the watch."""
        query = {"watch": "1", "allowWatchBookmarks": "true", "fieldSelector": f"metadata.name={node}", "resourceVersion": version}
        path = f"{FINGERPRINTS}?{urlencode(query | {'timeoutSeconds': str(WATCH_SECONDS)})}"
        with self._response("GET", path, None, SILENCE_SECONDS) as response:
            if response.status != http.HTTPStatus.OK:
                raise ApiFault(_refusal("WATCH", path, response))
            while line := response.readline():
                event = json.loads(line)
                # the Status of an ERROR event has none
                yield event["type"], event["object"].get("metadata", {}).get("resourceVersion", "")

    def _json(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        with self._response(method, path, body, REQUEST_SECONDS) as response:
            if response.status == http.HTTPStatus.NOT_FOUND:
                return None
            if response.status >= http.HTTPStatus.BAD_REQUEST:
                raise ApiFault(_refusal(method, path, response))
            answer: dict[str, Any] = json.loads(response.read())
            return answer

    @contextmanager
    def _response(self, method: str, path: str, body: object, timeout: float) -> Iterator[http.client.HTTPResponse]:
        try:
            token = (self.credentials / "token").read_text().strip()
            context = ssl.create_default_context(cafile=str(self.credentials / "ca.crt"))
            connection = http.client.HTTPSConnection(self.host, self.port, context=context, timeout=timeout)
            try:
                # an apply patch is YAML by its media type, and JSON is YAML
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/apply-patch+yaml", "User-Agent": FIELD_MANAGER}
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                yield connection.getresponse()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiFault(f"{method} {path.partition('?')[0]} at {self.host}:{self.port}: {error!r}") from error


def _refusal(method: str, path: str, response: http.client.HTTPResponse) -> str:
    text = response.read(4096).decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["message"]
    return f"{method} {path.partition('?')[0]}: {response.status} {text}"
