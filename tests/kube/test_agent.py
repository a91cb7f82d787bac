"""The node agent as deploy/ runs it: a DaemonSet pod on a node, with its service account and its policies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localcluster import Cluster
from tests.hosts.trees import plant
from tests.kube.conftest import CPUINFO, NAMESPACE, NODE, ROOT

USER = f"system:serviceaccount:{NAMESPACE}:enginefleet-agent"


def until(condition: Callable[[], Any], within: float = 20.0) -> Any:
    """The first true answer; the API server is asked because it is what the test is about."""
    end = time.monotonic() + within
    while not (answer := condition()):
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.05)
    return answer


@pytest.fixture(scope="module")
def agent(node_cluster: Cluster) -> Iterator[Cluster]:
    node_cluster.kubectl("apply", "-f", str(ROOT / "deploy" / "40-agent.yaml"))
    yield node_cluster
    node_cluster.kubectl("delete", "-f", str(ROOT / "deploy" / "40-agent.yaml"), "--wait=false")


def found(cluster: Cluster) -> dict[str, Any]:
    text = cluster.kubectl("get", "nodefingerprint", NODE, "-o", "json", "--ignore-not-found").stdout
    loaded: dict[str, Any] = json.loads(text) if text else {}
    return loaded


def agent_process(cluster: Cluster) -> Path:
    """/proc of the agent's container, which is a process of this machine; told from others by the cluster's folder."""
    mark = str(cluster.node_root(NODE))
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_bytes().split(b"\0")
            mounts = (status.parent / "mountinfo").read_text()
        except OSError:
            continue
        if any(word.endswith(b"enginefleet-agent") for word in words) and b"bwrap" not in words[0] and mark.rpartition("/tmp")[2] in mounts:
            return status.parent
    raise AssertionError("no process of the agent")


def test_a_new_node_says_what_it_is(agent: Cluster) -> None:
    spec = until(lambda: found(agent))["spec"]
    boot_id = (agent.node_root(NODE) / "proc/sys/kernel/random/boot_id").read_text().strip()
    assert spec["node"] == NODE
    assert spec["bootID"] == boot_id
    assert spec["host"]["facts"]["cpu"] == {"isa": ["avx2", "fma"]}
    assert spec["host"]["facts"]["simulated"] == "EngineFleet simulated CPU"
    assert spec["host"]["context"]["processors"] == 1


def test_a_fingerprint_deleted_by_hand_is_back_in_seconds_with_what_the_host_is_now(agent: Cluster) -> None:
    before = until(lambda: found(agent))
    path = agent.node_root(NODE) / "proc/cpuinfo"
    path.write_text(CPUINFO.replace("fma", "fma avx512f"))
    agent.kubectl("delete", "nodefingerprint", NODE)
    after = until(lambda: found(agent), within=10)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["host"]["facts"]["cpu"] == {"isa": ["avx2", "avx512f", "fma"]}


def test_what_somebody_alters_is_repaired_and_what_others_add_stays(agent: Cluster) -> None:
    until(lambda: found(agent))
    observation = {"class": "c", "imageDigest": "sha256:0", "device": "cpu", "id": "fp-0", "facts": {}}
    patch = {"spec": {"bootID": "forged", "observations": [observation]}}
    agent.kubectl("patch", "nodefingerprint", NODE, "--type=merge", "-p", json.dumps(patch))
    repaired = until(lambda: (now := found(agent))["spec"]["bootID"] != "forged" and now, within=10)
    assert repaired["spec"]["observations"][0]["id"] == "fp-0"


def test_an_agent_without_news_writes_nothing_and_is_small(agent: Cluster) -> None:
    until(lambda: found(agent))
    time.sleep(2)  # the agent's own write echoes in its watch before it is quiet
    process = agent_process(agent)
    writes, began, ticks = agent.write_count(USER), time.monotonic(), cpu_ticks(process)
    time.sleep(4)  # the quiet is what is looked at
    assert agent.write_count(USER) == writes
    assert cpu_ticks(process) - ticks <= 1, f"{cpu_ticks(process) - ticks} ticks of 10 ms in {time.monotonic() - began:.1f} s"
    resident = re.search(r"^VmRSS:\s+(\d+) kB", (process / "status").read_text(), re.MULTILINE)
    assert resident is not None
    assert int(resident[1]) < 30 * 1024


def test_the_cache_is_there_for_every_user_to_add_to(agent: Cluster) -> None:
    blobs = agent.node_root(NODE) / "var/lib/enginefleet/cache/sha256"
    assert blobs.stat().st_mode & 0o7777 == 0o1733


def test_the_probe_says_alive_and_the_agent_ends_at_once_when_told(agent: Cluster) -> None:
    pod = agent.kubectl("get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=enginefleet-agent", "-o", "name").stdout.strip()
    agent.kubectl("exec", "-n", NAMESPACE, pod, "--", "enginefleet-agent", "--alive")
    began = time.monotonic()
    agent.kubectl("delete", "-n", NAMESPACE, pod, "--wait=true")
    assert time.monotonic() - began < 4, "the grace period is 5 seconds: SIGTERM was not enough"


def cpu_ticks(process: Path) -> int:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_jetson_that_is_labelled_tells_its_module_its_release_and_its_power_mode(agent: Cluster) -> None:
    root = plant("jetpack-6.2", agent.node_root(NODE))
    (root / "proc/cpuinfo").write_text(CPUINFO)
    agent.kubectl("apply", "-f", str(ROOT / "deploy" / "41-agent-jetson.yaml"))
    agent.kubectl("label", "node", NODE, "enginefleet.io/jetson=true")
    host = until(lambda: (seen := found(agent)["spec"]["host"])["facts"].get("jetson", {}).get("l4t") and seen, within=60)
    assert host["facts"]["jetson"] == {"module": "p3767-0005", "l4t": "36.4.3"}
    assert host["context"]["powerMode"] == "2 (MAXN_SUPER)"
    assert host["facts"]["simulated"] == "EngineFleet simulated CPU"
