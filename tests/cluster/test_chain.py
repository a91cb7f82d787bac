"""The whole chain on a real control plane: apply, prepare, build, gate, publish, serve; then again, and across a restart."""

from __future__ import annotations

from .fleet import Fleet, Site


def test_apply_leads_to_serving_pods_on_every_node_of_the_class(site: Site) -> None:
    site.apply_all()
    found = site.wait_ready()
    assert found["status"]["engines"] == "1/1"
    assert found["status"]["rollout"] == "2/2"
    assert {p["spec"]["nodeName"] for p in site.pods()} == {"node-a1", "node-a2"}
