"""serving.mode None: engines are built and published, no pod runs."""

from __future__ import annotations

from dataclasses import replace

from enginefleet_api import labels
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import CreateWorkload, Delete, LabelNode, StartBuild

from . import worlds as w

KEY = labels.release_key("vision", "m")


def test_engines_pass_and_nothing_is_served() -> None:
    s = w.settle(w.passed_fleet(spec=w.spec(serving={"mode": "None"})))
    conditions = {c.type: (c.status, c.reason, c.message) for c in s.status.conditions}
    assert conditions["Ready"][:2] == ("True", "Published")
    assert conditions["Ready"][2].startswith("1 engine is published; serving.mode None runs no pods")
    assert conditions["RolledOut"][0] == "True"
    assert (s.workloads, s.revisions, s.has_service) == ((), (), False)
    assert not any(KEY in node.labels for node in s.nodes)
    assert (s.status.rollout, s.status.engines) == ("", "1/1")
    assert (s.status.classes[0].nodes.total, s.status.classes[0].nodes.waiting) == (3, 0)


def test_without_an_engine_it_is_not_ready() -> None:
    plan = decide(w.fleet(spec=w.spec(serving={"mode": "None"})), w.NOW)
    assert plan.status is not None
    assert next(c for c in plan.status["conditions"] if c["type"] == "Ready")["status"] == "False"


def test_what_was_served_goes_when_the_mode_becomes_none_and_nothing_is_built_again() -> None:
    s = w.settle(w.serving(w.passed_fleet()))
    assert s.workloads
    off = replace(s, spec=w.spec(serving={"mode": "None"}), generation=2)
    plan = decide(off, w.NOW)
    assert {a.node for a in plan.actions if isinstance(a, LabelNode) and a.labels == {KEY: None}} == {"n0", "n1", "n2"}
    assert not any(isinstance(a, StartBuild | CreateWorkload) for a in plan.actions)
    bare = replace(off, nodes=tuple(replace(n, labels={k: v for k, v in n.labels.items() if k != KEY}) for n in off.nodes), pods=())
    assert {(a.kind, a.name) for a in decide(bare, w.NOW).actions if isinstance(a, Delete)} >= {("DaemonSet", x.name) for x in s.workloads}


def test_it_serves_again_when_the_mode_is_changed_back() -> None:
    s = w.settle(w.passed_fleet(spec=w.spec(serving={"mode": "None"})))
    s = w.settle(replace(s, spec=w.spec(), generation=2))
    assert (len(s.workloads), len(s.builds)) == (1, 1)
    assert any(KEY in node.labels for node in s.nodes)
