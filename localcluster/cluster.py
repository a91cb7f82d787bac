"""A local cluster: control plane, nodes, S3 server, and the ways in from outside."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from localcluster import audit as audit_log
from localcluster import controlplane, images, nodes, tools
from localcluster.api import Api
from localcluster.control import Control
from localcluster.errors import KubectlError, LocalClusterError
from localcluster.images import Image
from localcluster.nodes import NodeSpec
from localcluster.ports import listen
from localcluster.progress import Progress, silent
from localcluster.s3 import REGION, S3Endpoint
from localcluster.supervisor import Supervisor

STATE = "cluster.json"
MAX_NODES = 249


class Cluster:
    """A Kubernetes cluster on this machine, in a folder and a network namespace of its own; a context manager.

    It ends, and its folder goes, with down(), with the `with` block, and when the process that called up() ends in any way; with
    `detached` only with down(). `grace` is how many seconds a silent node stays Ready. `audit` writes `audit.log`: True for writes,
    "all" for reads too. `keep` leaves the folder (logs, audit) when the cluster ends.
    """

    def __init__(
        self,
        dir: Path | None = None,
        audit: bool | str = True,
        *,
        grace: float = 8.0,
        detached: bool = False,
        keep: bool = False,
        progress: Progress = silent,
    ) -> None:
        self._given_dir = dir
        self._audit, self._grace, self._detached, self._keep, self._progress = audit, grace, detached, keep, progress
        self._supervisor: Supervisor | None = None
        self._state: dict[str, Any] = {}
        self.dir = Path()

    # ---- from up to down

    def up(self) -> Self:
        """Start the control plane; returns when the API server is ready. Nodes are added by add_node()."""
        localnode = tools.program("localnode", self._progress)
        bwrap, _ = tools.tool("bwrap", self._progress), tools.tool("kubectl", self._progress)
        self._make_dir()
        began = time.monotonic()
        try:
            tokens = controlplane.Tokens()
            self._supervisor = Supervisor.start(localnode, bwrap, self.dir, detached=self._detached, remove=not self._keep)
            self._state = {
                "supervisor": self._supervisor.pid, "inner": self._supervisor.inner, "tokens": asdict(tokens), "localnode": str(localnode),
                "bwrap": str(bwrap), "grace": self._grace, "keep": self._keep, "nodes": {}, "relays": {}, "s3": None,
            }  # fmt: skip
            self._write_files(localnode, tokens)
            self._start("etcd", controlplane.etcd(localnode, self.dir))
            self._start("kube-apiserver", controlplane.apiserver(localnode, self.dir, bool(self._audit)))
            self._save()
            self._until(self._api().is_ready, "the API server is ready", process="kube-apiserver")
            self._start("kube-controller-manager", controlplane.controller_manager(localnode, self.dir, self._grace))
            self._start("kube-scheduler", controlplane.scheduler(localnode, self.dir))
            self._start("serviceproxy", controlplane.service_proxy(localnode, self.dir))
        except BaseException:
            self.down()
            raise
        self._progress(f"control plane ready after {time.monotonic() - began:.1f}s: KUBECONFIG={self.kubeconfig}")
        return self

    def down(self) -> None:
        """End everything and remove the folder. No error when it is down already."""
        if self._supervisor is not None:
            self._supervisor.end()
            self._supervisor = None
        if self.dir != Path() and not self._keep:
            shutil.rmtree(self.dir, ignore_errors=True)

    @classmethod
    def attach(cls, dir: Path, *, progress: Progress = silent) -> Self:
        """The running cluster of a folder, started by another process. Raises LocalClusterError when there is none."""
        path = dir / STATE
        if not path.exists():
            raise LocalClusterError(f"there is no cluster in {dir}", f"Start one with `python -m localcluster up --dir {dir}`.")
        cluster = cls(dir, progress=progress)
        cluster.dir = dir.absolute()
        cluster._state = json.loads(path.read_text())
        cluster._keep, cluster._grace = cluster._state["keep"], cluster._state["grace"]
        cluster._supervisor = Supervisor(cluster._state["supervisor"], cluster._state["inner"])
        return cluster

    def __enter__(self) -> Self:
        return self.up()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()

    # ---- images

    def add_image(self, image: Image) -> str:
        """Add or replace an image; nodes see it at once. Returns its digest."""
        path = self.dir / "images.json"
        entry = image.entry()
        images.write_map(path, {**images.read_map(path), image.name: entry})
        return str(entry["digest"])

    def remove_image(self, name: str) -> None:
        """Remove an image: new containers of it fail, running ones stay."""
        path = self.dir / "images.json"
        images.write_map(path, {key: value for key, value in images.read_map(path).items() if key != name})

    # ---- nodes

    def add_node(self, spec: NodeSpec, wait: bool = True) -> None:
        """Add a node and start it; with `wait` returns when it is Ready."""
        known: dict[str, Any] = self._state["nodes"]
        if spec.name in known:
            raise LocalClusterError(f"there is a node {spec.name} already", "Start it with start_node, or remove it first.")
        taken = {node["index"] for node in known.values()}
        index = next((i for i in range(1, MAX_NODES + 1) if i not in taken), None)
        if index is None:
            raise LocalClusterError(f"a local cluster has at most {MAX_NODES} nodes")
        root = spec.root.absolute() if spec.root else self.dir / "nodes" / spec.name / "root"
        root.mkdir(parents=True, exist_ok=True)
        nodes.write_facts(root, spec)
        for taint in spec.taints:
            nodes.parse_taint(taint)
        known[spec.name] = {
            "index": index, "root": str(root), "labels": dict(spec.labels), "taints": list(spec.taints), "cpus": spec.cpus, "memory": spec.memory,
            "extended": dict(spec.extended),
        }  # fmt: skip
        self._save()
        self.start_node(spec.name, wait=wait)

    def start_node(self, name: str, wait: bool = True) -> None:
        """Start a stopped node. It has a new boot id, and its pods' containers are started anew."""
        node = self._node(name)
        nodes.write_boot_id(Path(node["root"]))
        state = self.dir / "nodes" / name / "state"
        state.mkdir(parents=True, exist_ok=True)
        argv = [
            self._state["localnode"], "node", "--name", name, "--index", str(node["index"]), "--server", f"https://{controlplane.API_INSIDE}",
            "--pki", str(self.dir / "pki"), "--state", str(state), "--root", node["root"], "--images", str(self.dir / "images.json"),
            "--bwrap", self._state["bwrap"], "--cpus", str(node["cpus"]), "--memory", node["memory"], "--heartbeat", f"{max(1.0, self._grace / 4):g}s",
        ]  # fmt: skip
        if node["extended"]:
            argv += ["--extended", ",".join(f"{key}={value}" for key, value in node["extended"].items())]
        self._create_node_object(name, node)
        self._start(f"node-{name}", argv, isolate=True)
        if wait:
            self.wait_ready(name)

    def wait_ready(self, *names: str) -> None:
        """Wait until started nodes are Ready (after add_node or start_node with wait=False, to start several at a time)."""
        for name in names:
            began, boot_id = time.monotonic(), nodes.read_boot_id(self.node_root(name))
            self._until(functools.partial(self._is_ready, name, boot_id), f"node {name} is Ready", process=f"node-{name}")
            self._progress(f"node {name} is Ready after {time.monotonic() - began:.1f}s")

    def stop_node(self, name: str, wait: bool = False) -> None:
        """Cut a node's power: kubelet and containers are gone at once. With `wait` returns when the cluster has noticed."""
        self._node(name)
        self._control.end(f"node-{name}", signal.SIGKILL)
        if wait:
            self._until(lambda: self._readiness(name) == "Unknown", f"node {name} is NotReady")

    def reboot_node(self, name: str, wait: bool = True) -> None:
        """Stop and start."""
        self.stop_node(name)
        self.start_node(name, wait=wait)

    def pause_node(self, name: str) -> None:
        """Freeze a node's kubelet: the node falls silent, its containers run on (until their output fills a pipe)."""
        self._node(name)
        self._control.signal(f"node-{name}", signal.SIGSTOP)

    def continue_node(self, name: str) -> None:
        """Let a paused node go on."""
        self._node(name)
        self._control.signal(f"node-{name}", signal.SIGCONT)

    def remove_node(self, name: str) -> None:
        """Stop a node and remove it from the cluster, with its folder unless that was given."""
        self.stop_node(name)
        self._api().request("DELETE", f"/api/v1/nodes/{name}")
        shutil.rmtree(self.dir / "nodes" / name, ignore_errors=True)
        del self._state["nodes"][name]
        self._save()

    def node_root(self, name: str) -> Path:
        """The folder that stands for a node's file system; tests may change its files at any time."""
        return Path(self._node(name)["root"])

    # ---- ways in

    @property
    def kubeconfig(self) -> Path:
        """An admin's kubeconfig for processes of this machine."""
        return self.dir / "kubeconfig"

    @property
    def kubeconfig_inside(self) -> Path:
        """An admin's kubeconfig for processes inside the cluster's network (popen_inside)."""
        return self.dir / "inside.kubeconfig"

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin. With `check` a failure raises KubectlError with kubectl's words."""
        argv = [str(tools.tool("kubectl")), "--kubeconfig", str(self.kubeconfig), "--cache-dir", str(self.dir / "kubectl"), *args]
        done = subprocess.run(argv, input=input, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    def relay(self, inside: str) -> str:
        """Make an address inside (a pod's, a Service's) reachable from outside; returns 127.0.0.1:PORT, the same for the same address."""
        relays: dict[str, int] = self._state["relays"]
        if inside not in relays:
            with listen() as listening:
                self._control.relay(listening, inside)
                relays[inside] = listening.getsockname()[1]
            self._save()
        return f"127.0.0.1:{relays[inside]}"

    def popen_inside(self, argv: Sequence[str], **kw: Any) -> subprocess.Popen[Any]:
        """subprocess.Popen in the cluster's network and user namespaces: it reaches pods and Services. It is killed when the cluster ends."""
        return subprocess.Popen([*self._enter(), *argv], **kw)

    def run_inside(self, argv: Sequence[str], **kw: Any) -> subprocess.CompletedProcess[Any]:
        """subprocess.run in the cluster's network."""
        return subprocess.run([*self._enter(), *argv], check=kw.pop("check", True), **kw)

    # ---- S3

    def start_s3(self, root: Path | None = None) -> S3Endpoint:
        """Start the S3 server at its fixed address inside, with a relay outside. Objects are in `root`, or in the cluster's folder."""
        settings = self._state["s3"]
        if settings is None:
            folder = (root or self.dir / "s3").absolute()
            settings = {"root": str(folder), "access_key": secrets.token_hex(8), "secret_key": secrets.token_hex(16)}
            self._state["s3"] = settings
            self._save()
        Path(settings["root"]).mkdir(parents=True, exist_ok=True)
        program = tools.program("s3server", self._progress)
        outside = self.relay(controlplane.S3_INSIDE)
        running = self._control.processes().get("s3")
        if running is None or not running.running:
            self._start(
                "s3", [str(program), "--root", settings["root"], "--listen", controlplane.S3_INSIDE, "--region", REGION],
                env={"S3_ACCESS_KEY": settings["access_key"], "S3_SECRET_KEY": settings["secret_key"]},
            )  # fmt: skip
        self._until(lambda: _accepts_http(outside), "the S3 server answers", process="s3")
        return S3Endpoint(f"http://{controlplane.S3_INSIDE}", f"http://{outside}", settings["access_key"], settings["secret_key"])

    def stop_s3(self) -> None:
        """SIGKILL the S3 server: connections to it fail. The data stays."""
        self._control.end("s3", signal.SIGKILL)

    def restart_s3(self) -> S3Endpoint:
        """The same server again: same addresses, credentials and data."""
        self.stop_s3()
        return self.start_s3()

    # ---- audit, status

    def audit_events(self) -> list[audit_log.AuditEvent]:
        """Everything in the audit log so far."""
        return list(audit_log.read(self.dir / "audit.log"))

    def write_count(self, user: str | None = None, since: datetime | None = None) -> int:
        """How many writes there were, by one user or all, since a moment (with a time zone) or the start."""
        return sum(
            event.is_write and (user is None or event.user == user) and (since is None or event.received >= since)
            for event in audit_log.read(self.dir / "audit.log")
        )

    def status(self) -> dict[str, Any]:
        """Processes, nodes and addresses, as plain data."""
        processes = {name: asdict(process) for name, process in self._control.processes().items()}
        found = {name: {**node, "ready": self._readiness(name)} for name, node in self._state["nodes"].items()}
        return {
            "dir": str(self.dir),
            "kubeconfig": str(self.kubeconfig),
            "processes": processes,
            "nodes": found,
            "relays": dict(self._state["relays"]),
        }

    # ---- helpers

    @property
    def _control(self) -> Control:
        return Control(self.dir)

    def _api(self) -> Api:
        port = int(self.relay(controlplane.API_INSIDE).rpartition(":")[2])
        return Api("127.0.0.1", port, (self.dir / "pki" / "ca.crt").read_text(), self._state["tokens"]["admin"])

    def _node(self, name: str) -> dict[str, Any]:
        known: dict[str, dict[str, Any]] = self._state["nodes"]
        if name not in known:
            raise LocalClusterError(f"there is no node {name}; there are: {', '.join(sorted(known)) or 'none'}")
        return known[name]

    def _node_object(self, name: str) -> Any:
        with contextlib.suppress(OSError):
            return self._api().get(f"/api/v1/nodes/{name}")
        return None

    def _readiness(self, name: str) -> str:
        found = self._node_object(name)
        conditions = found["status"].get("conditions", []) if found else []
        return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "Unknown")

    def _is_ready(self, name: str, boot_id: str) -> bool:
        """Ready since this boot (the word of a node that was just cut off stays in the API for a while), and open for pods."""
        found = self._node_object(name)
        if not found or found["status"].get("nodeInfo", {}).get("bootID") != boot_id:
            return False
        closed = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"].get("conditions", []))
        return ready and not any(taint["key"] in closed for taint in found["spec"].get("taints", []))

    def _create_node_object(self, name: str, node: Mapping[str, Any]) -> None:
        """As admin, before the kubelet does: a kubelet may not give itself the labels that feature discovery sets (*.kubernetes.io)."""
        body = {
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": node["labels"]},
            "spec": {"taints": [nodes.parse_taint(taint) for taint in node["taints"]]},
        }  # fmt: skip
        status, text = self._api().request("POST", "/api/v1/nodes", body)
        if status not in (HTTPStatus.CREATED, HTTPStatus.CONFLICT):
            raise LocalClusterError(f"node {name} was refused: {text.decode(errors='replace')}")

    def _make_dir(self) -> None:
        if self._given_dir is None:
            self.dir = Path(tempfile.mkdtemp(prefix="enginefleet-cluster-"))
        else:
            self.dir = self._given_dir.absolute()
            if self.dir.exists() and any(self.dir.iterdir()):
                state = self.dir / STATE
                hint = (
                    f"`python -m localcluster down --dir {self.dir}` removes the cluster in it."
                    if state.exists()
                    else "Give an empty or a new folder."
                )
                self.dir, found = Path(), self.dir
                raise LocalClusterError(f"{found} is not empty", hint)
        for name in ("logs", "nodes", "pki"):
            (self.dir / name).mkdir(parents=True, exist_ok=True)
        # keys and tokens are below
        self.dir.chmod(0o700)
        images.write_map(self.dir / "images.json", {})

    def _write_files(self, localnode: Path, tokens: controlplane.Tokens) -> None:
        pki = self.dir / "pki"
        subprocess.run(
            [str(localnode), "pki", "--dir", str(pki), "--names", ",".join(controlplane.CERTIFICATE_NAMES),
             "--addresses", ",".join(controlplane.CERTIFICATE_ADDRESSES)], check=True, capture_output=True,
        )  # fmt: skip
        (pki / "tokens.csv").write_text(tokens.csv())
        (self.dir / "audit-policy.json").write_text(controlplane.audit_policy(reads=self._audit == "all"))
        authority, inside = (pki / "ca.crt").read_text(), f"https://{controlplane.API_INSIDE}"
        outside = f"https://{self.relay(controlplane.API_INSIDE)}"
        for path, server, token in (
            (self.kubeconfig, outside, tokens.admin),
            (self.kubeconfig_inside, inside, tokens.admin),
            (self.dir / "manager.kubeconfig", inside, tokens.manager),
            (self.dir / "scheduler.kubeconfig", inside, tokens.scheduler),
            (self.dir / "proxy.kubeconfig", inside, tokens.proxy),
        ):
            path.write_text(controlplane.kubeconfig(server, authority, token))

    def _save(self) -> None:
        partial = self.dir / f".{STATE}"
        partial.write_text(json.dumps(self._state, indent=1))
        partial.rename(self.dir / STATE)

    def _start(self, name: str, argv: Sequence[str], *, isolate: bool = False, env: Mapping[str, str] | None = None) -> None:
        # fewer collections of garbage, for some memory: they take a good part of a young API server's time
        base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.dir), "GOGC": "400", "GOMEMLIMIT": "800MiB"}
        self._control.start(name, argv, self.dir / "logs" / f"{name}.log", {**base, **(env or {})}, isolate=isolate)

    def _enter(self) -> list[str]:
        inner = str(self._state["inner"])
        return ["nsenter", "--target", inner, "--user", "--net", "--preserve-credentials", "--"]

    def _until(self, condition: Callable[[], bool], what: str, process: str = "", timeout: float = 60.0) -> None:
        """Ask until it is true. Polling, because there is nothing to wait on before the API server answers, and one way for all is simpler."""
        deadline = time.monotonic() + timeout
        while not condition():
            ended = process and not self._control.processes()[process].running
            if ended or time.monotonic() > deadline:
                reason = f"{process} has ended" if ended else f"not within {timeout:.0f} s"
                raise LocalClusterError(f"expected that {what}: {reason}{self._last_words(process)}")
            time.sleep(0.1)

    def _last_words(self, process: str) -> str:
        path = self.dir / "logs" / f"{process}.log"
        if not process or not path.exists():
            return ""
        return f"; the end of {path}:\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])


def _accepts_http(address: str) -> bool:
    """Whether any HTTP answer comes back. (A relay accepts connections whether or not there is a server behind it.)"""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(4) == b"HTTP"
    return False
