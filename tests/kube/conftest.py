"""One control plane with the CRDs, RBAC and policies of deploy/, and the ways to reach it as different users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from enginefleet_operator.kube.client import ApiClient
from localcluster import Cluster, NodeSpec
from tools.images import build_images

ROOT = Path(__file__).parents[2]
NAMESPACE = "enginefleet-system"
NODE = "node-real"
CPUINFO = "processor\t: 0\nmodel name\t: EngineFleet simulated CPU\nflags\t\t: avx2 fma\n"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.kubectl("apply", "-f", str(ROOT / "crds"))
        for name in ("00-namespace.yaml", "10-rbac.yaml", "20-policies.yaml"):
            running.kubectl("apply", "-f", str(ROOT / "deploy" / name))
        running.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        yield running


@pytest.fixture(scope="session")
def node_cluster(cluster: Cluster) -> Cluster:
    """The cluster with the node NODE, whose facts are invented, and the image that deploy/ names."""
    # as the demo gets it: a snapshot in the cache, which pods see wherever this checkout is (they have a /tmp of their own)
    cluster.add_image(build_images(["enginefleet/operator:dev"])["enginefleet/operator:dev"])
    cluster.add_node(NodeSpec(NODE, facts={"proc/cpuinfo": CPUINFO}))
    return cluster


class Users:
    """Kubeconfigs of service accounts, their tokens bound to a node where one is given."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._admin: dict[str, Any] = yaml.safe_load(cluster.kubeconfig.read_text())

    @property
    def server(self) -> str:
        return str(self._admin["clusters"][0]["cluster"]["server"])

    def admin_at(self, server: str) -> Path:
        """The admin's kubeconfig with another address of the same API server."""
        changed = json.loads(json.dumps(self._admin))
        changed["clusters"][0]["cluster"]["server"] = server
        return self._write(f"at-{server.rpartition(':')[2]}", changed)

    def service_account(self, name: str, node: str = "") -> Path:
        bound = ["--bound-object-kind=Node", f"--bound-object-name={node}"] if node else []
        token = self._cluster.kubectl("create", "token", name, "-n", NAMESPACE, *bound).stdout.strip()
        changed = json.loads(json.dumps(self._admin))
        changed["users"][0]["user"] = {"token": token}
        return self._write(f"{name}-{node}", changed)

    def _write(self, name: str, content: dict[str, Any]) -> Path:
        path = self._folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(content))
        return path


@pytest.fixture(scope="session")
def users(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Users:
    return Users(cluster, tmp_path_factory.mktemp("users"))


def lease_object(name: str, **labels: str) -> dict[str, Any]:
    """An object that no controller touches, unlike nodes, which get taints."""
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


def node_object(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


async def connect(kubeconfig: Path) -> ApiClient:
    return await ApiClient.connect(str(kubeconfig))
