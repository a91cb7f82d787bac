"""`make bench`: measures the chain on a local cluster and writes docs/benchmarks/chain.json. What was not measured is not written."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import fetch
from demo.site import EXAMPLE, MANIFESTS, NAMESPACE, SYSTEM, Site, local_site
from demo.world import World, is_ready_pod, is_settled
from localcluster import S3Server

RESULT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks" / "chain.json"
MODEL = "digits"
FILES = ("model.onnx", "validation.npz", "calibration.npz")
STEADY_SECONDS = 90.0


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What it was measured on."""
    cpu = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        "unknown",
    )
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.split()[1]) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


class Chain:
    """Measurements that need a cluster, in the order in which they build on each other."""

    def __init__(self, site: Site, world: World) -> None:
        self.site, self.world = site, world

    def apply_to_serving(self) -> float:
        """Seconds from `kubectl apply` of store, classes and model to Ready on all three nodes; images and operator are there already."""
        began = time.monotonic()
        self._apply()
        self.world.wait(f"{MODEL} is Ready", lambda: is_settled(self.world.one("mdep", MODEL, NAMESPACE)), 300)
        return round(time.monotonic() - began, 1)

    def reapply(self) -> dict[str, Any]:
        """The same manifests again: how many Jobs and writes that causes within the ten seconds after, and how long kubectl takes."""
        self.world.quiet(5.0, lambda: "")  # the last event of the rollout is still on its way when Ready is seen
        jobs, since = self._jobs(), datetime.now(UTC)
        began = time.monotonic()
        self._apply()
        seconds = time.monotonic() - began
        self.world.quiet(10.0, lambda: "")
        writes = self.site.writes(since) or []
        for write in writes:
            say(f"a write after applying again: {write}")
        return {"jobs": len(self._jobs() - jobs), "writes": len(writes), "seconds": round(seconds, 2)}

    def steady(self) -> dict[str, Any]:
        """Writes of operator and agent while nothing changes; renewals of the operator's Lease apart."""
        since = datetime.now(UTC)
        self.world.quiet(STEADY_SECONDS, lambda: "")
        writes = self.site.writes(since) or []
        assert self.site.cluster is not None
        leases = sum(
            event.is_write and event.received >= since and event.resource == "leases" and event.namespace == SYSTEM
            for event in self.site.cluster.audit_events()
        )
        per_minute = 60.0 / STEADY_SECONDS
        return {"writes_per_minute": round(len(writes) * per_minute, 2), "lease_renewals_per_minute": round(leases * per_minute, 1)}

    def operator(self) -> dict[str, Any]:
        """Resident memory after the work above, and seconds from SIGKILL to a ready operator again."""
        rss = _rss_mb(self.site.operator_pids())
        before = self._instance()
        began = time.monotonic()
        self.site.kill_operator()
        self.world.wait("the operator is ready again", lambda: self._instance() not in ("", before), 120)
        return {"rss_mb": rss, "start_seconds": round(time.monotonic() - began, 1)}

    def _apply(self) -> None:
        for path in sorted(MANIFESTS.glob("[123]*.yaml")):
            self.site.apply(path)

    def _jobs(self) -> set[str]:
        return {str(job["metadata"]["uid"]) for job in self.world.all("job")}

    def _instance(self) -> str:
        for pod in self.world.all("pod", SYSTEM):
            if "operator" in pod["metadata"]["name"] and is_ready_pod(pod):
                return f"{pod['metadata']['uid']} {[c.get('restartCount') for c in pod['status']['containerStatuses']]}"
        return ""


def _rss_mb(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        total += next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return round(total / 1024, 1)


def measure_chain(results: dict[str, Any]) -> None:
    with local_site(say, keep=False) as site:
        site.install()
        site.upload(EXAMPLE, FILES)
        site.namespace_and_secret()
        with World(site.kube) as world:
            world.wait("operator and agent are ready", lambda: _ready(world), 120)
            chain = Chain(site, world)
            steps: Mapping[str, Callable[[], Any]] = {
                "apply_to_serving_seconds": chain.apply_to_serving,
                "reapply": chain.reapply,
                "steady": chain.steady,
                "operator": chain.operator,
            }
            for name, step in steps.items():
                results[name] = step()
                say(f"{name}: {results[name]}")


def _ready(world: World) -> bool:
    return sum(is_ready_pod(pod) for pod in world.all("pod", SYSTEM)) >= 4


def measure_fetch(results: dict[str, Any]) -> None:
    with S3Server(progress=say) as server:
        results["fetch"] = fetch.compare(server.endpoint, server.access_key, server.secret_key)
    say(f"fetch: {results['fetch']}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", choices=("chain", "fetch"), help="measure a part; the other part's last results are kept")
    options = parser.parse_args(argv)
    results: dict[str, Any] = {}
    if options.only and RESULT.exists():
        results = json.loads(RESULT.read_text())
    results |= {"measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "machine": machine()}
    if options.only != "fetch":
        measure_chain(results)
    if options.only != "chain":
        measure_fetch(results)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    say(f"written: {RESULT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
