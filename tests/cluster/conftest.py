"""One cluster for this folder, an operator that is running when a test begins, a site of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .fleet import Fleet, Site, start_fleet


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
