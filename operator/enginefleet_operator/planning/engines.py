"""What a NodeFingerprint says of its node's engines, so that who upgrades nodes can do one, wait for it, and go on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from enginefleet_api import labels
from enginefleet_api.resources import (
    CandidateStatus,
    Condition,
    ModelDeploymentSpec,
    ModelDeploymentStatus,
    NodeEngine,
    NodeFingerprintSpec,
    NodeFingerprintStatus,
)

from .model import HardwareClass, Node, WriteEngines
from .stages import matches, observed
from .status import Say, merge_conditions

ENGINES_READY = "EnginesReady"
MOST = 50
"""Engines that are listed: those that have not passed come first."""


@dataclass(frozen=True, slots=True)
class Model:
    """A ModelDeployment as far as nodes are told of it."""

    key: str
    """namespace/name"""
    classes: frozenset[str]
    current: bool
    """Its status is about its present spec."""
    engines: Mapping[tuple[str, str], tuple[str, str]]
    """(class, fingerprint) → (state, message)"""
    candidates: Mapping[str, CandidateStatus] = field(default_factory=dict)
    """By class that has a candidate image; what is told of single fingerprints is left out."""
    release_key: str = field(init=False, compare=False, repr=False)
    """Of its label on nodes."""

    def __post_init__(self) -> None:
        namespace, _, name = self.key.partition("/")
        object.__setattr__(self, "release_key", labels.release_key(namespace, name))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A NodeFingerprint; of what its status lists only a digest is kept, as there are thousands of them."""

    spec: NodeFingerprintSpec
    generation: int = 0
    conditions: tuple[Condition, ...] = ()
    told: str = ""


def model(key: str, generation: int, spec: ModelDeploymentSpec, status: ModelDeploymentStatus) -> Model:
    named = {t.hardware_class for t in spec.targets if t.hardware_class}
    # those that a selector found stand in the status
    selects = any(t.hardware_class_selector is not None for t in spec.targets)
    return Model(
        key,
        frozenset(named | ({c.name for c in status.classes} if selects else set())),
        status.observed_generation == generation,
        {(c.name, f.id): (f.state, f.message) for c in status.classes for f in c.fingerprints},
        {c.name: c.candidate.model_copy(update={"fingerprints": []}) for c in status.classes if c.candidate is not None},
    )


def told(status: NodeFingerprintStatus) -> str:
    """A digest of all that a status says."""
    return hashlib.sha256(status.model_dump_json().encode()).hexdigest()


def decide_engines(
    nodes: Iterable[Node], recorded: Mapping[str, Recorded], classes: Iterable[HardwareClass], models: Iterable[Model], now: float
) -> list[WriteEngines]:
    """The statuses that differ from what is written there."""
    every = sorted(classes, key=lambda c: c.name)
    by_class: dict[str, list[Model]] = {}
    for one in sorted(models, key=lambda m: m.key):
        for name in one.classes:
            by_class.setdefault(name, []).append(one)
    writes = []
    # nodes of a kind have the same engines: there are thousands of nodes and a few kinds
    kinds: dict[tuple[tuple[str, str], ...], list[NodeEngine]] = {}
    for node in nodes:
        if (found := recorded.get(node.name)) is None:
            continue
        mine = [(c, o.id if (o := observed(found.spec, c)) is not None else "") for c in every if c.name in by_class and matches(c, node)]
        kind = tuple((c.name, fingerprint) for c, fingerprint in mine)
        if (engines := kinds.get(kind)) is None:
            engines = [_engine(m, c.name, fingerprint) for c, fingerprint in mine for m in by_class[c.name]]
            engines.sort(key=lambda e: e.state == "Passed")
            kinds[kind] = engines
        conditions = merge_conditions(list(found.conditions), {ENGINES_READY: _say(node, found.spec, engines)}, found.generation, now)
        status = NodeFingerprintStatus(engines=engines[:MOST], conditions=conditions)
        if told(status) != found.told:
            writes.append(WriteEngines(node.name, status.to_json_dict()))
    return writes


def _engine(m: Model, hardware_class: str, fingerprint: str) -> NodeEngine:
    if not fingerprint:
        state, message = "Unknown", f"what the node is under the image of HardwareClass {hardware_class} is not known yet"
    elif not m.current:
        state, message = "Waiting", "its spec has changed a moment ago"
    else:
        state, message = m.engines.get((hardware_class, fingerprint), ("", ""))
    return NodeEngine.model_validate(
        {
            "modelDeployment": m.key,
            "class": hardware_class,
            "fingerprint": fingerprint,
            "state": state or "Waiting",
            # an engine that passed has nothing to explain, and its figures would be written to every node
            "message": "" if state == "Passed" else message[:256],
        }
    )


def _say(node: Node, spec: NodeFingerprintSpec, engines: list[NodeEngine]) -> Say:
    if node.boot_id and spec.boot_id and node.boot_id != spec.boot_id:
        return Say(False, "Rebooted", "The node has booted, and its agent has not reported since: what is recorded is from before.")
    missing = [e for e in engines if e.state != "Passed"]
    if missing:
        first = missing[0]
        why = f"{first.model_deployment} ({first.hardware_class}) is {first.state}" + (
            f": {first.message.rstrip('.')}" if first.message else ""
        )
        return Say(False, "EnginesMissing", f"{len(engines) - len(missing)} of {len(engines)} engines passed; {why}.")
    if not engines:
        return Say(True, "NothingTargetsIt", "No ModelDeployment targets the node.")
    return Say(True, "AllPassed", f"{len(engines)} of {len(engines)} engines passed for what the node is now.")
