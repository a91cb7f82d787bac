"""What the contract tests ask of an API server: create, apply, read, and what it says when it refuses."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.parse
from collections.abc import Mapping
from typing import Any

from localcluster import Cluster
from localcluster.api import Api

Object = dict[str, Any]


class Refused(Exception):  # an answer of the API server, not a fault of the test
    """The API server said no: HTTP status and its message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class ApiServer:
    """A real API server, as admin. Paths come from discovery, so any kind that it serves will do."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        config = json.loads(cluster.kubeconfig.read_text())
        server = config["clusters"][0]["cluster"]
        host, _, port = server["server"].removeprefix("https://").rpartition(":")
        authority = base64.b64decode(server["certificate-authority-data"]).decode()
        self._api = Api(host, int(port), authority, config["users"][0]["user"]["token"])
        self._kinds: dict[tuple[str, str], Object] = {}

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """The parsed answer. Raises Refused for a status from 400."""
        status, text = self._api.request(method, path, body, content_type, timeout=30)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        if status >= 400:
            raise Refused(status, answer.get("message", ""))
        return answer

    def create(self, obj: Mapping[str, Any], *, dry_run: bool = False, strict: bool = False) -> Any:
        """POST; with `strict` unknown fields are refused, as kubectl does, else they are pruned."""
        return self.request("POST", self._path(obj, named=False) + _query(dry_run, fieldValidation="Strict" if strict else "Ignore"), obj)

    def apply(
        self, obj: Mapping[str, Any], *, manager: str = "test", force: bool = False, status: bool = False, dry_run: bool = False
    ) -> Any:
        """Server-side apply of an object, or of its status."""
        path = self._path(obj) + ("/status" if status else "")
        query = _query(dry_run, fieldManager=manager, force=str(force).lower(), fieldValidation="Ignore")
        return self.request("PATCH", path + query, obj, "application/apply-patch+yaml")

    def patch(self, obj: Mapping[str, Any], change: object) -> Any:
        """Merge patch."""
        return self.request("PATCH", self._path(obj) + "?fieldValidation=Ignore", change, "application/merge-patch+json")

    def get(self, obj: Mapping[str, Any]) -> Any:
        return self.request("GET", self._path(obj))

    def delete(self, obj: Mapping[str, Any]) -> None:
        self.request("DELETE", self._path(obj))

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._cluster.kubectl(*arguments, input=input, check=check)

    def _path(self, obj: Mapping[str, Any], *, named: bool = True) -> str:
        version, metadata = obj["apiVersion"], obj["metadata"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, obj["kind"]) not in self._kinds:
            served = [kind for kind in self.request("GET", root)["resources"] if "/" not in kind["name"]]
            self._kinds |= {(version, kind["kind"]): kind for kind in served}
        kind = self._kinds[version, obj["kind"]]
        namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if kind["namespaced"] else ""
        return f"{root}{namespace}/{kind['name']}" + (f"/{metadata['name']}" if named else "")


def _query(dry_run: bool, **parameters: str) -> str:
    return "?" + urllib.parse.urlencode(parameters | ({"dryRun": "All"} if dry_run else {}))
