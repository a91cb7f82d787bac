"""Order of the tests: what waits for a cluster begins first, so that the rest is done meanwhile."""

from __future__ import annotations

import pytest

FIRST = ("tests/cluster/", "tests/localcluster/", "tests/kube/", "tests/builder/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable: within a folder nothing moves."""
    items.sort(key=lambda item: next((rank for rank, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST)))
