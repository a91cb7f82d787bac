"""A class whose engines run on the OpenVINO execution provider, from `kubectl apply` to a serving pod; and an image that lacks it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from demo.world import condition

from .fleet import Fleet, Site


@pytest.fixture
def sites(fleet: Fleet) -> Iterator[tuple[Site, Site]]:
    """One with the image that has OpenVINO, one with the plain ONNX Runtime; both at once."""
    made = Site(fleet, nodes="cpu-b"), Site(fleet, nodes="cpu-b")
    for site, image in zip(made, ("enginefleet/runtime:openvino", "enginefleet/runtime:ort-1.24"), strict=True):
        objects = site.namespace_object(), site.secret(), site.store(), site.hwc(image, executionProvider="OpenVINO"), site.mdep()
        fleet.apply(*objects)
    yield made
    for site in made:
        site.close()


def test_engines_are_built_and_served_by_openvino_and_never_by_the_cpu_instead(sites: tuple[Site, Site]) -> None:
    with_it, without = sites
    with_it.wait_ready(120)
    (build,) = with_it.builds()
    assert build["spec"]["request"]["facts"]["libraries"].keys() == {"openvino"}
    (key,) = (key for key in with_it.fleet.keys(f"{with_it.namespace}/engines/") if "/builds/" in key)
    record = json.loads(with_it.fleet.client().get_object(Bucket="engines", Key=key)["Body"].read())
    assert record["providers"].keys() == {"OpenVINOExecutionProvider"}
    assert len(with_it.pods()) == 1

    def missing() -> str | None:
        found = condition(without.fleet.world.one("hwc", without.hardware_class), "Ready")
        return found.get("message") if "ExecutionProviderMissing" in found.get("message", "") else None

    said = without.fleet.wait("the class says what its image lacks", missing)
    assert "expected OpenVINOExecutionProvider" in said
    assert without.builds() == []
    assert without.workloads() == []
