"""The two DaemonSets of the node agent: a Jetson's differs by its name, its nodes and three fact files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
MORE = {"l4t": "/etc/nv_tegra_release", "power-modes": "/etc/nvpmodel.conf", "power-mode": "/var/lib/nvpmodel"}


def pod(name: str) -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / name).read_text())
    assert found["spec"]["selector"]["matchLabels"].items() <= found["spec"]["template"]["metadata"]["labels"].items()
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def test_every_node_has_one_agent_and_a_jetsons_sees_three_files_more() -> None:
    plain, jetson = pod("40-agent.yaml"), pod("41-agent-jetson.yaml")
    (terms,) = plain.pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == {"matchExpressions": [{"key": "enginefleet.io/jetson", "operator": "NotIn", "values": ["true"]}]}
    assert jetson.pop("nodeSelector") == plain.pop("nodeSelector") | {"enginefleet.io/jetson": "true"}
    volumes, mounts = jetson["volumes"], jetson["containers"][0]["volumeMounts"]
    assert {v["name"]: v["hostPath"]["path"] for v in volumes if v["name"] in MORE} == MORE
    assert {m["name"]: m["mountPath"] for m in mounts if m["name"] in MORE} == {name: f"/host{path}" for name, path in MORE.items()}
    assert all(m["readOnly"] for m in mounts if m["name"] in MORE)
    jetson["volumes"] = [v for v in volumes if v["name"] not in MORE]
    jetson["containers"][0]["volumeMounts"] = [m for m in mounts if m["name"] not in MORE]
    assert jetson == plain


def test_no_mount_makes_a_file_or_folder_on_a_host() -> None:
    """A hostPath without a type is made where it is absent."""
    for name in ("40-agent.yaml", "41-agent-jetson.yaml"):
        kinds = {v["name"]: v["hostPath"].get("type") for v in pod(name)["volumes"] if "hostPath" in v}
        assert kinds.pop("cache") == "DirectoryOrCreate"
        assert set(kinds.values()) == {"File", "Directory"}
