"""The store and the API server fail in the middle of a rollout: what serves goes on serving, and it ends by itself."""

from __future__ import annotations

from typing import Any

from .fleet import Fleet, Site, everywhere, served_by, standing, template
from .killer import KillProxy

INT8: dict[str, Any] = {"precision": "int8", "calibration": {"uri": "s3://models/mnist/calibration.npz"}}


def _preloads(site: Site) -> list[str]:
    return [j["metadata"]["name"] for j in site.jobs("preload")]


def test_a_store_that_goes_away_before_the_canary_costs_no_pod_and_no_hand(fleet: Fleet, site: Site) -> None:
    """The engine of another precision is proven; then the store is down, and the rollout is let go."""
    site.apply_all()
    site.wait_ready()
    old = standing(site)["release"]
    pods = {p["metadata"]["uid"] for p in site.pods()}
    fleet.apply(site.mdep(paused=True, **INT8))
    fleet.wait("the other engine passed", lambda: _proven(site))
    fleet.cluster.stop_s3()
    try:
        fleet.apply(site.mdep(**INT8))
        told = fleet.wait(
            "it is said what the rollout waits for", lambda: m if "StoreUnavailable" in (m := site.condition("Ready")["message"]) else ""
        )
        assert "is brought to node-a" in told
        fleet.operator.restart()
        fleet.calm(site)
        assert {p["metadata"]["uid"] for p in site.pods()} == pods
        assert everywhere(site, old)
        assert not [n for n in fleet.world.all("node") if "draining" in str(n["metadata"]["labels"])]
        assert "refused" not in standing(site)
    finally:
        fleet.cluster.restart_s3()
    least = [2]

    def done() -> bool:
        least.append(len(served_by(site)))
        return standing(site)["release"] != old and everywhere(site, standing(site)["release"])

    fleet.wait("the other engine is served", done)
    assert min(least) >= 1
    site.wait_ready()
    fleet.wait("no Job of loading is left", lambda: not _preloads(site))


def _proven(site: Site) -> bool:
    return len(site.builds()) == 2 and all(b.get("status", {}).get("phase") == "Passed" for b in site.builds())


def test_an_api_server_that_fails_every_fifth_time_only_makes_it_slower(proxied: tuple[Fleet, KillProxy]) -> None:
    """From the first apply over a good update to one whose canary fails: requests are refused, put off, or done with the answer lost."""
    fleet, proxy = proxied
    site = Site(fleet, prefix="faults")
    least = [2]

    def serving(release: str) -> bool:
        least.append(len(served_by(site)))
        return everywhere(site, release)

    try:
        site.apply_all()
        proxy.faulty = 5
        fleet.operator.start()
        site.wait_ready()
        first = standing(site)["release"]
        fleet.apply(site.mdep(**INT8))
        fleet.wait("the other engine is served", lambda: (r := standing(site)["release"]) != first and serving(r) and site.settled())
        second = standing(site)["release"]
        fleet.wait("it is one to go back to", lambda: standing(site)["history"][:1] == [second])
        fleet.apply(site.mdep(serving=template("enginefleet/runtime:ort-1.23"), **INT8))
        fleet.wait("the bad update is taken back", lambda: serving(second) and standing(site).get("refused"))
        assert standing(site)["refused"]["reason"] == "CanaryFailed"
        site.wait_reason("RolledBack", "Stalled")
        assert min(least) >= 1, "a node served all the time"
        assert set(proxy.faults) == {"503", "429", "answer lost"}
        roles = sorted(j["metadata"]["labels"]["enginefleet.io/role"] for j in site.jobs())
        assert roles == ["build", "build", "prepare", "prepare"], "nothing was done twice"
    finally:
        fleet.operator.kill()
        site.close()
