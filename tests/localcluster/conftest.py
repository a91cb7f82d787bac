"""One cluster with two nodes that differ only by their fact files, for the tests that do not need one of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from localcluster import Cluster, Image, NodeSpec

SHELL = Image("test/shell:1")
"""this machine's own programs"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.add_image(SHELL)
        for name in ("node-a", "node-b"):
            facts = {"proc/cpuinfo": f"model name : the processor of {name}\n", "sys/module/fact": f"{name}\n"}
            running.add_node(NodeSpec(name, labels={"pool": name}, extended={"nvidia.com/gpu": "1"} if name == "node-a" else {}, facts=facts))
        yield running


@pytest.fixture
def run_pod(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """Run a script in a pod to its end; returns its output. Keywords: image, node, and anything that a pod's spec may have."""
    names: list[str] = []

    def run(script: str, *, phase: str = "Succeeded", **more: Any) -> str:
        name = f"p{time.monotonic_ns()}"
        names.append(name)
        cluster.kubectl("apply", "-f", "-", input=json_text(pod(name, script, **more)))
        try:
            cluster.kubectl("wait", f"pod/{name}", f"--for=jsonpath={{.status.phase}}={phase}", "--timeout=20s")
        except Exception as error:
            raise AssertionError(f"{error}\n{cluster.kubectl('describe', 'pod', name).stdout}\n{cluster.kubectl('logs', name, check=False).stdout}") from error
        return cluster.kubectl("logs", name).stdout

    yield run
    if names:
        cluster.kubectl("delete", "pod", "--force", "--grace-period=0", *names)


def json_text(value: object) -> str:
    import json

    return json.dumps(value)


def pod(name: str, script: str | None, *, image: str = SHELL.name, node: str | None = None, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main: dict[str, Any] = {"name": "main", "image": image, **(container or {})}
    if script is not None:
        main["command"] = ["/bin/sh", "-ec", script]
    body: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main], **spec}
    if node:
        body["nodeSelector"] = {"pool": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": body}
