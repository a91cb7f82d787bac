"""Objects deleted or changed by hand at each stage: the end is the same as if nobody had touched anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from enginefleet_api import labels

from .fleet import Fleet, Site, phase

Stage = Callable[[Site], set[str]]


def _running(site: Site, role: str) -> set[str]:
    return {j["metadata"]["uid"] for j in site.jobs(role) if not j.get("status", {}).get("conditions")}


def _preparing(site: Site) -> set[str]:
    return _running(site, "prepare")


def _building(site: Site) -> set[str]:
    return _running(site, "build")


def _in_build_pods(site: Site) -> set[str]:
    pods = site.fleet.world.all("pod", site.namespace, role="build")
    return {p["metadata"]["uid"] for p in pods if p.get("status", {}).get("phase") == "Running"}


def _passed(site: Site) -> set[str]:
    return {b["metadata"]["uid"] for b in site.builds() if phase(b) == "Passed"}


def _delete_jobs(fleet: Fleet, site: Site) -> None:
    for job in site.jobs():
        fleet.delete("job", job["metadata"]["name"], site.namespace)


def _delete_job_pods(fleet: Fleet, site: Site) -> None:
    for pod in fleet.world.all("pod", site.namespace):
        if pod["metadata"]["labels"].get("enginefleet.io/role") in ("prepare", "build"):
            # not by force: a builder that is told to end releases its claim, one that is killed keeps it for two minutes
            fleet.delete("pod", pod["metadata"]["name"], site.namespace)


def _delete_builds(fleet: Fleet, site: Site) -> None:
    fleet.kube.kubectl("delete", "enginebuilds", "--all", "-n", site.namespace, "--wait=false")


def _delete_workloads(fleet: Fleet, site: Site) -> None:
    fleet.kube.kubectl("delete", "daemonsets", "--all", "-n", site.namespace, "--wait=false")


def _delete_pods_and_service(fleet: Fleet, site: Site) -> None:
    for pod in site.pods():
        fleet.delete("pod", pod["metadata"]["name"], site.namespace)
    fleet.delete("service", site.name, site.namespace)


def _delete_labels(fleet: Fleet, site: Site) -> None:
    for node in fleet.world.all("node"):
        keys = [
            k for k in node["metadata"]["labels"] if k.startswith(("release.enginefleet.io/", f"fp.enginefleet.io/{site.hardware_class}"))
        ]
        if keys:
            fleet.kube.kubectl("label", "node", node["metadata"]["name"], *(f"{k}-" for k in keys))


def _delete_fingerprint(fleet: Fleet, site: Site) -> None:
    fleet.delete("nodefingerprint", "node-b1")


STAGES: dict[str, Stage] = {"preparing": _preparing, "building": _building, "in build pods": _in_build_pods, "passed": _passed}
"""What the site is at in each stage, by uid."""
DEEDS: dict[str, Callable[[Fleet, Site], None]] = {
    "jobs": _delete_jobs,
    "job pods": _delete_job_pods,
    "engine builds": _delete_builds,
    "workloads": _delete_workloads,
    "serving pods": _delete_pods_and_service,
    "node labels": _delete_labels,
    "node fingerprint": _delete_fingerprint,
}
ON_THE_WAY = [
    ("jobs", "preparing"),
    ("jobs", "building"),
    ("job pods", "in build pods"),
    ("engine builds", "building"),
    ("workloads", "passed"),
]
SERVING = ("engine builds", "workloads", "serving pods", "node labels", "node fingerprint")


@pytest.fixture(scope="module")
def applied(cluster_fleet: Fleet) -> Iterator[Site]:
    """One node; a site that every test of this file finds restored from what the one before did to it."""
    if not cluster_fleet.operator.alive():
        cluster_fleet.operator.start()
    made = Site(cluster_fleet, nodes="cpu-b")
    made.apply_all()
    yield made
    made.close()


def test_what_was_deleted_by_hand_on_the_way_to_serving_comes_back(fleet: Fleet, applied: Site) -> None:
    """Each deed meets what has come back from the one before."""
    struck: set[str] = set()
    for deed, stage in ON_THE_WAY:
        struck |= _reached(fleet, applied, stage, struck)
        DEEDS[deed](fleet, applied)
    _comes_back(fleet, applied)


def _reached(fleet: Fleet, site: Site, stage: str, struck: set[str]) -> set[str]:
    """What the site is at in that stage; nothing of it was struck yet."""
    return fleet.wait(f"it is {stage}, with other objects than {sorted(struck)}", lambda: STAGES[stage](site) - struck)


@pytest.mark.parametrize("deed", SERVING)
def test_what_was_deleted_by_hand_while_it_serves_comes_back(fleet: Fleet, applied: Site, deed: str) -> None:
    applied.wait_ready(120)
    DEEDS[deed](fleet, applied)
    _comes_back(fleet, applied)


def _comes_back(fleet: Fleet, site: Site) -> None:
    expected = {"workloads": 1, "pods": ["node-b1"], "ready": "True", "rollout": "1/1"}

    def restored() -> bool:
        state = site.end_state()
        return (
            {k: v for k, v in state.items() if k != "builds"} == expected
            and [phase for _, _, phase in state["builds"]] == ["Passed"]
            and site.settled() is not None
            and all(p["status"].get("phase") == "Running" for p in site.pods())
            and fleet.world.one("nf", "node-b1") is not None
        )

    # the deed takes effect with delay, and a pod takes seconds to start in which nothing changes: only restored *and* calm is the end
    for _ in range(5):
        fleet.wait("all is as if nobody had touched it", restored)
        fleet.calm(site)
        if restored():
            break
    assert restored()
    assert fleet.kube.get(f"/api/v1/namespaces/{site.namespace}/services/{site.name}")["spec"]["selector"]


def test_an_engine_deleted_from_the_store_is_built_again_when_a_pod_needs_it(fleet: Fleet, applied: Site) -> None:
    site = applied
    site.wait_ready(120)
    old = site.builds()[0]["status"]["engine"]["blob"]
    for key in fleet.keys(f"{site.namespace}/blobs/") + fleet.keys(f"{site.namespace}/engines/"):
        fleet.client().delete_object(Bucket="engines", Key=key)
    pod = site.pods()[0]
    # the node's own cache would serve it: this node has lost that too
    cache = fleet.cluster.node_root(pod["spec"]["nodeName"]) / "var/lib/enginefleet/cache"
    for path in cache.rglob("*"):
        if path.is_file():
            path.unlink()
    fleet.delete("pod", pod["metadata"]["name"], site.namespace)
    fleet.wait("the loss is noticed", lambda: site.settled() is None)
    site.wait_ready(180)
    assert fleet.keys(f"{site.namespace}/blobs/")
    assert (
        any(e.get("reason") == "EngineLost" for e in fleet.world.all("event", site.namespace))
        or site.builds()[0]["status"]["engine"]["blob"] != old
    )


def test_labels_of_a_deleted_model_deployment_are_swept(fleet: Fleet, applied: Site) -> None:
    """The last one: nothing is left of the site."""
    site = applied
    site.wait_ready(120)
    fleet.delete("mdep", site.name, site.namespace)

    def clean() -> bool:
        key = labels.release_key(site.namespace, site.name)
        kept = [n for n in fleet.world.all("node") if key in n["metadata"]["labels"]]
        return not kept and not site.pods() and not site.workloads()

    fleet.wait("labels, workloads and pods are gone", clean)
