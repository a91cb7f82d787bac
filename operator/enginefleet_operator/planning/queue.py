"""Which builds may start now, over all ModelDeployments, and on which node."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from . import retry, windows
from .model import HardwareClass, Node, Place, RunningBuild


@dataclass(frozen=True, slots=True)
class Admission:
    """ready: it may start; on `node`, or where the scheduler finds room when that is "". Else it waits, for `reason`; look again at `wake_at`."""

    ready: bool
    node: str = ""
    reason: str = ""
    message: str = ""
    wake_at: float | None = None


def admit(
    name: str,
    hardware_class: HardwareClass,
    nodes: Sequence[Node],
    running: Sequence[RunningBuild],
    places: Mapping[str, Place],
    avoid: Collection[str],
    now: float,
) -> Admission:
    """For the build `name` on one of `nodes` (all of its fingerprint).

    - In a window of the class's builds.windows only; a build that runs when it closes goes on.
    - At most builds.maxConcurrent builds of the class, whosever they are.
    - One build a node: two would disturb each other's measurements, and on a board without a device plugin nothing else keeps them apart.
    - An idle node before one that serves, one where the last attempt met no fault before one where it did, then by hash: every operator
      makes the same choice. Where the build fits nowhere now, the scheduler starts it on the first node that gets room.
    """
    builds = hardware_class.spec.builds
    is_open, changes = windows.open_at(builds.windows, now)
    if not is_open:
        when = f" The next one opens at {retry.timestamp(changes)}." if changes is not None else ""
        return Admission(
            False, reason="WaitingForWindow", message=f"builds of {hardware_class.name} start in their windows only.{when}", wake_at=changes
        )
    mine = [one for one in running if one.hardware_class == hardware_class.name]
    if len(mine) >= builds.max_concurrent:
        what = ", ".join(sorted(one.model for one in mine)[:3])
        text = f"{len(mine)} of at most {builds.max_concurrent} builds of class {hardware_class.name} run (for {what}): it starts when one ends."
        return Admission(False, reason="Queued", message=text)
    taken = {one.node: one for one in running if one.node}
    free = [node for node in nodes if node.ready and not node.unschedulable and node.name not in taken]
    if not free and (busy := sorted(node.name for node in nodes if node.name in taken)):
        text = f"node {busy[0]} builds for {taken[busy[0]].model}, one build a node: it starts when that ends."
        return Admission(False, reason="Queued", message=text)
    fitting = [node for node in free if node.name in places and not places[node.name].why_not]
    ranked = sorted(fitting, key=lambda node: (node.name in avoid, places[node.name].serves, order(node.name, name)))
    return Admission(True, ranked[0].name if ranked else "")


def order(node: str, build: str) -> str:
    """By which nodes come for the build of this name: those that are equally good are taken in it."""
    return hashlib.sha256(f"{node} {build}".encode()).hexdigest()
