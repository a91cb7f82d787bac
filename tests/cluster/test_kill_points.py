"""The operator is killed after its 1st, 2nd, 3rd … write of one whole flow and started again: the end is always the same."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

import pytest
import yaml

from .fleet import Fleet, Site, everywhere, phase, served_by, standing, template
from .killer import KillProxy

SWEEP = range(1, 31, 1 if os.environ.get("ENGINEFLEET_SWEEP") else 9)
PREFIX = "kill-points"
"""One place for the engines of all these tests: what is looked at here is the operator, not the compiler."""
END = {"workloads": 1, "pods": ["node-b1"], "ready": "True", "rollout": "1/1"}


def live_build_pods(site: Site) -> dict[str, int]:
    """Pods that are not finished, by the EngineBuild that they work on: never two for one key."""
    found: dict[str, int] = {}
    for pod in site.fleet.world.all("pod", site.namespace, role="build"):
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            key = pod["metadata"]["labels"]["enginefleet.io/engine-build"]
            found[key] = found.get(key, 0) + 1
    return found


def done(site: Site) -> bool:
    assert max(live_build_pods(site).values(), default=0) <= 1
    return site.settled() is not None and len(site.pods()) == 1


def check_end(site: Site) -> None:
    """One EngineBuild, one Job a purpose (no attempt was done twice), one workload, one serving pod."""
    assert {k: v for k, v in site.end_state().items() if k != "builds"} == END
    assert [phase(b) for b in site.builds()] == ["Passed"]
    assert sorted(j["metadata"]["labels"]["enginefleet.io/role"] for j in site.jobs()) == ["build", "prepare"]


def test_a_write_that_was_on_its_way_when_its_life_ended_is_not_counted_for_the_next(proxied: tuple[Fleet, KillProxy]) -> None:
    fleet, proxy = proxied
    token = yaml.safe_load(fleet.operator.kubeconfig.read_text())["users"][0]["user"]["token"]
    killed: list[str] = []
    ask = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    }
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def write(connection: http.client.HTTPConnection) -> int:
        connection.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", json.dumps(ask), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    address = urlsplit(proxy.url)
    with (
        closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)) as first,
        closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)) as second,
    ):
        proxy.arm(2, lambda: killed.append("first"))
        assert write(first) == 201
        proxy.arm(1, lambda: killed.append("second"))
        assert write(first) == 201
        assert (killed, proxy.writes) == ([], [])
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            write(second)
    assert killed == ["second"]


def test_killed_after_each_single_write_the_flow_still_ends_the_same(proxied: tuple[Fleet, KillProxy]) -> None:
    """No life of the operator gets further than one write, from the first apply to the serving pod."""
    fleet, proxy = proxied
    site = Site(fleet, nodes="cpu-b", prefix=PREFIX)
    try:
        site.apply_all()
        writes = short_lives(fleet, proxy, 1, lambda: done(site))
        check_end(site)
        assert len(writes) > 10, f"a whole flow takes more writes than {writes}"
    finally:
        fleet.operator.kill()
        site.close()


def test_killed_again_and_again_a_broken_update_goes_back_and_a_good_one_arrives(proxied: tuple[Fleet, KillProxy]) -> None:
    """Lives of one write each with ENGINEFLEET_SWEEP=1; of a few otherwise."""
    fleet, proxy = proxied
    site, each = Site(fleet, nodes="cpu-a", prefix=PREFIX), 1 if os.environ.get("ENGINEFLEET_SWEEP") else 4
    least = [2]

    def serving(release: str) -> bool:
        least.append(len(served_by(site)))
        return everywhere(site, release)

    try:
        site.apply_all()
        proxy.arm(0, lambda: None)
        fleet.operator.start()
        site.wait_ready()
        fleet.operator.kill()
        good, before = standing(site)["release"], {p["spec"]["nodeName"]: p["metadata"]["uid"] for p in site.pods()}

        fleet.apply(site.mdep(serving=template("enginefleet/runtime:ort-1.23")))
        writes = short_lives(
            fleet, proxy, each, lambda: serving(good) and site.condition("Stalled").get("reason") == "RolledBack" and is_current(site)
        )
        assert len(writes) >= 8, writes
        assert standing(site)["refused"]["reason"] == "CanaryFailed"
        after = {p["spec"]["nodeName"]: p["metadata"]["uid"] for p in site.pods()}
        assert sum(after[node] == uid for node, uid in before.items()) == 1, (
            "one node had the broken pod, the other one's was never touched"
        )

        fleet.apply(site.mdep(serving=template("enginefleet/runtime:ort-1.24", "second")))
        short_lives(fleet, proxy, each, lambda: site.settled() is not None and standing(site)["stableRelease"] not in ("", good))
        assert serving(standing(site)["stableRelease"])
        assert min(least) >= 1, "a node served all the time"
        assert [phase(b) for b in site.builds()] == ["Passed"]
        assert sorted(j["metadata"]["labels"]["enginefleet.io/role"] for j in site.jobs()) == ["build", "prepare"]
    finally:
        fleet.operator.kill()
        site.close()


def is_current(site: Site) -> bool:
    found = site.get() or {}
    return bool(found.get("status", {}).get("observedGeneration") == found.get("metadata", {}).get("generation"))


def short_lives(fleet: Fleet, proxy: KillProxy, each: int, finished: Callable[[], bool]) -> list[str]:
    """The operator is killed after every `each` writes and started again until `finished`; the writes of lives that were ended."""
    writes: list[str] = []
    while not finished():
        proxy.arm(each, lambda: os.kill(fleet.operator.pid, signal.SIGKILL))
        fleet.operator.start()
        fleet.wait("the operator is killed after its next writes, or all is done", lambda: not fleet.operator.alive() or finished())
        writes += proxy.writes
        fleet.operator.kill()
        assert len(writes) < 200, f"it does not get anywhere: {writes[-10:]}"
    return writes


@pytest.mark.parametrize("kill_after", SWEEP)
def test_killed_after_its_nth_write_a_second_life_finishes(proxied: tuple[Fleet, KillProxy], kill_after: int) -> None:
    """Every n with ENGINEFLEET_SWEEP=1; some of them otherwise."""
    fleet, proxy = proxied
    site = Site(fleet, nodes="cpu-b", prefix=PREFIX)
    try:
        proxy.arm(kill_after, lambda: os.kill(fleet.operator.pid, signal.SIGKILL))
        site.apply_all()
        fleet.operator.start()
        fleet.wait(f"the operator is killed after write {kill_after}, or all is done", lambda: not fleet.operator.alive() or done(site))
        if not fleet.operator.alive():
            fleet.operator.kill()
            proxy.arm(0, lambda: None)
            fleet.operator.start()
            fleet.wait("the second life finishes", lambda: done(site))
        assert fleet.operator.alive()
        check_end(site)
    finally:
        fleet.operator.kill()
        site.close()
