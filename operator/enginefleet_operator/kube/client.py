"""A thin client of the Kubernetes API: plain dicts in and out, server-side apply, and errors that say what happened.

No generated models: a node is parsed, projected to the few fields that decisions need, and dropped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias, TypeVar, overload

import aiohttp

from .access import Access
from .errors import AlreadyExists, ApiUnavailable, Conflict, Forbidden, Gone, NotFound, error_of
from .kinds import Resource, resource_of
from .limits import TokenBucket

FIELD_MANAGER = "enginefleet"
PAGE = 250
"""Objects a chunk of a list: 250 nodes are about 2.5 MB on the wire."""
REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=30, sock_connect=10)
MAX_POLITE_WAIT = 10.0
"""Seconds of Retry-After that a request waits for by itself; a longer wait is the caller's to plan."""

Object = dict[str, Any]
T = TypeVar("T")
Listed: TypeAlias = tuple[list[T], str]
"""Projections and the resourceVersion to watch from."""
Observer = Callable[[str, str, int], None]
"""Told of each answered request: verb, kind, HTTP status (0: no answer)."""


class ApiClient:
    """One session to one API server. `writes` counts the requests that could change something; `reads` and `writes` of the call hold them back."""

    def __init__(
        self, access: Access, *, observer: Observer | None = None, reads: TokenBucket | None = None, writes: TokenBucket | None = None
    ) -> None:
        self._access = access
        self._reads, self._writes = reads or TokenBucket(0, 0), writes or TokenBucket(0, 0)
        self._observer = observer
        self._session: aiohttp.ClientSession | None = None
        self._retired: aiohttp.ClientSession | None = None
        self._renewals = 0
        self.writes = 0

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        observer: Observer | None = None,
        reads: TokenBucket | None = None,
        writes: TokenBucket | None = None,
    ) -> Self:
        return cls(await Access.load(kubeconfig), observer=observer, reads=reads, writes=writes)

    async def close(self) -> None:
        for session in (self._session, self._retired):
            if session is not None:
                await session.close()
        self._session = self._retired = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- reading

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """The object, None when there is none."""
        try:
            return await self._call("GET", "get", resource, resource.path(namespace, name))
        except NotFound:
            return None

    @overload
    async def list(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = "", page: int = PAGE
    ) -> Listed[Object]: ...

    @overload
    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE,
        project: Callable[[Object], T],
    ) -> Listed[T]: ...

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        page: int = PAGE,
        project: Callable[[Object], Any] = lambda obj: obj,
    ) -> Listed[Any]:
        """All objects, fetched in chunks and projected chunk by chunk, and the resourceVersion to watch from.

        Items get the apiVersion and kind that the API server leaves out in lists. When the chunks expire halfway (410) it starts over
        once, then asks for everything at once: a list always ends.
        """
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        for limit in (page, page, 0):
            try:
                return await self._pages(resource, namespace, selectors, limit, project)
            except Gone:
                if not limit:
                    raise
        raise AssertionError("the last round returns or raises")

    async def _pages(
        self, resource: Resource, namespace: str, selectors: Mapping[str, str], limit: int, project: Callable[[Object], T]
    ) -> Listed[T]:
        query = {key: value for key, value in selectors.items() if value} | ({"limit": str(limit)} if limit else {})
        items: list[T] = []
        while True:
            body = await self._call("GET", "list", resource, resource.path(namespace), query=query)
            typed = ({"apiVersion": resource.api_version, "kind": resource.kind, **item} for item in body.get("items") or ())
            items.extend(map(project, typed))
            metadata = body["metadata"]
            if not metadata.get("continue"):
                return items, str(metadata["resourceVersion"])
            query["continue"] = metadata["continue"]

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        seconds: float = 300.0,
        silence: float = 120.0,
    ) -> AsyncGenerator[tuple[str, Object]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object) from that version on, until the server ends the watch after `seconds`.

        Bookmarks come about once a minute, so `silence` seconds without a byte mean a dead connection: ApiUnavailable. Raises Gone
        when the version is too old.
        """
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": resource_version, "timeoutSeconds": str(int(seconds))}
        query |= {key: value for key, value in {"labelSelector": label_selector, "fieldSelector": field_selector}.items() if value}
        limits = aiohttp.ClientTimeout(sock_connect=10, sock_read=silence)
        what = f"WATCH {resource.plural}"
        async with self._request("GET", "watch", resource, resource.path(namespace), query=query, limits=limits, what=what) as response:
            rest = b""
            # readline() of the stream refuses lines above 128 KiB; objects may have 1.5 MiB
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = _parsed(line, what)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise error_of(int(status.get("code", 500)), status, what)
                    yield event["type"], event["object"]

    # ---- writing

    async def create(self, obj: Object, *, dry_run: bool = False) -> Object:
        """Raises AlreadyExists with the object that is there."""
        resource, metadata = resource_of(obj), obj["metadata"]
        namespace = metadata.get("namespace", "")
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        try:
            return await self._call("POST", "create", resource, resource.path(namespace), query=query, body=obj)
        except Conflict as conflict:
            existing = await self.get(resource, metadata["name"], namespace) if "name" in metadata else None
            raise AlreadyExists(conflict.message, existing=existing) from conflict

    async def apply(
        self, obj: Object, *, field_manager: str = FIELD_MANAGER, force: bool = True, subresource: str = "", dry_run: bool = False
    ) -> Object:
        """Server-side apply: what `obj` names is ours, what it no longer names is removed if nobody else owns it.

        A resourceVersion or uid in its metadata is a precondition (Conflict). Without `force` a field of another manager is a Conflict too.
        """
        resource, metadata = resource_of(obj), obj["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        query = {"fieldManager": field_manager, "force": "true" if force else "false"} | ({"dryRun": "All"} if dry_run else {})
        return await self._call("PATCH", "apply", resource, path, query=query, body=obj, content_type="application/apply-patch+yaml")

    async def merge_patch(self, resource: Resource, name: str, body: Object, namespace: str = "", *, subresource: str = "") -> Object:
        """JSON merge patch (RFC 7386); `metadata.resourceVersion` or `metadata.uid` in the body is a precondition (Conflict)."""
        path = resource.path(namespace, name, subresource)
        query = {"fieldManager": FIELD_MANAGER}
        return await self._call("PATCH", "patch", resource, path, query=query, body=body, content_type="application/merge-patch+json")

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> bool:
        """False when there was nothing to delete. `uid` and `resource_version` are preconditions (Conflict)."""
        preconditions = {key: value for key, value in {"uid": uid, "resourceVersion": resource_version}.items() if value}
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if preconditions:
            body["preconditions"] = preconditions
        try:
            await self._call("DELETE", "delete", resource, resource.path(namespace, name), body=body)
        except NotFound:
            return False
        return True

    # ---- one request

    async def _call(
        self,
        method: str,
        verb: str,
        resource: Resource,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        what = f"{verb.upper()} {path.partition('/' + resource.version + '/')[2]}"
        for last in (False, False, True):
            renewals = self._renewals
            try:
                async with self._request(
                    method, verb, resource, path, query=query, body=body, content_type=content_type, limits=REQUEST_TIMEOUT, what=what
                ) as response:
                    return _parsed(await response.read(), what)
            except ApiUnavailable as error:
                # a server that names a time has refused before doing anything, so even a create may be sent again
                if last or error.retry_after is None or error.retry_after > MAX_POLITE_WAIT:
                    raise
                await asyncio.sleep(error.retry_after)
            except Forbidden as error:
                if last or error.code != 401:
                    raise
                await self._renew(renewals)
        raise AssertionError("the last round returns or raises")

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        verb: str,
        resource: Resource,
        path: str,
        *,
        limits: aiohttp.ClientTimeout,
        what: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = self._access.session()
        await (self._reads if method == "GET" else self._writes).take()
        if method != "GET":
            self.writes += 1
        headers = self._access.headers() | ({"Content-Type": content_type} if body is not None else {})
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        code, renewals = 0, self._renewals
        try:
            async with self._session.request(
                method, self._access.server + path, params=query, data=data, headers=headers, timeout=limits,
                server_hostname=self._access.configuration.tls_server_name,
            ) as response:  # fmt: skip
                code = response.status
                if code >= 400:
                    raise error_of(code, _status(await response.read()), what, _retry_after(response))
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            await self._renew(renewals)
            raise ApiUnavailable(f"{what}: the API server's certificate is not signed by the known CA: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnavailable(f"{what}: no answer from {self._access.server}: {error!r}") from error
        finally:
            if self._observer is not None:
                self._observer(verb, resource.kind, code)

    async def _renew(self, seen: int) -> None:
        """Take up new credentials, unless somebody did since `seen` renewals: an expired token fails many requests at a time.

        Requests and watches under way end on the session that they began on; it is closed at the renewal after this one.
        """
        if seen == self._renewals:
            self._renewals += 1
            await self._access.reload()
            over, self._retired, self._session = self._retired, self._session, None
            if over is not None:
                await over.close()


def _parsed(body: bytes, what: str) -> Object:
    try:
        parsed: Object = json.loads(body)
    except ValueError as error:
        raise ApiUnavailable(f"{what}: the answer is not JSON: {body[:100]!r}") from error
    return parsed


def _status(body: bytes) -> Object:
    """The `Status` of an error answer; a proxy's HTML or text becomes its message."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    return status if isinstance(status, dict) else {"message": body[:300].decode(errors="replace")}


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Seconds of a Retry-After header; the API server sends whole seconds, never a date."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else None
