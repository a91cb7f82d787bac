"""Another runtime version under `onVersionChange: Hold`: nothing moves until it is approved, and nodes say when their engines are ready."""

from __future__ import annotations

from .fleet import Fleet, Site, everywhere, standing


def engines_ready(fleet: Fleet, node: str, site: Site) -> tuple[str, str]:
    """(status of the condition, state of this site's engine)"""
    status = fleet.kube.get(f"/apis/enginefleet.io/v1alpha1/nodefingerprints/{node}").get("status", {})
    mine = [e["state"] for e in status.get("engines", ()) if e["modelDeployment"] == f"{site.namespace}/{site.name}"]
    found = [c["status"] for c in status.get("conditions", ()) if c["type"] == "EnginesReady"]
    return found[0] if found else "", mine[0] if mine else ""


def test_another_runtime_waits_for_approval_while_the_old_one_serves(fleet: Fleet, served: Site) -> None:
    site = served
    old = standing(site)["release"]
    fleet.wait("the node says that its engine passed", lambda: engines_ready(fleet, "node-a1", site)[1] == "Passed")
    pods = {p["metadata"]["uid"] for p in site.pods()}
    fleet.apply(site.hwc(image="enginefleet/runtime:ort-1.23", onVersionChange="Hold"))
    site.wait_reason("HeldForApproval", "ServingStale")
    stale = fleet.wait("both nodes are observed", lambda: m if "2 nodes" in (m := site.condition("ServingStale")["message"]) else "")
    assert "enginefleet.io/approve" in stale
    assert site.condition("Ready")["status"] == "True"
    fleet.wait("the node says what it lacks", lambda: engines_ready(fleet, "node-a1", site) == ("False", "Held"))
    assert len(site.builds()) == 1
    assert {p["metadata"]["uid"] for p in site.pods()} == pods
    fleet.kube.kubectl("annotate", "mdep", site.name, "-n", site.namespace, "enginefleet.io/approve=1")
    fleet.wait("the new runtime serves", lambda: standing(site)["release"] not in ("", old) and everywhere(site, standing(site)["release"]))
    site.wait_ready()
    assert site.condition("ServingStale")["status"] == "False"
    fleet.wait("the node says that it passed", lambda: engines_ready(fleet, "node-a1", site)[1] == "Passed")
