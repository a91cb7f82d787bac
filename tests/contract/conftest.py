"""A real API server with our CRDs, without nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import Cluster
from tests.contract.server import ApiServer

CRDS = Path(__file__).resolve().parents[2] / "crds"


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """The API server of a control plane; tests make objects of their own names and leave them."""
    with Cluster(audit=False) as cluster:
        files = [argument for path in sorted(CRDS.glob("*.yaml")) for argument in ("-f", str(path))]
        cluster.kubectl("apply", "--server-side", *files)
        cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", *files)
        yield ApiServer(cluster)
