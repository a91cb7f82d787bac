"""The kinds that the operator reads or writes, as the API server serves them. Adding a kind here is not enough: RBAC must name it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enginefleet_api.errors import PermanentError


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind: `group` is empty for the core group, `plural` is what stands in the path."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of one object, or of the collection without a name; without a namespace the collection spans all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(parts)


NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "Namespace", "namespaces", namespaced=False)
PODS = Resource("", "v1", "Pod", "pods")
SERVICES = Resource("", "v1", "Service", "services")
JOBS = Resource("batch", "v1", "Job", "jobs")
DAEMONSETS = Resource("apps", "v1", "DaemonSet", "daemonsets")
DEPLOYMENTS = Resource("apps", "v1", "Deployment", "deployments")
CONTROLLER_REVISIONS = Resource("apps", "v1", "ControllerRevision", "controllerrevisions")
EVENTS = Resource("events.k8s.io", "v1", "Event", "events")
LEASES = Resource("coordination.k8s.io", "v1", "Lease", "leases")
CUSTOM_RESOURCES = Resource("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
MODEL_DEPLOYMENTS = Resource("enginefleet.io", "v1alpha1", "ModelDeployment", "modeldeployments")
HARDWARE_CLASSES = Resource("enginefleet.io", "v1alpha1", "HardwareClass", "hardwareclasses", namespaced=False)
ENGINE_STORES = Resource("enginefleet.io", "v1alpha1", "EngineStore", "enginestores")
NODE_FINGERPRINTS = Resource("enginefleet.io", "v1alpha1", "NodeFingerprint", "nodefingerprints", namespaced=False)
ENGINE_BUILDS = Resource("enginefleet.io", "v1alpha1", "EngineBuild", "enginebuilds")

_ALL = (
    NODES, NAMESPACES, PODS, SERVICES, JOBS, DAEMONSETS, DEPLOYMENTS, CONTROLLER_REVISIONS, EVENTS, LEASES, CUSTOM_RESOURCES,
    MODEL_DEPLOYMENTS, HARDWARE_CLASSES, ENGINE_STORES, NODE_FINGERPRINTS, ENGINE_BUILDS,
)  # fmt: skip
_BY_KIND = {(resource.api_version, resource.kind): resource for resource in _ALL}


def resource_of(obj: Mapping[str, Any]) -> Resource:
    """The resource of a whole object, by its apiVersion and kind."""
    found = _BY_KIND.get((obj.get("apiVersion", ""), obj.get("kind", "")))
    if found is None:
        raise PermanentError(
            "UnknownKind",
            f"The operator does not handle {obj.get('apiVersion')!r} {obj.get('kind')!r}.",
            "Add it to kinds.py and to the operator's ClusterRole.",
        )
    return found


def key_of(obj: Mapping[str, Any]) -> str:
    """`namespace/name`, or the name alone for cluster-scoped objects: how caches and work queues name an object."""
    metadata = obj["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
