"""TensorRT for RTX from `kubectl apply`, for a GPU that no node has: a real engine is built, nothing can judge it, no pod gets it.

A class of ONNX Runtime stands beside it: one prepare Job makes the model for both, and what ends open for one serves on the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from .fleet import Fleet, Site, phase


@pytest.fixture
def sites(fleet: Fleet) -> Iterator[tuple[Site, Site]]:
    """(that of the ModelDeployment, that of the class of TensorRT for RTX)"""
    here, elsewhere = Site(fleet), Site(fleet, nodes="cpu-b")
    rtx = elsewhere.hwc("enginefleet/runtime:rtx-1.7", backend="tensorrt-rtx", builds={"computeCapability": "8.6"})
    targets = [{"hardwareClass": name} for name in (here.hardware_class, elsewhere.hardware_class)]
    fleet.apply(here.namespace_object(), here.secret(), here.store(), here.hwc(), rtx)
    inputs = [{"name": "x", "profiles": [{"min": [1, 1, 28, 28], "opt": [1, 1, 28, 28], "max": [4, 1, 28, 28]}]}]
    fleet.apply(here.mdep(targets=targets, inputs=inputs, build={"optimizationLevel": 2}))
    yield here, elsewhere
    here.close()
    elsewhere.close()


def test_an_engine_for_a_gpu_elsewhere_ends_inconclusive_and_no_pod_gets_it(sites: tuple[Site, Site]) -> None:
    here, elsewhere = sites

    def ended() -> Mapping[str, str] | None:
        builds = {b["spec"]["class"]: phase(b) for b in here.builds()}
        done = builds == {here.hardware_class: "Passed", elsewhere.hardware_class: "Inconclusive"}
        said = here.condition("Stalled")
        ready = ((here.get() or {}).get("status", {}).get("classes") or [{}])[0].get("nodes", {}).get("ready")
        return said if done and said.get("status") == "True" and ready == 2 else None

    said = here.fleet.wait("one engine serves, the other ends inconclusive", ended)
    assert said["reason"] == "NoDeviceToJudgeOn"
    assert f"{elsewhere.hardware_class}: NoDeviceToJudgeOn: nothing was run" in said["message"]
    build = next(b for b in here.builds() if b["spec"]["class"] == elsewhere.hardware_class)
    facts, recipe = build["spec"]["request"]["facts"], build["spec"]["request"]["recipe"]
    assert (facts["backend"], facts["gpus"][0]["computeCapability"], facts["gpus"][0]["cross"]) == ("tensorrt-rtx", "8.6", True)
    assert (recipe["computeCapability"], recipe["optimizationLevel"]) == ("8.6", 2)
    assert {w["metadata"]["labels"]["enginefleet.io/hardware-class"] for w in here.workloads()} == {here.hardware_class}
    assert {p["spec"]["nodeName"] for p in here.pods()} == {"node-a1", "node-a2"}
    blobs = [key for key in here.fleet.keys(f"{here.namespace}/blobs/") if not key.endswith(".sig")]
    assert len(blobs) == 2
    here.fleet.quiet(here)
