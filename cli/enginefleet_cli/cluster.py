"""The API server as the user's kubeconfig reaches it: objects are plain dictionaries, failures are those of errors.py."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from enginefleet_api.errors import EngineFleetError
from enginefleet_api.resources import API_VERSION, GROUP

from .errors import NoAccess, NotFound, NotReady, Usage

Object = dict[str, Any]

PAGE = 500
TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: what people call it, and its place below the server's address. An empty namespace is all of them."""

    name: str
    prefix: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        inside = ["namespaces", namespace] if self.namespaced and namespace else []
        return "/" + "/".join(part for part in (self.prefix, *inside, self.plural, name, subresource) if part)


MODEL_DEPLOYMENTS = Kind("ModelDeployment", f"apis/{API_VERSION}", "modeldeployments")
HARDWARE_CLASSES = Kind("HardwareClass", f"apis/{API_VERSION}", "hardwareclasses", namespaced=False)
ENGINE_STORES = Kind("EngineStore", f"apis/{API_VERSION}", "enginestores")
ENGINE_BUILDS = Kind("EngineBuild", f"apis/{API_VERSION}", "enginebuilds")
NODE_FINGERPRINTS = Kind("NodeFingerprint", f"apis/{API_VERSION}", "nodefingerprints", namespaced=False)
NODES = Kind("Node", "api/v1", "nodes", namespaced=False)
PODS = Kind("Pod", "api/v1", "pods")
CONTROLLER_REVISIONS = Kind("ControllerRevision", "apis/apps/v1", "controllerrevisions")


class Cluster:
    """One context of a kubeconfig. `namespace`: the one that was asked for, else the context's, else default; empty: all, for lists."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    @classmethod
    def connect(cls, kubeconfig: str | None, context: str | None, namespace: str | None) -> Cluster:
        settings = client.Configuration()
        try:
            config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=settings, persist_config=False)  # type: ignore[no-untyped-call]
            active = _active(kubeconfig, context)
        except (ConfigException, OSError, ValueError) as error:
            raise NoAccess(
                "NoKubeconfig", f"{str(error).splitlines()[0].rstrip('.')}.", "Name one with --kubeconfig, or set KUBECONFIG."
            ) from error
        # a server that is away is said at once
        settings.retries = urllib3.Retry(total=1, backoff_factor=0.2)
        return cls(client.ApiClient(settings), namespace or active.get("context", {}).get("namespace") or "default")

    @property
    def server(self) -> str:
        return str(self._api.configuration.host)

    @property
    def place(self) -> str:
        """Where objects are looked for, for people."""
        return f"in namespace {self.namespace}" if self.namespace else "in any namespace"

    def everywhere(self) -> Cluster:
        return Cluster(self._api, "")

    # ---- objects

    def get(self, kind: Kind, name: str) -> Object:
        return self._json("GET", kind, kind.path(self.namespace, name), name)

    def find(self, kind: Kind, name: str) -> Object | None:
        """The object, or None where there is none of that name."""
        try:
            return self.get(kind, name)
        except NotFound as error:
            if error.reason != "NotFound":
                raise
            return None

    def list(self, kind: Kind, selector: str = "") -> list[Object]:
        found: list[Object] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = self._json("GET", kind, kind.path(self.namespace), "", query)
            found += page["items"]
            more = page["metadata"].get("continue")
            if not more:
                return found
            query["continue"] = more

    def annotate(self, kind: Kind, name: str, annotations: Mapping[str, str]) -> Object:
        """A merge patch of metadata alone: spec stays whoever's it is."""
        body = {"metadata": {"annotations": dict(annotations)}}
        return self._json("PATCH", kind, kind.path(self.namespace, name), name, {}, body, "application/merge-patch+json")

    def dry_run(self, kind: Kind, written: Object, live: Object | None) -> Object:
        """What the server would store, with all defaults, if this manifest took the place of what is there. Stores nothing."""
        query = {"dryRun": "All", "fieldValidation": "Strict", "fieldManager": "kubectl-enginefleet"}
        name = written["metadata"]["name"]
        if live is None:
            return self._json("POST", kind, kind.path(self.namespace), name, query, written)
        metadata = dict(live["metadata"]) | {n: written["metadata"][n] for n in ("labels", "annotations") if n in written["metadata"]}
        metadata.pop("managedFields", None)
        return self._json("PUT", kind, kind.path(self.namespace, name), name, query, {**written, "metadata": metadata})

    def wait_until_started(self, pod: str) -> None:
        """Return when the pod has left Pending, or is gone: before that it has no log."""
        query = {"fieldSelector": f"metadata.name={pod}", "watch": "true"}
        answer = self._ask("GET", PODS.path(self.namespace), query, timeout=(TIMEOUT[0], None))
        self._check(answer, PODS, pod)
        rest = b""
        for chunk in answer.response.stream(decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for event in map(json.loads, lines):
                if event["type"] == "DELETED" or event["object"].get("status", {}).get("phase", "Pending") != "Pending":
                    answer.response.close()
                    return

    def log(self, pod: str, container: str, *, follow: bool, tail: int | None = None) -> Iterator[str]:
        """Lines of a container's log; with `follow` until it ends."""
        query = {"container": container, "follow": str(follow).lower()} | ({"tailLines": str(tail)} if tail is not None else {})
        path = PODS.path(self.namespace, pod, "log")
        answer = self._ask("GET", path, query, timeout=(TIMEOUT[0], None) if follow else TIMEOUT)
        self._check(answer, PODS, pod)
        rest = b""
        for chunk in answer.response.stream(decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    # ---- the wire

    def _json(
        self, method: str, kind: Kind, path: str, name: str, query: Mapping[str, str] | None = None, body: Any = None, content: str = ""
    ) -> Object:
        answer = self._ask(method, path, query or {}, body, content)
        self._check(answer, kind, name)
        found: Object = json.loads(answer.read())
        return found

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Any = None,
        content: str = "",
        timeout: tuple[float, float | None] = TIMEOUT,
    ) -> Any:
        headers = {"Accept": "application/json"} | ({"Content-Type": content or "application/json"} if body is not None else {})
        asked = self._api.param_serialize(
            method, path, query_params=list(query.items()), header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            return self._api.call_api(*asked, _request_timeout=timeout)
        except (ApiException, urllib3.exceptions.HTTPError, ssl.SSLError, OSError) as error:
            raise NoAccess(
                "ClusterUnreachable",
                f"The API server {self.server} does not answer: {_cause(error)}.",
                "Check the address of the context, and the network.",
            ) from error

    def _check(self, answer: Any, kind: Kind, name: str) -> None:
        if answer.status < 300:
            return
        raise refusal(answer.status, answer.read(), kind, name, self.namespace, urlsplit(self.server).netloc)


def refusal(code: int, body: bytes | None, kind: Kind, name: str, namespace: str, server: str) -> EngineFleetError:
    """What an answer that is no success means for the user. `body`: as the server sent it, a Status where all is well."""
    try:
        status = json.loads(body or b"{}")
    except ValueError:
        status = {}
    said = str(status.get("message") or "") if isinstance(status, dict) else ""
    details = status.get("details") or {} if isinstance(status, dict) else {}
    where = (f" in namespace {namespace}" if namespace else " in all namespaces") if kind.namespaced else ""
    if code == 404 and kind.prefix.startswith(f"apis/{GROUP}") and details.get("name", "") != name:
        return NotFound(
            "NotInstalled", f"The cluster {server} does not know {kind.plural}.{GROUP}.", "Install its CRDs: kubectl apply -f crds/"
        )
    if code == 404 and name:
        return NotFound(
            "NotFound", f"There is no {kind.name} {name}{where}.", "Name another with -n or --context, or look: kubectl get " + kind.plural
        )
    if code == 401:
        return NoAccess(
            "NotLoggedIn", f"The cluster {server} does not accept these credentials.", "Log in again, or name another --context."
        )
    if code == 403:
        return NoAccess(
            "Forbidden",
            f"{said or f'You may not do this to {kind.plural}{where}'}.".replace("..", "."),
            "Ask who runs the cluster for this right.",
        )
    if code in (400, 422):
        return Usage("Refused", said or f"The API server refused {kind.name} {name}.", "Correct it, and try again.")
    return NotReady("ApiError", f"The API server {server} answered {code}: {said or 'no reason was given'}.", "Try again.")


def _active(kubeconfig: str | None, context: str | None) -> Object:
    contexts, active = config.list_kube_config_contexts(config_file=kubeconfig)  # type: ignore[no-untyped-call]
    found: Object = active if context is None else next(one for one in contexts if one["name"] == context)
    return found


def _cause(error: BaseException) -> str:
    """The innermost reason, in one line, without the name of a Python object."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, BaseException):
        error, reason = reason, getattr(reason, "reason", None)
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rpartition(">: ")[2].rstrip(".")
