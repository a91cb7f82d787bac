"""Nodes: fact files behind hostPath, outages, reboots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localcluster import Cluster, LocalClusterError, NodeSpec
from tests.localcluster.pods import pod

RunPod = Callable[..., str]


def host_path(path: str, kind: str = "", read_only: bool = True) -> dict[str, Any]:
    """Container and volume settings that mount a path of the node below /host."""
    return {
        "container": {"volumeMounts": [{"name": "host", "mountPath": f"/host{path}", "readOnly": read_only}]},
        "volumes": [{"name": "host", "hostPath": {"path": path, "type": kind}}],
    }


@pytest.mark.parametrize("node", ["node-a", "node-b"])
def test_a_host_path_shows_the_facts_of_its_node(run_pod: RunPod, node: str) -> None:
    assert run_pod("cat /host/proc/cpuinfo", node=node, **host_path("/proc/cpuinfo", "File")) == f"model name : the processor of {node}\n"
    assert run_pod("cat /host/sys/module/fact", node=node, **host_path("/sys", "Directory")) == f"{node}\n"


def test_a_system_file_that_a_node_does_not_have_is_the_machines(run_pod: RunPod) -> None:
    assert run_pod("cat /host/etc/passwd", **host_path("/etc/passwd", "File")) == Path("/etc/passwd").read_text()


def test_state_of_a_node_is_kept_in_its_folder(cluster: Cluster, run_pod: RunPod) -> None:
    run_pod("echo kept > /host/var/lib/enginefleet/state", node="node-b", **host_path("/var/lib/enginefleet", "DirectoryOrCreate", False))
    assert (cluster.node_root("node-b") / "var/lib/enginefleet/state").read_text() == "kept\n"
    assert not (cluster.node_root("node-a") / "var/lib/enginefleet").exists()


def test_a_node_says_what_it_was_given(cluster: Cluster) -> None:
    labels = {"feature.node.kubernetes.io/pci-10de.present": "true"}
    taints, extended = ("only=some:NoSchedule",), {"example.com/npu": "2"}
    cluster.add_node(NodeSpec("spare", labels=labels, cpus=12, memory="3Gi", taints=taints, extended=extended))
    node = json.loads(cluster.kubectl("get", "node", "spare", "-o", "json").stdout)
    cluster.remove_node("spare")
    assert (node["status"]["capacity"]["cpu"], node["status"]["capacity"]["memory"]) == ("12", "3Gi")
    assert node["status"]["allocatable"]["example.com/npu"] == "2"
    assert node["metadata"]["labels"]["feature.node.kubernetes.io/pci-10de.present"] == "true"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "spare"
    assert {"key": "only", "value": "some", "effect": "NoSchedule"} in node["spec"]["taints"]
    assert node["status"]["nodeInfo"]["kubeletVersion"].startswith("v1.37.")
    with pytest.raises(LocalClusterError, match="there is no node spare"):
        cluster.node_root("spare")


def test_a_taint_of_another_form_is_refused(cluster: Cluster) -> None:
    with pytest.raises(LocalClusterError, match="taint 'only' is not key=value:Effect"):
        cluster.add_node(NodeSpec("wrong", taints=("only",)))
    assert "wrong" not in cluster.status()["nodes"]


@pytest.fixture
def server(cluster: Cluster) -> Any:
    """A pod on node-b that runs until it is ended."""
    body = pod("server", "sleep 1000", node="node-b", restartPolicy="Always")
    cluster.kubectl("apply", "-f", "-", input=json.dumps(body))
    cluster.kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=20s")
    yield
    cluster.kubectl("delete", "pod", "server", "--force", "--grace-period=0")


def boot_id(cluster: Cluster) -> str:
    return cluster.kubectl("get", "node", "node-b", "-o", "jsonpath={.status.nodeInfo.bootID}").stdout


def test_a_stopped_node_is_noticed_and_comes_back_rebooted(cluster: Cluster, server: None) -> None:
    before = boot_id(cluster)
    cluster.stop_node("node-b", wait=True)
    cluster.kubectl("wait", "pod/server", "--for=condition=Ready=False", "--timeout=20s")
    cluster.start_node("node-b")
    assert boot_id(cluster) != before
    assert boot_id(cluster) == (cluster.node_root("node-b") / "proc/sys/kernel/random/boot_id").read_text().strip()
    cluster.kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=30s")
    assert cluster.kubectl("get", "pod", "server", "-o", "jsonpath={.status.containerStatuses[0].restartCount}").stdout == "1"


def test_a_paused_node_falls_silent_and_goes_on_without_a_restart(cluster: Cluster, server: None) -> None:
    before = boot_id(cluster)
    cluster.pause_node("node-b")
    cluster.kubectl("wait", "node/node-b", "--for=condition=Ready=Unknown", "--timeout=30s")
    cluster.continue_node("node-b")
    cluster.kubectl("wait", "node/node-b", "--for=condition=Ready", "--timeout=30s")
    cluster.kubectl("wait", "pod/server", "--for=condition=Ready", "--timeout=30s")
    assert boot_id(cluster) == before
    assert cluster.kubectl("get", "pod", "server", "-o", "jsonpath={.status.containerStatuses[0].restartCount}").stdout == "0"


def test_writes_are_counted_by_user(cluster: Cluster) -> None:
    before = cluster.write_count(user="admin")
    cluster.kubectl("create", "configmap", "counted")
    cluster.kubectl("get", "configmap", "counted")
    cluster.kubectl("delete", "configmap", "counted")
    deadline = time.monotonic() + 5
    while cluster.write_count(user="admin") < before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cluster.write_count(user="admin") == before + 2
    assert [e.verb for e in cluster.audit_events() if e.name == "counted" and e.resource == "configmaps"] == ["create", "delete"]
