"""One cluster with two nodes that differ only by their fact files, for the tests that do not need one of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localcluster import Cluster, NodeSpec
from tests.localcluster.pods import SHELL, pod


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with Cluster(grace=5) as running:
        running.add_image(SHELL)
        for name in ("node-a", "node-b"):
            facts = {"proc/cpuinfo": f"model name : the processor of {name}\n", "sys/module/fact": f"{name}\n"}
            running.add_node(
                NodeSpec(name, labels={"pool": name}, extended={"nvidia.com/gpu": "1"} if name == "node-a" else {}, facts=facts)
            )
        yield running


@pytest.fixture
def run_pod(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """Run a script in a pod to its end; returns its output. Keywords: image, node, and anything that a pod's spec may have."""
    names: list[str] = []

    def run(script: str, *, phase: str = "Succeeded", **more: Any) -> str:
        name = f"p{time.monotonic_ns()}"
        names.append(name)
        cluster.kubectl("apply", "-f", "-", input=json.dumps(pod(name, script, **more)))
        try:
            cluster.kubectl("wait", f"pod/{name}", f"--for=jsonpath={{.status.phase}}={phase}", "--timeout=20s")
        except Exception as error:
            raise AssertionError(
                f"{error}\n{cluster.kubectl('describe', 'pod', name).stdout}\n{cluster.kubectl('logs', name, check=False).stdout}"
            ) from error
        return cluster.kubectl("logs", name).stdout

    yield run
    if names:
        cluster.kubectl("delete", "pod", "--force", "--grace-period=0", *names)
