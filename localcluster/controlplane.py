"""Command lines and files of the control plane's processes. Nothing here starts anything."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path

API_INSIDE = "10.20.255.1:6443"
S3_INSIDE = "10.20.254.1:9000"
SERVICE_RANGE = "10.96.0.0/16"
CERTIFICATE_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
CERTIFICATE_ADDRESSES = ("127.0.0.1", "10.96.0.1", API_INSIDE.split(":", maxsplit=1)[0])
WRITES = ("create", "update", "patch", "delete", "deletecollection")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Static bearer tokens, fresh for every cluster; the names are what the audit log shows."""

    admin: str = field(default_factory=lambda: secrets.token_hex(16))
    manager: str = field(default_factory=lambda: secrets.token_hex(16))
    scheduler: str = field(default_factory=lambda: secrets.token_hex(16))
    proxy: str = field(default_factory=lambda: secrets.token_hex(16))

    def csv(self) -> str:
        """The API server's token file. The last two get their rights from the roles that every API server makes for these names."""
        return (
            f'{self.admin},admin,admin,"system:masters"\n'
            # One process with many controllers: on a cluster of our own the
            # role for each of them would only slow the start down.
            f'{self.manager},system:kube-controller-manager,system:kube-controller-manager,"system:masters"\n'
            f"{self.scheduler},system:kube-scheduler,system:kube-scheduler\n"
            f"{self.proxy},system:kube-proxy,system:kube-proxy\n"
        )


def kubeconfig(server: str, authority: str, token: str) -> str:
    """A kubeconfig; JSON is YAML too."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "localcluster",
                    "cluster": {"server": server, "certificate-authority-data": base64.b64encode(authority.encode()).decode()},
                }
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "localcluster", "context": {"cluster": "localcluster", "user": "user"}}],
            "current-context": "localcluster",
        },
        indent=1,
    )


def audit_policy(reads: bool) -> str:
    """Metadata of every write, or of every request; one line each, when it was answered."""
    everything: dict[str, object] = {"level": "Metadata"}
    rules = [everything] if reads else [{**everything, "verbs": list(WRITES)}, {"level": "None"}]
    return json.dumps(
        {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"], "rules": rules}
    )


def etcd(localnode: Path, directory: Path) -> list[str]:
    """etcd without fsync: what it holds need not survive a power cut."""
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        str(localnode), "etcd", "--data-dir", str(directory / "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync", "--log-level", "warn",
    ]  # fmt: skip


def apiserver(localnode: Path, directory: Path, audit: bool) -> list[str]:
    """The API server. Its advertised address becomes the endpoint of the Service `kubernetes`."""
    pki, (host, port) = directory / "pki", API_INSIDE.split(":")
    argv = [
        str(localnode), "kube-apiserver", "--etcd-servers", "http://127.0.0.1:2379", "--cert-dir", str(pki),
        "--tls-cert-file", str(pki / "api.crt"), "--tls-private-key-file", str(pki / "api.key"), "--client-ca-file", str(pki / "ca.crt"),
        "--bind-address", host, "--secure-port", port, "--advertise-address", host, "--service-cluster-ip-range", SERVICE_RANGE,
        "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", str(pki / "sa.pub"),
        "--service-account-signing-key-file", str(pki / "sa.key"), "--token-auth-file", str(pki / "tokens.csv"),
        "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction", "--kubelet-preferred-address-types", "InternalIP",
        "--allow-privileged=true", "--profiling=false",
    ]  # fmt: skip
    if audit:
        argv += ["--audit-policy-file", str(directory / "audit-policy.json"), "--audit-log-path", str(directory / "audit.log")]
    return argv


def controller_manager(localnode: Path, directory: Path, grace: float) -> list[str]:
    """The controller manager; `grace` is how many seconds a silent node stays Ready."""
    pki = directory / "pki"
    return [
        str(localnode), "kube-controller-manager", "--kubeconfig", str(directory / "manager.kubeconfig"), "--root-ca-file", str(pki / "ca.crt"),
        "--service-account-private-key-file", str(pki / "sa.key"), "--use-service-account-credentials=false", "--leader-elect=false", "--secure-port", "0",
        "--node-monitor-period=1s", f"--node-monitor-grace-period={grace:g}s", "--kube-api-qps=200", "--kube-api-burst=400",
    ]  # fmt: skip


def scheduler(localnode: Path, directory: Path) -> list[str]:
    """The scheduler."""
    return [
        str(localnode), "kube-scheduler", "--kubeconfig", str(directory / "scheduler.kubeconfig"), "--leader-elect=false", "--secure-port", "0",
        "--kube-api-qps=200", "--kube-api-burst=400",
    ]  # fmt: skip


def service_proxy(localnode: Path, directory: Path) -> list[str]:
    """What stands in for kube-proxy and the cluster's DNS."""
    return [str(localnode), "serviceproxy", "--kubeconfig", str(directory / "proxy.kubeconfig")]
