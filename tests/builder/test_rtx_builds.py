"""The whole build Job with a real compiler and a real store, without a GPU: TensorRT for RTX builds for GPUs that are not here.

Nothing of it can run here, so every verdict is Inconclusive and no pod gets an engine. Cancelled, killed and crashed builds leave nothing behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api import fingerprint
from enginefleet_api.documents import Answer, Claim
from enginefleet_api.errors import EngineFleetError, FailureClass, PermanentError, TransientFault
from enginefleet_api.jobs import BuildReport, BuildRequest, FetchRequest, PrepareReport, ResolvedPrepared
from enginefleet_builder import engine_files
from enginefleet_builder.backends.tensorrt import TensorRt
from enginefleet_builder.build.job import build, judge
from enginefleet_builder.fetch import fetch
from enginefleet_builder.io import Cancellation, Progress
from enginefleet_builder.prepare import model as models
from enginefleet_builder.store import layout
from localcluster.s3 import S3Server
from tests.builder.rtx import DIGITS, MNIST, VARIANTS, Job, Site, deep

CAPABILITIES = ("8.6", "8.9")
VARIANT_NAMES = ("fp32", "fp16", "int8-max")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with S3Server() as s3, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENGINEFLEET_STORE_ACCESS_KEY_ID", s3.access_key)
        patch.setenv("ENGINEFLEET_STORE_SECRET_ACCESS_KEY", s3.secret_key)
        yield Site(s3, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def digits(site: Site) -> PrepareReport:
    """The example's network in FP32, by AutoCast in FP16 and by ModelOpt with Q/DQ nodes."""
    return site.prepare("digits", (MNIST / "model.onnx").read_bytes(), VARIANTS)


@pytest.fixture(scope="module")
def slow(site: Site, tmp_path_factory: pytest.TempPathFactory) -> ResolvedPrepared:
    """A network that takes seconds to build."""
    return site.publish(deep(250), tmp_path_factory.mktemp("deep"))


@pytest.fixture
def holder(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[5:60]


def request_for(site: Site, digits: PrepareReport, variant: str, capability: str, holder: str, **changes: Any) -> BuildRequest:
    chosen = digits.prepared[VARIANT_NAMES.index(variant)]
    return site.request(chosen, capability, holder, baseline=digits.baseline_key, **changes)


def refusal(request: BuildRequest, kind: type[EngineFleetError] = PermanentError) -> EngineFleetError:
    with pytest.raises(kind) as caught:
        build(request, Progress())
    return caught.value


# ---- engines ----


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("variant", VARIANT_NAMES)
def test_an_engine_is_built_published_read_back_and_left_open(
    site: Site, digits: PrepareReport, variant: str, capability: str, tmp_path: Path, holder: str
) -> None:
    request = request_for(site, digits, variant, capability, holder)
    report = build(request, Progress())
    assert (Answer.INCONCLUSIVE, False, []) == (report.answer, report.adopted, report.warnings)
    assert [f"nothing was run: the engine was built without a GPU, for compute capability {capability}"] == report.reasons
    engine = tmp_path / "engine"
    site.records.fetch_blob(report.blob, engine, size=report.size)
    told = engine_files.describe(engine)
    assert told is not None
    assert ("tensorrt-rtx", "1.7.1.116", [capability]) == (told["backend"], told["version"], told["computeCapabilities"])
    (record,) = site.records.builds(request.engine_key)
    assert (report.blob, request.fingerprint, variant.partition("-")[0]) == (record.blob, record.fingerprint, record.precision)
    assert "1.7.1.116" == record.tools["tensorrt-rtx"]
    standing = site.records.newest_verdict(request.engine_key, request.gate_key)
    assert standing is not None
    assert (Answer.INCONCLUSIVE, report.blob, []) == (standing[1].answer, standing[1].blob, standing[1].latency)
    assert _claim(site, request).expires == "0"


def test_it_is_built_by_hand_too(site: Site, digits: PrepareReport, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"inputs": [DIGITS.to_json_dict()], "build": {"optimizationLevel": 2}}))
    words = [
        "build",
        "--spec",
        str(spec),
        "--prepared",
        digits.prepared[1].prepared_key,
        "--store",
        site.store.uri,
        "--endpoint",
        site.store.endpoint,
    ]
    words += ["--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--json"]
    environment = dict(site.image.env) | site.credentials
    ran = subprocess.run(
        [site.python, "-m", "enginefleet_builder.main", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 41, ran.stderr
    report = BuildReport.model_validate(json.loads(ran.stdout))
    assert report.reasons == ["nothing was run: the engine was built without a GPU, for compute capability 8.9"]
    refused = subprocess.run(
        [site.python, "-m", "enginefleet_builder.main", *words, "--threads", "2"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "tensorrt-rtx has no use for threads" in refused.stdout + refused.stderr
    for backend, message in (
        ("tensorrt", "tensorrt does not build for a GPU that is not here, expected tensorrt-rtx"),
        ("onnxruntime", "onnxruntime does not build for a GPU that is not here"),
    ):
        other = [backend if word == "tensorrt-rtx" else word for word in words]
        refused = subprocess.run(
            [site.python, "-m", "enginefleet_builder.main", *other], env=environment, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 42
        assert message in refused.stdout + refused.stderr


def test_the_files_that_were_built_from_are_fp16_and_quantized(site: Site, digits: PrepareReport, tmp_path: Path) -> None:
    """Else three engines of one precision would pass above."""
    found = {}
    for item in digits.prepared:
        manifest = site.records.prepared(item.prepared_key)
        assert manifest is not None
        folder = tmp_path / item.variant
        folder.mkdir()
        site.records.fetch_prepared(manifest, folder)
        model = models.read_model(folder / manifest.files[0].path)
        operators = [node.op_type for node in models.nodes(model)]
        found[item.variant] = (operators.count("QuantizeLinear") > 3, any(tensor.data_type == 10 for tensor in model.graph.initializer))
    assert {"fp32": (False, False), "fp16": (False, True), "int8-max": (True, True)} == found


def test_engines_of_unlike_devices_and_precisions_have_unlike_keys_and_bytes(site: Site, digits: PrepareReport) -> None:
    requests = [request_for(site, digits, variant, capability, "") for variant in VARIANT_NAMES for capability in CAPABILITIES]
    assert len({request.engine_key for request in requests}) == 6
    assert len({record.blob for request in requests for record in site.records.builds(request.engine_key)}) == 6


def test_no_pod_may_have_it(site: Site, digits: PrepareReport, tmp_path: Path) -> None:
    """Not by its own facts, which have no verdict that passed, nor as a GPU of that compute capability, whose fingerprint is another."""
    request = request_for(site, digits, "fp16", "8.6", "pod")
    (record,) = site.records.builds(request.engine_key)
    gpu = {"name": "RTX A2000", "computeCapability": "8.6", "sms": 26, "ecc": False}
    real = request.facts | {"gpus": [gpu]}
    assert fingerprint.identify(real) != request.fingerprint
    for facts in (request.facts, real):
        wanted = FetchRequest(
            engine_key=request.engine_key,
            gate_key=request.gate_key,
            blob=record.blob,
            size=record.size,
            fingerprint=fingerprint.identify(facts),
            facts=facts,
            store=site.store,
            engine_path=str(tmp_path / "engine"),
        )
        with pytest.raises(PermanentError, match="was judged Inconclusive") as caught:
            fetch(wanted, Progress())
        assert caught.value.reason == "NotProven"
    assert list(tmp_path.rglob("*.plan")) == []


def test_it_is_adopted_not_built_again_and_stays_open(
    site: Site, digits: PrepareReport, holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(site, digits, "int8-max", "8.9", holder)
    monkeypatch.setattr(TensorRt, "build", None)
    again = build(request, Progress())
    assert (True, Answer.INCONCLUSIVE) == (again.adopted, again.answer)
    assert judge(request, Progress()).answer == Answer.INCONCLUSIVE


def test_the_report_says_that_nothing_was_run(site: Site, digits: PrepareReport) -> None:
    request = request_for(site, digits, "fp16", "8.9", "reader")
    pages = [key for key in site.keys(f"reports/{request.engine_key}/") if key.endswith(".html")]
    stored = site.records.store.get(pages[0])
    assert stored is not None
    assert b"nothing was run" in stored.body


# ---- what is refused ----


def test_a_gpu_that_the_library_does_not_know_is_refused_with_those_it_does(site: Site, digits: PrepareReport, holder: str) -> None:
    error = refusal(request_for(site, digits, "fp32", "9.0", holder))
    assert "SM86, SM89" in error.hint
    assert "cannot build for 9.0" in error.message


def test_recipe_and_facts_must_say_the_same_device(site: Site, digits: PrepareReport, holder: str) -> None:
    request = request_for(site, digits, "fp32", "8.6", holder, facts=site.facts_of("8.9"))
    assert refusal(request).reason == "BadRequest"
    here = request_for(site, digits, "fp32", "8.6", holder)
    recipe = {name: value for name, value in here.recipe.items() if name != "computeCapability"}
    assert refusal(here.model_copy(update={"recipe": recipe})).reason == "BadRequest"


def test_dynamic_inputs_without_a_profile_are_refused(site: Site, digits: PrepareReport, holder: str) -> None:
    request = request_for(site, digits, "fp32", "8.6", holder)
    request = request.model_copy(update={"recipe": request.recipe | {"profiles": []}, "engine_key": "0" * 64})
    error = refusal(request)
    assert "MissingProfile" == error.reason
    assert "x" in error.message
    assert _nothing_published(site, request)


# ---- cancelled, killed, crashed, hung ----


def _claim(site: Site, request: BuildRequest) -> Claim:
    stored = site.records.store.get(layout.claim(request.engine_key))
    assert stored is not None
    return Claim.model_validate_json(stored.body)


def _nothing_published(site: Site, request: BuildRequest) -> bool:
    """The claim alone is there, and every blob in the store is one of a build record."""
    (claim,) = site.keys(f"engines/{request.engine_key}/")
    records = [key for key in site.keys("engines/") if "/builds/" in key]
    known = {key.rpartition("/")[2].removesuffix(".json") for key in records}
    blobs = {key.rpartition("/")[2] for key in site.keys("blobs/")}
    return claim == layout.claim(request.engine_key) and blobs == known and site.keys(f"reports/{request.engine_key}/") == []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _building(site: Site, slow: ResolvedPrepared, holder: str, capability: str = "8.6", **changes: Any) -> tuple[Job, BuildRequest, int]:
    """A Job in mid-build, its request, and the worker that compiles."""
    request = site.request(slow, capability, holder, **changes)
    job = Job(site, request)
    job.until("TensorRT for RTX 1.7.1.116: build")
    (worker,) = job.workers()
    return job, request, worker


def test_sigterm_ends_job_and_compiler_and_leaves_nothing(site: Site, slow: ResolvedPrepared, holder: str) -> None:
    job, request, worker = _building(site, slow, holder)
    job.process.send_signal(signal.SIGTERM)
    ended = job.end(timeout=20)
    failure = ended.termination.failure
    assert failure is not None
    assert (44, "Terminated", FailureClass.TRANSIENT) == (ended.code, failure.reason, failure.failure_class)
    assert not _alive(worker)
    assert _nothing_published(site, request)
    assert _claim(site, request).expires == "0", "another builder need not wait"
    assert job.leftovers() == []


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGKILL, 44, "EngineProcessKilled"), (signal.SIGSEGV, 42, "EngineCrashed")],
    ids=["killed", "crashed"],
)
def test_a_compiler_that_dies_is_an_answer_and_leaves_nothing(
    site: Site, slow: ResolvedPrepared, holder: str, number: signal.Signals, code: int, reason: str
) -> None:
    job, request, worker = _building(site, slow, holder)
    os.kill(worker, number)
    ended = job.end(timeout=20)
    failure = ended.termination.failure
    assert failure is not None
    assert (code, reason) == (ended.code, failure.reason)
    assert _nothing_published(site, request)
    assert _claim(site, request).expires == "0"
    assert job.leftovers() == []


def test_a_job_that_is_killed_takes_its_compiler_along_and_the_next_one_builds(site: Site, slow: ResolvedPrepared, holder: str) -> None:
    job, request, worker = _building(site, slow, holder, "8.9", claim_seconds=2)
    job.process.kill()
    job.process.communicate()
    while _alive(worker):
        os.sched_yield()
    assert _nothing_published(site, request)
    report = site.run(request.model_copy(update={"holder": f"{holder}-2"})).termination.report
    assert isinstance(report, BuildReport)
    assert (Answer.INCONCLUSIVE, False) == (report.answer, report.adopted)
    assert _claim(site, request).takeovers == 1


class Hanging(Progress):
    """Stops the compiler as soon as it is at work, half a second before the deadline."""

    def show(self, stage: str, done: float | None, total: float | None) -> None:
        if stage.endswith(": build") and self.cancellation.remaining() == float("inf"):
            children = [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]
            workers = [pid for pid in children if b"worker/main.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            os.kill(workers[0], signal.SIGSTOP)
            self.worker = workers[0]
            self.cancellation = Cancellation(0.5)


def test_a_compiler_that_hangs_is_ended_at_the_deadline(site: Site, slow: ResolvedPrepared, holder: str) -> None:
    request = site.request(slow, "8.6", holder)
    progress = Hanging()
    with pytest.raises(TransientFault) as caught:
        build(request, progress)
    assert caught.value.reason == "DeadlineExceeded"
    assert not _alive(progress.worker)
    assert _nothing_published(site, request)
    assert _claim(site, request).expires == "0"
