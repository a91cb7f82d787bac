"""Updates of a site that serves: a canary that fails is taken back, a rollout is taken back by annotation, an operator dies on the way."""

from __future__ import annotations

from typing import Any

from .fleet import Fleet, Site, everywhere, ready, served_by, standing, template


def test_no_node_is_drained_for_a_pod_that_would_not_fit(fleet: Fleet, served: Site) -> None:
    site = served
    before = {p["metadata"]["uid"] for p in site.pods()}
    large = template("enginefleet/runtime:ort-1.24")
    large["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1000"}}
    fleet.apply(site.mdep(serving=large))
    told = site.wait_reason("PodDoesNotFit")
    assert "asks for 1000 cpu" in told["message"]
    fleet.calm(site)
    assert {p["metadata"]["uid"] for p in site.pods() if ready(p)} == before
    assert not [n for n in fleet.world.all("node") if "draining" in str(n["metadata"]["labels"])]
    fleet.apply(site.mdep())
    site.wait_ready()
    assert {p["metadata"]["uid"] for p in site.pods()} == before


def test_a_canary_with_another_runtime_is_refused_and_taken_back_by_itself(fleet: Fleet, served: Site) -> None:
    """The operator is killed right after it has written down that the release is refused."""
    site = served
    good = standing(site)["release"]
    names = {p["spec"]["nodeName"]: p["metadata"]["uid"] for p in site.pods()}
    fleet.apply(site.mdep(serving=template("enginefleet/runtime:ort-1.23")))
    least: list[int] = []

    def refused() -> dict[str, Any] | None:
        least.append(len(served_by(site)))
        return standing(site).get("refused")

    told = fleet.wait("the release is refused", refused)
    fleet.operator.restart()
    assert told["reason"] == "CanaryFailed"
    assert "RuntimeMismatch" in told["message"]
    assert "1.24" in told["message"]
    assert "1.23" in told["message"]

    def back() -> bool:
        least.append(len(served_by(site)))
        return everywhere(site, good)

    fleet.wait("both nodes serve what they served before", back)
    assert min(least) >= 1, "one node served all the time"
    after = {p["spec"]["nodeName"]: p["metadata"]["uid"] for p in site.pods()}
    assert sum(after[node] == names[node] for node in names) == 1, "the other node's pod was never touched"
    assert site.wait_reason("RolledBack", "Stalled")["status"] == "True"
    fleet.calm(site)
    assert "2 of 2 nodes are back" in site.condition("Ready")["message"]


def test_what_was_refused_is_not_tried_again_by_a_restarted_operator(fleet: Fleet, served: Site) -> None:
    site = served
    fleet.calm(site)
    before = site.versions()
    fleet.operator.restart()
    fleet.quiet(site)
    assert site.versions() == before


def test_a_release_that_is_right_replaces_it_node_by_node(fleet: Fleet, served: Site) -> None:
    site = served
    good = standing(site)["stableRelease"]
    fleet.apply(site.mdep(serving=template("enginefleet/runtime:ort-1.24", "second")))
    least: list[int] = []

    def done() -> bool:
        least.append(len(served_by(site)))
        return site.settled() is not None

    fleet.wait("the second release serves", done)
    assert min(least) >= 1
    assert everywhere(site, standing(site)["release"])
    fleet.wait(
        "it has been ready for long enough to go back to", lambda: standing(site)["history"] == [standing(site)["release"], good], 30
    )
    assert "refused" not in standing(site)


def test_abort_takes_it_back_from_what_is_kept_without_a_build(fleet: Fleet, served: Site) -> None:
    site = served
    second, good = standing(site)["history"]
    jobs = {j["metadata"]["name"] for j in site.jobs()}
    assert [w["metadata"]["labels"]["enginefleet.io/release"].partition("-")[0] for w in site.workloads()] == [second]
    fleet.kube.kubectl("annotate", "mdep", site.name, "-n", site.namespace, "enginefleet.io/abort=1")
    fleet.wait("the first release serves again", lambda: everywhere(site, good))
    site.wait_reason("Aborted", "Stalled")
    assert {j["metadata"]["name"] for j in site.jobs()} == jobs
    fleet.calm(site)
    before = site.versions()
    fleet.operator.restart()
    fleet.quiet(site)
    assert site.versions() == before
