"""Classes of GPU nodes: how they are probed, and what becomes of facts that nobody knows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import fingerprint, labels
from enginefleet_api.jobs import ProbeReport
from enginefleet_api.resources import HardwareClassStatus, NodeFingerprintSpec
from enginefleet_operator.planning.classes import MAX_UNKNOWN, ClassSnapshot, decide_class
from enginefleet_operator.planning.model import HardwareClass, Job, LabelNode, Plan, StartProbe, WriteObservations
from enginefleet_operator.render.manifests import probe_job

from . import worlds as w

ORIN: dict[str, Any] = {
    "backend": "tensorrt", "backendVersion": "10.3.0.30", "cudaMajor": 12, "gpus": [{"computeCapability": "8.7", "sms": 8}],
}  # fmt: skip


def orin(**runtime: Any) -> HardwareClass:
    found = w.hardware_class("orin", backend="tensorrt", runtime={"image": "runtime:1", "python": "/usr/bin/python3.10", **runtime})
    return replace(found, status=HardwareClassStatus())


def host(node: str, jetson: dict[str, Any]) -> NodeFingerprintSpec:
    facts = fingerprint.host_facts(os="linux", machine="aarch64", cpuinfo="Features : asimd\n", jetson=jetson)
    return NodeFingerprintSpec.model_validate({"node": node, "host": {"digest": fingerprint.host_digest(facts), "facts": facts}})


def probed(jetsons: dict[str, dict[str, Any]], said: dict[str, Any] = ORIN, have: tuple[str, ...] = ()) -> tuple[ClassSnapshot, Plan]:
    """A class whose probe Jobs have answered, and what is decided then. `have`: nodes that carry a label of the fingerprint already."""
    nodes = tuple(w.node(name, hardware="orin") for name in jetsons)
    s = ClassSnapshot(orin(), nodes, {name: host(name, jetson) for name, jetson in jetsons.items()})
    starts = [a for a in decide_class(s, w.NOW).actions if isinstance(a, StartProbe)]
    report = ProbeReport(runtime=said)
    image_id = "runtime@" + w.IMAGE_A
    jobs = [Job(a.job, f"uid-{a.job}", "probe", a.attempt, active=False, node=a.node, report=report, image_id=image_id) for a in starts]
    s = replace(s, jobs=tuple(jobs))
    if have:
        marks = {name: _mark(s, name) for name in have}
        s = replace(s, nodes=tuple(replace(n, labels={**n.labels, **marks.get(n.name, {})}) for n in nodes))
    return s, decide_class(s, w.NOW)


def _mark(s: ClassSnapshot, node: str) -> dict[str, str]:
    alone = replace(s, nodes=tuple(n for n in s.nodes if n.name == node))
    (mark,) = (a.labels for a in decide_class(alone, w.NOW).actions if isinstance(a, LabelNode))
    return {key: str(value) for key, value in mark.items()}


def ids(plan: Plan) -> dict[str, str | None]:
    return {a.node: a.labels.get(labels.fp_key("orin")) for a in plan.actions if isinstance(a, LabelNode)}


def ready(plan: Plan) -> tuple[str, str, str]:
    assert plan.status is not None
    (found,) = (c for c in plan.status["conditions"] if c["type"] == "Ready")
    return found["status"], found["reason"], found["message"]


KNOWN = {"module": "p3767-0000", "l4t": "36.4.3"}


def test_host_and_probe_make_one_fingerprint_of_a_jetson() -> None:
    _, plan = probed({"a": KNOWN, "b": KNOWN, "c": KNOWN | {"module": "p3767-0003"}})
    found = ids(plan)
    assert found["a"] == found["b"] != found["c"]
    (one, *_) = (a.observations[0] for a in plan.actions if isinstance(a, WriteObservations))
    assert (one.device, one.summary) == ("gpu", "Orin NX 16GB (p3767-0000), SM 8.7 x8, TensorRT 10.3.0.30, L4T 36.4.3")
    assert ready(plan)[:2] == ("True", "Observed")


def test_nodes_of_which_a_fact_is_unknown_do_not_share_engines() -> None:
    _, plan = probed({"a": KNOWN | {"module": None}, "b": KNOWN | {"module": None}, "c": KNOWN})
    assert len(set(ids(plan).values())) == 3
    assert ready(plan) == (
        "True", "FactsUnknown", "jetson.module is unknown on a, b: an engine made there is for that node only.",
    )  # fmt: skip


def test_no_more_than_three_nodes_of_a_class_get_engines_of_their_own() -> None:
    names = [f"n{i}" for i in range(MAX_UNKNOWN + 2)]
    _, plan = probed({name: KNOWN | {"l4t": None} for name in names})
    assert sorted(ids(plan)) == names[:MAX_UNKNOWN]
    status, reason, message = ready(plan)
    assert (status, reason) == ("False", "FactsUnknown")
    assert message.endswith("no more than 3 of 5 nodes get one.")


def test_a_node_that_has_its_engine_keeps_it_when_more_unknown_ones_come() -> None:
    names = [f"n{i}" for i in range(MAX_UNKNOWN + 2)]
    _, plan = probed({name: KNOWN | {"l4t": None} for name in names}, have=("n4",))
    # n4 carries its label, so that nothing changes there
    assert sorted(ids(plan)) == ["n0", "n1"]


# ---- the probe Job ----

GPU = {"limits": {"nvidia.com/gpu": "1"}}
SLICE = {"limits": {"nvidia.com/mig-1g.5gb": "1"}}


@pytest.mark.parametrize(
    ("resources", "attempt", "holds"),
    [({}, 1, False), (GPU, 1, False), (GPU, 2, True), (GPU, 3, False), (SLICE, 1, True)],
    ids=["nothing to hold", "first without", "then with", "then without", "a slice at once"],
)
def test_a_probe_of_a_gpu_looks_without_holding_it_and_holds_it_when_that_failed(
    resources: dict[str, Any], attempt: int, holds: bool
) -> None:
    hardware_class = orin(resources=resources, runtimeClassName="nvidia")
    job = probe_job(hardware_class, StartProbe("p", attempt, "host-1", "a", "runtime:1"), "system", 60)
    pod = job["spec"]["template"]["spec"]
    (main,) = pod["containers"]
    variables = {item["name"]: item["value"] for item in main["env"]}
    assert main["resources"] == (resources if holds else {})
    assert ("NVIDIA_VISIBLE_DEVICES" in variables) is not holds
    assert pod["runtimeClassName"] == "nvidia"
    asked = json.loads(variables["ENGINEFLEET_REQUEST"])
    assert (asked["backend"], asked["python"]) == ("tensorrt", "/usr/bin/python3.10")


def test_a_probe_of_a_cpu_asks_for_no_gpu() -> None:
    job = probe_job(w.hardware_class(), StartProbe("p", 1, "host-1", "a", "runtime:1"), "system", 60)
    (main,) = job["spec"]["template"]["spec"]["containers"]
    assert "NVIDIA_VISIBLE_DEVICES" not in {item["name"] for item in main["env"]}
