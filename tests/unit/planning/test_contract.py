"""Definitions in a cluster that are older than the operator are found out, field by field."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from enginefleet_api.crd import manifest
from enginefleet_api.kinds import KINDS, Kind
from enginefleet_operator.planning.contract import lacking, name_of, told

MODELS = next(kind for kind in KINDS if kind.name == "ModelDeployment")


def properties(definition: dict[str, Any], *path: str) -> dict[str, Any]:
    found = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in path:
        found = found["properties"][name]
    result: dict[str, Any] = found["properties"]
    return result


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_definitions_of_this_release_lack_nothing(kind: Kind) -> None:
    assert lacking(kind, manifest(kind)) == []


def test_a_newer_definition_lacks_nothing_either() -> None:
    newer = manifest(MODELS)
    properties(newer, "status")["fromTheFuture"] = {"type": "string"}
    assert lacking(MODELS, newer) == []


def test_fields_and_values_that_an_older_one_does_not_know_are_named() -> None:
    older = copy.deepcopy(manifest(MODELS))
    del properties(older, "status", "resolved")["refused"]
    del properties(older, "spec", "validation")["copyToStore"]
    properties(older, "spec", "serving")["layout"]["enum"].remove("triton")
    assert sorted(lacking(MODELS, older)) == ["spec.serving.layout=triton", "spec.validation.copyToStore", "status.resolved.refused"]


def test_what_is_lacking_is_said_with_what_to_do() -> None:
    none = copy.deepcopy(manifest(MODELS))
    none["spec"]["versions"][0]["name"] = "v1alpha0"
    text = told({name_of(MODELS): ["status.a", *(f"status.{n}" for n in range(6))], "others": lacking(MODELS, none), "right": []})
    assert "modeldeployments.enginefleet.io lacks status.a, status.0, status.1, status.2, status.3 and 2 more;" in text
    assert "others is not there in version v1alpha1" in text
    assert "kubectl apply --server-side -f crds/" in text
    assert "right" not in text
    assert told({"right": []}) == ""
    assert lacking(MODELS, None) == ["*"]
