"""The five kinds of enginefleet.io: names, scope, models, printer columns. Data that the CRDs are generated from."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Contract, Rule
from .resources import (
    EngineBuildSpec,
    EngineBuildStatus,
    EngineStoreSpec,
    EngineStoreStatus,
    HardwareClassSpec,
    HardwareClassStatus,
    ModelDeploymentSpec,
    ModelDeploymentStatus,
    NodeFingerprintSpec,
    NodeFingerprintStatus,
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`. Priority 1 shows with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. `rules` check the whole object, of which CEL sees spec, status and metadata.name."""

    name: str
    plural: str
    short: str
    namespaced: bool
    description: str
    spec: type[Contract]
    status: type[Contract]
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = ()


READY = Column("Ready", '.status.conditions[?(@.type=="Ready")].status')
AGE = Column("Age", ".metadata.creationTimestamp", "date")

MODEL_DEPLOYMENT = Kind(
    name="ModelDeployment",
    plural="modeldeployments",
    short="mdep",
    namespaced=True,
    description="One ONNX model, turned into proven inference engines for every kind of device that it targets, and rolled out in steps.",
    spec=ModelDeploymentSpec,
    status=ModelDeploymentStatus,
    columns=(
        READY,
        Column("Engines", ".status.engines"),
        Column("Rollout", ".status.rollout"),
        Column("Precision", ".status.precision"),
        Column("Summary", ".status.summary"),
        AGE,
    ),
    rules=(
        # the name becomes the value of a label
        Rule("size(self.metadata.name) <= 63", "the name is too long for a label value: write at most 63 characters"),
    ),
)
HARDWARE_CLASS = Kind(
    name="HardwareClass",
    plural="hardwareclasses",
    short="hwc",
    namespaced=False,
    description="One kind of device to build and serve on: which nodes, which backend, which runtime image and resources.",
    spec=HardwareClassSpec,
    status=HardwareClassStatus,
    columns=(
        Column("Backend", ".spec.backend"),
        Column("Nodes", ".status.nodes", "integer"),
        Column("Summary", ".status.summary"),
        Column("Candidate", ".status.candidate.models"),
        READY,
        AGE,
    ),
    rules=(
        # the name becomes part of the key of node labels
        Rule(
            "size(self.metadata.name) <= 50 && self.metadata.name.matches(r'^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "the name becomes part of node labels: write at most 50 characters, lower-case letters, digits and '-', no dots",
        ),
    ),
)
ENGINE_STORE = Kind(
    name="EngineStore",
    plural="enginestores",
    short="es",
    namespaced=True,
    description="Where the engines of this namespace live: bucket, prefix, credentials, signing and trusted keys.",
    spec=EngineStoreSpec,
    status=EngineStoreStatus,
    columns=(Column("URI", ".spec.uri"), READY, AGE),
)
NODE_FINGERPRINT = Kind(
    name="NodeFingerprint",
    plural="nodefingerprints",
    short="nf",
    namespaced=False,
    description="What a node's devices really are, observed by the node agent and by probe Jobs. Named after the node.",
    spec=NodeFingerprintSpec,
    status=NodeFingerprintStatus,
    columns=(
        Column("Host", ".spec.host.summary"),
        Column("Engines", '.status.conditions[?(@.type=="EnginesReady")].status'),
        Column("Message", '.status.conditions[?(@.type=="EnginesReady")].message', priority=1),
        AGE,
    ),
    rules=(
        Rule(
            "self.spec.node == self.metadata.name",
            "a NodeFingerprint is named after its node: write the same in metadata.name and spec.node",
        ),
    ),
)
ENGINE_BUILD = Kind(
    name="EngineBuild",
    plural="enginebuilds",
    short="eb",
    namespaced=True,
    description="One engine to build and judge: revision, fingerprint and precision, with its attempts and evidence.",
    spec=EngineBuildSpec,
    status=EngineBuildStatus,
    columns=(
        Column("Model", ".spec.modelDeployment"),
        Column("Class", ".spec.class"),
        Column("Fingerprint", ".spec.fingerprint"),
        Column("Variant", ".spec.variant"),
        Column("Phase", ".status.phase"),
        Column("Node", ".status.node"),
        Column("Message", ".status.message", priority=1),
        AGE,
    ),
)

KINDS = (MODEL_DEPLOYMENT, HARDWARE_CLASS, ENGINE_STORE, NODE_FINGERPRINT, ENGINE_BUILD)
