"""`retry`, `refresh`, `promote`, `abort`, `approve`: an annotation with a new token, and whether it was acted on. Pure.

The operator writes a token that it took to `status.<act>Token`, together with the conditions of that visit: conditions beside an older token say
nothing of the act.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginefleet_api import labels

from .words import Object, conditions, is_current

MODEL_ACTS = ("retry", "refresh", "promote", "abort", "approve")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an act is. `done` with `failed`: it came to an end that is none to be happy about."""

    text: str
    done: bool = False
    failed: bool = False


def annotation(act: str) -> str:
    return f"{labels.GROUP}/{act}"


def progress(act: str, token: str, obj: Object) -> Progress:
    """From the object as it is now: not taken yet, on its way, or at an end."""
    status, say = obj.get("status", {}), conditions(obj)
    if obj["metadata"].get("annotations", {}).get(annotation(act)) != token:
        return Progress(f"Another {act} was asked for since.", done=True, failed=True)
    if status.get(f"{act}Token", "") != token:
        return Progress("The operator has not taken it yet.")
    ready, stalled = say.get("Ready", {}), say.get("Stalled", {})
    if not is_current(obj):
        return Progress("The operator has not looked at the spec as it stands now.")
    if stalled.get("status") == "True":
        # an abort ends there: the spec still asks for what was given up
        wanted = act == "abort" and stalled.get("reason") == "Aborted" and not _moves_back(status)
        if act == "abort" and not wanted and _moves_back(status):
            return Progress(f"{stalled.get('reason', '')}: nodes are going back.")
        return Progress(f"{stalled.get('reason', '')}: {stalled.get('message', '')}", done=True, failed=not wanted)
    if ready.get("status") == "True":
        return Progress(ready.get("message", "Ready."), done=True)
    return Progress(f"{ready.get('reason', '')}: {ready.get('message', '')}".strip(": ") or "Waiting for the first status.")


def _moves_back(status: Object) -> bool:
    """Whether nodes are still on their way back from a release that was given up."""
    return any(one.get("rollout", {}).get("step") == "rollback" for one in status.get("classes", ()))
