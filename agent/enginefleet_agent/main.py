"""The agent's loop: look at the host once a minute, or at once when the NodeFingerprint was touched, and sleep otherwise."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from . import cache
from .api import Api, ApiFault
from .facts import observe
from .reporter import Reporter, backoff

logger = logging.getLogger("enginefleet_agent")

ROUND_SECONDS = 60.0
QUIET_SECONDS = 1.0
"""Between two rounds at least: somebody who rewrites the object in a loop must not make us do the same."""
ALIVE_SECONDS = 300.0
RELEASE_PREFIX = "release.enginefleet.io/"
"""Node labels `…: <release>-<first 8 hex digits of the engine's digest>`, set by the operator (its labels.py)."""


def run(options: argparse.Namespace) -> None:
    """Until SIGTERM."""
    stop, wake = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        stop.set()
        wake.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    api = Api(options.server, options.port, options.credentials)
    reporter = Reporter(api, options.node, wake)
    threading.Thread(target=reporter.listen, name="watch", daemon=True).start()
    failures = 0
    while not stop.is_set():
        wake.clear()
        pause = ROUND_SECONDS
        try:
            reporter.sync(observe(options.host_root))
            failures = 0
        except ApiFault as fault:
            pause = backoff(failures)
            failures += 1
            logger.warning("%s; again in %.0f s", fault, pause)
        tidy(options.cache, int(options.cache_limit_gib * 2**30), api, options.node)
        beat(options.heartbeat)
        stop.wait(QUIET_SECONDS)
        # a failure waits for its time even when the watch has news, which it then sees too
        (stop if failures else wake).wait(pause)


def tidy(folder: Path | None, limit: int, api: Api, node: str) -> None:
    """Keep the cache in bounds; a full or broken disk is logged and does not keep the agent from reporting."""
    if folder is None:
        return
    try:
        blobs = cache.prepare(folder)
        for entry in cache.prune(blobs, limit, lambda: pinned(api.node_labels(node) or {})):
            logger.info("removed %s (%d bytes) from the cache", entry.path.name, entry.size)
    except ApiFault as fault:
        logger.warning("the cache is above its limit and is not pruned while it is unknown what serves here: %s", fault)
    except OSError as error:
        logger.warning("cache %s: %s", folder, error)


def pinned(labels: dict[str, str]) -> set[str]:
    """Beginnings of the digests of engines that releases pin to this node."""
    values = (value for key, value in labels.items() if key.startswith(RELEASE_PREFIX))
    return {value.rpartition("-")[2] for value in values if "-" in value}


def beat(path: Path) -> None:
    """Leave the time of this round, by the clock that all processes share and nobody sets."""
    path.write_text(f"{time.monotonic():.0f}\n")


def is_alive(path: Path) -> bool:
    try:
        return time.monotonic() - float(path.read_text()) < ALIVE_SECONDS
    except (OSError, ValueError):
        return False


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="enginefleet-agent", description="EngineFleet's node agent.")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME"), help="name of this node [NODE_NAME]")
    parser.add_argument(
        "--host-root", type=Path, default=os.environ.get("ENGINEFLEET_HOST_ROOT", "/host"), help="folder with the host's fact files"
    )
    parser.add_argument(
        "--cache", type=Path, default=os.environ.get("ENGINEFLEET_CACHE_PATH"), help="folder of the engine cache; none: no cache"
    )
    parser.add_argument("--cache-limit-gib", type=float, default=os.environ.get("ENGINEFLEET_CACHE_LIMIT_GIB", "20"))
    parser.add_argument("--heartbeat", type=Path, default=os.environ.get("ENGINEFLEET_HEARTBEAT", "/run/enginefleet/heartbeat"))
    parser.add_argument("--server", default=os.environ.get("KUBERNETES_SERVICE_HOST"), help="host of the API server")
    parser.add_argument("--port", type=int, default=os.environ.get("KUBERNETES_SERVICE_PORT", "443"))
    parser.add_argument(
        "--credentials", type=Path, default="/var/run/secrets/kubernetes.io/serviceaccount", help="folder with token and ca.crt"
    )
    parser.add_argument("--alive", action="store_true", help="exit 0 when the running agent's heartbeat is recent: a liveness probe")
    options = parser.parse_args(arguments)
    if not options.alive and not (options.node and options.server):
        parser.error(
            "the node's name and the API server are needed: set NODE_NAME (downward API, spec.nodeName) and run in a pod, or pass --node and --server"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(sys.argv[1:] if arguments is None else arguments)
    if options.alive:
        raise SystemExit(0 if is_alive(options.heartbeat) else 1)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    run(options)


if __name__ == "__main__":
    main()
