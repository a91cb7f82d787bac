"""What keeps a pod from a node: tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api.base import any_quantity
from enginefleet_operator.planning.fits import Room, requests_of, why_not

ROOM = Room(
    "n1",
    {"hardware": "orin", "zone": "7"},
    [("node.kubernetes.io/unschedulable", "", "NoSchedule"), ("dedicated", "vision", "NoSchedule"), ("spot", "", "PreferNoSchedule")],
    {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1", "pods": "110"},
)
TOLERATION = {"key": "dedicated", "value": "vision", "effect": "NoSchedule"}


def pod(**changes: Any) -> dict[str, Any]:
    return {"tolerations": [TOLERATION], "containers": [{"resources": {"requests": {"cpu": "1"}}}]} | changes


def asking(**amounts: str) -> dict[str, Any]:
    return pod(containers=[{"resources": {"requests": {name.replace("_", "."): text for name, text in amounts.items()}}}])


def affinity(operator: str, key: str = "hardware", *values: str, kind: str = "matchExpressions") -> dict[str, Any]:
    term = {kind: [{"key": key, "operator": operator, "values": list(values)}]}
    return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}})


@pytest.mark.parametrize(
    "fitting",
    [
        pod(),
        pod(tolerations=[{"operator": "Exists"}]),
        pod(tolerations=[{"key": "dedicated", "operator": "Exists"}]),
        pod(nodeSelector={"hardware": "orin", "release.enginefleet.io/x": "new"}),
        asking(cpu="4", memory="8Gi"),
        pod(containers=[{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]),
        affinity("In", "hardware", "nano", "orin"),
        affinity("NotIn", "hardware", "nano"),
        affinity("Exists"),
        affinity("DoesNotExist", "gone"),
        affinity("Gt", "zone", "6"),
        affinity("Lt", "zone", "8"),
        affinity("In", "metadata.name", "n1", kind="matchFields"),
    ],
)
def test_nothing_speaks_against_it(fitting: dict[str, Any]) -> None:
    assert why_not(fitting, ROOM, [], ours=["release.enginefleet.io/x"]) == ""


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        (pod(tolerations=[]), "the taint dedicated=vision:NoSchedule"),
        (pod(tolerations=[TOLERATION | {"effect": "NoExecute"}]), "the taint dedicated"),
        (pod(tolerations=[TOLERATION | {"value": "audio"}]), "the taint dedicated"),
        (pod(nodeSelector={"hardware": "nano"}), "nodeSelector wants hardware=nano, the node has 'orin'"),
        (pod(nodeSelector={"disk": "ssd"}), "the node has 'no such label'"),
        (affinity("In", "hardware", "nano"), "node affinity"),
        (affinity("Gt", "hardware", "6"), "node affinity"),
        (affinity("In", "metadata.name", "n2", kind="matchFields"), "node affinity"),
        (asking(cpu="4500m"), "asks for 4.5 cpu, of 4 on the node 4 are left"),
        (asking(memory="9Gi"), "asks for 9216Mi memory, of 8192Mi on the node 8192Mi are left"),
        (pod(containers=[{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]), "asks for 2 nvidia.com/gpu"),
        (asking(example_com="1"), "asks for 1 example.com, of 0 on the node 0 are left"),
    ],
)
def test_what_speaks_against_it_is_named(unfit: dict[str, Any], why: str) -> None:
    assert why in why_not(unfit, ROOM, [])


def test_what_other_pods_ask_for_is_taken() -> None:
    assert why_not(asking(cpu="2"), ROOM, [{"cpu": 1.0}, {"cpu": 1.0}]) == ""
    assert "2 are left by other pods" in why_not(asking(cpu="3"), ROOM, [{"cpu": 1.0}, {"cpu": 1.0}])
    assert "asks for 1 pods" in why_not(pod(), replace(ROOM, allocatable={**ROOM.allocatable, "pods": "2"}), [{}, {}])


def test_a_pod_asks_for_its_containers_together_or_its_largest_init_container() -> None:
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "500m"}}}, {}],
        "initContainers": [{"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}],
        "overhead": {"memory": "10Mi"},
    }
    assert requests_of(spec) == {"cpu": 2.0, "memory": 2.0**30 + 10 * 2.0**20}
    spec["initContainers"] = [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}]
    assert requests_of(spec)["cpu"] == 2.5


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2), ("500m", 0.5), ("1.5Gi", 1.5 * 2**30), ("2e3", 2000), ("3M", 3e6), ("1Ei", 2.0**60), ("100n", 1e-7), ("1E", 1e18)],
)
def test_every_quantity_of_an_api_server_is_read(text: str, value: float) -> None:
    assert any_quantity(text) == pytest.approx(value)
