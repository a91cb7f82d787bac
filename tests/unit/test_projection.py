"""What is left of a node, and how much memory that takes."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from enginefleet_operator.kube.nodes import NodeView, Taint, project_node


def node(index: int, **status: Any) -> dict[str, Any]:
    """A node as a cloud cluster with GPU Feature Discovery has it: 30 labels, images, managed fields; 10 KB as JSON."""
    labels = {f"feature.node.example.com/cpu-feature.{number}": "true" for number in range(25)}
    labels |= {
        "kubernetes.io/hostname": f"node-{index}",
        "kubernetes.io/arch": "amd64",
        "hardware": "orin-nx",
        "zone": f"z{index % 3}",
        "pool": "edge",
    }
    return {
        "metadata": {
            "name": f"node-{index}", "uid": f"00000000-0000-0000-0000-{index:012}", "resourceVersion": str(1_000_000 + index),
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": labels,
            "annotations": {"volumes.example.com/attached": "x" * 500}, "managedFields": [{"manager": "kubelet", "fieldsV1": {"f": "y" * 2000}}],
        },
        "spec": {"podCIDR": f"10.{index % 250}.0.0/24", "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "nodeInfo": {"bootID": f"boot-{index}", "architecture": "amd64", "operatingSystem": "linux", "kernelVersion": "6.8"},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-01-02T04:00:{index % 60:02}Z", "lastTransitionTime": "2026-01-02T03:05:00Z"},
            ],
            "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "1"},
            "images": [{"names": [f"registry.example.com/image@sha256:{number:064}"], "sizeBytes": number} for number in range(50)],
            **status,
        },
    }  # fmt: skip


def test_the_projection_keeps_what_decisions_need() -> None:
    view = project_node(node(7))
    assert (view.name, view.resource_version, view.boot_id, view.arch, view.os) == ("node-7", "1000007", "boot-7", "amd64", "linux")
    assert view.taints == (Taint("nvidia.com/gpu", "", "NoSchedule"),)
    assert view.allocatable == {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "1"}
    assert view.labels["hardware"] == "orin-nx"
    assert (view.ready, view.reachable, view.ready_since - view.created) == (True, True, 55.0)
    assert not view.unschedulable
    assert view.labelled_at == 0.0


def test_when_we_wrote_there_last_comes_from_the_managed_fields() -> None:
    found = node(1)
    found["metadata"]["managedFields"] += [
        {"manager": "enginefleet", "operation": "Update", "time": "2026-01-02T03:04:15Z"},
        {"manager": "kubectl", "operation": "Update", "time": "2026-01-02T09:00:00Z"},
    ]
    view = project_node(found)
    assert view.labelled_at - view.created == 10.0


def test_a_node_nobody_hears_from_is_neither_ready_nor_reachable() -> None:
    unknown, absent = (project_node(node(1, conditions=conditions)) for conditions in ([{"type": "Ready", "status": "Unknown"}], []))
    assert [(view.ready, view.reachable) for view in (unknown, absent)] == [(False, False), (False, False)]


def test_a_node_that_registers_has_hardly_any_field() -> None:
    view = project_node({"metadata": {"name": "new", "uid": "u", "resourceVersion": "1"}})
    assert view == NodeView(
        name="new", uid="u", resource_version="1", created=0.0, labels={}, taints=(), unschedulable=False, ready=False, reachable=False,
        ready_since=0.0, allocatable={}, boot_id="", arch="", os="", deleting=False,
    )  # fmt: skip


def test_a_heartbeat_does_not_make_a_node_differ() -> None:
    before, after = node(1), node(1)
    after["metadata"]["resourceVersion"] = "2000000"
    after["status"]["conditions"][1]["lastHeartbeatTime"] = "2026-01-02T09:00:00Z"
    after["status"]["images"] = []
    assert project_node(before) == project_node(after)


def test_five_thousand_nodes_take_less_than_twelve_megabytes() -> None:
    texts = [json.dumps(node(index)) for index in range(500)]
    tracemalloc.start()
    try:
        views = [project_node(json.loads(text)) for text in texts]
        size = tracemalloc.get_traced_memory()[0] / len(views)
    finally:
        tracemalloc.stop()
    assert size < 2400
