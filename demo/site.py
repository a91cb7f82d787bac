"""Where the demo runs: a local cluster with its S3 server, or the reader's own cluster with what they bring."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.config import Config

from demo.kube import Kube, KubeError
from localcluster import Cluster, NodeSpec
from localcluster import tools as localtools
from localcluster.progress import Progress
from tools.images import build_images

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = ROOT / "demo" / "manifests"
EXAMPLE = ROOT / "examples" / "mnist"
NAMESPACE = "vision"
SYSTEM = "enginefleet-system"
NODES = tuple(
    NodeSpec(name, labels={"hardware": hardware}) for name, hardware in (("node-a1", "cpu-a"), ("node-a2", "cpu-a"), ("node-b1", "cpu-b"))
)
ENGINES, MODELS = "engines", "models"

CONTEXT_NEEDS = """\
make demo KUBE_CONTEXT=… uses a cluster of yours. It needs, besides kubectl's rights of an admin there:
  images     that its nodes can pull, in place of those that the local cluster gets by itself:
             ENGINEFLEET_DEMO_IMAGES=runtime=…,runtime-other=…,prepare=…,operator=…,agent=…
             (runtime and runtime-other: the builder with two versions of ONNX Runtime; prepare: the builder with ModelOpt)
  an S3      server that both its pods and this machine reach, with conditional writes, and a bucket of its own for engines and models:
             ENGINEFLEET_DEMO_S3=http://host:port  ENGINEFLEET_DEMO_BUCKET=name  AWS_ACCESS_KEY_ID=…  AWS_SECRET_ACCESS_KEY=…
  nodes      one or more Linux nodes; the demo labels the first as hardware=cpu-b, the others as hardware=cpu-a (and takes the labels away again)
It creates the namespaces vision and enginefleet-system and the CRDs, and removes them at the end unless ARGS=--keep is given.
Left out there: stopping the S3 server and rebooting a node; counting the operator's writes in an audit log (object versions are compared)."""


class SiteError(Exception):
    """Something that the reader must provide."""


@dataclass(slots=True)
class Site:
    """One place to run in. `images` maps the names used in manifests to those of this site; `address` of an S3 server as pods see it."""

    kube: Kube
    s3_inside: str
    s3_outside: str
    access_key: str
    secret_key: str
    cluster: Cluster | None = None
    images: dict[str, str] = field(default_factory=dict)
    bucket: str = ""
    """One bucket for everything; empty: one for engines and one for models."""

    # ---- manifests

    def manifest(self, path: Path) -> str:
        """A manifest as this site needs it: on the local cluster exactly the file."""
        text = path.read_text()
        if self.cluster is not None:
            return text
        for name, ours in self.images.items():
            text = text.replace(name, ours)
        if self.bucket:
            text = text.replace("s3://engines/", f"s3://{self.bucket}/engines/").replace("s3://models/", f"s3://{self.bucket}/models/")
        documents = [document for document in yaml.safe_load_all(text) if document]
        for document in documents:
            if document["kind"] == "EngineStore":
                document["spec"]["endpoint"] = self.s3_inside
        return yaml.safe_dump_all(documents)

    def apply(self, path: Path) -> str:
        """kubectl apply of one file; what kubectl says, on one line an object."""
        return self.kube.kubectl("apply", "-f", "-", input=self.manifest(path)).strip()

    def install(self) -> None:
        """CRDs, then operator and agent."""
        self.kube.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        self.kube.kubectl("wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{name}" for name in self.crds()))
        for path in sorted((ROOT / "deploy").glob("*.yaml")):
            self.apply(path)

    @staticmethod
    def crds() -> list[str]:
        return [path.name.removesuffix(".yaml") for path in sorted((ROOT / "crds").glob("*.yaml"))]

    def namespace_and_secret(self) -> None:
        """The user's namespace, and the Secret with the store's credentials."""
        secret = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        documents: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "engines", "namespace": NAMESPACE}, "stringData": secret},
        ]
        self.kube.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))

    # ---- S3

    def s3(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.s3_outside,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 5}),
        )

    def upload(self, folder: Path, names: tuple[str, ...]) -> int:
        """Buckets, then the example's files below models/mnist; how many bytes."""
        client = self.s3()
        if not self.bucket:
            for bucket in (ENGINES, MODELS):
                client.create_bucket(Bucket=bucket)
        size = 0
        for name in names:
            key = f"mnist/{name}" if not self.bucket else f"models/mnist/{name}"
            client.upload_file(str(folder / name), self.bucket or MODELS, key)
            size += (folder / name).stat().st_size
        return size

    # ---- the operator's pod

    def operator_pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.kube.get(f"/api/v1/namespaces/{SYSTEM}/pods")["items"]
        return [pod for pod in found if "operator" in pod["metadata"]["name"]]

    def kill_operator(self) -> str:
        """SIGKILL to its process where we can reach it, else its pod deleted; says which."""
        pod = self.operator_pods()[0]["metadata"]["name"]
        if self.cluster is not None:
            for pid in self.operator_pids():
                os.kill(pid, signal.SIGKILL)
                return f"kill -9 {pid} (pod {pod})"
        self.kube.kubectl("delete", "pod", "-n", SYSTEM, pod, "--wait=false")
        return f"kubectl delete pod -n {SYSTEM} {pod}"

    def operator_pids(self) -> list[int]:
        """Processes of the operator's container on this machine; none on somebody's own cluster."""
        return _processes_of(str(self.operator_pods()[0]["metadata"]["name"])) if self.cluster is not None else []

    def operator_log(self, lines: int = 40) -> str:
        with contextlib.suppress(KubeError, KeyError, IndexError):
            pod = self.operator_pods()[0]["metadata"]["name"]
            return self.kube.kubectl("logs", "-n", SYSTEM, pod, f"--tail={lines}")
        return "(no log: there is no operator pod, or it has not started)"

    def writes(self, since: datetime) -> list[str] | None:
        """Writes of operator and agent since then, renewals of the Lease left out; None where there is no audit log."""
        if self.cluster is None:
            return None
        return [
            f"{event.verb} {event.resource} {event.namespace}/{event.name}"
            for event in self.cluster.audit_events()
            if event.is_write
            and event.received >= since
            and event.user.startswith(f"system:serviceaccount:{SYSTEM}:")
            and event.resource != "leases"
        ]


def _processes_of(pod: str) -> list[int]:
    """Processes on this machine that run in the operator's container: they carry the pod's name in their environment."""
    marks = (f"POD_NAME={pod}".encode(), f"HOSTNAME={pod}".encode())
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            variables = path.read_bytes().split(b"\0")
            if any(mark in variables for mark in marks):
                found.append(int(path.parent.name))
    return sorted(found)


@contextlib.contextmanager
def local_site(progress: Progress, *, keep: bool, nodes: Sequence[NodeSpec] = NODES) -> Iterator[Site]:
    """A cluster of these nodes with an S3 server on this machine. With `keep` it outlives this process."""
    images = build_images(progress=progress)
    folder = localtools.cache_dir() / "demo" if keep else None
    cluster = Cluster(folder, detached=keep, progress=progress)
    cluster.up()
    try:
        for image in images.values():
            cluster.add_image(image)
        for node in nodes:
            cluster.add_node(node, wait=False)
        endpoint = cluster.start_s3()
        argv = [str(localtools.tool("kubectl")), "--kubeconfig", str(cluster.kubeconfig), "--cache-dir", str(cluster.dir / "kubectl")]
        with Kube(argv) as kube:
            yield Site(kube, endpoint.inside, endpoint.outside, endpoint.access_key, endpoint.secret_key, cluster)
    finally:
        if not keep:
            cluster.down()


@contextlib.contextmanager
def context_site(context: str, progress: Progress, *, keep: bool) -> Iterator[Site]:
    """The reader's own cluster. Raises SiteError with all that it needs when something is missing."""
    wanted = ("runtime", "runtime-other", "prepare", "operator", "agent")
    given = dict(pair.split("=", 1) for pair in os.environ.get("ENGINEFLEET_DEMO_IMAGES", "").split(",") if "=" in pair)
    names = ("ENGINEFLEET_DEMO_S3", "ENGINEFLEET_DEMO_BUCKET", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    missing = [f"image {name}" for name in wanted if name not in given] + [name for name in names if not os.environ.get(name)]
    if missing:
        raise SiteError(f"{CONTEXT_NEEDS}\n\nMissing now: {', '.join(missing)}")
    endpoint, bucket, access, secret = (os.environ[name] for name in names)
    ours = (
        "enginefleet/runtime:ort-1.24",
        "enginefleet/runtime:ort-1.23",
        "enginefleet/prepare:dev",
        "enginefleet/operator:dev",
        "enginefleet/agent:dev",
    )
    images = {name: given[key] for name, key in zip(ours, wanted, strict=True)}
    with Kube([str(localtools.tool("kubectl", progress)), "--context", context]) as kube:
        site = Site(kube, endpoint, endpoint, access, secret, None, images, bucket)
        nodes = [node["metadata"]["name"] for node in kube.get("/api/v1/nodes")["items"]]
        for index, node in enumerate(sorted(nodes)):
            kube.kubectl("label", "node", node, "--overwrite", f"hardware={'cpu-a' if index or len(nodes) == 1 else 'cpu-b'}")
        try:
            yield site
        finally:
            if not keep:
                _clean(kube, nodes)


def _clean(kube: Kube, nodes: list[str]) -> None:
    """Take away what the demo brought, users' objects first while the operator still runs."""
    for argv in (
        ("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s"),
        ("delete", "-f", str(ROOT / "deploy"), "--ignore-not-found", "--timeout=60s"),
        ("delete", "-f", str(ROOT / "crds"), "--ignore-not-found", "--timeout=60s"),
        *(("label", "node", node, "hardware-") for node in nodes),
    ):
        with contextlib.suppress(KubeError):
            kube.kubectl(*argv)
