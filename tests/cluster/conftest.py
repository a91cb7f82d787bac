"""One cluster for this folder, an operator that is running when a test begins, a site of its own for each test."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from .fleet import Fleet, OperatorProcess, Site, start_fleet, token_kubeconfig
from .killer import KillProxy


@pytest.fixture(scope="session")
def cluster_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder: Path = tmp_path_factory.mktemp("fleet")
    cluster, fleet = start_fleet(folder)
    try:
        yield fleet
    finally:
        fleet.operator.kill()
        fleet.world.__exit__(None, None, None)
        fleet.kube.close()
        cluster.down()


@pytest.fixture
def fleet(cluster_fleet: Fleet) -> Fleet:
    if not cluster_fleet.operator.alive():
        cluster_fleet.operator.start()
    return cluster_fleet


@pytest.fixture
def site(fleet: Fleet) -> Iterator[Site]:
    made = Site(fleet)
    yield made
    made.close()


@pytest.fixture(scope="module")
def served(cluster_fleet: Fleet) -> Iterator[Site]:
    """A site of two nodes on which all is done, one for the tests of a file."""
    if not cluster_fleet.operator.alive():
        cluster_fleet.operator.start()
    made = Site(cluster_fleet)
    made.apply_all()
    made.wait_ready()
    yield made
    made.close()


@pytest.fixture
def proxied(cluster_fleet: Fleet, tmp_path: Path) -> Iterator[tuple[Fleet, KillProxy]]:
    """The fleet with an operator behind the proxy, not started yet."""
    fleet = cluster_fleet
    fleet.operator.kill()
    config = yaml.safe_load(fleet.cluster.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    ca = tmp_path / "ca.crt"
    if "certificate-authority-data" in cluster:
        ca.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    else:
        ca = Path(cluster["certificate-authority"])
    with KillProxy(cluster["server"], str(ca)) as proxy:
        path = token_kubeconfig(fleet.cluster, fleet.kube, tmp_path / "proxied.kubeconfig", proxy.url)
        usual, fleet.operator = fleet.operator, OperatorProcess(path, fleet.operator.log)
        try:
            yield fleet, proxy
        finally:
            fleet.operator.kill()
            fleet.operator = usual
