"""Two ModelDeployments, one class: one build at a time, whosever it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from .fleet import Fleet, Site


@pytest.fixture
def shared(fleet: Fleet) -> Iterator[Site]:
    site = Site(fleet)
    yield site
    site.close()


def test_builds_of_two_model_deployments_follow_one_another(fleet: Fleet, shared: Site) -> None:
    """On two idle nodes, where nothing but builds.maxConcurrent keeps them apart."""
    site = shared
    names = ("one", "two")
    gates = {
        name: {"uri": "s3://models/mnist/validation.npz", "minSamples": 200, "acceptance": {"minimum": f"0.9{i}"}}
        for i, name in enumerate(names)
    }
    fleet.apply(
        site.namespace_object(),
        site.secret(),
        site.store(),
        site.hwc(),
        *(site.mdep(name, validation=gates[name], serving={"mode": "DaemonSet"}) for name in names),
    )
    seen: set[str] = set()

    def both() -> bool:
        seen.update(name for name in names if site.condition("Ready", name).get("reason") == "Queued")
        return all(site.settled(name) is not None for name in names)

    fleet.wait("both are Ready", both)
    assert len(seen) == 1, "one waited for the other and said so"
    spans = sorted((job["status"]["startTime"], job["status"]["completionTime"]) for job in site.jobs("build"))
    times = [(datetime.fromisoformat(start), datetime.fromisoformat(end)) for start, end in spans]
    assert len(times) == 2
    assert times[0][1] <= times[1][0], f"they overlap: {spans}"
