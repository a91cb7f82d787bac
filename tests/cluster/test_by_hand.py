"""Objects deleted or changed by hand at each stage: the end is the same as if nobody had touched anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from enginefleet_operator import labels

from .fleet import Fleet, Site, phase

Stage = Callable[[Site], bool]


def _preparing(site: Site) -> bool:
    return any(not j.get("status", {}).get("conditions") for j in site.jobs("prepare"))


def _building(site: Site) -> bool:
    return any(not j.get("status", {}).get("conditions") for j in site.jobs("build"))


def _passed(site: Site) -> bool:
    return any(phase(b) == "Passed" for b in site.builds())


def _serving(site: Site) -> bool:
    return site.settled() is not None


def _delete_jobs(fleet: Fleet, site: Site) -> None:
    for job in site.jobs():
        fleet.delete("job", job["metadata"]["name"], site.namespace)


def _delete_job_pods(fleet: Fleet, site: Site) -> None:
    for pod in fleet.world.all("pod", site.namespace):
        if pod["metadata"]["labels"].get("enginefleet.io/role") in ("prepare", "build"):
            fleet.kube.kubectl(
                "delete", "pod", pod["metadata"]["name"], "-n", site.namespace, "--ignore-not-found", "--force", "--wait=false"
            )


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


STAGES: dict[str, Stage] = {"preparing": _preparing, "building": _building, "passed": _passed, "serving": _serving}
DEEDS: dict[str, Callable[[Fleet, Site], None]] = {
    "jobs": _delete_jobs,
    "job pods": _delete_job_pods,
    "engine builds": _delete_builds,
    "workloads": _delete_workloads,
    "serving pods": _delete_pods_and_service,
    "node labels": _delete_labels,
    "node fingerprint": _delete_fingerprint,
}
TABLE = [
    ("jobs", "preparing"),
    ("jobs", "building"),
    ("job pods", "building"),
    ("engine builds", "building"),
    ("workloads", "passed"),
]
SERVING = ("engine builds", "workloads", "serving pods", "node labels", "node fingerprint")


@pytest.fixture
def by_hand(fleet: Fleet) -> Iterator[Site]:
    """One node, and one place for the engines of all these tests: what is looked at here is the operator, not the compiler."""
    made = Site(fleet, nodes="cpu-b", prefix="by-hand")
    yield made
    made.close()


@pytest.mark.parametrize(("deed", "stage"), TABLE, ids=[f"{deed} while {stage}" for deed, stage in TABLE])
def test_what_was_deleted_by_hand_comes_back(fleet: Fleet, by_hand: Site, deed: str, stage: str) -> None:
    by_hand.apply_all()
    fleet.wait(f"it is {stage}", lambda: STAGES[stage](by_hand), 120)
    DEEDS[deed](fleet, by_hand)
    _comes_back(fleet, by_hand)


@pytest.fixture(scope="module")
def served(cluster_fleet: Fleet) -> Iterator[Site]:
    """A site that serves: each of these deeds finds it restored from the one before."""
    if not cluster_fleet.operator.alive():
        cluster_fleet.operator.start()
    made = Site(cluster_fleet, nodes="cpu-b", prefix="by-hand")
    made.apply_all()
    made.wait_ready(120)
    yield made
    made.close()


@pytest.mark.parametrize("deed", SERVING)
def test_what_was_deleted_by_hand_while_it_serves_comes_back(fleet: Fleet, served: Site, deed: str) -> None:
    fleet.wait("it is serving", lambda: STAGES["serving"](served), 120)
    DEEDS[deed](fleet, served)
    _comes_back(fleet, served)


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
        fleet.wait("all is as if nobody had touched it", restored, 150)
        fleet.calm(site)
        if restored():
            break
    assert restored()
    assert fleet.kube.get(f"/api/v1/namespaces/{site.namespace}/services/{site.name}")["spec"]["selector"]


def test_an_engine_deleted_from_the_store_is_built_again_when_a_pod_needs_it(fleet: Fleet, site: Site) -> None:
    site.apply_all()
    site.wait_ready()
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
    fleet.wait("the loss is noticed", lambda: site.settled() is None, 60)
    site.wait_ready(180)
    assert fleet.keys(f"{site.namespace}/blobs/")
    assert (
        any(e.get("reason") == "EngineLost" for e in fleet.world.all("event", site.namespace))
        or site.builds()[0]["status"]["engine"]["blob"] != old
    )


def test_labels_of_a_deleted_model_deployment_are_swept(fleet: Fleet, site: Site) -> None:
    site.apply_all()
    site.wait_ready()
    fleet.delete("mdep", site.name, site.namespace)

    def clean() -> bool:
        key = labels.release_key(site.namespace, site.name)
        kept = [n for n in fleet.world.all("node") if key in n["metadata"]["labels"]]
        return not kept and not site.pods() and not site.workloads()

    fleet.wait("labels, workloads and pods are gone", clean, 60)
