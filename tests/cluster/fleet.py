"""A real cluster with the product in it, shared by the tests of this folder; the operator is a process that tests may kill.

Each test gets namespaces and HardwareClasses of its own. The operator runs with the rights of its ServiceAccount, from deploy/*.yaml.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import boto3
import yaml
from botocore.config import Config

from demo.kube import Kube
from demo.world import NotInTime, Object, World, condition, diagnosis, is_settled
from localcluster import Cluster, NodeSpec, S3Endpoint
from localcluster import tools as localtools
from tools.images import build_images

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "examples" / "mnist"
SYSTEM = "enginefleet-system"
T = TypeVar("T")
_numbers = itertools.count(1)
LATER = 180.0
"""Seconds for any one thing to happen, on a machine that does other work. A wait that succeeds does not take longer for it."""


class OperatorProcess:
    """`enginefleet-operator` outside of the cluster, with the token of its ServiceAccount."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self.kubeconfig, self.log = kubeconfig, log
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self, server: Path | None = None, **flags: str) -> None:
        """Start it; `server` is another kubeconfig (a proxy before the API server)."""
        assert self._process is None
        path = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator"))
        argv = [sys.executable, "-m", "enginefleet_operator.app", "--kubeconfig", str(server or self.kubeconfig)]
        given = {
            "retry-base": "1",
            "leave-grace": "3",
            "lease-seconds": "45",
            "host": "127.0.0.1",
            "port": "0",
            "prepare-image": "enginefleet/prepare:dev",
        } | {k.replace("_", "-"): v for k, v in flags.items()}
        for name, value in given.items():
            argv += [f"--{name}", value]
        # like a container that restarts in its pod: it takes its own lease up at once
        env = {"PYTHONPATH": path, "POD_NAME": "operator-0"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | env)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float = 30.0) -> int:
        assert self._process is not None
        code = self._process.wait(timeout)
        self._process = None
        return code

    def kill(self) -> None:
        """SIGKILL: nothing is said goodbye to."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


@dataclass
class Fleet:
    """The cluster, a live picture of it, and the means to apply and break things."""

    cluster: Cluster
    kube: Kube
    world: World
    s3: S3Endpoint
    operator: OperatorProcess
    writes_since: datetime = field(default_factory=lambda: datetime.now(UTC))

    # ---- objects

    def apply(self, *documents: Mapping[str, Any]) -> None:
        self.kube.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([dict(d) for d in documents]))

    def delete(self, kind: str, name: str, namespace: str = "", *, wait: bool = False) -> None:
        where = ["-n", namespace] if namespace else []
        self.kube.kubectl("delete", kind, name, *where, "--ignore-not-found", f"--wait={str(wait).lower()}")

    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.s3.outside,
            aws_access_key_id=self.s3.access_key,
            aws_secret_access_key=self.s3.secret_key,
            region_name=self.s3.region,
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 3}),
        )

    def keys(self, prefix: str) -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket="engines", Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    # ---- waiting

    def wait(self, what: str, found: Callable[[], T | None], seconds: float = LATER) -> T:
        try:
            return self.world.wait(what, found, seconds)
        except NotInTime as error:
            tail = "\n".join(self.operator.log.read_text(errors="replace").splitlines()[-25:])
            raise AssertionError(f"{error}\n--- operator\n{tail}") from None

    def quiet(self, site: Site, seconds: float = 3.0) -> None:
        """Nothing of this site changes for a while: no Job, no write of ours."""
        before = site.versions()
        disturbed = self.world.quiet(seconds, functools.partial(_changed, site, before))
        assert disturbed == ""

    def calm(self, site: Site, seconds: float = 1.5, within: float = LATER) -> None:
        """Wait until nothing of this site has changed for a while."""
        deadline = time.monotonic() + within
        while True:
            before = site.versions()
            disturbed = self.world.quiet(seconds, functools.partial(_changed, site, before))
            if not disturbed:
                return
            assert time.monotonic() < deadline, f"never calm: {disturbed}"

    def diagnosis(self) -> str:
        return diagnosis(self.world)

    def operator_writes(self, since: datetime) -> list[str]:
        """Writes of the operator since then, the lease left out."""
        user = f"system:serviceaccount:{SYSTEM}:enginefleet-operator"
        return [
            f"{e.verb} {e.resource} {e.namespace}/{e.name}"
            for e in self.cluster.audit_events()
            if e.is_write and e.received >= since and e.user == user and e.resource != "leases"
        ]


def phase(build: Object) -> str:
    """Of an EngineBuild, which has no status at all for a moment."""
    return str(build.get("status", {}).get("phase", ""))


def _changed(site: Site, before: Mapping[str, str]) -> str:
    """What has changed since; empty when nothing has."""
    after = site.versions()
    if after == before:
        return ""
    changed = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    return f"changed: {', '.join(changed)}"


class Site:
    """One namespace with its store, secret and classes: what a test applies, by name."""

    def __init__(self, fleet: Fleet, nodes: str = "cpu-a", prefix: str = "") -> None:
        self.fleet = fleet
        number = next(_numbers)
        self.namespace = f"t{number}"
        self.hardware_class = f"class-{number}"
        self.nodes_label = nodes
        self.prefix = prefix or self.namespace
        """Where its engines are: sites that share one adopt each other's."""
        self.name = "digits"

    # ---- manifests

    def secret(self, name: str = "engines") -> dict[str, Any]:
        data = {"AWS_ACCESS_KEY_ID": self.fleet.s3.access_key, "AWS_SECRET_ACCESS_KEY": self.fleet.s3.secret_key}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": self.namespace}, "stringData": data}

    def store(self, name: str = "default", **spec: Any) -> dict[str, Any]:
        given = {"uri": f"s3://engines/{self.prefix}/", "endpoint": self.fleet.s3.inside, "credentialsSecretRef": {"name": "engines"}}
        return self._object("EngineStore", name, given | spec)

    def hwc(self, image: str = "enginefleet/runtime:ort-1.24", **spec: Any) -> dict[str, Any]:
        runtime = {"image": image} | spec.pop("runtime", {})
        given = {"nodeSelector": {"matchLabels": {"hardware": self.nodes_label}}, "backend": "onnxruntime", "runtime": runtime}
        found = self._object("HardwareClass", self.hardware_class, given | spec)
        del found["metadata"]["namespace"]
        return found

    def mdep(self, name: str = "", **spec: Any) -> dict[str, Any]:
        given: dict[str, Any] = {
            "model": {"uri": "s3://models/mnist/model.onnx"},
            "validation": {"uri": "s3://models/mnist/validation.npz", "minSamples": 200, "acceptance": {"minimum": "0.9"}},
            "targets": [{"hardwareClass": self.hardware_class}],
        }
        return self._object("ModelDeployment", name or self.name, given | spec)

    def _object(self, kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": "enginefleet.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": dict(spec),
        }

    def namespace_object(self) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}

    def apply_all(self, **mdep: Any) -> None:
        self.fleet.apply(self.namespace_object(), self.secret(), self.store(), self.hwc(), self.mdep(**mdep))

    def close(self) -> None:
        self.fleet.delete("namespace", self.namespace)
        self.fleet.delete("hardwareclass", self.hardware_class)

    # ---- reading

    def get(self, name: str = "") -> Object | None:
        return self.fleet.world.one("mdep", name or self.name, self.namespace)

    def condition(self, kind: str, name: str = "") -> Mapping[str, str]:
        return condition(self.get(name), kind)

    def settled(self, name: str = "") -> Object | None:
        """Ready for its present generation."""
        found = self.get(name)
        return found if is_settled(found) else None

    def wait_ready(self, seconds: float = LATER, name: str = "") -> Object:
        return self.fleet.wait(f"{self.namespace}/{name or self.name} is Ready", lambda: self.settled(name), seconds)

    def wait_reason(self, reason: str, kind: str = "Ready", seconds: float = LATER, name: str = "") -> Mapping[str, str]:
        return self.fleet.wait(
            f"condition {kind} has reason {reason}",
            lambda: c if (c := self.condition(kind, name)).get("reason") == reason else None,
            seconds,
        )

    def jobs(self, role: str = "") -> list[Object]:
        return self.fleet.world.all("job", self.namespace, **({"role": role} if role else {}))

    def builds(self) -> list[Object]:
        return self.fleet.world.all("eb", self.namespace)

    def workloads(self) -> list[Object]:
        return self.fleet.world.all("ds", self.namespace)

    def pods(self) -> list[Object]:
        return [p for p in self.fleet.world.all("pod", self.namespace, role="serve") if "deletionTimestamp" not in p["metadata"]]

    def versions(self) -> dict[str, str]:
        """resourceVersion of everything here; nodes only by their labels, which is what we write there."""
        found = {}
        for kind in ("mdep", "eb", "job", "ds", "pod"):
            for item in self.fleet.world.all(kind, self.namespace):
                found[f"{kind}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
        for node in self.fleet.world.all("node"):
            ours = {k: v for k, v in node["metadata"]["labels"].items() if "enginefleet.io/" in k}
            found[f"node/{node['metadata']['name']}"] = json.dumps(ours, sort_keys=True)
        return found

    def end_state(self) -> dict[str, Any]:
        """What must be the same however one got there: names of EngineBuilds and workloads, phases, nodes, ready pods."""
        return {
            "builds": sorted((b["spec"]["class"], b["spec"]["fingerprint"], phase(b)) for b in self.builds()),
            "workloads": len(self.workloads()),
            "pods": sorted(p["spec"].get("nodeName", "") for p in self.pods()),
            "ready": self.condition("Ready").get("status"),
            "rollout": (self.get() or {}).get("status", {}).get("rollout"),
        }


def template(image: str, note: str = "") -> dict[str, Any]:
    """A user's own pods, which serve with the reference server of `image`."""
    server: dict[str, Any] = {
        "name": "server",
        "image": image,
        "command": ["enginefleet", "serve"],
        "env": [{"name": "ENGINEFLEET_PORT", "value": "8000"}, {"name": "HOME", "value": "/tmp"}, {"name": "NOTE", "value": note}],
        "readinessProbe": {"httpGet": {"path": "/v2/health/ready", "port": 8000}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "template": {"spec": {"automountServiceAccountToken": False, "volumes": [{"name": "tmp", "emptyDir": {}}], "containers": [server]}}
    }


def ready(pod: Object) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def standing(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = (site.get() or {}).get("status", {}).get("classes", [{}])[0].get("rollout", {})
    return found


def served_by(site: Site) -> dict[str, str]:
    """Release by node, of ready pods."""
    return {p["spec"]["nodeName"]: p["metadata"]["labels"]["enginefleet.io/release"].partition("-")[0] for p in site.pods() if ready(p)}


def everywhere(site: Site, release: str) -> bool:
    return served_by(site) == {"node-a1": release, "node-a2": release}


def token_kubeconfig(cluster: Cluster, kube: Kube, path: Path, server: str = "") -> Path:
    """A kubeconfig with the operator's ServiceAccount token; `server` replaces the API server's address (without TLS checks)."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = kube.kubectl("create", "token", "enginefleet-operator", "-n", SYSTEM, "--duration=8h").strip()
    config["users"][0]["user"] = {"token": token}
    if server:
        config["clusters"][0]["cluster"] = {"server": server}
    path.write_text(yaml.safe_dump(config))
    return path


NODES = {"node-a1": "cpu-a", "node-a2": "cpu-a", "node-b1": "cpu-b"}


def install(kube: Kube) -> None:
    """CRDs, RBAC and policies, the agent; the operator's Deployment is left out, tests run it themselves."""
    kube.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    kube.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    for path in sorted((ROOT / "deploy").glob("*.yaml")):
        if "operator" not in path.name:
            kube.kubectl("apply", "-f", str(path))


def upload(endpoint: S3Endpoint, client: Any) -> None:
    for bucket in ("engines", "models"):
        client.create_bucket(Bucket=bucket)
    for name in ("model.onnx", "validation.npz", "calibration.npz"):
        client.upload_file(str(MNIST / name), "models", f"mnist/{name}")


def start_fleet(folder: Path) -> tuple[Cluster, Fleet]:
    """Cluster, nodes, S3, images, the product; the caller closes what it gets."""
    images = build_images()
    cluster = Cluster(progress=lambda line: print(line, flush=True))
    cluster.up()
    for image in images.values():
        cluster.add_image(image)
    for name, hardware in NODES.items():
        cluster.add_node(NodeSpec(name, labels={"hardware": hardware}), wait=False)
    endpoint = cluster.start_s3()
    argv = [str(localtools.tool("kubectl")), "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", str(cluster.dir / "kubectl")]
    kube = Kube(argv)
    kube.__enter__()
    install(kube)
    world = World(kube)
    world.__enter__()
    operator = OperatorProcess(token_kubeconfig(cluster, kube, folder / "operator.kubeconfig"), folder / "operator.log")
    fleet = Fleet(cluster, kube, world, endpoint, operator)
    upload(endpoint, fleet.client())
    return cluster, fleet
