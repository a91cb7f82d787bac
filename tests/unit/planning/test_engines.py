"""What NodeFingerprints say of their nodes' engines: condition EnginesReady, by tables."""

from __future__ import annotations

from dataclasses import replace

from enginefleet_api.resources import NodeFingerprintStatus
from enginefleet_operator.planning.engines import MOST, Model, Recorded, decide_engines, model, told
from enginefleet_operator.planning.model import WriteEngines

from . import worlds as w
from .test_rollback import played

ID = w.observed("n0").observations[0].id
CLASSES = [w.hardware_class()]


def a_model(name: str = "m", state: str = "Passed", **more: object) -> Model:
    return replace(Model(f"vision/{name}", frozenset({"cpu"}), True, {("cpu", ID): (state, "why")}), **more)  # type: ignore[arg-type]


def written(writes: list[WriteEngines]) -> NodeFingerprintStatus:
    (one,) = writes
    return NodeFingerprintStatus.model_validate(one.status)


def said(*models: Model, node: str = "n0", recorded: Recorded | None = None, boot_id: str = "") -> tuple[str, str, str]:
    found = {node: recorded or Recorded(w.observed(node), 3)}
    status = written(decide_engines([replace(w.node(node), boot_id=boot_id)], found, CLASSES, models, w.NOW))
    (condition,) = status.conditions
    assert (condition.type, condition.observed_generation) == ("EnginesReady", 3)
    return condition.status, condition.reason, condition.message


def test_a_node_is_ready_when_every_model_that_targets_it_has_an_engine_for_what_it_is_now() -> None:
    assert said(a_model(), a_model("o"))[:2] == ("True", "AllPassed")
    status, reason, message = said(a_model(), a_model("o", "Building"))
    assert (status, reason) == ("False", "EnginesMissing")
    assert message == "1 of 2 engines passed; vision/o (cpu) is Building: why."
    assert said(a_model(engines={}))[:2] == ("False", "EnginesMissing"), "another fingerprint's engine is none for this one"
    assert said(a_model(current=False))[:2] == ("False", "EnginesMissing"), "the status is about an older spec"
    assert said(a_model(classes=frozenset({"other"})))[:2] == ("True", "NothingTargetsIt")


def test_what_is_not_observed_under_the_present_image_or_since_the_last_boot_is_not_ready() -> None:
    unseen = w.observed("n0").model_copy(update={"observations": []})
    assert "is Unknown" in said(a_model(), recorded=Recorded(unseen, 3))[2]
    booted = w.observed("n0").model_copy(update={"boot_id": "one"})
    assert said(a_model(), recorded=Recorded(booted, 3), boot_id="one")[0] == "True"
    assert said(a_model(), recorded=Recorded(booted, 3), boot_id="two")[:2] == ("False", "Rebooted")


def test_nothing_is_written_where_nothing_changed_and_the_time_moves_only_with_the_answer() -> None:
    nodes, models = [w.node("n0")], [a_model(state="Building")]
    first = written(decide_engines(nodes, {"n0": Recorded(w.observed("n0"), 3)}, CLASSES, models, w.NOW))
    kept = Recorded(w.observed("n0"), 3, tuple(first.conditions), told(first))
    assert decide_engines(nodes, {"n0": kept}, CLASSES, models, w.NOW + 60) == []
    again = written(decide_engines(nodes, {"n0": kept}, CLASSES, [a_model(state="Waiting")], w.NOW + 60))
    assert again.conditions[0].last_transition_time == first.conditions[0].last_transition_time
    passed = written(decide_engines(nodes, {"n0": kept}, CLASSES, [a_model()], w.NOW + 60))
    assert passed.conditions[0].last_transition_time != first.conditions[0].last_transition_time
    assert decide_engines(nodes, {}, CLASSES, models, w.NOW) == [], "a node of which nothing is recorded"


def test_the_list_is_short_and_begins_with_what_is_missing() -> None:
    models = [a_model(f"m{i:03}") for i in range(MOST + 20)] + [a_model("z", "Failed")]
    status = written(decide_engines([w.node("n0")], {"n0": Recorded(w.observed("n0"), 3)}, CLASSES, models, w.NOW))
    assert len(status.engines) == MOST
    assert (status.engines[0].model_deployment, status.engines[0].state) == ("vision/z", "Failed")
    assert f"{MOST + 20} of {MOST + 21} engines" in status.conditions[0].message


def test_it_follows_from_the_status_that_a_model_deployment_has() -> None:
    s = played(w.passed_fleet())
    assert said(model("vision/m", 1, s.spec, s.status))[:2] == ("True", "AllPassed")
    assert said(model("vision/m", 2, s.spec, s.status))[0] == "False"
