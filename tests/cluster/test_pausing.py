"""`builds.whenBusy: Auto` on nodes with one exclusive device each: a serving pod makes way for a build, and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from localcluster import NodeSpec

from .fleet import Fleet, Site, ready, served_by, standing

DEVICE = {"limits": {"example.com/simulated-gpu": "1"}}
NODES = ("node-gpu-1", "node-gpu-2")


@pytest.fixture
def gpu_nodes(fleet: Fleet) -> Iterator[Site]:
    for name in NODES:
        fleet.cluster.add_node(NodeSpec(name, labels={"hardware": "exclusive"}, extended={"example.com/simulated-gpu": "1"}))
    site = Site(fleet, nodes="exclusive")
    yield site
    site.close()
    fleet.wait("its pods are gone", lambda: not site.pods())
    for name in NODES:
        fleet.cluster.remove_node(name)


def _class(site: Site, version: str) -> dict[str, Any]:
    made = site.hwc(f"enginefleet/runtime:ort-{version}", runtime={"image": f"enginefleet/runtime:ort-{version}", "resources": DEVICE})
    made["metadata"]["labels"] = {"site": site.namespace}
    return made


def _mdep(site: Site, **spec: Any) -> dict[str, Any]:
    """It targets the class by a label, and names none."""
    return site.mdep(targets=[{"hardwareClassSelector": {"matchLabels": {"site": site.namespace}}}], **spec)


def _events(site: Site, reason: str) -> list[str]:
    return [e.get("note", "") for e in site.fleet.world.all("event", site.namespace) if e["reason"] == reason]


def _building(site: Site) -> str:
    """The node of the build that runs."""
    return next((b["status"].get("node", "") for b in site.builds() if b.get("status", {}).get("phase") == "Building"), "")


def _paused(site: Site) -> list[str]:
    nodes = site.fleet.world.all("node")
    return sorted(n["metadata"]["name"] for n in nodes if any(v.startswith("building.") for v in n["metadata"]["labels"].values()))


def test_one_pod_makes_way_for_a_build_and_the_only_one_waits_for_approval(fleet: Fleet, gpu_nodes: Site) -> None:
    site = gpu_nodes
    fleet.apply(site.namespace_object(), site.secret(), site.store(), _class(site, "1.24"), _mdep(site))
    site.wait_ready()
    old = standing(site)["release"]
    assert served_by(site) == dict.fromkeys(NODES, old)

    # two serve: one of them makes way, and a restart in the middle changes nothing
    fleet.apply(_class(site, "1.23"))
    node = fleet.wait("a pod makes way", lambda: (_paused(site) or [""])[0])
    other = next(name for name in NODES if name != node)
    fleet.wait("that is told", lambda: any(node in text for text in _events(site, "ServingPaused")))
    fleet.operator.restart()
    fleet.wait("the build runs there", lambda: _building(site) == node)
    assert other in served_by(site)
    new = fleet.wait(
        "the other runtime is rolled out", lambda: r if (r := standing(site)["release"]) != old and standing(site)["step"] == "done" else ""
    )
    site.wait_ready()
    assert served_by(site) == dict.fromkeys(NODES, new)
    assert _paused(site) == []
    assert len(_events(site, "ServingPaused")) == 1
    fleet.wait("its end is told", lambda: any(node in text for text in _events(site, "ServingResumed")))

    # one is left: what it serves ends for a build only when somebody says so
    fleet.cluster.stop_node(other)
    fleet.wait("the other one is NotReady", lambda: site.get()["status"]["classes"][0]["nodes"]["unreachable"] == 1)  # type: ignore[index]
    serving = {p["metadata"]["uid"] for p in site.pods() if p["spec"].get("nodeName") == node}
    fleet.apply(
        _mdep(
            site,
            calibration={"uri": "s3://models/mnist/calibration.npz"},
            precision="int8",
        )
    )
    said = site.wait_reason("BuildNeedsOutage")["message"]
    assert "no other node of its kind serves" in said
    assert "enginefleet.io/approve=<any new value>" in said
    fleet.operator.restart()
    site.wait_reason("BuildNeedsOutage")
    assert {p["metadata"]["uid"] for p in site.pods() if p["spec"].get("nodeName") == node and ready(p)} == serving
    fleet.kube.kubectl("annotate", "mdep", site.name, "-n", site.namespace, "enginefleet.io/approve=tonight")
    fleet.wait("the build runs there", lambda: _building(site) == node)
    fleet.wait("it serves the new engine", lambda: served_by(site).get(node, "") not in ("", new))
    assert _paused(site) == []
    assert any("approved by tonight" in text for text in _events(site, "ServingPaused"))
    fleet.cluster.start_node(other, wait=False)
    # Ready does not wait for a node that is away
    fleet.wait("the other one serves as well", lambda: set(served_by(site)) == set(NODES))
    site.wait_ready()
