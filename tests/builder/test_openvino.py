"""The OpenVINO execution provider, for real: its own image builds, judges, fetches and serves on this CPU what was prepared elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bench.accuracy import NETWORKS, request_for
from enginefleet_api import fingerprint, identity
from enginefleet_api.documents import Answer, BuildRecord, Verdict
from enginefleet_api.errors import EnvironmentFault
from enginefleet_api.jobs import BuildReport, BuildRequest, FetchRequest, PrepareReport, PrepareRequest, ProbeReport, Source, Termination
from enginefleet_api.keys import gate_key_of
from enginefleet_api.resources import AccuracyAcceptance, Benchmark
from enginefleet_api.variants import Variant
from enginefleet_builder.backends import ort_session
from enginefleet_builder.io import PlainProgress
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.store import open_store
from enginefleet_builder.store.records import Records
from localcluster.ports import free_port
from tests.builder.models import classifier, save_model
from tests.builder.support import Bench
from tools.images import build_images

OPENVINO, CPU = "OpenVINOExecutionProvider", "CPUExecutionProvider"
IMAGE = "enginefleet/runtime:openvino"
FEW = 200


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime image as a container would have it: its own packages, its own Python, nothing of this process."""

    variables: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [f"{self.variables['VIRTUAL_ENV']}/bin/python", "-m", "enginefleet_builder.main", *arguments]

    def job(self, command: str, request: Any, folder: Path, code: int = 0) -> Termination:
        """What a Job leaves in its termination message."""
        log, told = folder / f"{command}.log", request if isinstance(request, str) else request.model_dump_json(by_alias=True)
        own = {**self.variables} | {"ENGINEFLEET_REQUEST": told, "ENGINEFLEET_TERMINATION_LOG": str(log), "TMPDIR": str(folder)}
        done = subprocess.run(self.command(command), env=own, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stderr
        termination = Termination.parse(log.read_text())
        assert termination is not None
        return termination

    def python(self, code: str, *arguments: Path) -> Any:
        """The JSON that a script in the image prints last."""
        command = [f"{self.variables['VIRTUAL_ENV']}/bin/python", "-c", code, *map(str, arguments)]
        done = subprocess.run(command, env=self.variables, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    return Runtime(build_images([IMAGE])[IMAGE].env)


@pytest.fixture(scope="module")
def facts(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """As a probe Job in the image reports them."""
    told = json.dumps({"backend": "onnxruntime", "executionProvider": "OpenVINO"})
    report = runtime.job("probe", told, tmp_path_factory.mktemp("probe")).report
    assert isinstance(report, ProbeReport)
    return fingerprint.combine(report.host, report.runtime)


def test_the_fingerprint_names_the_version_of_openvino(facts: dict[str, Any]) -> None:
    assert facts["executionProvider"] == "OpenVINO"
    assert re.match(r"\d{4}\.\d+\.\d+", facts["libraries"]["openvino"])
    assert not fingerprint.has_unknown(facts)


# ---- the whole way ----


def build_request(given: PrepareRequest, prepared: PrepareReport, number: int, facts: dict[str, Any], **changes: Any) -> BuildRequest:
    one, benchmark = prepared.prepared[number], Benchmark(batch_sizes=[1])
    here = fingerprint.identify(facts)
    request = BuildRequest(
        engine_key=identity.engine_key(prepared_model=one.model, recipe={"threads": "2"}, fingerprint=here),
        gate_key=gate_key_of(given.validation, benchmark, prepared.baseline_key),
        baseline_key=prepared.baseline_key,
        prepared_key=one.prepared_key,
        prepared_model=one.model,
        precision=one.precision,
        backend="onnxruntime",
        execution_provider="OpenVINO",
        recipe={"threads": "2"},
        fingerprint=here,
        facts=facts,
        inputs=given.inputs,
        preprocessing=given.preprocessing,
        validation=given.validation,
        validation_source=given.validation_source,
        benchmark=benchmark,
        store=given.store,
        holder="build-1",
        timeout_seconds=100,
    )
    return request.model_copy(update=changes)


def built(runtime: Runtime, request: BuildRequest, folder: Path) -> tuple[BuildReport, BuildRecord, Verdict]:
    report = runtime.job("build", request, folder).report
    assert isinstance(report, BuildReport)
    records = Records(open_store(request.store))
    record = records.build(request.engine_key, report.blob)
    standing = records.newest_verdict(request.engine_key, request.gate_key)
    assert record is not None
    assert standing is not None
    return report, record, standing[1]


def network(name: str, folder: Path, count: int) -> PrepareRequest:
    """A network that others trained, with a few samples, and a gate that its FP32 passes."""
    chosen = next(one for one in NETWORKS if one.name == name)
    given = request_for(chosen, folder, count, count, min_validation=count, flavour="onnxruntime")
    assert given.validation is not None
    assert given.validation_source is not None
    few = Path(given.validation_source.uri.removeprefix("file://"))
    if few.suffix == ".npz":
        few = _few(few, folder / "few.npz", count)
    gate = given.validation.model_copy(update={"uri": few.as_uri(), "acceptance": AccuracyAcceptance(minimum="0.8")})
    return given.model_copy(update={"best_effort": False, "validation": gate, "validation_source": Source(uri=few.as_uri())})


def _few(whole: Path, target: Path, count: int) -> Path:
    with np.load(whole) as data:
        np.savez(target, **{name: data[name][:count] if len(data[name]) >= count else data[name] for name in data.files})
    return target


def test_digits_are_built_judged_fetched_and_served(runtime: Runtime, facts: dict[str, Any], tmp_path: Path) -> None:
    """Prepared by another ONNX Runtime, in INT8 and FP32: OpenVINO takes all nodes, and its answers are those of FP32 on a CPU."""
    given = network("digits", tmp_path, FEW)
    given = given.model_copy(update={"variants": [Variant(precision="int8", method="max"), Variant(precision="fp32")]})
    prepared = prepare(given, PlainProgress())
    for number, cosine in enumerate((0.99, 0.999999)):
        request = build_request(given, prepared, number, facts)
        report, record, verdict = built(runtime, request, tmp_path)
        assert report.answer is Answer.PASS, report.reasons
        assert verdict.accuracy is not None
        assert verdict.accuracy.cosine_min is not None
        # the FP32 engine computes in FP32 on CPUs with bfloat16, too
        assert float(verdict.accuracy.cosine_min) > cosine
        assert record.providers.keys() == {OPENVINO}
        assert record.providers == verdict.evidence["providers"]
        assert record.tools["onnxruntime"] == facts["backendVersion"]
    (page,) = (tmp_path / "store").glob(f"reports/{request.engine_key}/*/*.html")
    assert f"nodes on {OPENVINO}" in page.read_text()
    assert "compiled" in page.read_text()

    fetched = FetchRequest(
        engine_key=request.engine_key,
        gate_key=request.gate_key,
        blob=report.blob,
        size=report.size,
        fingerprint=request.fingerprint,
        facts=request.facts,
        store=request.store,
        engine_path=str(tmp_path / "engine"),
    )
    runtime.job("fetch", fetched, tmp_path)
    picture = np.random.default_rng(0).random((2, 1, 28, 28), np.float32)
    with served(runtime, tmp_path / "engine") as address:
        (described,) = httpx.get(f"{address}/v2/models/digits").json()["inputs"]
        body = {"inputs": [{**described, "shape": picture.shape, "data": picture.ravel().tolist()}]}
        (answer,) = httpx.post(f"{address}/v2/models/digits/infer", json=body, timeout=30).json()["outputs"]
    model = Path(given.model.uri.removeprefix("file://"))
    (expected,) = ort_session.load(model, 1, "basic").run(None, {described["name"]: picture})
    np.testing.assert_allclose(np.reshape(answer["data"], expected.shape), expected, atol=1e-3)


@contextmanager
def served(runtime: Runtime, engine: Path) -> Iterator[str]:
    """The address of a server in the image that is ready."""
    port = free_port()
    command = runtime.command("serve", "--engine", str(engine), "--host", "127.0.0.1", "--port", str(port))
    process = subprocess.Popen(command, env={**runtime.variables} | {"ENGINEFLEET_MODEL_NAME": "digits"}, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "serving digits" in first, first + process.stderr.read()
        address = f"http://127.0.0.1:{port}"
        # the port is bound a moment after the announcement
        for _ in range(100):
            try:
                assert httpx.get(f"{address}/v2/health/ready").status_code == 200
                break
            except httpx.ConnectError:
                threading.Event().wait(0.1)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_a_network_with_a_dynamic_batch_is_built_too(runtime: Runtime, facts: dict[str, Any], tmp_path: Path) -> None:
    """The text direction classifier of rapidocr, in batches of another size than those it was built with."""
    given = network("text direction", tmp_path, 24).model_copy(update={"variants": [Variant(precision="fp32")]})
    report, record, verdict = built(runtime, build_request(given, prepare(given, PlainProgress()), 0, facts), tmp_path)
    assert report.answer is Answer.PASS, report.reasons
    assert record.providers.get(OPENVINO, 0) > 50
    assert verdict.accuracy is not None
    assert float(verdict.accuracy.cosine_min or 0) > 0.9999


# ---- a provider that does not do what was asked ----


def test_an_image_without_the_provider_fails_and_never_takes_the_cpu(bench: Bench, prepared: PrepareReport) -> None:
    """The plain ONNX Runtime of this process, asked for OpenVINO."""
    with pytest.raises(EnvironmentFault) as caught:
        bench.build(prepared, execution_provider="OpenVINO")
    assert caught.value.reason == "ExecutionProviderMissing"
    assert f"expected {OPENVINO}" in caught.value.message
    assert bench.records.builds(bench.build_request(prepared).engine_key) == []


CREATE = """
import json, sys
from enginefleet_builder.backends import ort_session
from enginefleet_builder.backends.providers import PROVIDERS

def tried(work):
    try:
        return work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

options, openvino = ort_session.options(1, "none"), PROVIDERS["OpenVINO"]
"""
"""Begin of a script in the image."""


def test_a_device_that_is_not_there_is_a_failure(runtime: Runtime, tmp_path: Path) -> None:
    """Left alone, ONNX Runtime logs it and runs everything on its own CPU provider."""
    model = save_model(classifier(), tmp_path / "model.onnx")
    code = """
silent = ort_session.ort.InferenceSession(sys.argv[1], providers=[(openvino.called, {"device_type": "NPU"})]).get_providers()
found = tried(lambda: ort_session.create(sys.argv[1], options, openvino, {"device_type": "NPU"}))
print(json.dumps([silent, found]))
"""
    silent, found = runtime.python(CREATE + code, model)
    assert silent == [CPU]
    assert found == f"ProviderInactiveError: {OPENVINO} did not start, ONNX Runtime went on with {CPU}"


def hardmax(*, beside: bool) -> onnx.ModelProto:
    """An operator that OpenVINO does not take, alone or `beside` one that it takes."""
    x, y, a, b = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xyab")
    odd, product = helper.make_node("Hardmax", ["x"], ["y"], "odd"), helper.make_node("MatMul", ["a", "a"], ["b"], "product")
    graph = helper.make_graph([product, odd], "both", [a, x], [b, y]) if beside else helper.make_graph([odd], "alone", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nodes_that_it_does_not_take_are_counted_and_a_model_of_them_alone_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    mixed = save_model(hardmax(beside=True), tmp_path / "mixed.onnx")
    none = save_model(hardmax(beside=False), tmp_path / "none.onnx")
    code = """
from pathlib import Path
build = lambda path: ort_session.build(Path(path), Path(path + ".engine"), 1, False, openvino)
print(json.dumps([tried(lambda: build(path)) for path in sys.argv[1:]]))
"""
    share, refused = runtime.python(CREATE + code, mixed, none)
    assert share == {OPENVINO: 1, CPU: 1}
    assert refused == f"ProviderUnusedError: {OPENVINO} took none of the 1 nodes"


def test_openvino_cannot_read_what_it_compiled_so_its_engines_are_models(runtime: Runtime, tmp_path: Path) -> None:
    """The reason for its form in providers.py. When this fails, a newer release can: then an engine should hold what was compiled."""
    model = save_model(classifier(), tmp_path / "model.onnx")
    code = """
from pathlib import Path
def context(path, embedded):
    chosen = ort_session.options(1, "all")
    for name, value in (("enable", "1"), ("embed_mode", embedded), ("file_path", path)):
        chosen.add_session_config_entry("ep.context_" + name, value)
    ort_session.create(sys.argv[1], chosen, openvino, {"device_type": "CPU"})
    return path

held, named = context(sys.argv[2], "1"), context(sys.argv[3], "0")
checks = [tried(lambda: ort_session.require_embedded(Path(path))) for path in (held, named)]
print(json.dumps([*checks, tried(lambda: ort_session.create(held, options, openvino, {"device_type": "CPU"}))]))
"""
    held, named, read = runtime.python(CREATE + code, model, tmp_path / "held.onnx", tmp_path / "named.onnx")
    assert held is None
    assert "names a file" in named
    assert "EP_FAIL" in read
