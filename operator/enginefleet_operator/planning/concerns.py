"""Whom a node concerns: what an event wakes, and what a reconcile has to look at, hang on this alone and not on the size of the fleet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from enginefleet_api import labels

from .model import HardwareClass


def concerns(have: Mapping[str, str], classes: Iterable[HardwareClass], observed: Iterable[str] = ()) -> frozenset[str]:
    """Names of HardwareClasses and release keys of ModelDeployments that a node with these labels is about.

    A class: its selector matches, the node carries labels of it, or something is recorded of the node under it (`observed`).
    """
    found = {c.name for c in classes if c.spec.node_selector.matches(have)}
    found.update(observed)
    for key in have:
        if key.startswith(labels.RELEASE_PREFIX):
            found.add(key)
        elif key.startswith(labels.FP_PREFIX):
            found.add(key.removeprefix(labels.FP_PREFIX).partition(".")[0])
        elif key.startswith(labels.LEFT_PREFIX):
            found.add(key.removeprefix(labels.LEFT_PREFIX))
    return frozenset(found)


def releases_changed(old: Mapping[str, str], new: Mapping[str, str]) -> frozenset[str] | None:
    """Release keys whose value differs, when nothing else does; None when something else does."""
    changed = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    return frozenset(changed) if all(key.startswith(labels.RELEASE_PREFIX) for key in changed) else None


def without_releases(have: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in have.items() if not key.startswith(labels.RELEASE_PREFIX)}


def owned_by_nobody(concerned: Collection[str], classes: Collection[str], releases: Collection[str]) -> bool:
    """Whether a node carries labels of something that is not there."""
    return any(key not in (releases if key.startswith(labels.RELEASE_PREFIX) else classes) for key in concerned)
