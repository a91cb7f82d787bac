"""What the commands show, from objects as an API server holds them; no cluster."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import pytest
from rich.console import Console, RenderableType

from enginefleet_api import labels
from enginefleet_api.identity import engine_key
from enginefleet_api.keys import gate_key_of, recipe_of
from enginefleet_api.resources import ModelDeploymentSpec
from enginefleet_cli import acts, explain, lists, plan, status
from enginefleet_cli.cluster import MODEL_DEPLOYMENTS, NODES, refusal
from enginefleet_cli.words import span

NOW = 1_800_000_000.0
BLOB = "sha256:" + "e" * 64
FP = "fp-0123456789abcdef"
KEY = labels.release_key("vision", "m")
SPEC = ModelDeploymentSpec.model_validate({"model": {"uri": "s3://models/m.onnx"}, "targets": [{"hardwareClass": "cpu"}]})
CLASS = {
    "metadata": {"name": "cpu"},
    "spec": {"backend": "onnxruntime", "nodeSelector": {"matchLabels": {"hardware": "cpu"}}, "runtime": {"image": "r:1"}},
}
OBSERVED = {
    "n0": {
        "metadata": {"name": "n0"},
        "spec": {
            "node": "n0",
            "observations": [{"class": "cpu", "id": FP, "summary": "a CPU", "facts": {"backendVersion": "1.24.4", "arch": None}}],
        },
    }
}
ENGINE = engine_key(
    prepared_model="sha256:" + "2" * 64, recipe=recipe_of(SPEC.build, SPEC.inputs, precision="fp32"), fingerprint=FP, version=1
)


def condition(kind: str, value: str, reason: str = "Because", message: str = "It is so.") -> dict[str, Any]:
    return {"type": kind, "status": value, "reason": reason, "message": message, "lastTransitionTime": "2027-01-15T07:00:00Z"}


def mdep(*conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    prepared = {"flavour": "onnxruntime", "variant": "fp32", "precision": "fp32", "preparedKey": "p" * 64, "model": "sha256:" + "2" * 64}
    resolved = {"inputsKey": "i", "model": "sha256:" + "1" * 64, "prepareRecipe": 2, "engineRecipe": 1, "prepared": [prepared]}
    fingerprint = {"id": FP, "summary": "a CPU", "nodes": 1, "state": "Passed", "variant": "fp32", "engineBuild": "m-1", "blob": BLOB}
    rollout = {"release": "bbbbbbbbbb", "stableRelease": "aaaaaaaaaa", "history": ["aaaaaaaaaa"], "step": "canary"}
    counts = {"total": 2, "updated": 1, "ready": 1, "waiting": 1}
    state = {"observedGeneration": 1, "revision": "rev-1", "resolved": resolved, "conditions": list(conditions)}
    state["classes"] = [{"name": "cpu", "nodes": counts, "fingerprints": [fingerprint], "rollout": rollout}]
    meta = {"name": "m", "namespace": "vision", "generation": 1, "annotations": {"enginefleet.io/abort": "t", "enginefleet.io/retry": "t"}}
    return {"metadata": meta, "spec": SPEC.to_json_dict(), "status": state | more}


def node(name: str, *, ready: bool = True, release: str = "") -> dict[str, Any]:
    have = {"hardware": "cpu", labels.fp_key("cpu"): FP} | ({KEY: release} if release else {})
    return {"metadata": {"name": name, "labels": have}, "status": {"conditions": [condition("Ready", str(ready))]}}


def pod(on: str, *, ready: bool = True) -> dict[str, Any]:
    return {"metadata": {"name": f"m-{on}"}, "spec": {"nodeName": on}, "status": {"conditions": [condition("Ready", str(ready))]}}


def build(phase: str = "Passed", gate: str = "") -> dict[str, Any]:
    own = gate or gate_key_of(SPEC.validation, SPEC.benchmark, None)
    spec: dict[str, Any] = {
        "modelDeployment": "m",
        "class": "cpu",
        "fingerprint": FP,
        "revision": "rev-1",
        "precision": "fp32",
        "engineKey": ENGINE,
        "gateKey": own,
    }
    spec["request"] = {"store": {"uri": "s3://engines/vision/", "endpoint": "https://store.example"}}
    measured = {"accuracy": {"metric": "top1", "value": "0.98"}, "latency": [{"batch": 1, "p95": "1.3"}], "engine": {"blob": BLOB}}
    return {"metadata": {"name": "m-1", "creationTimestamp": "2027-01-15T07:00:00Z"}, "spec": spec, "status": {"phase": phase} | measured}


def text(picture: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=240).print(picture)
    return out.getvalue()


@pytest.mark.parametrize(
    ("seen", "state", "updated"),
    [
        pytest.param((node("n0", release="bbbbbbbbbb-eeeeeeee"), [pod("n0")]), "ready", True, id="on the release with a ready pod"),
        pytest.param((node("n0", release="aaaaaaaaaa-eeeeeeee"), [pod("n0")]), "ready", False, id="still serves the release before"),
        pytest.param((node("n0", release="draining-to.bbbbbbbbbb-eeeeeeee"), [pod("n0")]), "moving", False, id="its old pod ends"),
        pytest.param((node("n0", release="bbbbbbbbbb-eeeeeeee"), []), "moving", True, id="its new pod is not there yet"),
        pytest.param((node("n0"), []), "waiting", False, id="no release"),
        pytest.param((node("n0", ready=False, release="bbbbbbbbbb-eeeeeeee"), [pod("n0")]), "unreachable", True, id="the node is away"),
    ],
)
def test_a_node_stands_where_its_label_and_its_pod_say(seen: tuple[Any, Any], state: str, updated: bool) -> None:
    found = status.node_view(seen[0], KEY, "bbbbbbbbbb", {}, seen[1])
    assert (state, updated) == (found["state"], found["updated"])


def test_the_tree_goes_from_revision_to_classes_to_fingerprints_to_nodes() -> None:
    seen = status.view(mdep(condition("Ready", "False")), [node("n0", release="bbbbbbbbbb-e"), node("n1")], [pod("n0")], NOW)
    lines = text(status.tree(seen)).splitlines()
    order = [next(i for i, line in enumerate(lines) if word in line) for word in ("rev-1", "1/2 nodes ready", FP, "n1", "n0")]
    assert order == sorted(order)
    assert status.exit_code([seen]) == 1
    json.dumps(seen)


def test_the_tree_tells_how_a_candidate_image_stands() -> None:
    seen = mdep(condition("Ready", "True"))
    engine = {"id": "fp-candidate", "summary": "a newer runtime", "state": "Failed", "variant": "fp32", "message": "GateFailed: below"}
    told = {"image": "r:2", "state": "Failed", "nodes": 2, "reason": "GateFailed", "message": "below the minimum", "fingerprints": [engine]}
    seen["status"]["classes"][0]["candidate"] = told
    view = status.view(seen, [node("n0")], [], NOW)
    shown = text(status.tree(view))
    for words in (
        "candidate image r:2  Failed  engines for 0 of 2 nodes passed",
        "GateFailed: below the minimum",
        "fp-candidate  Failed  fp32",
    ):
        assert words in shown
    json.dumps(view)
    assert status.exit_code([view]) == 0, "what serves is ready"


def test_ready_for_an_older_spec_is_not_ready() -> None:
    old = mdep(condition("Ready", "True"), observedGeneration=0)
    assert status.exit_code([status.view(old, [], [], NOW)]) == 1
    assert status.exit_code([status.view(mdep(condition("Ready", "True")), [], [], NOW)]) == 0


ABORTED = condition("Stalled", "True", "Aborted")


@pytest.mark.parametrize(
    ("act", "obj", "done", "failed"),
    [
        pytest.param("retry", mdep(condition("Ready", "True")), False, False, id="conditions beside an older token say nothing"),
        pytest.param("retry", mdep(condition("Ready", "True"), retryToken="t"), True, False, id="taken and ready"),
        pytest.param("retry", mdep(condition("Ready", "False"), retryToken="t"), False, False, id="taken and on its way"),
        pytest.param("retry", mdep(condition("Stalled", "True"), retryToken="t"), True, True, id="taken and stalled"),
        pytest.param("abort", mdep(ABORTED, abortToken="t"), True, False, id="an abort ends stalled, as wanted"),
        pytest.param(
            "abort",
            mdep(ABORTED, abortToken="t", classes=[{"name": "cpu", "rollout": {"step": "rollback"}}]),
            False,
            False,
            id="going back",
        ),
        pytest.param("promote", mdep(condition("Ready", "True")), True, True, id="another token was written since"),
    ],
)
def test_an_act_is_through_when_its_token_was_taken_and_all_is_settled(act: str, obj: dict[str, Any], done: bool, failed: bool) -> None:
    found = acts.progress(act, "t", obj)
    assert (done, failed) == (found.done, found.failed)


def planned(wanted: dict[str, Any], builds: list[Any] | None = None) -> dict[str, Any]:
    live = mdep(condition("Ready", "True"))
    changed = copy.deepcopy(live)
    changed["spec"] |= wanted
    return plan.plan(changed, live, builds if builds is not None else [build()], {"cpu": CLASS}, [node("n0"), node("n1")], OBSERVED)


@pytest.mark.parametrize(
    ("wanted", "builds", "what", "prepares", "moves"),
    [
        pytest.param({}, None, "keep", False, False, id="nothing changed"),
        pytest.param({"build": {"threads": "2"}}, None, "build", False, True, id="another recipe is another engine"),
        pytest.param({}, [build(gate="0" * 64)], "judge", False, False, id="another gate judges the engine again"),
        pytest.param({"model": {"uri": "s3://models/new.onnx"}}, None, "build", True, True, id="another model is prepared first"),
        pytest.param(
            {"serving": {"enginePath": "/other"}}, None, "keep", False, True, id="another pod template moves nodes and builds nothing"
        ),
        pytest.param({"rollout": {"maxFailures": 3}}, None, "keep", False, False, id="how to roll out moves nothing"),
    ],
)
def test_a_plan_says_what_is_built_and_moved(wanted: dict[str, Any], builds: Any, what: str, prepares: bool, moves: bool) -> None:
    seen = planned(wanted, builds)
    assert [what] == [f["what"] for c in seen["classes"] for f in c["fingerprints"]]
    assert (prepares, moves) == (bool(seen["prepare"]), bool(seen["moves"]))
    assert (2 if moves else 0) == seen["nodesToMove"]
    assert FP in text(plan.tree(seen))


def test_a_node_is_explained_with_its_facts_and_what_it_waits_for() -> None:
    seen = explain.node(node("n0"), OBSERVED["n0"], [CLASS], [mdep(condition("Ready", "False"))], [], NOW)
    shown = text(explain.node_tree(seen))
    assert "backendVersion: 1.24.4" in shown
    assert "not known: arch" in shown
    assert ("waiting", "bbbbbbbbbb") == (seen["serves"][0]["state"], seen["serves"][0]["target"])


def test_a_deployment_is_explained_with_the_last_failure_and_what_comes_next() -> None:
    failure = {
        "failureClass": "Transient",
        "reason": "StoreUnreachable",
        "message": "The store is away.",
        "hint": "",
        "logTail": ["[red] a line"],
    }
    prepare = {"attempts": 3, "lastFailure": failure, "nextAttemptAt": "2027-01-15T08:05:00Z"}
    shown = text(explain.deployment_tree(explain.deployment(mdep(condition("Ready", "False"), prepare=prepare), [], NOW)))
    assert "StoreUnreachable  attempt 3, next in 5m" in shown
    assert "Ready False for 60m" in shown
    assert "[red] a line" in shown


def test_engines_that_are_a_candidates_only_say_so() -> None:
    tried = build()
    tried["status"]["candidate"] = True
    shown = text(lists.engines_table(lists.engines([build(), tried], NOW)))
    assert shown.count("Passed (candidate)") == 1
    assert shown.count("Passed") == 2


def test_engines_and_reports_name_keys_and_the_command() -> None:
    shown = text(lists.engines_table(lists.engines([build()], NOW)))
    assert f"{ENGINE[:12]}   {'e' * 12}   top1 0.98, p95 1.3 ms at batch 1" in shown
    found = lists.report(build(), None)
    assert found["folder"].startswith(f"s3://engines/vision/reports/{ENGINE}/")
    assert found["command"][:6] == ["enginefleet", "report", "--store", "s3://engines/vision/", "--endpoint", "https://store.example"]


def test_history_says_which_release_a_rollback_can_go_to() -> None:
    have = {labels.HARDWARE_CLASS: "cpu", labels.RELEASE: "aaaaaaaaaa-eeeeeeee"}
    own = have | {labels.FINGERPRINT: FP, labels.ENGINE_BUILD: "m-1"}
    kept = {"metadata": {"name": "m-rev", "labels": own, "annotations": {labels.BLOB: BLOB}, "creationTimestamp": "2027-01-15T07:00:00Z"}}
    of_the_daemonset_controller = {"metadata": {"name": "m-rev-1", "labels": have}}
    rows = lists.history(mdep(), [kept, of_the_daemonset_controller], NOW)
    assert [("bbbbbbbbbb", "rolling out", False), ("aaaaaaaaaa", "stable", True)] == [(r["release"], r["state"], r["kept"]) for r in rows]
    assert [len(r["engines"]) for r in rows] == [0, 1]


@pytest.mark.parametrize(
    ("code", "body", "reason", "exit_code"),
    [
        (404, {"details": {"name": "m"}}, "NotFound", 3),
        (404, None, "NotInstalled", 3),
        (401, None, "NotLoggedIn", 4),
        (403, {"message": "no"}, "Forbidden", 4),
        (422, {"message": "spec.targets: bad"}, "Refused", 2),
        (500, None, "ApiError", 1),
    ],
)
def test_an_answer_that_is_no_success_has_an_exit_code_for_scripts(code: int, body: Any, reason: str, exit_code: int) -> None:
    found = refusal(code, json.dumps(body).encode() if body else b"404 page not found", MODEL_DEPLOYMENTS, "m", "vision", "host:1")
    assert (reason, exit_code) == (found.reason, found.exit_code)


def test_paths_of_objects() -> None:
    assert MODEL_DEPLOYMENTS.path("vision", "m") == "/apis/enginefleet.io/v1alpha1/namespaces/vision/modeldeployments/m"
    assert NODES.path("vision") == "/api/v1/nodes"
    assert ["45s", "2m", "3h", "5d"] == [span(s) for s in (45, 121, 10800, 432000)]
