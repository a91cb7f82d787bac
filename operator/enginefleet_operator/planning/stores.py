"""What is said about an EngineStore: the operator never touches it, so it can only tell whether the spec is one that it understands."""

from __future__ import annotations

from enginefleet_api.resources import EngineStoreSpec, EngineStoreStatus

from . import support
from .model import Plan
from .status import Say, merge_conditions


def decide_store(spec: EngineStoreSpec, status: EngineStoreStatus, generation: int, now: float) -> Plan:
    refused = list(support.unsupported_store(spec))
    if refused:
        say = Say(False, "NotYetSupported", "; ".join(refused) + ".")
    else:
        say = Say(True, "Accepted", "Jobs and pods use it; whether it answers is said by the ModelDeployments that do.")
    said = {
        "Ready": say,
        "Reconciling": Say(False, "Idle", ""),
        "Stalled": Say(bool(refused), say.reason if refused else "Progressing", say.message if refused else ""),
    }
    new = EngineStoreStatus(observed_generation=generation, conditions=merge_conditions(status.conditions, said, generation, now))
    changed = new.to_json_dict()
    return Plan(status=None if changed == status.to_json_dict() else changed)
