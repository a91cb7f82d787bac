"""The operator is killed after its 1st, 2nd, 3rd … write of one whole flow and started again: the end is always the same."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .fleet import Fleet, OperatorProcess, Site, token_kubeconfig
from .killer import KillProxy

END = {"workloads": 1, "pods": ["node-b1"], "ready": "True", "rollout": "1/1"}


@pytest.fixture
def proxied(cluster_fleet: Fleet, tmp_path: Path) -> Iterator[tuple[Fleet, KillProxy]]:
    """The fleet with an operator behind the proxy, not started yet."""
    fleet = cluster_fleet
    fleet.operator.kill()
    config = yaml.safe_load(fleet.cluster.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    ca = tmp_path / "ca.crt"
    if "certificate-authority-data" in cluster:
        ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        ca = Path(cluster["certificate-authority"])
    with KillProxy(cluster["server"], str(ca)) as proxy:
        path = token_kubeconfig(fleet.cluster, fleet.kube, tmp_path / "proxied.kubeconfig", proxy.url)
        usual, fleet.operator = fleet.operator, OperatorProcess(path, fleet.operator.log)
        try:
            yield fleet, proxy
        finally:
            fleet.operator.kill()
            fleet.operator = usual


class Duplicates:
    """Watches Jobs from the audit log's view of the world: at no time may two live pods work on one EngineBuild."""

    def __init__(self, fleet: Fleet, site: Site) -> None:
        self.fleet, self.site = fleet, site

    def live(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for pod in self.fleet.world.all("pod", self.site.namespace, role="build"):
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                key = pod["metadata"]["labels"]["enginefleet.io/engine-build"]
                found[key] = found.get(key, 0) + 1
        return found


def _kill(fleet: Fleet) -> None:
    os.kill(fleet.operator.pid, signal.SIGKILL)


def test_killed_after_every_write_the_flow_still_ends_the_same(proxied: tuple[Fleet, KillProxy]) -> None:
    """Sweep: run n lets the operator do n writes and kills it; the restarted one finishes. Ends with the first run that needs fewer writes."""
    fleet, proxy = proxied
    total = 0
    for kill_after in range(1, 60):
        site = Site(fleet, nodes="cpu-b")
        duplicates = Duplicates(fleet, site)
        proxy.arm(kill_after, lambda: _kill(fleet))
        site.apply_all()
        fleet.operator.start()
        try:

            def killed_or_done(site: Site = site, duplicates: Duplicates = duplicates) -> bool:
                assert max(duplicates.live().values(), default=0) <= 1
                return not fleet.operator.alive() or (site.settled() is not None and len(site.pods()) == 1)

            fleet.wait(f"the operator is killed after write {kill_after}, or all is done", killed_or_done, 90)
            was_killed = not fleet.operator.alive()
            if was_killed:
                fleet.operator.kill()
                proxy.arm(0, lambda: None)
                fleet.operator.start()
                fleet.wait("the restarted operator finishes", killed_or_done, 90)
            assert {k: v for k, v in site.end_state().items() if k != "builds"} == END
            assert len(site.builds()) == 1
            assert [b["status"]["phase"] for b in site.builds()] == ["Passed"]
            # one Job a purpose: no attempt was done twice
            assert sorted(j["metadata"]["labels"]["enginefleet.io/role"] for j in site.jobs()) == ["build", "prepare"]
        finally:
            fleet.operator.kill()
            site.close()
        if not was_killed:
            total = kill_after
            break
    assert total > 10, "a whole flow takes more writes than that: the proxy does not count"
