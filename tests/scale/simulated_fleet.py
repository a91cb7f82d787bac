"""Objects of a simulated fleet: nodes that nothing runs on, what an agent would have seen there, classes and models. Every host says that it is simulated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from enginefleet_api import fingerprint
from enginefleet_api.identity import sha256_hex

NAMESPACE = "scale"
SIMULATED = f"{fingerprint.SIMULATED_MARK} scale"
IMAGE = "registry.example.com/runtime:1"
IMAGE_DIGEST = "sha256:" + sha256_hex(IMAGE.encode())
RUNTIME = {"backend": "onnxruntime", "backendVersion": "1.24.4", "executionProvider": "CPU", "simulated": SIMULATED}
WIDE = "m000"
"""The ModelDeployment that targets all classes."""


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    models: int = 200
    classes: int = 20
    serving: int = 1
    """ModelDeployments that have pods: the one of all classes first, then one a class. The others publish engines."""
    groups: int = 2
    """Kinds of hardware in a class."""

    def class_of(self, node: int) -> int:
        return node % self.classes

    def group_of(self, node: int) -> int:
        return node // self.classes % self.groups


def host(hardware_class: int, group: int) -> dict[str, Any]:
    """What the agent sees on a node of this kind; `group` beyond the size's is a kind that no node has yet."""
    features = " ".join(["avx2", "fma", f"class{hardware_class}", f"group{group}"])
    facts = fingerprint.host_facts(
        os="linux", machine="x86_64", cpuinfo=f"model name : simulated\nflags : {features}\n", simulated=SIMULATED
    )
    facts["cpu"] = {**facts["cpu"], "model": f"simulated {hardware_class}.{group}"} if isinstance(facts["cpu"], dict) else facts["cpu"]
    return {"digest": fingerprint.host_digest(facts), "summary": "simulated", "facts": facts, "context": {}}


def class_name(number: int) -> str:
    return f"class-{number:02d}"


def node_name(number: int) -> str:
    return f"n{number:05d}"


def node(number: int, size: Size, now: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    kinds = (("Ready", "True"), ("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False"))
    conditions = [
        {"type": kind, "status": status, "reason": "simulated", "lastHeartbeatTime": now, "lastTransitionTime": now}
        for kind, status in kinds
    ]
    names = (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
    )
    name = node_name(number)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
                "hardware": class_name(size.class_of(number)),
            },
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": dict.fromkeys(names, "") | {"operatingSystem": "linux", "architecture": "amd64", "bootID": "boot-1"},
        },
    }


def node_fingerprint(number: int, size: Size, group: int | None = None) -> dict[str, Any]:
    name = node_name(number)
    seen = host(size.class_of(number), size.group_of(number) if group is None else group)
    return {
        "apiVersion": "enginefleet.io/v1alpha1",
        "kind": "NodeFingerprint",
        "metadata": {"name": name},
        "spec": {"node": name, "bootId": "boot-1", "host": seen},
    }


def hardware_classes(size: Size) -> Iterator[dict[str, Any]]:
    for number in range(size.classes):
        yield {
            "apiVersion": "enginefleet.io/v1alpha1",
            "kind": "HardwareClass",
            "metadata": {"name": class_name(number)},
            "spec": {
                "nodeSelector": {"matchLabels": {"hardware": class_name(number)}},
                "backend": "onnxruntime",
                "runtime": {"image": IMAGE},
                "builds": {"maxConcurrent": 10},
            },
        }


def store() -> list[dict[str, Any]]:
    meta = {"name": "engines", "namespace": NAMESPACE}
    keys = {"AWS_ACCESS_KEY_ID": "simulated", "AWS_SECRET_ACCESS_KEY": "simulated"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": keys},
        {
            "apiVersion": "enginefleet.io/v1alpha1",
            "kind": "EngineStore",
            "metadata": {"name": "default", "namespace": NAMESPACE},
            "spec": {"uri": "s3://engines/scale/", "endpoint": "https://store.example.com", "credentialsSecretRef": {"name": "engines"}},
        },
    ]


def model_name(number: int) -> str:
    return f"m{number:03d}"


def model(number: int, size: Size, version: int = 1) -> dict[str, Any]:
    """`version` is another model file: another release."""
    targets = range(size.classes) if number == 0 else [(number - 1) % size.classes]
    spec: dict[str, Any] = {
        "model": {"uri": f"s3://models/{model_name(number)}-v{version}.onnx"},
        "validation": {"uri": "s3://models/validation.npz", "acceptance": {"minimum": "0.9"}},
        "targets": [{"hardwareClass": class_name(c)} for c in targets],
        "rollout": {"maxUnavailable": "5%"},
    }
    if number >= size.serving:
        spec["serving"] = {"mode": "None"}
    return {
        "apiVersion": "enginefleet.io/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": model_name(number), "namespace": NAMESPACE},
        "spec": spec,
    }
