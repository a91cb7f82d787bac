"""Label and annotation keys, all below enginefleet.io: one place for their names and meaning."""

from __future__ import annotations

from .identity import short_hash

GROUP = "enginefleet.io"

MODEL_DEPLOYMENT = f"{GROUP}/model-deployment"
"""On every generated object: the name of the ModelDeployment."""
ROLE = f"{GROUP}/role"
"""prepare, build, probe, serve, verify."""
HARDWARE_CLASS = f"{GROUP}/hardware-class"
ENGINE_BUILD = f"{GROUP}/engine-build"
ATTEMPT = f"{GROUP}/attempt"
ENGINE_KEY = f"{GROUP}/engine-key"
"""First 16 digits: finds pods that work on the same engine whatever made them."""
FINGERPRINT = f"{GROUP}/fingerprint"
RELEASE = f"{GROUP}/release"
IMAGE_DIGEST = f"{GROUP}/image-digest"
BLOB = f"{GROUP}/blob"
"""Annotations on a workload: the full image digest, and the engine's digest."""
INPUTS_KEY = f"{GROUP}/inputs-key"
CONTEXT = f"{GROUP}/context"
"""Annotation on a build Job that only judges: key of the context that it judges a published engine in."""

RETRY = f"{GROUP}/retry"
REFRESH = f"{GROUP}/refresh"
PROMOTE = f"{GROUP}/promote"
"""Annotation: no canary and no steps for the release that is being rolled out. Like retry, a new value acts once."""
ABORT = f"{GROUP}/abort"
"""Annotation: back to the release before, in mid-rollout and after it."""
APPROVE = f"{GROUP}/approve"
"""Annotation: build for what `onVersionChange: Hold` of a HardwareClass holds back at this moment."""

FP_PREFIX = f"fp.{GROUP}/"
LEFT_PREFIX = f"left.{GROUP}/"
"""`left.enginefleet.io/<class>: <seconds since the epoch>`: when a node was first seen not to match its class any more."""
RELEASE_PREFIX = f"release.{GROUP}/"
DRAINING = "draining-to."
"""Before the value of a release label: the old pod ends, that release comes next."""
BUILDING = "building."
"""Before the value of a release label: its pod makes way for a build, and comes back after it."""


def image_short(image_digest: str) -> str:
    """First 8 hex digits of an image digest: what stands in label keys."""
    return image_digest.removeprefix("sha256:")[:8]


def fp_key(hardware_class: str, image_digest: str = "") -> str:
    """Node label with the node's fingerprint under a class; with an image digest: under that very image."""
    return FP_PREFIX + hardware_class + (f".{image_short(image_digest)}" if image_digest else "")


def release_key(namespace: str, name: str) -> str:
    """Node label that says which release of a ModelDeployment the node runs."""
    return RELEASE_PREFIX + short_hash(namespace, name)


def release_value(release: str, blob: str) -> str:
    """A release with the engine that is pinned in its template: another blob is another workload."""
    return f"{release}-{blob.removeprefix('sha256:')[:8]}"


def release_of(value: str) -> str:
    """The release in a value of a release label, whatever the node is about at this moment; "" of none."""
    return plain(value).partition("-")[0]


def plain(value: str) -> str:
    """The value of a release label that a node comes to, or back to: its DaemonSet's."""
    return value.removeprefix(DRAINING).removeprefix(BUILDING)
