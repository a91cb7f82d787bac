"""What every generated pod has in common: Pod Security `restricted`, no API access, credentials by reference, ownership."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from enginefleet_api.jobs import REQUEST_VARIABLE, TABLES_VARIABLE
from enginefleet_api.resources import API_VERSION, EngineStoreSpec, LocalRef, ModelDeploymentSpec

USER = 65532
"""`nonroot` of the distroless images: no name needed, owns nothing."""


def container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def pod_security(groups: Sequence[int] = ()) -> dict[str, Any]:
    """`groups`: those that may open the devices of a class."""
    found: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    found |= {"seccompProfile": {"type": "RuntimeDefault"}}
    return found | ({"supplementalGroups": [*groups]} if groups else {})


def devices(resources: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Extended resources of requests and limits: their names have a domain, like nvidia.com/gpu."""
    found = {
        kind: {name: amount for name, amount in amounts.items() if "/" in name}
        for kind, amounts in resources.items()
        if kind in ("requests", "limits") and isinstance(amounts, Mapping)
    }
    return {kind: amounts for kind, amounts in found.items() if amounts}


def without_devices(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Requests and limits less devices and claims."""
    return {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in resources.items()
        if kind in ("requests", "limits") and isinstance(amounts, Mapping)
    }


def owner(kind: str, name: str, uid: str, api_version: str = API_VERSION) -> list[dict[str, Any]]:
    return [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": True, "blockOwnerDeletion": True}]


def credentials(who: str, ref: LocalRef | None) -> list[dict[str, Any]]:
    """Environment of one party's credentials: by reference, so that neither operator nor manifest ever holds them."""
    if ref is None:
        return []
    pairs = (
        ("ACCESS_KEY_ID", "AWS_ACCESS_KEY_ID", False),
        ("SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", False),
        ("SESSION_TOKEN", "AWS_SESSION_TOKEN", True),
    )
    return [
        {"name": f"ENGINEFLEET_{who}_{name}", "valueFrom": {"secretKeyRef": {"name": ref.name, "key": key, "optional": optional}}}
        for name, key, optional in pairs
    ]


def all_credentials(spec: ModelDeploymentSpec, store: EngineStoreSpec, *, data: bool = True, model: bool = False) -> list[dict[str, Any]]:
    env = credentials("STORE", store.credentials_secret_ref)
    if model:
        env += credentials("MODEL", spec.model.credentials_secret_ref)
        env += credentials("CALIBRATION", spec.calibration.credentials_secret_ref if spec.calibration else None)
    if data:
        env += credentials("VALIDATION", spec.validation.credentials_secret_ref if spec.validation else None)
    return env


def request_env(request: str) -> dict[str, Any]:
    """The request travels in the environment: no ConfigMap to create before, find again or clean up after."""
    return {"name": REQUEST_VARIABLE, "value": request}


SCRATCH_MOUNTS: list[dict[str, Any]] = [{"name": "scratch", "mountPath": "/tmp"}]
SCRATCH_VOLUMES: list[dict[str, Any]] = [{"name": "scratch", "emptyDir": {}}]
TABLES_PATH = "/etc/enginefleet/tables"


def job(
    *,
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    owners: list[dict[str, Any]],
    image: str,
    command: list[str],
    env: list[dict[str, Any]],
    resources: Mapping[str, Any],
    node_selector: Mapping[str, str],
    affinity: Mapping[str, Any] | None,
    tolerations: list[Any],
    runtime_class: str,
    deadline: int,
    ttl: int,
    groups: Sequence[int] = (),
    tables: str = "",
) -> dict[str, Any]:
    """A Job of one attempt: no retries of its own, never a second pod. `tables`: a ConfigMap that is mounted where it is there.

    The deadline stands in the pod, not in the Job: a Job's clock also runs while the pod waits for a device.
    """
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "activeDeadlineSeconds": deadline,
        "securityContext": pod_security(groups),
        "nodeSelector": dict(node_selector),
        "tolerations": tolerations,
        "volumes": [*SCRATCH_VOLUMES, *([{"name": "tables", "configMap": {"name": tables, "optional": True}}] if tables else [])],
        "containers": [
            {
                "name": "main",
                "image": image,
                "command": command,
                "env": [*env, {"name": "HOME", "value": "/tmp"}, *([{"name": TABLES_VARIABLE, "value": TABLES_PATH}] if tables else [])],
                "resources": dict(resources),
                "securityContext": container_security(),
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "volumeMounts": [*SCRATCH_MOUNTS, *([{"name": "tables", "mountPath": TABLES_PATH, "readOnly": True}] if tables else [])],
            }
        ],
    }
    if affinity:
        pod["affinity"] = dict(affinity)
    if runtime_class:
        pod["runtimeClassName"] = runtime_class
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels),
            "annotations": dict(annotations),
            "ownerReferences": owners,
        },
        "spec": {
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": ttl,
            # a pod that is only on its way out must not be joined by a second one
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}, "spec": pod},
        },
    }


def on_nodes(nodes: Sequence[str]) -> dict[str, Any]:
    """Affinity to nodes by their names: a hostname label may be missing or differ."""
    return _by_name("In", nodes)


def not_on(nodes: tuple[str, ...]) -> dict[str, Any] | None:
    """Rather not there: a preference can't look at names, so it is a requirement; the next attempt drops it."""
    return _by_name("NotIn", nodes[:1]) if nodes else None


def _by_name(operator: str, names: Sequence[str]) -> dict[str, Any]:
    """One of the terms must hold; a field takes one value."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]} for name in names]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
