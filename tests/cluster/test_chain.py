"""The whole chain on a real control plane: apply, prepare, build, gate, publish, serve; each flow twice and across a restart."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from demo.inference import infer, load_samples

from .fleet import MNIST, Fleet, Site, phase


def test_apply_leads_to_serving_pods_and_a_right_answer(fleet: Fleet, served: Site) -> None:
    site = served
    found = site.wait_ready()
    assert found["status"]["engines"] == "1/1"
    assert found["status"]["rollout"] == "2/2"
    assert {p["spec"]["nodeName"] for p in site.pods()} == {"node-a1", "node-a2"}
    samples, labels = load_samples(MNIST / "validation.npz")
    address = fleet.cluster.relay(f"{site.pods()[0]['status']['podIP']}:8080")
    answers = [infer(address, site.name, samples[i : i + 1])[0] for i in range(10)]
    assert sum(a == int(labels[i]) for i, a in enumerate(answers)) >= 9


def test_the_same_spec_applied_again_makes_no_job_and_no_write(fleet: Fleet, served: Site) -> None:
    site = served
    fleet.calm(site)
    since = datetime.now(UTC)
    site.apply_all()
    fleet.quiet(site)
    assert [w for w in fleet.operator_writes(since) if site.namespace in w or "node" in w] == []


def test_an_operator_restart_changes_nothing(fleet: Fleet, served: Site) -> None:
    site = served
    fleet.calm(site)
    before = site.versions()
    since = datetime.now(UTC)
    fleet.operator.restart()
    fleet.wait("the new operator leads", lambda: "leading:" in fleet.operator.log.read_text().rpartition("starting")[2] or None, 20)
    fleet.quiet(site)
    assert site.versions() == before
    assert fleet.operator_writes(since) == []


KINDS = ("secret", "store", "class", "model")
ORDERS = [order for index, order in enumerate(itertools.permutations(KINDS)) if index % 6 == 1]


@pytest.fixture(scope="module")
def ordered(cluster_fleet: Fleet) -> Iterator[dict[tuple[str, ...], Site]]:
    """A site for each order, all at once; one place for the engines: what is looked at here is the operator, not the compiler."""
    if not cluster_fleet.operator.alive():
        cluster_fleet.operator.start()
    made = {order: Site(cluster_fleet, nodes="cpu-b", prefix="ordered") for order in ORDERS}
    for order, site in made.items():
        documents = {"secret": site.secret(), "store": site.store(), "class": site.hwc(), "model": site.mdep()}
        cluster_fleet.apply(site.namespace_object())
        for kind in order:
            cluster_fleet.apply(documents[kind])
            if "model" in order[: order.index(kind) + 1]:
                # the operator has looked at the incomplete set before the next piece comes
                cluster_fleet.wait("the operator has seen it", functools.partial(_seen, site), 20)
    yield made
    for site in made.values():
        site.close()


def _seen(site: Site) -> bool:
    return bool((site.get() or {}).get("status", {}).get("observedGeneration") == 1)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_any_order_of_apply_ends_in_the_same_state(ordered: dict[tuple[str, ...], Site], order: tuple[str, ...]) -> None:
    site = ordered[order]
    site.wait_ready()
    assert site.end_state() | {"builds": 1} == {"builds": 1, "workloads": 1, "pods": ["node-b1"], "ready": "True", "rollout": "1/1"}


@pytest.fixture
def small(fleet: Fleet) -> Iterator[Site]:
    """A site of one node."""
    made = Site(fleet, nodes="cpu-b")
    yield made
    made.close()


def test_a_gate_that_fails_leaves_no_engine_no_pod_and_one_line_that_says_why(small: Site) -> None:
    site = small
    site.apply_all(validation={"uri": "s3://models/mnist/validation.npz", "minSamples": 200, "acceptance": {"minimum": "0.999"}})
    condition = site.wait_reason("GateFailed", "Stalled")
    assert "0.999" in condition["message"]
    assert "\n" not in condition["message"]
    assert site.pods() == []
    assert site.workloads() == []
    # a lower threshold judges the engine that is there: no second compilation
    site.fleet.apply(site.mdep())
    site.wait_ready()
    assert [b["status"]["engine"]["adopted"] for b in site.builds() if phase(b) == "Passed"] == [True]


def test_int8_is_quantized_proven_and_served(small: Site) -> None:
    site = small
    site.apply_all(precision="int8", calibration={"uri": "s3://models/mnist/calibration.npz", "minSamples": 200})
    site.wait_ready(120)
    accuracy = site.builds()[0]["status"]["accuracy"]
    assert float(accuracy["value"]) > 0.95
    assert accuracy["baseline"] is not None


def test_a_changed_runtime_image_is_built_and_proven_while_the_old_pods_serve(fleet: Fleet, served: Site) -> None:
    """The last one: it changes the site."""
    site = served
    site.wait_ready()
    old = {p["metadata"]["name"]: p["metadata"]["uid"] for p in site.pods()}
    fleet.apply(site.hwc("enginefleet/runtime:ort-1.23"))

    def moved_early() -> bool:
        passed = [b for b in site.builds() if b["spec"]["image"].endswith("1.23") and phase(b) == "Passed"]
        return not passed and {p["metadata"]["uid"] for p in site.pods()} != set(old.values())

    early: list[bool] = []

    def done() -> bool:
        early.append(moved_early())
        images = {p["spec"]["containers"][0]["image"] for p in site.pods()}
        return images == {"enginefleet/runtime:ort-1.23"} and site.settled() is not None and len(site.pods()) == 2

    fleet.wait("both nodes serve with the new runtime", done)
    assert not any(early)
    assert len(site.workloads()) == 1
