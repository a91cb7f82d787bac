"""Whom a node concerns, and the index of it: a table of labels, and an index that is right after any history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api import labels
from enginefleet_api.resources import NodeFingerprintSpec
from enginefleet_operator.kube.index import NodeIndex
from enginefleet_operator.kube.nodes import NodeView, only_releases, project_node
from enginefleet_operator.planning.concerns import concerns, owned_by_nobody
from enginefleet_operator.planning.engines import Recorded
from enginefleet_operator.planning.model import HardwareClass

from .planning import worlds as w

RELEASE, OTHER = labels.release_key("vision", "m"), labels.release_key("vision", "other")
DIGEST = "sha256:" + "a" * 64


def view(name: str = "n0", ready: str = "True", at: str = "2026-01-01T00:00:00Z", **have: str) -> NodeView:
    found: dict[str, Any] = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": have,
            "managedFields": [{"manager": "enginefleet", "time": at}],
        },
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
    return project_node(found)


@pytest.mark.parametrize(
    ("have", "observed", "about"),
    [
        ({}, (), set()),
        ({"hardware": "cpu"}, (), {"cpu"}),
        ({"hardware": "gpu"}, (), set()),
        ({labels.fp_key("gone"): "fp-1"}, (), {"gone"}),
        ({labels.fp_key("cpu", DIGEST): "fp-1"}, (), {"cpu"}),
        ({labels.LEFT_PREFIX + "cpu": "17"}, (), {"cpu"}),
        ({RELEASE: "r1-1", "hardware": "cpu"}, (), {"cpu", RELEASE}),
        ({}, ("cpu",), {"cpu"}),
    ],
)
def test_a_node_concerns_classes_that_match_or_left_something_there_and_models_that_labelled_it(
    have: dict[str, str], observed: tuple[str, ...], about: set[str]
) -> None:
    assert concerns(have, [w.hardware_class()], observed) == about


def test_a_flip_concerns_the_model_deployment_of_the_label_alone() -> None:
    before = view(**{"hardware": "cpu", RELEASE: "r1-1", OTHER: "r7-7"})
    after = view(at="2026-01-01T00:05:00Z", **{"hardware": "cpu", RELEASE: "r2-2", OTHER: "r7-7"})
    assert only_releases(before, after) == frozenset({RELEASE})
    assert only_releases(before, view(**{"hardware": "gpu", RELEASE: "r2-2", OTHER: "r7-7"})) is None
    assert only_releases(before, view(ready="False", **{"hardware": "cpu", RELEASE: "r2-2", OTHER: "r7-7"})) is None


def test_labels_whose_owner_is_gone_are_noticed() -> None:
    assert owned_by_nobody({"cpu", RELEASE}, {"cpu"}, set())
    assert owned_by_nobody({"cpu", RELEASE}, set(), {RELEASE})
    assert not owned_by_nobody({"cpu", RELEASE}, {"cpu"}, {RELEASE})


NAMES = ("n0", "n1", "n2")
CLASSES = ("cpu", "gpu")
LABELS = st.dictionaries(
    st.sampled_from(["hardware", labels.fp_key("cpu"), labels.fp_key("gpu"), RELEASE]), st.sampled_from(["cpu", "gpu", "x"])
)
STEPS = st.one_of(
    st.tuples(st.just("node"), st.sampled_from(NAMES), st.one_of(st.none(), LABELS)),
    st.tuples(st.just("class"), st.sampled_from(CLASSES), st.booleans()),
    st.tuples(st.just("record"), st.sampled_from(NAMES), st.one_of(st.none(), st.sampled_from(CLASSES))),
)


@given(st.lists(STEPS, max_size=25))
def test_the_index_is_what_a_look_at_everything_finds(steps: list[tuple[str, str, Any]]) -> None:
    nodes: dict[str, NodeView] = {}
    recorded: dict[str, Recorded | None] = {}
    classes: dict[str, HardwareClass | None] = {}
    index = NodeIndex(nodes, recorded, classes)
    for kind, name, value in steps:
        if kind == "class":
            if value:
                classes[name] = w.hardware_class(name)
            else:
                classes.pop(name, None)
            index.rebuild()
            continue
        if kind == "node":
            if value is None:
                nodes.pop(name, None)
            else:
                nodes[name] = view(name, **value)
        elif value is None:
            recorded.pop(name, None)
        else:
            recorded[name] = Recorded(_observed(name, value))
        index.update(name)
    there = [c for c in classes.values() if c is not None]
    for key in (*CLASSES, RELEASE, OTHER):
        wanted = [n for n, v in sorted(nodes.items()) if key in concerns(v.labels, there, _classes(recorded.get(n)))]
        assert [n.name for n in index.nodes([key])] == wanted
    assert {n.name for n in index.nodes([*CLASSES, RELEASE])} == {n for n in nodes if index.of(n)}


def _observed(name: str, hardware_class: str) -> NodeFingerprintSpec:
    return w.observed(name, hardware_class)


def _classes(found: Recorded | None) -> set[str]:
    return {o.hardware_class for o in found.spec.observations} if found is not None else set()


def test_a_view_holds_the_node_that_decisions_read() -> None:
    found = view(hardware="cpu").node
    assert (found.name, found.ready, found.labels) == ("n0", True, {"hardware": "cpu"})
    assert not replace(view(), deleting=True).node.ready
