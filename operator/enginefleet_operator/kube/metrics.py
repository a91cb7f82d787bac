"""What the operator tells about itself: Prometheus metrics and probes that mean something."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from enginefleet_api.errors import EngineFleetError

from .lease import LeaderElection
from .limits import TokenBucket
from .watch import Reflector
from .workqueue import WorkQueue

STUCK_SECONDS = 60.0
SILENT_SECONDS = 300.0

Check = Callable[[], str]
"""Why it is not well; empty when it is."""


class Metrics:
    """One registry a process; `controller` is the name of a work queue (modeldeployment, hardwareclass …)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._clock = clock
        self._last_success = clock()
        self.reconciles = Histogram(
            "enginefleet_reconcile_seconds",
            "Time one reconcile took.",
            ["controller"],
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 50),
            registry=self.registry,
        )
        self.errors = Counter("enginefleet_reconcile_errors", "Reconciles that failed.", ["controller", "reason"], registry=self.registry)
        self.queue_depth = Gauge("enginefleet_queue_depth", "Keys ready for a worker.", ["controller"], registry=self.registry)
        self.requests = Counter("enginefleet_api_requests", "Requests to the API server.", ["verb", "kind", "code"], registry=self.registry)
        self.builds = Counter("enginefleet_builds", "Finished engine builds.", ["outcome"], registry=self.registry)
        since = Gauge("enginefleet_seconds_since_reconcile", "Seconds since a reconcile last succeeded.", registry=self.registry)
        since.set_function(lambda: self._clock() - self._last_success)

    def watch_queue(self, controller: str, queue: WorkQueue[Any]) -> None:
        self.queue_depth.labels(controller).set_function(lambda: len(queue))

    def watch_limits(self, **buckets: TokenBucket) -> None:
        held = Gauge(
            "enginefleet_api_held_back_seconds", "Seconds for which own limits held requests back, since the start.", ["kind"],
            registry=self.registry,
        )  # fmt: skip
        for kind, bucket in buckets.items():
            held.labels(kind).set_function(functools.partial(getattr, bucket, "waited"))

    def request(self, verb: str, kind: str, code: int) -> None:
        """An ApiClient's observer."""
        self.requests.labels(verb, kind, str(code)).inc()

    def outcome_of(self, controller: str) -> Callable[[float, BaseException | None], None]:
        """The `outcome` of workqueue.work()."""

        def outcome(seconds: float, failure: BaseException | None) -> None:
            self.reconciles.labels(controller).observe(seconds)
            if failure is None:
                self._last_success = self._clock()
            else:
                reason = failure.reason if isinstance(failure, EngineFleetError) else type(failure).__name__
                self.errors.labels(controller, reason).inc()

        return outcome


def queue_moves(controller: str, queue: WorkQueue[Any]) -> Check:
    """Nothing due waits for more than a minute without a worker taking anything."""

    def check() -> str:
        stuck = queue.stuck_for()
        return f"no worker has taken a key of {controller} for {stuck:.0f} s though {len(queue)} wait" if stuck > STUCK_SECONDS else ""

    return check


def reflector_hears(reflector: Reflector[Any]) -> Check:
    """The API server has answered this list or watch within five minutes; bookmarks come once a minute."""

    def check() -> str:
        silent = reflector.silent_for()
        if silent <= SILENT_SECONDS:
            return ""
        return f"nothing heard of {reflector.resource.plural} for {silent:.0f} s: {reflector.trouble or 'the watch is silent'}"

    return check


def reflector_synced(reflector: Reflector[Any]) -> Check:
    return lambda: "" if reflector.synced.is_set() else f"{reflector.resource.plural} not listed yet: {reflector.trouble or 'under way'}"


def lease_not_lost(lease: LeaderElection) -> Check:
    """Waiting for the lease is well; having lost it is not."""
    return lambda: f"lease lost: {lease.lost}" if lease.lost else ""


def probes(metrics: Metrics, live: Iterable[Check], ready: Iterable[Check]) -> web.Application:
    """/metrics, /healthz and /readyz; a failing probe answers 503 with the reasons, one a line."""
    live, ready = tuple(live), tuple(ready)

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    def probe(checks: Iterable[Check]) -> Callable[[web.Request], Any]:
        async def answer(_: web.Request) -> web.Response:
            reasons = [reason for check in checks if (reason := check())]
            return web.Response(text="\n".join(reasons) or "ok", status=503 if reasons else 200)

        return answer

    app = web.Application()
    app.add_routes([web.get("/metrics", show_metrics), web.get("/healthz", probe(live)), web.get("/readyz", probe(ready))])
    return app


async def serve(app: web.Application, *, host: str = "", port: int = 8080) -> web.AppRunner:
    """Start serving; `await runner.cleanup()` ends it."""
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner
