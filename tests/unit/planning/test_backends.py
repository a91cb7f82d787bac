"""Classes of TensorRT and ONNX Runtime side by side: what is prepared for whom, in which precision, with which settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from enginefleet_api import fingerprint, labels
from enginefleet_api.documents import Answer
from enginefleet_api.errors import FailureClass
from enginefleet_api.jobs import TABLES_VARIABLE, BuildRequest, PrepareReport, ResolvedPrepared
from enginefleet_api.resources import HardwareClassStatus, NodeFingerprintSpec
from enginefleet_api.variants import Variant
from enginefleet_operator.planning import requests, stages
from enginefleet_operator.planning.classes import ClassSnapshot, decide_class
from enginefleet_operator.planning.decide import decide
from enginefleet_operator.planning.model import (
    CreateWorkload,
    Failure,
    HardwareClass,
    LabelNode,
    Need,
    Settings,
    Snapshot,
    StartBuild,
    StartPrepare,
    StartProbe,
)
from enginefleet_operator.planning.templates import RUNTIME_CHECK
from enginefleet_operator.render import manifests

from . import worlds as w

L4: Mapping[str, Any] = {"name": "L4", "computeCapability": "8.9", "sms": 58, "ecc": True}
ORIN: Mapping[str, Any] = {"computeCapability": "8.7", "sms": 8}
H200: Mapping[str, Any] = {"name": "H200", "computeCapability": "9.0", "sms": 132, "ecc": True}
CALIBRATION = {"uri": "s3://models/c.npz"}


def runtime(version: str | None, gpu: Mapping[str, Any], backend: str = "tensorrt", **more: Any) -> dict[str, Any]:
    return {"backend": backend, "backendVersion": version, "cudaMajor": 12, "gpus": [dict(gpu)], **more}


def known(name: str, said: dict[str, Any], **changes: Any) -> tuple[HardwareClass, NodeFingerprintSpec]:
    """A class that was probed, and its one node `<name>-0`."""
    found = w.hardware_class(name, backend=said["backend"], **changes)
    probed = {"image": "runtime:1", "imageDigest": w.IMAGE_A, "hostDigest": w.HOST_DIGEST, "runtime": said, "asked": found.asked}
    found = replace(found, status=found.status.model_validate({"probed": [probed]}))
    facts = fingerprint.combine(w.HOST, said)
    one: dict[str, Any] = {
        "class": name,
        "imageDigest": w.IMAGE_A,
        "id": fingerprint.identify(facts),
        "summary": fingerprint.summary(facts),
    }
    one |= {"facts": facts, "hostDigest": w.HOST_DIGEST}
    node = {"node": f"{name}-0", "host": {"digest": w.HOST_DIGEST, "facts": w.HOST}, "observations": [one]}
    return found, NodeFingerprintSpec.model_validate(node)


def unknown(name: str, backend: str = "tensorrt", **changes: Any) -> tuple[HardwareClass, NodeFingerprintSpec]:
    """A class whose image is not probed yet."""
    found, node = known(name, runtime(None, {}, backend), **changes)
    return replace(found, status=found.status.model_validate({})), node.model_copy(update={"observations": []})


def fleet(*members: tuple[HardwareClass, NodeFingerprintSpec], **spec: Any) -> Snapshot:
    written = w.spec(**({"targets": [{"hardwareClass": c.name} for c, _ in members]} | spec))
    return replace(
        w.fleet(nodes=0, spec=written),
        classes={c.name: c for c, _ in members},
        nodes=tuple(w.node(f"{c.name}-0", hardware=c.name) for c, _ in members),
        fingerprints={f"{c.name}-0": found for c, found in members},
    )


CPU = known("cpu", w.RUNTIME)
ADA = known("ada", runtime("10.3.0.30", L4))
XAVIER = known("orin", runtime("8.5.2.2", ORIN))
RTX = known("rtx", runtime("1.7.1.116", {"name": "GeForce RTX 3080", "computeCapability": "8.6", "sms": 68, "ecc": False}, "tensorrt-rtx"))


def started(s: Snapshot) -> list[str]:
    return [need.id for need in w.first(decide(s, w.NOW), StartPrepare).needs]


def reported(needs: tuple[Need, ...], failures: Mapping[str, str] | None = None) -> PrepareReport:
    made = [
        ResolvedPrepared(flavour=n.flavour, precision=n.variant.precision, variant=n.variant.id, failure=(failures or {})[n.id])
        if n.id in (failures or {})
        else ResolvedPrepared(
            flavour=n.flavour,
            precision=n.variant.precision,
            variant=n.variant.id,
            prepared_key=(n.flavour + n.variant.id).ljust(64, "0"),
            model="sha256:" + (n.flavour + n.variant.id).encode().hex().ljust(64, "0")[:64],
        )
        for n in needs
    ]
    return w.prepare_report().model_copy(update={"prepared": made})


def play(
    s: Snapshot,
    failures: Mapping[str, str] | None = None,
    answers: Mapping[str, Answer] | None = None,
    said: Callable[[Snapshot, StartPrepare], PrepareReport] | None = None,
) -> tuple[Snapshot, list[list[str]]]:
    """Let every Job end well, or as told (by need, by variant, by what prepare Jobs report); the end, and what each prepare Job made."""
    jobs: list[list[str]] = []
    for _ in range(100):
        plan = decide(s, w.NOW)
        s = w.apply(s, plan)
        if start := next((a for a in plan.actions if isinstance(a, StartPrepare)), None):
            jobs.append([n.id for n in start.needs])
            s = w.end_job(s, "prepare", report=said(s, start) if said else reported(start.needs, failures))
            continue
        running = {j.build for j in s.jobs if j.active and j.role == "build"}
        if build := next((b for b in s.builds if b.name in running), None):
            report = w.build_report(build, (answers or {}).get(build.spec.variant, Answer.PASS), ["so it is"])
            s = replace(s, jobs=tuple(replace(j, active=False, report=report) if j.build == build.name else j for j in s.jobs))
            continue
        if not plan.actions and plan.status is None:
            return s, jobs
    raise AssertionError("no end")


def condition(s: Snapshot, kind: str) -> tuple[str, str, str]:
    found = next(c for c in s.status.conditions if c.type == kind)
    return found.status, found.reason, found.message


# ---- flavours ----


def test_one_prepare_job_makes_the_flavours_of_all_classes_that_are_known() -> None:
    s, jobs = play(fleet(CPU, ADA, XAVIER, RTX))
    assert jobs == [["fp32", "tensorrt-10/fp32", "tensorrt-8/fp32"]]
    prepared = {b.spec.hardware_class: b.spec.prepared_key.rstrip("0") for b in s.builds}
    assert prepared == {"cpu": "onnxruntimefp32", "ada": "tensorrt-10fp32", "orin": "tensorrt-8fp32", "rtx": "tensorrt-10fp32"}


def test_every_class_gets_its_engine_whatever_the_order_of_targets() -> None:
    for members in ((CPU, ADA, XAVIER), (XAVIER, ADA, CPU)):
        s, _ = play(fleet(*members))
        assert s.status.engines == "3/3"


@pytest.mark.parametrize("asked", ["Always", "Never"])
def test_where_builds_read_the_validation_set_from_changes_nothing_that_stands(asked: str) -> None:
    before, _ = play(fleet(CPU))
    spec = before.spec
    assert spec.validation is not None
    changed = spec.model_copy(update={"validation": spec.validation.model_copy(update={"copy_to_store": asked})})
    after, jobs = play(replace(before, spec=changed, generation=2))
    assert jobs == []
    assert ([b.name for b in after.builds], after.status.engines) == ([b.name for b in before.builds], "1/1")


def test_a_class_that_is_probed_later_adds_its_flavour_and_leaves_the_rest_alone() -> None:
    s, jobs = play(fleet(CPU, unknown("ada")))
    assert jobs == [["fp32"]]
    assert condition(s, "Ready")[1] == "FingerprintUnknown"
    before, inputs = {b.name for b in s.builds}, s.status.resolved and s.status.resolved.inputs_key
    found, node = ADA
    s = replace(s, classes=dict(s.classes) | {"ada": found}, fingerprints=dict(s.fingerprints) | {"ada-0": node})
    s, jobs = play(s)
    assert jobs == [["tensorrt-10/fp32"]]
    assert before < {b.name for b in s.builds}
    assert s.status.resolved is not None
    assert s.status.resolved.inputs_key == inputs


def test_while_its_flavour_is_prepared_a_class_is_not_forgotten() -> None:
    s, _ = play(fleet(CPU, unknown("ada")))
    found, node = ADA
    s = w.settle(replace(s, classes=dict(s.classes) | {"ada": found}, fingerprints=dict(s.fingerprints) | {"ada-0": node}))
    assert condition(s, "Ready")[:2] == ("False", "Preparing")
    assert "ada: fp32 is prepared for L4" in condition(s, "Ready")[2]
    assert condition(s, "EnginesReady")[0] == "False"
    assert s.status.engines == "1/2"
    assert next(c for c in s.status.classes if c.name == "ada").fingerprints[0].state == "Waiting"


def test_nothing_is_prepared_for_a_tensorrt_of_which_nobody_knows_the_release() -> None:
    s = w.settle(fleet(unknown("ada")))
    assert s.jobs == ()
    assert condition(s, "Ready")[1] == "FingerprintUnknown"
    assert condition(s, "Prepared")[0] == "False"


def test_tensorrt_for_rtx_needs_no_probe_to_know_its_flavour() -> None:
    assert started(fleet(unknown("rtx", "tensorrt-rtx"))) == ["tensorrt-10/fp32"]


@pytest.mark.parametrize(
    ("version", "names"), [("8.2.1.8", "TensorRT 8.2.1.8 is older than 8.5"), (None, "which TensorRT the image holds")]
)
def test_a_release_that_no_engine_is_built_with_is_refused_by_name(version: str | None, names: str) -> None:
    s, jobs = play(fleet(known("nano", runtime(version, ORIN))))
    assert jobs == []
    assert condition(s, "Stalled")[:2] == ("True", "ReleaseNotSupported")
    assert "nano: no variant could be prepared" in condition(s, "Stalled")[2]
    assert names in condition(s, "Stalled")[2]


def test_a_class_that_can_do_nothing_of_it_keeps_no_other_from_being_built() -> None:
    s, _ = play(fleet(CPU, known("nano", runtime("8.2.1.8", ORIN))))
    assert {b.spec.hardware_class for b in s.builds} == {"cpu"}
    assert s.workloads
    assert condition(s, "Stalled")[:2] == ("True", "ReleaseNotSupported")
    assert s.status.engines == "1/2"


def test_what_fails_in_one_flavour_is_built_in_the_other() -> None:
    s, jobs = play(fleet(CPU, ADA), {"tensorrt-10/fp32": "OpsetNotConvertible: no"})
    assert len(jobs) == 1
    assert {b.spec.hardware_class for b in s.builds} == {"cpu"}
    assert condition(s, "Stalled")[1] == "NothingPrepared"
    assert "ada: no variant could be prepared for L4" in condition(s, "Stalled")[2]


def test_flavours_that_climb_apart_have_a_job_each() -> None:
    spec = {"precision": "auto", "calibration": CALIBRATION}
    s, jobs = play(fleet(CPU, ADA, **spec), {"tensorrt-10/int8-entropy": "NothingQuantized: no"})
    both = ["int8-entropy", "fp32", "fp16"]
    assert jobs == [[*both, *(f"tensorrt-10/{one}" for one in both)], ["tensorrt-10/int8-max"]]
    assert {(b.spec.hardware_class, b.spec.variant) for b in s.builds} == {("cpu", "int8-entropy"), ("ada", "int8-max")}


def test_a_flavour_that_comes_late_brings_fp32_to_measure_against() -> None:
    s, _ = play(fleet(CPU, unknown("ada"), precision="auto", calibration=CALIBRATION))
    found, node = ADA
    s = replace(s, classes=dict(s.classes) | {"ada": found}, fingerprints=dict(s.fingerprints) | {"ada-0": node})
    s, jobs = play(s)
    assert jobs == [["tensorrt-10/int8-entropy", "tensorrt-10/fp32"]]
    mine = next(b for b in s.builds if b.spec.hardware_class == "ada")
    assert mine.spec.request["partnerPreparedKey"].startswith("tensorrt-10fp32")


def test_the_report_of_a_job_counts_even_when_something_else_is_needed_by_then() -> None:
    s, _ = play(fleet(CPU, unknown("ada"), unknown("orin")))
    s = replace(s, classes=dict(s.classes) | {"ada": ADA[0]}, fingerprints=dict(s.fingerprints) | {"ada-0": ADA[1]})
    s = w.settle(s)
    first = next(j for j in s.jobs if j.active and j.role == "prepare")
    s = w.settle(replace(s, classes=dict(s.classes) | {"orin": XAVIER[0]}, fingerprints=dict(s.fingerprints) | {"orin-0": XAVIER[1]}))
    assert [j.name for j in s.jobs if j.active and j.role == "prepare"] == [first.name]
    s = w.end_job(s, "prepare", report=reported((Need("tensorrt-10", Variant(precision="fp32")),)))
    s, jobs = play(s)
    assert jobs == [["tensorrt-8/fp32"]]
    assert s.status.engines == "3/3"


def test_a_failed_job_of_a_further_flavour_leaves_what_serves_alone() -> None:
    s, _ = play(fleet(CPU, unknown("ada")))
    s = w.settle(w.serving(s))
    served = s.workloads
    s = w.settle(replace(s, classes=dict(s.classes) | {"ada": ADA[0]}, fingerprints=dict(s.fingerprints) | {"ada-0": ADA[1]}))
    s = w.settle(w.end_job(s, "prepare", failure=Failure(FailureClass.PERMANENT, "UnsupportedOp", "operator Unique.", "Leave it out.")))
    assert s.workloads == served
    assert condition(s, "Stalled")[:2] == ("True", "UnsupportedOp")
    assert "ada: fp32" in condition(s, "Stalled")[2]


def test_keys_of_onnxruntime_do_not_hang_on_other_classes() -> None:
    alone, _ = play(fleet(CPU, build={"threads": "4"}))
    beside, _ = play(fleet(CPU, ADA, build={"threads": "4", "workspace": "2Gi", "optimizationLevel": 5, "plugins": ["/opt/p.so"]}))
    one, two = (next(b for b in s.builds if b.spec.hardware_class == "cpu").spec for s in (alone, beside))
    assert (one.engine_key, one.prepared_key, one.revision, one.request["recipe"]) == (
        two.engine_key,
        two.prepared_key,
        two.revision,
        two.request["recipe"],
    )
    release = labels.release_key("vision", "m")
    assert {n.labels[release] for n in alone.nodes} == {n.labels[release] for n in beside.nodes if n.name == "cpu-0"}


# ---- keys that have been in use: a change rebuilds fleets ----


def test_keys_and_names_of_an_onnxruntime_class_stand() -> None:
    s = w.passed_fleet()
    assert s.status.resolved is not None
    assert s.status.resolved.inputs_key == "6ca9785a85fb3c53e522ea656d5a3b68"
    assert [(b.name, b.spec.revision) for b in s.builds] == [("m-99d8cc3a88", "rev-3be9894d6e")]
    assert s.builds[0].spec.engine_key == "206b6ecbcc5201ec255b3a28f39cc90ff2dc5f2bd155d8d2fdc14142694a7839"
    assert [(x.name, x.label) for x in s.workloads] == [("m-5b5bc0a777", "27994586bf-eeeeeeee")]
    assert [j.name for j in s.jobs] == ["m-prepare-ef414fd6d1", "m-99d8cc3a88-cb956b4501"]


# ---- precisions ----


@pytest.mark.parametrize(
    ("precision", "member", "built"),
    [
        ("fp8", known("h200", runtime("10.3.0", H200)), True),
        ("fp8", ADA, True),
        ("fp8", XAVIER, False),
        ("bf16", XAVIER, False),
        ("bf16", known("orin", runtime("10.3.0.30", ORIN)), True),
        ("fp8", known("orin", runtime("10.3.0.30", ORIN)), False),
        ("tf32", XAVIER, True),
        ("tf32", known("t4", runtime("10.3.0", {"computeCapability": "7.5"})), False),
        ("bf16", RTX, True),
        ("fp8", RTX, False),
    ],
)
def test_precisions_are_built_where_a_device_has_them(
    precision: str, member: tuple[HardwareClass, NodeFingerprintSpec], built: bool
) -> None:
    s, jobs = play(fleet(member, precision=precision, calibration={"source": "model"}))
    assert bool(s.builds) is bool(jobs) is built
    if not built:
        assert condition(s, "Stalled")[:2] == ("True", "PrecisionNotSupported")
        assert f"{member[0].name}: no variant could be prepared" in condition(s, "Stalled")[2]
    else:
        assert s.builds[0].spec.request["recipe"]["precision"] == precision


def test_a_precision_that_no_target_has_is_refused_before_anything_is_probed() -> None:
    s = w.settle(fleet(CPU, precision="fp8", calibration={"source": "model"}))
    assert s.jobs == ()
    assert condition(s, "Stalled")[:2] == ("True", "NotYetSupported")
    assert "write auto, fp32, fp16 or int8" in condition(s, "Stalled")[2]


def test_on_a_dla_no_variant_is_tried_that_it_does_not_compute_in() -> None:
    spec = {"precision": "auto", "auto": {"candidates": ["fp16", "fp32"]}, "build": {"dla": {}}}
    s, _ = play(fleet(XAVIER, **spec), answers={"fp16": Answer.FAIL})
    assert [b.spec.variant for b in s.builds] == ["fp16"]
    assert "fp32: PrecisionNotSupported: a DLA computes in fp16 and int8 only." in [
        f"{one.variant}: {one.message}" for one in s.status.classes[0].fingerprints[0].tried
    ]


def test_of_two_classes_the_one_that_has_the_precision_is_built() -> None:
    s, jobs = play(fleet(CPU, ADA, precision="fp8", calibration={"source": "model"}))
    assert jobs == [["tensorrt-10/fp8"]]
    assert [b.spec.hardware_class for b in s.builds] == ["ada"]
    assert condition(s, "Stalled")[:2] == ("True", "PrecisionNotSupported")
    assert "cpu: no variant could be prepared" in condition(s, "Stalled")[2]
    assert "ONNX Runtime 1.24.4 takes fp32, fp16, int8" in condition(s, "Stalled")[2]


def test_auto_passes_over_what_a_device_does_not_have_and_says_so() -> None:
    spec = {"precision": "auto", "calibration": CALIBRATION, "auto": {"candidates": ["fp8", "int8"]}}
    s, jobs = play(fleet(ADA, XAVIER, **spec))
    assert jobs[0] == ["tensorrt-10/fp8-entropy", "tensorrt-10/fp32", "tensorrt-10/int8-entropy"]
    assert jobs[1] == ["tensorrt-8/int8-entropy", "tensorrt-8/fp32"]
    assert {(b.spec.hardware_class, b.spec.variant) for b in s.builds} == {("ada", "fp8-entropy"), ("orin", "int8-entropy")}
    tried = next(c for c in s.status.classes if c.name == "orin").fingerprints[0].tried
    assert [(t.variant, t.message) for t in tried] == [
        (name, "PrecisionNotSupported: TensorRT 8.5.2.2 takes fp32, tf32, fp16, int8.") for name in ("fp8-entropy", "fp8-max")
    ]
    assert s.status.engines == "2/2"


def test_an_fp32_engine_and_a_tf32_engine_of_the_same_file_are_two() -> None:
    keys = {precision: play(fleet(ADA, precision=precision))[0].builds[0].spec.engine_key for precision in ("fp32", "tf32")}
    assert len(set(keys.values())) == 2


# ---- spec.build ----


@pytest.mark.parametrize(
    ("members", "build", "refused"),
    [
        ((ADA,), {"workspace": "2Gi", "optimizationLevel": 5, "dla": {}, "plugins": ["/p.so"], "tacticSources": ["CUBLAS"]}, ""),
        ((CPU, ADA), {"workspace": "2Gi", "threads": "4"}, ""),
        ((RTX,), {"optimizationLevel": 5, "plugins": ["/p.so"]}, ""),
        ((CPU,), {"workspace": "2Gi", "threads": "4"}, "workspace"),
        ((CPU,), {"optimizationLevel": 2, "dla": {}, "plugins": ["/p.so"]}, "dla, optimizationLevel, plugins"),
        ((ADA,), {"threads": "4"}, "threads"),
        ((CPU, RTX), {"dla": {}}, "dla"),
    ],
)
def test_settings_that_no_target_has_a_use_for_are_refused(members: Any, build: Any, refused: str) -> None:
    s = w.settle(fleet(*members, build=build, precision="fp16"))
    if refused:
        assert condition(s, "Stalled")[:2] == ("True", "NotYetSupported")
        assert f"no target class has a use for {refused}" in condition(s, "Stalled")[2]
    else:
        assert condition(s, "Stalled")[0] == "False"


def test_settings_that_one_class_ignores_are_said_when_it_serves() -> None:
    s, _ = play(fleet(CPU, ADA, build={"workspace": "2Gi", "threads": "4"}))
    s = w.settle(w.serving(s))
    assert condition(s, "Ready")[:2] == ("True", "Serving")
    assert "cpu makes no use of spec.build workspace" in condition(s, "Ready")[2]
    assert "ada makes no use of spec.build threads" in condition(s, "Ready")[2]


# ---- preflight ----


def test_preflight_is_told_what_the_devices_are() -> None:
    orin = known("orin", runtime("10.3.0.30", ORIN, jetson={"module": "p3767-0000", "l4t": "36.4.3"}))
    s = fleet(orin, build={"dla": {}, "plugins": ["/p.so"]})
    facts = [o.facts for o in stages.devices_of(s, orin[0])]
    (target,) = requests.preflight_targets(s.spec, orin[0], facts)
    assert (target.version, target.compute_capability, target.l4t, target.dla, target.plugins) == (
        "10.3.0.30",
        "8.7",
        "36.4.3",
        True,
        ("/p.so",),
    )


def test_preflight_asks_nothing_of_a_cpu_that_is_for_gpus() -> None:
    s = fleet(CPU, ADA, build={"dla": {}, "plugins": ["/p.so"]})
    (target,) = requests.preflight_targets(s.spec, CPU[0], [o.facts for o in stages.devices_of(s, CPU[0])])
    assert (target.version, target.compute_capability, target.dla, target.plugins) == ("1.24.4", None, False, ())


# ---- pods ----


def pod(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


def request_of(job: dict[str, Any]) -> dict[str, Any]:
    env = pod(job)["containers"][0]["env"]
    found: dict[str, Any] = json.loads(next(e["value"] for e in env if e["name"] == "ENGINEFLEET_REQUEST"))
    return found


GPU_RUNTIME = {
    "image": "runtime:1",
    "python": "/usr/bin/python3.8",
    "runtimeClassName": "nvidia",
    "resources": {"limits": {"nvidia.com/gpu": "1", "memory": "8Gi"}},
    "supplementalGroups": [44],
}
JETSON = known("orin", runtime("8.5.2.2", ORIN), runtime=GPU_RUNTIME, builds={"memoryReserve": "2Gi"})


def test_a_build_pod_has_interpreter_reserve_runtime_class_devices_and_groups() -> None:
    s = w.settle(w.end_job(w.settle(fleet(JETSON)), "prepare", report=reported((Need("tensorrt-8", Variant(precision="fp32")),))))
    action = StartBuild("job", 1, s.builds[0].name, "uid", s.builds[0].spec)
    job = manifests.build_job(s, action)
    request = BuildRequest.model_validate(request_of(job))
    assert (request.python, request.memory_reserve, request.backend) == ("/usr/bin/python3.8", "2Gi", "tensorrt")
    assert pod(job)["runtimeClassName"] == "nvidia"
    assert pod(job)["containers"][0]["resources"] == GPU_RUNTIME["resources"]
    assert pod(job)["securityContext"]["supplementalGroups"] == [44]


@pytest.mark.parametrize("name", ["enginefleet-tables", "ours", ""])
def test_prepare_and_build_pods_mount_the_namespaces_tables_where_they_are_there(name: str) -> None:
    s = replace(fleet(JETSON), settings=Settings(tables=name))
    jobs = [manifests.prepare_job(s, w.first(decide(s, w.NOW), StartPrepare))]
    s = w.settle(w.end_job(w.settle(s), "prepare", report=reported((Need("tensorrt-8", Variant(precision="fp32")),))))
    jobs.append(manifests.build_job(s, StartBuild("job", 1, s.builds[0].name, "uid", s.builds[0].spec)))
    for job in jobs:
        (container,) = pod(job)["containers"]
        found = [volume["configMap"] for volume in pod(job)["volumes"] if "configMap" in volume]
        assert found == ([{"name": name, "optional": True}] if name else [])
        paths = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "tables"]
        assert paths == [item["value"] for item in container["env"] if item["name"] == TABLES_VARIABLE]
        assert len(paths) == len(found)


def test_a_table_that_was_mounted_and_is_not_used_is_an_event() -> None:
    report = reported((Need("tensorrt-8", Variant(precision="fp32")),))
    report = report.model_copy(update={"notes": ["fp32: 2 of 2 nodes", "TargetsInvalid: /etc/t.json is not usable."]})
    events = decide(w.end_job(w.settle(fleet(JETSON)), "prepare", report=report), w.NOW).events
    assert [(e.reason, e.message) for e in events if e.warning] == [("TargetsInvalid", "/etc/t.json is not usable.")]


@pytest.mark.parametrize(("resources", "asks"), [({"limits": {"nvidia.com/gpu": "1"}}, False), ({"limits": {"memory": "8Gi"}}, True)])
def test_where_no_device_plugin_hands_out_the_gpu_builds_and_servers_ask_to_see_it(resources: dict[str, Any], asks: bool) -> None:
    class_ = known("orin", runtime("8.5.2.2", ORIN), runtime=GPU_RUNTIME | {"resources": resources})
    s = w.settle(w.end_job(w.settle(fleet(class_)), "prepare", report=reported((Need("tensorrt-8", Variant(precision="fp32")),))))
    job = manifests.build_job(s, StartBuild("job", 1, s.builds[0].name, "uid", s.builds[0].spec))
    served = manifests.workload(s, CreateWorkload("w", "orin", "r", "1", s.builds[0].name, s.builds[0].spec, "sha256:" + "0" * 64, 1))
    for container in (pod(job)["containers"][0], pod(served)["containers"][0]):
        assert ("NVIDIA_VISIBLE_DEVICES" in {item["name"] for item in container["env"]}) is asks


def test_a_class_whose_interpreter_or_reserve_changes_keeps_its_engines() -> None:
    s, _ = play(fleet(JETSON))
    other = known("orin", runtime("8.5.2.2", ORIN), runtime=GPU_RUNTIME | {"python": "python3.9"}, builds={"memoryReserve": "1Gi"})
    after, jobs = play(replace(s, classes={"orin": other[0]}))
    assert jobs == []
    assert after.builds == s.builds


def test_another_interpreter_is_probed_anew() -> None:
    found, node = JETSON
    changed = known("orin", runtime("8.5.2.2", ORIN), runtime=GPU_RUNTIME | {"python": "python3.9"})[0]
    s = ClassSnapshot(replace(changed, status=found.status), (w.node("orin-0", hardware="orin"),), {"orin-0": node})
    action = w.first(decide_class(s, w.NOW), StartProbe)
    assert request_of(manifests.probe_job(s.hardware_class, action, "enginefleet-system", 60))["python"] == "python3.9"
    # what was found before stands until then: no label is taken from a node that serves
    assert not any(isinstance(a, LabelNode) and None in a.labels.values() for a in decide_class(s, w.NOW).actions)


def test_a_class_with_a_release_that_is_not_supported_says_so() -> None:
    found, node = known("nano", runtime("8.2.1.8", ORIN))
    s = ClassSnapshot(found, (w.node("nano-0", hardware="nano"),), {"nano-0": node})
    conditions = {c["type"]: c for c in (decide_class(s, w.NOW).status or {})["conditions"]}
    assert (conditions["Ready"]["reason"], conditions["Stalled"]["status"]) == ("ReleaseNotSupported", "True")
    assert "TensorRT 8.2.1.8 is older than 8.5" in conditions["Stalled"]["message"]


def test_a_prepare_pod_asks_for_no_gpu() -> None:
    prepare = {
        "resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "gpu"}]}
    }
    s = fleet(known("orin", runtime("8.5.2.2", ORIN), runtime=GPU_RUNTIME, prepare=prepare))
    job = manifests.prepare_job(s, w.first(decide(s, w.NOW), StartPrepare))
    assert pod(job)["containers"][0]["resources"] == {"requests": {"cpu": "2"}, "limits": {}}
    assert pod(job)["runtimeClassName"] == "nvidia"


def test_models_are_prepared_on_nodes_without_a_gpu_where_there_are_some() -> None:
    s = fleet(JETSON, CPU)
    job = manifests.prepare_job(s, w.first(decide(s, w.NOW), StartPrepare))
    assert pod(job)["nodeSelector"] == {"hardware": "cpu"}
    assert "runtimeClassName" not in pod(job)
    request = request_of(job)
    assert request["flavours"] == ["tensorrt-8", "onnxruntime"]
    assert [(t["name"], t["version"]) for t in request["targets"]] == [("orin", "8.5.2.2"), ("cpu", "1.24.4")]
    away = replace(s, nodes=s.nodes[:1])
    assert pod(manifests.prepare_job(away, w.first(decide(away, w.NOW), StartPrepare)))["nodeSelector"] == {"hardware": "orin"}


def served(s: Snapshot) -> dict[str, Any]:
    """The pod spec of the only workload."""
    (build,) = s.builds
    (work,) = s.workloads
    blob = str((build.status.engine or {})["blob"])
    found: dict[str, Any] = manifests.workload(
        s, CreateWorkload(work.name, work.hardware_class, "release", work.label, build.name, build.spec, blob, 1000)
    )["spec"]["template"]["spec"]
    return found


def test_the_reference_server_of_a_gpu_class_has_what_tensorrt_needs() -> None:
    s, _ = play(fleet(JETSON))
    found = served(s)
    server = found["containers"][0]
    assert found["runtimeClassName"] == "nvidia"
    assert found["securityContext"]["supplementalGroups"] == [44]
    assert server["resources"] == GPU_RUNTIME["resources"]
    assert {"name": "ENGINEFLEET_PYTHON", "value": "/usr/bin/python3.8"} in server["env"]
    check = next(c for c in found["initContainers"] if c["name"] == RUNTIME_CHECK)
    assert check["command"][0] == "/usr/bin/python3.8"
    asked = json.loads(check["env"][0]["value"])
    assert (asked["backend"], asked["version"]) == ("tensorrt", "8.5.2.2")


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([{"name": "a"}, {"name": "b"}], [{"limits": {"nvidia.com/gpu": "1"}}, None]),
        ([{"name": "a", "resources": {"limits": {"cpu": "1"}}}], [{"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}]),
        ([{"name": "a"}, {"name": "b", "resources": {"limits": {"x.example/gpu": "2"}}}], [None, {"limits": {"x.example/gpu": "2"}}]),
    ],
)
def test_a_template_that_asks_for_no_device_gets_those_of_the_class(containers: list[dict[str, Any]], expected: list[Any]) -> None:
    template = {"spec": {"containers": [one | {"image": "triton"} for one in containers]}}
    s, _ = play(fleet(JETSON, serving={"template": template}))
    found = served(s)
    assert [c.get("resources") for c in found["containers"]] == expected
    check = next(c for c in found["initContainers"] if c["name"] == RUNTIME_CHECK)
    assert check["command"][0] == "python3"


# ---- engines for a GPU that is not here ----


ELSEWHERE = known(
    "pre", {"backend": "tensorrt-rtx", "backendVersion": "1.7.1.116", "cudaMajor": 13, "gpus": [fingerprint.cross_gpu("8.6")]},
    builds={"computeCapability": "8.6"},
)  # fmt: skip


def test_an_engine_for_a_gpu_elsewhere_is_built_and_ends_inconclusive_for_good() -> None:
    s, _ = play(fleet(ELSEWHERE), answers={"fp32": Answer.INCONCLUSIVE})
    (build,) = s.builds
    assert build.spec.request["recipe"]["computeCapability"] == "8.6"
    assert build.status.phase == "Inconclusive"
    assert s.workloads == ()
    assert condition(s, "Stalled")[:2] == ("True", "NoDeviceToJudgeOn")
    assert "no pod gets this engine" in condition(s, "Stalled")[2]
    later = decide(s, w.NOW + 1e6)
    assert (later.actions, later.wake_at) == ((), None)


def test_the_probe_of_such_a_class_looks_for_no_gpu() -> None:
    found, node = ELSEWHERE
    s = ClassSnapshot(replace(found, status=HardwareClassStatus()), (w.node("pre-0", hardware="pre"),), {"pre-0": node})
    job = manifests.probe_job(s.hardware_class, w.first(decide_class(s, w.NOW), StartProbe), "enginefleet-system", 60)
    assert request_of(job)["computeCapability"] == "8.6"
    assert not any(e["name"] == "NVIDIA_VISIBLE_DEVICES" for e in pod(job)["containers"][0]["env"])


def test_an_engine_for_a_gpu_elsewhere_is_never_that_of_a_gpu_here() -> None:
    here, _ = play(fleet(RTX))
    there, _ = play(fleet(ELSEWHERE), answers={"fp32": Answer.INCONCLUSIVE})
    assert here.builds[0].spec.fingerprint != there.builds[0].spec.fingerprint
    assert here.builds[0].spec.engine_key != there.builds[0].spec.engine_key
