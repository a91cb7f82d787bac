"""Good manifests at a real API server: defaults, pruning, status, server-side apply, immutability, what kubectl shows."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from enginefleet_api.kinds import ENGINE_BUILD as ENGINE_BUILD_KIND
from enginefleet_api.kinds import KINDS, Kind
from enginefleet_api.kinds import NODE_FINGERPRINT as NODE_FINGERPRINT_KIND
from tests.contract.manifests import ENGINE_BUILD, ENGINE_STORE, FULL, GOOD, HARDWARE_CLASS, MINIMAL, NODE_FINGERPRINT, Object, changed
from tests.contract.server import ApiServer, Refused

pytestmark = pytest.mark.cluster

BY_KIND = {kind.name: kind for kind in KINDS}
READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "12 of 12", "lastTransitionTime": "2025-01-01T00:00:00Z"}
"""A condition as metav1.Condition has it."""

BARE: dict[str, Object] = {
    "ModelDeployment": MINIMAL,
    "HardwareClass": {
        "apiVersion": "enginefleet.io/v1alpha1",
        "kind": "HardwareClass",
        "metadata": {"name": "bare"},
        "spec": {"nodeSelector": {"matchLabels": {"a": "b"}}, "backend": "onnxruntime", "runtime": {"image": "registry.example/builder:1"}},
    },
    "EngineStore": {
        "apiVersion": "enginefleet.io/v1alpha1",
        "kind": "EngineStore",
        "metadata": {"name": "bare", "namespace": "default"},
        "spec": {"uri": "s3://engines"},
    },
    "NodeFingerprint": changed(NODE_FINGERPRINT, {"spec": {"node": "bare"}}, name="bare"),
    "EngineBuild": ENGINE_BUILD,
}
"""The least that each kind needs."""

OPTIONAL_PARTS = {
    "spec.precision": "fp16",  # a DLA has no fp32
    "spec.calibration": {"uri": "s3://data/c/"},
    "spec.validation": {"uri": "s3://data/v.npz", "acceptance": {"maxDrop": "0.01"}, "baseline": {"expected": "0.9"}},
    "spec.benchmark": {"acceptance": {"p95": "10ms"}},
    "spec.build": {"dla": {}},
    "spec.rollout": {"canary": {"count": 1}, "windows": [{"days": ["Mon"], "start": "02:00", "duration": "1h"}]},
}
"""Parts that are absent by default, but have defaults inside."""


def with_pydantic_defaults(obj: Object) -> Any:
    kind = BY_KIND[obj["kind"]]
    return kind.spec.model_validate(obj["spec"]).to_json_dict()


@pytest.mark.parametrize("title", GOOD)
def test_accepts(api: ApiServer, title: str) -> None:
    """Strictly: with no field that the schema does not know. kubectl apply and what the models read come to the same."""
    stored = api.create(GOOD[title], dry_run=True, strict=True)

    assert with_pydantic_defaults(GOOD[title]) == stored["spec"]


@pytest.mark.parametrize("kind", BARE)
def test_every_default_is_visible_after_apply(api: ApiServer, kind: str) -> None:
    stored = api.create(BARE[kind], dry_run=True, strict=True)

    assert with_pydantic_defaults(BARE[kind]) == stored["spec"]


def test_defaults_inside_optional_parts_are_visible_after_apply(api: ApiServer) -> None:
    obj = changed(MINIMAL, OPTIONAL_PARTS)

    stored = api.create(obj, dry_run=True, strict=True)

    assert with_pydantic_defaults(obj) == stored["spec"]


@pytest.mark.parametrize("title", GOOD)
def test_unknown_fields_are_pruned(api: ApiServer, title: str) -> None:
    """A manifest for a newer version is taken as far as this version knows it; kubectl refuses it by default and names the field."""
    good = GOOD[title]

    stored = api.create(changed(good, {"spec.fromTheFuture": {"a": 1}}), dry_run=True)

    assert "fromTheFuture" not in stored["spec"]
    with pytest.raises(Refused, match=r'unknown field "spec[.]fromTheFuture"'):
        api.create(changed(good, {"spec.fromTheFuture": {"a": 1}}), dry_run=True, strict=True)


def test_free_objects_are_kept_as_they_are(api: ApiServer) -> None:
    template = copy.deepcopy(FULL["spec"]["serving"]["template"])
    template["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]

    stored = api.create(changed(FULL, {"spec.serving.template": template}), dry_run=True, strict=True)

    assert template == stored["spec"]["serving"]["template"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not NODE_FINGERPRINT_KIND], ids=lambda kind: kind.name)
def test_a_new_object_is_visibly_not_observed(api: ApiServer, kind: Kind) -> None:
    """kstatus takes an object without status for ready."""
    obj = changed(BARE[kind.name], {}, name=f"observed-{kind.short}")
    api.create(obj)

    assert _expected_first_status(kind) == api.get(obj).get("status")


def _expected_first_status(kind: Kind) -> Object | None:
    # an EngineBuild has no generations: its spec never changes
    return None if kind is ENGINE_BUILD_KIND else {"observedGeneration": -1}


def test_an_old_status_does_not_come_in_with_the_spec(api: ApiServer) -> None:
    """As when a manifest was made with `kubectl get -o yaml`."""
    obj = changed(MINIMAL, {"status": {"observedGeneration": 7, "summary": "all is well"}}, name="old-status")
    api.create(obj)

    assert api.get(obj)["status"] == {"observedGeneration": -1}


def test_server_side_apply_of_the_same_spec_changes_nothing(api: ApiServer) -> None:
    obj = changed(FULL, {}, name="apply-twice")

    # the second one stores the status that the first reader was shown by default
    first, second, third = (api.apply(obj)["metadata"] for _ in range(3))

    assert first["generation"] == second["generation"] == 1
    assert second == third


def test_status_is_applied_apart_from_spec(api: ApiServer) -> None:
    obj = changed(MINIMAL, {}, name="apply-status")
    api.apply(obj)
    head = {key: obj[key] for key in ("apiVersion", "kind", "metadata")}

    api.apply(head | {"status": {"observedGeneration": 1, "conditions": [READY]}}, manager="operator", status=True)
    api.apply(obj | {"status": {"observedGeneration": 9}}, manager="user")

    found = api.get(obj)
    assert found["status"] == {"observedGeneration": 1, "conditions": [READY]}
    assert found["metadata"]["generation"] == 1


def test_conditions_of_two_writers_are_merged_by_type(api: ApiServer) -> None:
    obj = changed(NODE_FINGERPRINT, {"spec.node": "two-writers"}, name="two-writers")
    api.apply(obj)
    head = {key: obj[key] for key in ("apiVersion", "kind", "metadata")}

    api.apply(head | {"status": {"conditions": [READY]}}, manager="one", status=True)
    api.apply(head | {"status": {"conditions": [READY | {"type": "EnginesReady"}]}}, manager="other", status=True)

    assert sorted(condition["type"] for condition in api.get(obj)["status"]["conditions"]) == ["EnginesReady", "Ready"]


def test_observations_of_agent_and_probe_are_merged_by_class_image_and_device(api: ApiServer) -> None:
    """Each writer owns its own entries; the device has a default, so that it can be a key."""
    head: Object = {"apiVersion": "enginefleet.io/v1alpha1", "kind": "NodeFingerprint", "metadata": {"name": "merged"}}
    observation = NODE_FINGERPRINT["spec"]["observations"][0]

    for manager, image in (("probe-a", "sha256:a"), ("probe-b", "sha256:b"), ("probe-a", "sha256:a")):
        api.apply(head | {"spec": {"node": "merged", "observations": [observation | {"imageDigest": image}]}}, manager=manager)

    found = api.get(head)["spec"]["observations"]
    assert sorted((item["imageDigest"], item["device"]) for item in found) == [("sha256:a", "cpu"), ("sha256:b", "cpu")]


@pytest.mark.parametrize(
    "change",
    [{"precision": "fp32"}, {"request": {"recipe": {"threads": "8"}}}, {"request": {"new": 1}}, {"summary": None}],
    ids=["a text", "deep in the request", "something new in the request", "something left out"],
)
def test_an_engine_build_does_not_change(api: ApiServer, change: Object) -> None:
    obj = changed(ENGINE_BUILD, {}, name="immutable")
    api.apply(obj)

    with pytest.raises(Refused, match="an EngineBuild does not change: delete it, and the operator makes another one"):
        api.patch(obj, {"spec": change})
    api.patch(obj, {"metadata": {"labels": {"still": "possible"}}})


def test_what_runs_the_engines_of_a_class_does_not_change(api: ApiServer) -> None:
    obj = changed(BARE["HardwareClass"], {}, name="fixed")
    api.apply(obj)

    for change in ({"executionProvider": "OpenVINO"}, {"backend": "tensorrt"}):
        with pytest.raises(Refused, match="write another HardwareClass"):
            api.patch(obj, {"spec": change})
    api.patch(obj, {"spec": {"runtime": {"image": "registry.example/builder:2"}}})


COLUMNS: list[tuple[Object, Object, list[str]]] = [
    (
        changed(FULL, {}, name="columns"),
        {
            "observedGeneration": 1,
            "engines": "2/3",
            "precision": "int8-entropy,fp16",
            "rollout": "12/40",
            "summary": "building",
            "conditions": [READY],
        },
        ["True", "2/3", "12/40", "int8-entropy,fp16", "building"],
    ),
    (
        changed(HARDWARE_CLASS, {}, name="columns"),
        {"observedGeneration": 1, "nodes": 3, "summary": "2 kinds", "candidate": {"image": "r:2", "models": "1/2"}, "conditions": [READY]},
        ["tensorrt", "3", "2 kinds", "1/2", "True"],
    ),
    (changed(ENGINE_STORE, {}, name="columns"), {"observedGeneration": 1, "conditions": [READY]}, ["s3://engines/vision/", "True"]),
    (
        changed(NODE_FINGERPRINT, {"spec.node": "columns"}, name="columns"),
        {"conditions": [READY, READY | {"type": "EnginesReady", "status": "False"}]},
        ["x86_64 CPU (avx2)", "False"],
    ),
    (
        changed(ENGINE_BUILD, {}, name="columns"),
        {"phase": "Building", "node": "node-1", "message": "compiling"},
        ["line-inspection", "cpu", "fp-0123456789abcdef", "int8-entropy", "Building", "node-1"],
    ),
]


@pytest.mark.parametrize(("obj", "status", "cells"), COLUMNS, ids=lambda value: value.get("kind", "") if isinstance(value, dict) else "")
def test_kubectl_shows_the_columns_under_the_short_name(api: ApiServer, obj: Object, status: Object, cells: list[str]) -> None:
    kind = BY_KIND[obj["kind"]]
    api.apply(obj)
    api.apply({key: obj[key] for key in ("apiVersion", "kind", "metadata")} | {"status": status}, status=True)

    head, row = api.kubectl("get", kind.short, "columns").stdout.splitlines()

    titles = ["NAME", *(column.name.upper() for column in kind.columns if not column.priority)]
    assert titles == head.split()
    starts = [head.index(title) for title in titles]
    shown = [row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
    assert ["columns", *cells] == shown[:-1]


def test_the_message_of_an_engine_build_shows_in_the_wide_form(api: ApiServer) -> None:
    obj = changed(ENGINE_BUILD, {}, name="wide")
    api.apply(obj)
    api.apply({key: obj[key] for key in ("apiVersion", "kind", "metadata")} | {"status": {"message": "compiling"}}, status=True)

    assert "compiling" in api.kubectl("get", "eb", "wide", "-o", "wide").stdout
    assert "compiling" not in api.kubectl("get", "eb", "wide").stdout


def test_all_kinds_are_in_the_category(api: ApiServer) -> None:
    """`kubectl get enginefleet` lists what there is, of every kind."""
    listed = api.kubectl("api-resources", "--categories=enginefleet", "--no-headers").stdout.splitlines()

    assert sorted(kind.plural for kind in KINDS) == sorted(line.split()[0] for line in listed)


def test_kubectl_explain_knows_what_fields_mean(api: ApiServer) -> None:
    assert "Nodes of a class that may be out of service" in api.kubectl("explain", "mdep.spec.rollout.maxUnavailable").stdout
