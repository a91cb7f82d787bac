"""The API client against a server that misbehaves in the ways that API servers and the proxies before them do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from enginefleet_operator.kube.client import ApiClient
from enginefleet_operator.kube.errors import ApiUnavailable, Conflict, Gone
from enginefleet_operator.kube.kinds import LEASES
from tests.kube.conftest import lease_object

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(handler: Handler, folder: Path) -> AsyncIterator[ApiClient]:
    """A client of a server that answers everything with `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    kubeconfig = folder / "kubeconfig"
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}], "users": [{"name": "u", "user": {"token": "t"}}],
    }  # fmt: skip
    kubeconfig.write_text(json.dumps(content))
    try:
        async with await ApiClient.connect(str(kubeconfig)) as client:
            yield client
    finally:
        await runner.cleanup()


def status(code: int, message: str = "", headers: dict[str, str] | None = None, reason: str = "") -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message, "reason": reason}, status=code, headers=headers)


def test_too_many_requests_waits_as_long_as_it_is_told_and_sends_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        answers = [status(429, headers={"Retry-After": "1"}), web.json_response({"metadata": {"uid": "u"}}, status=201)]

        async def handler(_: web.Request) -> web.Response:
            return answers.pop(0)

        async with served(handler, tmp_path) as client:
            began = time.monotonic()
            assert (await client.create(lease_object("a")))["metadata"]["uid"] == "u"
            assert 1 <= time.monotonic() - began < 3

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answer", "retry_after"),
    [
        pytest.param(lambda: status(500, "etcdserver: request timed out"), None, id="an error without a time is for the caller"),
        pytest.param(lambda: status(429, headers={"Retry-After": "90"}), 90.0, id="a long wait is for the caller too"),
        pytest.param(
            lambda: web.Response(status=502, text="<html>Bad gateway</html>", content_type="text/html"), None, id="a proxy's page"
        ),
        pytest.param(lambda: web.Response(text="<html>Log in</html>"), None, id="a page that says 200"),
    ],
)
def test_unavailable_says_how_long(answer: Callable[[], web.Response], retry_after: float | None, tmp_path: Path) -> None:
    async def scenario() -> None:
        asked: list[str] = []

        async def handler(request: web.Request) -> web.Response:
            asked.append(request.method)
            return answer()

        async with served(handler, tmp_path) as client:
            with pytest.raises(ApiUnavailable) as failed:
                await client.create(lease_object("a"))
            assert failed.value.retry_after == retry_after
            assert asked == ["POST"]

    asyncio.run(scenario())


def test_a_body_cut_off_halfway_is_unavailable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"metadata": ')
            assert request.transport is not None
            request.transport.close()
            return response

        async with served(handler, tmp_path) as client:
            with pytest.raises(ApiUnavailable):
                await client.get(LEASES, "a", "default")

    asyncio.run(scenario())


def test_a_list_whose_chunks_expire_starts_over_and_at_last_asks_for_everything(tmp_path: Path) -> None:
    async def scenario() -> None:
        asked: list[tuple[str, str]] = []

        async def handler(request: web.Request) -> web.Response:
            limit, token = request.query.get("limit", ""), request.query.get("continue", "")
            asked.append((limit, token))
            if token:
                return status(410, reason="Expired")
            metadata: dict[str, Any] = {"resourceVersion": "7"} | ({"continue": "more"} if limit else {})
            items = [{"metadata": {"name": name}} for name in ("a", "b", "c")[: int(limit or 3)]]
            return web.json_response({"metadata": metadata, "items": items})

        async with served(handler, tmp_path) as client:
            names, version = await client.list(LEASES, page=2, project=lambda obj: str(obj["metadata"]["name"]))
            assert (names, version) == (["a", "b", "c"], "7")
            assert asked == [("2", ""), ("2", "more"), ("2", ""), ("2", "more"), ("", "")]

    asyncio.run(scenario())


def test_watch_lines_of_any_size_and_cut_anywhere_are_whole_events_and_an_error_event_is_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        large = {"type": "ADDED", "object": {"metadata": {"name": "x" * 700_000}}}
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
        stream = "".join(json.dumps(event) + "\n" for event in (large, {"type": "BOOKMARK", "object": {}}, gone)).encode()

        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for start in range(0, len(stream), 99_991):
                await response.write(stream[start : start + 99_991])
            return response

        async with served(handler, tmp_path) as client:
            seen = []

            async def follow() -> None:
                async for kind, obj in client.watch(LEASES, "1"):
                    seen.append((kind, len(obj.get("metadata", {}).get("name", ""))))

            with pytest.raises(Gone):
                await follow()
            assert seen == [("ADDED", 700_000), ("BOOKMARK", 0)]

    asyncio.run(scenario())


def test_a_watch_on_a_dead_connection_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        release = asyncio.Event()

        async def handler(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await release.wait()
            return response

        async with served(handler, tmp_path) as client:
            with pytest.raises(ApiUnavailable):
                async for _ in client.watch(LEASES, "1", silence=0.2):
                    pass
            release.set()

    asyncio.run(scenario())


def test_a_refused_token_is_read_again_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        tokens: list[str] = []

        async def handler(request: web.Request) -> web.Response:
            tokens.append(request.headers["Authorization"])
            return web.json_response({"metadata": {}}) if tokens[-1] == "Bearer new" else status(401)

        async with served(handler, tmp_path) as client:
            path = tmp_path / "kubeconfig"
            path.write_text(path.read_text().replace('"token": "t"', '"token": "new"'))
            assert await client.get(LEASES, "a", "default") == {"metadata": {}}
            assert tokens == ["Bearer t", "Bearer new"]

    asyncio.run(scenario())


def test_a_conflict_on_create_whose_object_vanished_meanwhile_has_no_object(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def handler(request: web.Request) -> web.Response:
            return status(409, reason="AlreadyExists") if request.method == "POST" else status(404)

        async with served(handler, tmp_path) as client:
            with pytest.raises(Conflict) as refused:
                await client.create(lease_object("a"))
            assert getattr(refused.value, "uid", None) == ""

    asyncio.run(scenario())


def test_many_requests_that_find_the_token_expired_all_succeed_after_one_renewal(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def handler(request: web.Request) -> web.Response:
            return web.json_response({"metadata": {}}) if request.headers["Authorization"] == "Bearer new" else status(401)

        async with served(handler, tmp_path) as client:
            path = tmp_path / "kubeconfig"
            path.write_text(path.read_text().replace('"token": "t"', '"token": "new"'))
            names = [f"a-{number}" for number in range(20)]
            assert await asyncio.gather(*(client.get(LEASES, name, "default") for name in names)) == [{"metadata": {}}] * 20
            assert client._renewals == 1

    asyncio.run(scenario())
