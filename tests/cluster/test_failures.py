"""What goes wrong, and what the product says: reason, message, wake-up and recovery, each on the real control plane."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from enginefleet_builder.prepare import targets
from localcluster import NodeSpec

from .fleet import MNIST, Fleet, Site


def _nan_model() -> bytes:
    """x -> log(-|x| - 1): never a number."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["n"]),
        helper.make_node("Sub", ["n", "one"], ["s"]),
        helper.make_node("Log", ["s"], ["l"]),
        helper.make_node("Flatten", ["l"], ["y"]),
    ]
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 28, 28])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 784])
    model = helper.make_model(helper.make_graph(nodes, "nan", [x], [y], [one]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(onnx.ModelProto.SerializeToString(model))


def _few_samples() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, images=np.zeros((20, 1, 28, 28), np.float32), labels=np.zeros(20, np.int64))
    return buffer.getvalue()


PREFIX = "failures"
"""One place for the engines of all these tests: what is looked at here is the operator, not the compiler."""


@dataclass(frozen=True)
class Case:
    """One thing wrong in a ModelDeployment: what is said, whether it is stalled, and the change that cures it."""

    mdep: dict[str, Any]
    reason: str
    says: str
    stalled: bool
    files: dict[str, Callable[[], bytes]] = field(default_factory=dict)


VALIDATION: dict[str, Any] = {"uri": "s3://models/mnist/validation.npz", "minSamples": 200, "acceptance": {"minimum": "0.9"}}
CASES = {
    "unknown class": Case(
        {"targets": [{"hardwareClass": "no-such-class"}]}, "HardwareClassNotFound", "'no-such-class' does not exist", False
    ),
    "unknown store": Case({"storeRef": {"name": "elsewhere"}}, "StoreNotFound", "'elsewhere' does not exist", False),
    "unknown secret": Case(
        {"model": {"uri": "s3://models/mnist/model.onnx", "credentialsSecretRef": {"name": "absent"}}},
        "SecretNotFound",
        'secret "absent" not found',
        False,
    ),
    "bad URI": Case({"model": {"uri": "s3://models/nowhere/model.onnx"}}, "SourceNotFound", "s3://models/nowhere/", True),
    "unknown bucket": Case({"model": {"uri": "s3://no-such-bucket/model.onnx"}}, "SourceNotFound", "no-such-bucket", True),
    "wrong digest": Case(
        {"model": {"uri": "s3://models/mnist/model.onnx", "digest": "sha256:" + "0" * 64}}, "DigestMismatch", "sha256:0000", True
    ),
    "corrupt model": Case(
        {"model": {"uri": "s3://models/bad/corrupt.onnx"}},
        "ModelTruncated",
        "",
        True,
        {"bad/corrupt.onnx": lambda: (MNIST / "model.onnx").read_bytes()[:100_000]},
    ),
    "git-lfs pointer": Case(
        {"model": {"uri": "s3://models/bad/pointer.onnx"}},
        "SourceIsLfsPointer",
        "git lfs pull",
        True,
        {"bad/pointer.onnx": lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"},
    ),
    "too few samples": Case(
        {"validation": VALIDATION | {"uri": "s3://models/bad/few.npz"}}, "TooFewSamples", "20", True, {"bad/few.npz": _few_samples}
    ),
    "NaN outputs": Case({"model": {"uri": "s3://models/bad/nan.onnx"}}, "NonFiniteOutputs", "", True, {"bad/nan.onnx": _nan_model}),
    "not supported yet": Case({"build": {"workspace": "2Gi"}}, "NotYetSupported", "no target class has a use for workspace", True),
}


@pytest.fixture(scope="module")
def sites(cluster_fleet: Fleet) -> Iterator[dict[str, Site]]:
    """Every wrong ModelDeployment at once: they do not disturb each other."""
    if not cluster_fleet.operator.alive():
        cluster_fleet.operator.start()
    made: dict[str, Site] = {}
    for name, case in CASES.items():
        for key, content in case.files.items():
            cluster_fleet.client().put_object(Bucket="models", Key=key, Body=content())
        made[name] = Site(cluster_fleet, nodes="cpu-b", prefix=PREFIX)
        made[name].apply_all(**case.mdep)
    yield made
    for site in made.values():
        site.close()


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said(sites: dict[str, Site], fleet: Fleet, name: str) -> None:
    case, site = CASES[name], sites[name]
    found = site.wait_reason(case.reason)
    assert case.says in found["message"]
    assert "Traceback" not in found["message"]
    assert (site.condition("Stalled")["status"] == "True") is case.stalled
    assert site.workloads() == []


def test_a_right_spec_cures_each_of_them(sites: dict[str, Site], fleet: Fleet) -> None:
    for name, site in sites.items():
        if name == "unknown secret":
            fleet.apply(site.secret("absent"))  # no change of the ModelDeployment: it wakes up by itself
        else:
            fleet.kube.kubectl("delete", "mdep", site.name, "-n", site.namespace)
            fleet.apply(site.mdep())
    for site in sites.values():
        site.wait_ready(240)
    # they are done with: their pods would follow what the next tests do to the node
    for site in sites.values():
        site.close()


def test_no_node_of_the_class_is_waited_for_and_a_new_node_wakes_it(fleet: Fleet) -> None:
    site = Site(fleet, nodes="cpu-late", prefix=PREFIX)
    try:
        site.apply_all()
        found = site.wait_reason("NoMatchingNodes")
        assert "hardware=cpu-late" in found["message"]
        assert site.condition("Stalled")["status"] == "False"
        fleet.kube.kubectl("label", "node", "node-b1", "hardware=cpu-late", "--overwrite")
        site.wait_ready()
        assert [p["spec"]["nodeName"] for p in site.pods()] == ["node-b1"]
    finally:
        fleet.kube.kubectl("label", "node", "node-b1", "hardware=cpu-b", "--overwrite")
        fleet.wait("the node is given back", lambda: not site.pods())
        site.close()


@pytest.fixture
def small(fleet: Fleet) -> Iterator[Site]:
    made = Site(fleet, nodes="cpu-b", prefix=PREFIX)
    yield made
    made.close()


def test_a_newer_table_in_a_config_map_reaches_the_jobs_and_a_wrong_one_stops_none(fleet: Fleet, small: Site) -> None:
    site = small
    bad = {"operators": ["Conv"], "severity": "error", "what": "it breaks", "hint": "Wait.", "references": ["owner/repository#1"]}
    newer = targets.load().to_json_dict() | {"updated": "2099-01-01", "knownBad": [bad]}

    def tables(text: str) -> dict[str, Any]:
        metadata = {"name": "enginefleet-tables", "namespace": site.namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"targets.json": text}}

    fleet.apply(site.namespace_object(), tables(json.dumps(newer)))
    site.apply_all()
    found = site.wait_reason("KnownTrouble")
    assert "Conv: it breaks (owner/repository#1)" in found["message"]
    assert site.workloads() == []
    # of no use, which is told, and no reason to make nothing: the program's own knows of no trouble
    fleet.apply(tables("{"))
    fleet.kube.kubectl("annotate", "mdep", site.name, "-n", site.namespace, "enginefleet.io/refresh=now")
    site.wait_ready()
    events = fleet.world.all("event", site.namespace)
    assert any(e["reason"] == "TargetsInvalid" and "/etc/enginefleet/tables/targets.json" in e.get("note", "") for e in events)


def test_a_store_that_is_down_is_retried_and_serving_goes_on(fleet: Fleet, small: Site) -> None:
    site = small
    site.apply_all()
    site.wait_ready()
    pods = {p["metadata"]["uid"] for p in site.pods()}
    fleet.cluster.stop_s3()
    try:
        fleet.apply(site.mdep(validation=VALIDATION | {"acceptance": {"minimum": "0.91"}}))
        found = fleet.wait(
            "the build says that the store is down",
            lambda: c if (c := site.condition("EnginesReady")).get("reason") == "StoreUnavailable" else None,
            240,
        )
        assert "Attempt" in found["message"]
        assert site.condition("Stalled")["status"] == "False"
        assert {p["metadata"]["uid"] for p in site.pods()} == pods
    finally:
        fleet.cluster.restart_s3()
    site.wait_ready(180)
    assert {p["metadata"]["uid"] for p in site.pods()} == pods


GPU_NODE = "node-gpu"


@pytest.fixture
def gpu_site(fleet: Fleet) -> Iterator[Site]:
    """One node whose only device is exclusive; the class's pods and builds both ask for it."""
    fleet.cluster.add_node(NodeSpec(GPU_NODE, labels={"hardware": "one-gpu"}, extended={"example.com/simulated-gpu": "1"}))
    site = Site(fleet, nodes="one-gpu", prefix=PREFIX)
    yield site
    site.close()
    fleet.wait("its pods are gone", lambda: not site.pods())
    fleet.cluster.remove_node(GPU_NODE)


def test_a_build_waits_for_a_held_device_names_the_holder_and_goes_on_when_it_is_free(fleet: Fleet, gpu_site: Site) -> None:
    site = gpu_site
    device = {"limits": {"example.com/simulated-gpu": "1"}}
    holder = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "other-server", "namespace": site.namespace},
        "spec": {
            "nodeSelector": {"hardware": "one-gpu"},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "x", "image": "enginefleet/runtime:ort-1.24", "command": ["sleep", "600"], "resources": device}],
        },
    }
    fleet.apply(site.namespace_object(), holder)
    fleet.wait(
        "the holder runs",
        lambda: any(
            p["status"].get("phase") == "Running" for p in fleet.world.all("pod", site.namespace) if p["metadata"]["name"] == "other-server"
        ),
        30,
    )
    hwc = site.hwc(runtime={"resources": device})
    fleet.apply(site.secret(), site.store(), hwc, site.mdep())
    found = site.wait_reason("WaitingForDevice")
    assert "example.com/simulated-gpu of node node-gpu is held by pod" in found["message"]
    assert f"{site.namespace}/other-server since 20" in found["message"]
    fleet.delete("pod", "other-server", site.namespace)
    site.wait_ready()
    # now our own serving pod holds it: a new build would need an outage, and says so; the old pod serves on
    pods = {p["metadata"]["uid"] for p in site.pods()}
    fleet.apply(site.hwc("enginefleet/runtime:ort-1.23", runtime={"image": "enginefleet/runtime:ort-1.23", "resources": device}))
    found = site.wait_reason("BuildNeedsOutage")
    assert f"held by pod {site.namespace}/digits-" in found["message"]
    assert {p["metadata"]["uid"] for p in site.pods()} == pods
    # back to the image that serves: nothing needs to be built
    fleet.apply(hwc)
    site.wait_ready()
    assert {p["metadata"]["uid"] for p in site.pods()} == pods
