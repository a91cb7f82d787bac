"""Metrics and probes: what they say, and when a probe fails."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from enginefleet_api.errors import TransientFault
from enginefleet_operator.kube import metrics as metrics_
from enginefleet_operator.kube.metrics import Metrics, probes, queue_moves, serve
from enginefleet_operator.kube.workqueue import WorkQueue


async def ask(app: web.Application, path: str) -> tuple[int, str]:
    runner = await serve(app, host="127.0.0.1", port=0)
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as response:
            return response.status, await response.text()
    finally:
        await runner.cleanup()


def test_a_probe_that_fails_names_every_reason() -> None:
    app = probes(Metrics(), [lambda: "", lambda: "the first", lambda: "the second"], [lambda: ""])
    assert asyncio.run(ask(app, "/healthz")) == (503, "the first\nthe second")
    app = probes(Metrics(), [lambda: "bad"], [lambda: ""])
    assert asyncio.run(ask(app, "/readyz")) == (200, "ok")


def test_a_queue_that_nobody_works_on_fails_after_a_minute() -> None:
    now = 0.0
    queue: WorkQueue[str] = WorkQueue(clock=lambda: now)
    queue.add("a")
    check = queue_moves("modeldeployment", queue)
    now = metrics_.STUCK_SECONDS
    assert check() == ""
    now += 1
    assert check() == "no worker has taken a key of modeldeployment for 61 s though 1 wait"


def test_what_happened_is_in_the_metrics() -> None:
    now = 0.0
    metrics = Metrics(clock=lambda: now)
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    metrics.watch_queue("modeldeployment", queue)
    outcome = metrics.outcome_of("modeldeployment")
    outcome(0.01, None)
    outcome(3.0, TransientFault("StoreDown", "no answer"))
    outcome(3.0, ValueError())
    metrics.request("apply", "Node", 200)
    metrics.builds.labels("Passed").inc()
    now = 5.0
    code, text = asyncio.run(ask(probes(metrics, [], []), "/metrics"))
    assert code == 200
    lines = set(text.splitlines())
    assert lines >= {
        'enginefleet_reconcile_seconds_count{controller="modeldeployment"} 3.0',
        'enginefleet_reconcile_errors_total{controller="modeldeployment",reason="StoreDown"} 1.0',
        'enginefleet_reconcile_errors_total{controller="modeldeployment",reason="ValueError"} 1.0',
        'enginefleet_api_requests_total{code="200",kind="Node",verb="apply"} 1.0',
        'enginefleet_builds_total{outcome="Passed"} 1.0',
        'enginefleet_queue_depth{controller="modeldeployment"} 1.0',
        "enginefleet_seconds_since_reconcile 5.0",
    }


@pytest.mark.parametrize("path", ["/", "/debug"])
def test_nothing_else_is_served(path: str) -> None:
    assert asyncio.run(ask(probes(Metrics(), [], []), path))[0] == 404
