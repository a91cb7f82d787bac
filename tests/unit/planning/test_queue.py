"""Which builds start now and where: tables, and what a ModelDeployment says while one of its builds waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import Node, Place, RunningBuild, StartBuild
from enginefleet_operator.planning.queue import Admission, admit

from . import worlds as w
from .test_decide import condition

NODES = [w.node(f"n{i}") for i in range(4)]
ROOM = {node.name: Place() for node in NODES}


def asked(
    running: list[RunningBuild] | None = None,
    places: dict[str, Place] | None = None,
    nodes: list[Node] = NODES,
    avoid: tuple[str, ...] = (),
    name: str = "m-1",
    **builds: Any,
) -> Admission:
    hardware_class = w.hardware_class(builds=builds)
    return admit(name, hardware_class, nodes, running or [], ROOM if places is None else places, avoid, w.NOW)


def test_the_same_node_is_chosen_every_time_and_another_one_for_another_build() -> None:
    assert asked() == asked(nodes=NODES[::-1])
    assert len({asked(name=f"m-{i}").node for i in range(30)}) == 4


def test_an_idle_node_comes_before_one_that_serves_and_one_without_faults_before_both() -> None:
    serving = {n.name: Place(serves=n.name != "n2") for n in NODES}
    assert asked(places=serving).node == "n2"
    assert asked(places=serving, avoid=("n2",)).node != "n2"
    assert asked(places=serving, avoid=tuple(serving)).node == "n2"


def test_where_it_fits_nowhere_now_the_scheduler_waits_for_room() -> None:
    full = {n.name: Place("the pod asks for 1 nvidia.com/gpu") for n in NODES}
    assert asked(places=full) == Admission(True, "")
    assert asked(places=full | {"n1": Place()}).node == "n1"
    assert asked(places={}) == Admission(True, ""), "not looked at"


def test_nodes_that_are_away_cordoned_or_build_already_are_left_out() -> None:
    nodes = [replace(NODES[0], ready=False), replace(NODES[1], unschedulable=True), NODES[2], NODES[3]]
    running = [RunningBuild("another", "vision/x", "n2")]
    assert asked(running, nodes=nodes).node == "n3"
    queued = asked([*running, RunningBuild("another", "vision/y", "n3")], nodes=nodes)
    assert (queued.ready, queued.reason) == (False, "Queued")
    assert "node n2 builds for vision/x, one build a node" in queued.message


@pytest.mark.parametrize(("most", "ready"), [(1, False), (2, False), (3, True)])
def test_builds_of_a_class_are_counted_whosever_they_are(most: int, ready: bool) -> None:
    running = [RunningBuild("cpu", "vision/a", "x1"), RunningBuild("cpu", "sound/b"), RunningBuild("gpu", "vision/c", "x2")]
    found = asked(running, maxConcurrent=most)
    assert found.ready is ready
    if not ready:
        assert f"2 of at most {most} builds of class cpu run (for sound/b, vision/a)" in found.message


def test_builds_start_in_their_windows_only() -> None:
    # NOW is Friday 2027-01-15 08:00 UTC
    closed = asked(windows=[{"days": ["Fri"], "start": "10:00", "duration": "1h", "timeZone": "UTC"}])
    assert (closed.ready, closed.reason, closed.wake_at) == (False, "WaitingForWindow", w.NOW + 7200)
    assert "opens at 2027-01-15T10:00:00Z" in closed.message
    assert asked(windows=[{"days": ["Fri"], "start": "07:30", "duration": "1h", "timeZone": "UTC"}]).ready


def test_a_build_that_waits_says_for_what_and_starts_when_that_has_ended() -> None:
    s = w.settle(w.end_job(w.settle(w.fleet()), "prepare", report=w.prepare_report()))
    fresh = replace(s, jobs=tuple(j for j in s.jobs if j.role != "build"), running=(RunningBuild("cpu", "sound/speech", "n1"),))
    fresh = replace(fresh, builds=tuple(replace(b, status=b.status.model_copy(update={"phase": "", "build": None})) for b in fresh.builds))
    waits = w.settle(fresh)
    assert condition(waits, "Ready")[1] == "Queued"
    assert "for sound/speech" in condition(waits, "Ready")[2]
    assert not any(isinstance(a, StartBuild) for a in decide(waits, w.NOW).actions)
    started = [a for a in decide(replace(waits, running=()), w.NOW).actions if isinstance(a, StartBuild)]
    assert len(started) == 1
    assert decide(replace(waits, running=()), w.NOW).events[0].reason == "BuildStarted"


def test_a_window_of_builds_wakes_us_when_it_opens() -> None:
    windows = [{"days": ["Fri"], "start": "10:00", "duration": "1h", "timeZone": "UTC"}]
    s = w.settle(
        w.end_job(w.settle(w.fleet(classes={"cpu": w.hardware_class(builds={"windows": windows})})), "prepare", report=w.prepare_report())
    )
    assert condition(s, "Ready")[1] == "WaitingForWindow"
    assert decide(s, w.NOW).wake_at == w.NOW + 7200
    assert any(isinstance(a, StartBuild) for a in decide(s, w.NOW + 7200).actions)
