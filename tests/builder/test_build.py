"""Build, adopt, judge on a folder store: real engines, real processes, real kills."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from enginefleet_api import fingerprint
from enginefleet_api.documents import Answer, Verdict
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.jobs import BuildReport, BuildRequest, EngineManifest, FetchRequest, PrepareReport, Source
from enginefleet_api.resources import AccuracyAcceptance, Benchmark, SpeedAcceptance
from enginefleet_builder.build.job import judge
from enginefleet_builder.fetch import fetch
from enginefleet_builder.io import Progress
from enginefleet_builder.main import app
from enginefleet_builder.report.job import make_report
from enginefleet_builder.store import claims, layout
from tests.builder.models import classifier
from tests.builder.support import Bench, Undisturbed

ROOT = Path(__file__).resolve().parents[2]


def blob_path(bench: Bench, report: BuildReport) -> Path:
    return bench.folder / "store" / layout.blob(report.blob)


def refusal(bench: Bench, prepared: PrepareReport, kind: type[EngineFleetError] = PermanentError, **changes: Any) -> EngineFleetError:
    with pytest.raises(kind) as caught:
        bench.build(prepared, **changes)
    return caught.value


def test_builds_judges_and_leaves_everything_in_the_store(bench: Bench, prepared: PrepareReport) -> None:
    request = bench.build_request(prepared)
    report = bench.build(prepared)
    assert (Answer.PASS, False) == (report.answer, report.adopted)
    assert report.accuracy is not None
    assert ("1.000000", "0.000000", 400) == (report.accuracy.value, report.accuracy.drop, report.accuracy.samples)
    assert report.latency[0].iterations >= 200
    assert float(report.latency[0].p50) <= float(report.latency[0].p95) <= float(report.latency[0].p99)
    assert {"fetch", "build", "publish", "validation", "accuracy", "statistics", "benchmark", "report"} == set(report.durations)
    (record,) = bench.records.builds(request.engine_key)
    assert (report.blob, request.fingerprint) == (record.blob, record.fingerprint)
    standing = bench.records.newest_verdict(request.engine_key, request.gate_key)
    assert standing is not None
    assert (Answer.PASS, report.reasons) == (standing[1].answer, standing[1].reasons)


def test_a_second_build_compiles_nothing_and_takes_the_verdict_as_it_is(
    bench: Bench, prepared: PrepareReport, built: BuildReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enginefleet_builder.backends.onnxruntime.Child", None)
    second = bench.build(prepared, holder="build-2")
    assert second.adopted
    assert (built.blob, built.answer, built.latency) == (second.blob, second.answer, second.latency)


def test_an_engine_is_adopted_when_its_prepared_model_was_collected(bench: Bench, prepared: PrepareReport, built: BuildReport) -> None:
    shutil.rmtree(bench.folder / "store" / "prepared")
    assert bench.build(prepared).adopted
    assert judge(bench.build_request(prepared), Progress()).answer == Answer.PASS


def test_another_gate_judges_the_same_engine_again_without_building(bench: Bench, prepared: PrepareReport, built: BuildReport) -> None:
    second = bench.build(prepared, gate_key="b" * 64, validation=bench.gate(acceptance=AccuracyAcceptance(minimum="0.99")))
    assert second.adopted
    assert built.blob == second.blob
    assert ["top1 1.0000 is at least the minimum 0.9900"] == second.reasons
    assert len(bench.records.builds(bench.build_request(prepared).engine_key)) == 1


def test_judged_in_another_context_the_answer_is_recorded_and_refuses_nobody(
    bench: Bench, prepared: PrepareReport, built: BuildReport
) -> None:
    """The engine fails there, as nothing runs in so short a time; elsewhere it is served as before."""
    context = {"powerMode": "1 (15W)", "kernel": "6.8.0"}
    request = bench.build_request(prepared)
    strict = Benchmark(batch_sizes=[1], acceptance=SpeedAcceptance(p95="0.0001ms"))
    again = request.model_copy(update={"kind": "Judge", "blob": built.blob, "context": context, "benchmark": strict, "node": "n1"})
    report = judge(again, Progress(), Undisturbed())
    assert (report.answer, report.adopted, report.blob) == (Answer.FAIL, True, built.blob)
    assert report.context == {"powerMode": "1 (15W)"}
    standing = bench.records.newest_verdict(request.engine_key, request.gate_key)
    assert standing is not None
    assert standing[1].answer == Answer.PASS
    (key,) = [key for key in bench.records.store.list(f"engines/{request.engine_key}/contexts/") if key.endswith(".json")]
    stored = bench.records.store.get(key)
    assert stored is not None
    verdict = Verdict.model_validate_json(stored.body)
    assert (verdict.answer, verdict.context, verdict.blob, verdict.node) == (Answer.FAIL, context, built.blob, "n1")
    # and a build Job of another site takes the verdict that decides
    assert bench.build(prepared).answer == Answer.PASS


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_an_engine_that_is_to_be_judged_again_and_is_lost_is_told_by_its_name(
    bench: Bench, prepared: PrepareReport, built: BuildReport, damage: str
) -> None:
    path = blob_path(bench, built)
    path.unlink() if damage == "missing" else path.write_bytes(b"x" * path.stat().st_size)
    request = bench.build_request(prepared).model_copy(update={"kind": "Judge", "blob": built.blob})
    with pytest.raises(PermanentError) as caught:
        judge(request, Progress())
    assert caught.value.reason == {"missing": "ObjectMissing", "damaged": "BlobDamaged"}[damage]


def test_inconclusive_is_never_final(bench: Bench, prepared: PrepareReport) -> None:
    """Too few samples at first; the same gate key is judged again and has an answer then."""
    assert bench.build(prepared, validation=bench.gate(min_samples=401)).answer == Answer.INCONCLUSIVE
    again = bench.build(prepared)
    assert (Answer.PASS, True) == (again.answer, again.adopted)


def test_without_validation_data_the_answer_is_inconclusive(bench: Bench) -> None:
    prepared = bench.prepare(validation=None, validation_source=None)
    report = bench.build(prepared, validation=None, validation_source=None, baseline_key=None)
    assert report.answer == Answer.INCONCLUSIVE
    assert report.latency[0].batch == 1


def test_a_missing_baseline_is_inconclusive(bench: Bench, prepared: PrepareReport) -> None:
    assert bench.build(prepared, baseline_key="0" * 64).answer == Answer.INCONCLUSIVE


def test_int8_passes_where_it_keeps_the_accuracy(bench: Bench) -> None:
    report = bench.build(bench.prepare("int8"))
    assert report.answer == Answer.PASS, report.reasons
    assert report.accuracy is not None
    assert report.accuracy.max_abs_error is not None
    assert float(report.accuracy.max_abs_error) > 0


def test_int8_that_really_loses_accuracy_fails(bench: Bench) -> None:
    """One channel is 10,000 times as large as those that matter: FP32 does not mind, one INT8 scale for all channels does."""
    bench.give(classifier(outlier=10_000))
    prepared = bench.prepare("int8")
    assert prepared.baseline is not None
    assert prepared.baseline.value == "1.000000"
    report = bench.build(prepared)
    assert report.answer == Answer.FAIL
    assert report.accuracy is not None
    assert report.accuracy.value is not None
    assert float(report.accuracy.value) < 0.5
    assert "is below the minimum 0.9000" in report.reasons[0]
    assert bench.build(prepared).adopted, "a failed verdict stands too"


def test_outputs_are_judged_by_their_distance(bench: Bench) -> None:
    gate = bench.gate(task="outputs", metric="cosine", acceptance=AccuracyAcceptance(minimum="0.999"))
    report = bench.build(bench.prepare(validation=gate), validation=gate)
    assert report.answer == Answer.PASS, report.reasons


def test_only_some_samples_are_judged_on_the_device_and_paired_with_the_baseline(bench: Bench, prepared: PrepareReport) -> None:
    gate = bench.gate(min_samples=100)
    gate = gate.model_copy(update={"on_device": gate.on_device.model_copy(update={"max_samples": 100})})
    report = bench.build(prepared, validation=gate)
    assert report.accuracy is not None
    assert (Answer.PASS, 100) == (report.answer, report.accuracy.samples)


def test_a_slow_engine_fails(bench: Bench, prepared: PrepareReport) -> None:
    report = bench.build(prepared, benchmark=Benchmark(acceptance=SpeedAcceptance(throughput="1000000000")))
    assert report.answer == Answer.FAIL
    assert "below the minimum" in report.reasons[0]


def test_a_batch_size_that_the_model_cannot_take_is_said_before_building(bench: Bench) -> None:
    bench.give(classifier(batch=2))
    prepared = bench.prepare()
    error = refusal(bench, prepared, benchmark=Benchmark(batch_sizes=[2, 4]))
    assert error.reason == "BatchSizeNotPossible"
    assert "[4] cannot be measured: the model takes exactly 2" in error.message
    assert [] == bench.records.builds(bench.build_request(prepared).engine_key)
    assert bench.build(prepared, benchmark=Benchmark(batch_sizes=[2])).answer == Answer.PASS


def test_external_data_does_not_get_lost(bench: Bench) -> None:
    bench.give(classifier(), external="weights.bin")
    assert bench.build(bench.prepare()).answer == Answer.PASS


# ---- damage ----


def test_a_damaged_blob_is_rebuilt_and_reported(bench: Bench, prepared: PrepareReport, built: BuildReport) -> None:
    path = blob_path(bench, built)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    second = bench.build(prepared)
    assert (False, Answer.PASS) == (second.adopted, second.answer)
    assert "BlobDamaged" in second.warnings[0]
    assert bench.build(prepared).adopted


def test_a_blob_that_vanished_is_rebuilt(bench: Bench, prepared: PrepareReport, built: BuildReport) -> None:
    blob_path(bench, built).unlink()
    report = bench.build(prepared)
    assert (False, Answer.PASS) == (report.adopted, report.answer)
    assert "ObjectMissing" in report.warnings[0]


def test_judge_alone_needs_an_engine_and_judges_anew(bench: Bench, prepared: PrepareReport) -> None:
    request = bench.build_request(prepared)
    with pytest.raises(PermanentError, match="EngineMissing"):
        judge(request, Progress())
    first = bench.build(prepared)
    second = judge(request, Progress())
    assert (first.blob, first.answer) == (second.blob, second.answer)
    assert len(list(bench.records.store.list(layout.verdicts(request.engine_key, request.gate_key)))) == 2


def test_other_validation_data_than_the_baselines_is_refused(bench: Bench, prepared: PrepareReport) -> None:
    np.savez(bench.validation, images=np.zeros((400, 1, 8, 8), np.float32), labels=np.zeros(400, np.int64))
    assert refusal(bench, prepared).reason == "DataSetChanged"


def test_a_baseline_of_another_metric_is_called_so(bench: Bench, prepared: PrepareReport) -> None:
    with pytest.raises(PermanentError, match=r"BaselineMismatch: the baseline .* is of the metric top1, expected top5") as caught:
        bench.build(prepared, validation=bench.gate(metric="top5"))
    assert "Prepare with the metric top5" in caught.value.hint


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--metric", "top5"], "is of the metric top1, expected top5"),
        (["--spec", "SPEC"], "was taken with another task, decoder, preprocessing"),
        (["--baseline", "0" * 64], "BaselineMissing"),
    ],
)
def test_by_hand_a_baseline_that_does_not_fit_is_refused_before_anything_is_built(
    bench: Bench, prepared: PrepareReport, flags: list[str], message: str
) -> None:
    spec = bench.folder / "spec.yaml"
    spec.write_text('preprocessing: {scale: "1/255"}\n')
    given = ["--prepared", prepared.prepared[0].prepared_key, "--baseline", str(prepared.baseline_key), "--store", bench.store.uri]
    command = ["build", *given, "--validation", str(bench.validation), *flags]
    told = CliRunner().invoke(app, [flag.replace("SPEC", str(spec)) for flag in command])
    assert (told.exit_code, message in told.output) == (42, True), told.output
    assert not list(bench.records.store.list("blobs/"))


def test_by_hand_a_baseline_of_another_model_is_refused(bench: Bench, prepared: PrepareReport) -> None:
    bench.give(classifier(outlier=1.0))
    other = bench.prepare()
    keys = ["--prepared", other.prepared[0].prepared_key, "--baseline", str(prepared.baseline_key), "--store", bench.store.uri]
    told = CliRunner().invoke(app, ["judge", *keys, "--validation", str(bench.validation)])
    assert (told.exit_code, f"is of the model {prepared.model[:19]}…, expected {other.model[:19]}…" in told.output) == (42, True), (
        told.output
    )


def test_by_hand_a_partner_that_says_nothing_of_speed_is_refused_before_anything_is_built(bench: Bench, prepared: PrepareReport) -> None:
    mine = prepared.prepared[0].prepared_key
    stored = bench.records.prepared(mine)
    assert stored is not None
    other = f"sha256:{'1' * 64}"
    exported = {**stored.spec, "model": {**stored.spec["model"], "export": {"opset": 18}}}
    cases: list[tuple[dict[str, Any] | None, str]] = [
        ({"source_model": other}, f"has the model {other}, expected {prepared.model}"),
        ({"spec": exported}, 'has the export {"opset": 18}, expected null'),
        ({"precision": "fp16"}, "has the precision fp16, expected fp32"),
        ({"flavour": "tensorrt-8"}, "has the flavour tensorrt-8, expected onnxruntime"),
        (None, "PreparedMissing (permanent): no prepared model"),
    ]
    for number, (change, message) in enumerate(cases):
        partner = str(number) * 64
        if change is not None:
            bench.records.publish_prepared(stored.model_copy(update={"prepared_key": partner} | change), bench.model.parent)
        told = CliRunner().invoke(app, ["build", "--prepared", mine, "--partner", partner, "--store", bench.store.uri])
        assert (told.exit_code, message in told.output) == (42, True), told.output
    assert not list(bench.records.store.list("blobs/"))


def test_by_hand_a_model_that_was_prepared_for_another_backend_is_refused(bench: Bench) -> None:
    made = bench.prepare(flavours=["tensorrt-10"]).prepared[0]
    told = CliRunner().invoke(app, ["build", "--prepared", made.prepared_key, "--store", bench.store.uri])
    assert told.exit_code == 42
    assert "is of the flavour tensorrt-10, expected onnxruntime" in told.output
    assert "--flavour onnxruntime" in told.output


def test_by_hand_the_manifests_name_comes_to_the_server(bench: Bench, prepared: PrepareReport, tmp_path: Path) -> None:
    """From `build --spec` by the commands of the report into engine.json."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"""
        kind: ModelDeployment
        metadata: {{name: yard, namespace: vision}}
        spec:
          model: {{uri: {bench.model}}}
          validation: {{uri: {bench.validation}, acceptance: {{maxDrop: "0.01"}}}}
          targets: [{{hardwareClass: here}}]
    """)
    keys = ["--prepared", prepared.prepared[0].prepared_key, "--baseline", str(prepared.baseline_key), "--store", bench.store.uri]
    told = CliRunner().invoke(app, ["build", "--spec", str(spec), *keys, "--json"])
    assert told.exit_code == 0, told.output
    data = make_report(bench.store, json.loads(told.stdout)["engineKey"], None, (), Progress())
    assert data.name == "vision/yard"
    command = next(step.command for step in data.steps if step.title == "Run the engine yourself")
    request = command[command.index("{") : command.rindex("}") + 1]
    fetch(FetchRequest.model_validate_json(request).model_copy(update={"engine_path": str(tmp_path / "engine")}), Progress())
    assert EngineManifest.model_validate_json((tmp_path / "engine" / "engine.json").read_bytes()).model_name == "yard"


def test_a_prepared_model_that_is_not_there(bench: Bench, prepared: PrepareReport) -> None:
    assert refusal(bench, prepared, prepared_key="0" * 64).reason == "PreparedMissing"
    assert refusal(bench, prepared, prepared_model="sha256:" + "0" * 64).reason == "PreparedChanged"


# ---- the wrong place ----


def test_another_runtime_names_what_differs(bench: Bench, prepared: PrepareReport) -> None:
    facts = bench.facts | {"backendVersion": "1.2.3"}
    error = refusal(bench, prepared, EnvironmentFault, facts=facts, fingerprint=fingerprint.identify(facts))
    assert error.reason == "WrongRuntime"
    assert "expected '1.2.3'" in error.message


def test_another_cpu_names_what_differs(bench: Bench, prepared: PrepareReport) -> None:
    facts: dict[str, Any] = bench.facts | {"cpu": {"isa": ["amx_fp8"]}}
    error = refusal(bench, prepared, EnvironmentFault, facts=facts, fingerprint=fingerprint.identify(facts))
    assert error.reason == "WrongDevice"
    assert "lacks amx_fp8" in error.message


def test_facts_of_another_id_are_a_bad_request(bench: Bench, prepared: PrepareReport) -> None:
    assert refusal(bench, prepared, fingerprint="fp-0000000000000000").reason == "BadRequest"


def test_another_backend(bench: Bench, prepared: PrepareReport) -> None:
    assert refusal(bench, prepared, backend="tvm").reason == "BackendNotSupported"


# ---- claims ----


def test_waits_for_a_live_builder_only_so_long_and_names_it(bench: Bench, prepared: PrepareReport) -> None:
    request = bench.build_request(prepared)
    with claims.acquire(bench.records.store, request.engine_key, "other-site", 60):
        error = refusal(bench, prepared, TransientFault, timeout_seconds=2)
    assert error.reason == "ClaimHeld"
    assert "other-site" in error.message


def test_adopts_what_another_builder_publishes_meanwhile(bench: Bench, prepared: PrepareReport, monkeypatch: pytest.MonkeyPatch) -> None:
    request = bench.build_request(prepared)
    held = claims.acquire(bench.records.store, request.engine_key, "build-2", 60)
    other = _start(bench, request)
    time.sleep(2)
    monkeypatch.setattr("enginefleet_builder.build.engine.claims.acquire", lambda *_: held)
    first = bench.build(prepared)
    assert not first.adopted
    out, _ = other.communicate(timeout=60)
    assert other.returncode == 0, out
    assert '"adopted": true' in out


def test_killed_in_mid_build_the_next_one_takes_over(bench: Bench, prepared: PrepareReport) -> None:
    """SIGKILL as soon as the claim is there: nothing was published; after the claim expired the next attempt builds and passes."""
    request = bench.build_request(prepared, claim_seconds=2)
    claim = bench.folder / "store" / layout.claim(request.engine_key)
    victim = _start(bench, request)
    while not claim.exists():
        assert victim.poll() is None, victim.communicate()
        time.sleep(0.002)
    victim.kill()
    victim.communicate()
    assert [] == bench.records.builds(request.engine_key)
    report = bench.build(prepared, holder="build-2", claim_seconds=2)
    assert (Answer.PASS, False) == (report.answer, report.adopted)
    assert '"takeovers":1' in claim.read_text()


def _start(bench: Bench, request: BuildRequest) -> subprocess.Popen[str]:
    """The real command, in a process of its own."""
    path = bench.folder / f"{request.holder}.json"
    path.write_text(request.model_dump_json(by_alias=True))
    return subprocess.Popen(
        [sys.executable, "-m", "enginefleet_builder.main", "build", "--request", str(path), "--json"],
        env={"PYTHONPATH": f"{ROOT / 'crds'}:{ROOT / 'builder'}", "TMPDIR": str(bench.folder)},  # what a kill leaves goes with the test
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_pinned_validation_set_is_asserted(bench: Bench, prepared: PrepareReport) -> None:
    source = Source(uri=bench.validation.as_uri(), digest="sha256:" + "0" * 64)
    assert refusal(bench, prepared, validation_source=source).reason == "DigestMismatch"
