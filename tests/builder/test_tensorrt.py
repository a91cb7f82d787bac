"""The driver of TensorRT's worker: real processes and pipes, and in them a strict double of TensorRT 8.6.0 on a stand-in of CUDA's driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_builder.backends import remedies
from enginefleet_builder.backends.base import DeviceSession, TimingCaching
from enginefleet_builder.backends.implicit import implicit, is_plain
from enginefleet_builder.backends.model_facts import facts_of
from enginefleet_builder.backends.registry import backend_for
from enginefleet_builder.backends.tensorrt import TensorRt, memory_available, parser_opset, tensor_type, workspace_bytes
from enginefleet_builder.io import Cancellation, Progress

ROOT = Path(__file__).resolve().parents[2]
PROFILES = [{"name": "x", "profiles": [{"min": [1, 3, 8, 8], "opt": [2, 3, 8, 8], "max": [4, 3, 8, 8]}]}]
CRASHED_KERNEL = [["ERROR", "Cuda Runtime (an illegal memory access was encountered)"], ["ERROR", "later"]]
RECIPE: dict[str, Any] = {"workspace": "auto", "optimizationLevel": 3, "profiles": PROFILES}
MODULE = """
import ctypes, json, os, signal, sys, threading
ctypes.CDLL(os.path.join(os.path.dirname(__file__), "libnvinfer.so.8"))
from tests.contract.doubles import Double, Tensor

mode = json.loads(os.environ.get("DOUBLE", "{}"))

class Real(Double):
    def _parser(self, network, logger):
        parser = super()._parser(network, logger)
        parse = parser.parse_from_file
        def parse_from_file(path):
            self.file = open(path, "rb").read()
            return parse(path)
        parser._does["parse_from_file"] = parse_from_file
        return parser

    def _build(self, network, config):
        print("the library prints", flush=True)
        if "signal" in mode:
            os.kill(os.getpid(), mode["signal"])
        if mode.get("hangs"):
            threading.Event().wait()
        if mode.get("unless_without", "").encode() in self.file and mode.get("unless_without"):
            self._fails = "build"
        return super()._build(network, config)

double = Real("8.6.0", inputs=[Tensor("x", [-1, 3, 8, 8])], says=mode.get("says", ()), fails=mode.get("fails", ""), dlas=mode.get("dlas", 0))
globals().update({name: value for name, value in vars(double).items() if not name.startswith("_")})
__version__ = "8.6.0"
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the double as its `tensorrt`, by a launcher that sets the search paths."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the stand-ins of libcuda and libnvinfer")
    folder = tmp_path_factory.mktemp("tensorrt")
    (folder / "tensorrt").mkdir()
    (folder / "tensorrt" / "__init__.py").write_text(MODULE)
    (folder / "nvinfer.c").write_text("int getInferLibVersion(void) { return 8600; }\n")
    cuda = ROOT / "tests" / "contract" / "standins" / "cuda_memory.c"
    for source, target in ((cuda, "libcuda.so.1"), (folder / "nvinfer.c", "tensorrt/libnvinfer.so.8")):
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(folder / target), str(source)], check=True)
    launcher = folder / "python"
    launcher.write_text(f'#!/bin/sh\nexport PYTHONPATH={folder}:{ROOT} LD_LIBRARY_PATH={folder}\nexec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    return str(launcher)


def quantized(layers: int = 2) -> ModelProto:
    """Convolutions with Q/DQ at their inputs and weights that are stored as integers; [N, 3, 8, 8] to itself."""
    rng = np.random.default_rng(0)
    nodes, stored, last = [], [numpy_helper.from_array(np.array(0, np.int8), "zero")], "x"
    for index in range(1, layers + 1):
        name = f"conv{index}"
        stored.append(numpy_helper.from_array(rng.integers(-90, 90, (3, 3, 3, 3), np.int8), f"{name}.weight_quantized"))
        stored.append(numpy_helper.from_array(np.array(0.004, np.float32), f"{name}.weight_scale"))
        stored.append(numpy_helper.from_array(np.array(0.02, np.float32), f"{name}.scale"))
        nodes.append(helper.make_node("QuantizeLinear", [last, f"{name}.scale", "zero"], [f"{name}.q"], name=f"{name}_QuantizeLinear"))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}.q", f"{name}.scale", "zero"], [f"{name}.dq"], name=f"{name}_DequantizeLinear")
        )
        weight = [f"{name}.weight_quantized", f"{name}.weight_scale", "zero"]
        nodes.append(helper.make_node("DequantizeLinear", weight, [f"{name}.weight"], name=f"{name}.weight_DequantizeLinear"))
        nodes.append(helper.make_node("Conv", [f"{name}.dq", f"{name}.weight"], [f"{name}.y"], name=name, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"{name}.y"], [f"{name}.relu"], name=f"relu{index}"))
        last = f"{name}.relu"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])
    made = helper.make_tensor_value_info(last, TensorProto.FLOAT, ["batch", 3, 8, 8])
    graph = helper.make_graph(nodes, "quantized", [given], [made], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def plain() -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"], name="add")],
        "plain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3, 8, 8])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "prepared" / "model.onnx"
    path.parent.mkdir()
    onnx.save(plain(), path)
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


class Shown(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.stages: list[str] = []

    def show(self, stage: str, done: float | None, total: float | None) -> None:
        self.stages.append(stage)


def test_from_a_model_to_outputs_through_the_worker(python: str, model: Path, work: Path) -> None:
    backend, shown = backend_for("tensorrt", python=python), Shown()
    assert isinstance(backend, TimingCaching)
    built = backend.build(model, RECIPE, work, shown, timing_cache_out=work / "cache")
    assert built.file.read_bytes() == b"a plan"
    assert (work / "cache").read_bytes() == b"timing cache of 8.6.0"
    assert backend.versions()["tensorrt"] == "8.6.0"
    assert "TensorRT 8.6.0: build" in shown.stages
    # what the library prints to standard output is in the log, and no frame
    assert "the library prints" in built.log
    with backend.load(built.file, RECIPE, shown) as session:
        assert isinstance(session, DeviceSession)
        assert session.inputs[0].to_json_dict() == {"name": "x", "dtype": "float32", "shape": [None, 3, 8, 8]}


def test_runs_times_and_layers_come_back(python: str, model: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, shown = TensorRt("tensorrt", python), Shown()
    built = backend.build(model, RECIPE, work, shown)
    given = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    with backend.load(built.file, RECIPE, shown) as session:
        assert np.array_equal(session.run({"x": given})["y"], given * 2)
        with pytest.raises(PermanentError, match="ShapeRefused"):
            session.run({"x": np.zeros((2, 3, 9, 8), np.float32)})
        # the engine lives on
        assert np.array_equal(session.run({"x": given})["y"], given * 2)
        timed = session.timed({"x": given}, warm_up=1, iterations=5, seconds=0, transfers=False, cuda_graph=True)
        assert timed.cuda_graph
        assert len(timed.seconds) == 5
        assert len(session.timings({"x": given}, warm_up=1, iterations=5, seconds=0)) == 5
        assert session.inspect()["Layers"][0]["Name"] == "double"
    before = backend.inspected
    assert before is None
    ran = backend.profile(built.file, RECIPE, {"x": given}, 3, shown)
    assert [(one.op, list(one.inputs), list(one.outputs), one.seconds) for one in ran] == [("ElementWise", ["float"], ["float16"], 0.00025)]
    assert backend.inspected is not None
    assert backend.inspected["Layers"][0]["LayerType"] == "ElementWise"


@pytest.mark.parametrize(
    ("double", "kind", "reason", "words"),
    [
        ({"signal": signal.SIGSEGV}, PermanentError, "EngineCrashed", "SIGSEGV"),
        # a bare kill is nobody's fault for long
        ({"signal": signal.SIGKILL}, TransientFault, "EngineProcessKilled", "SIGKILL"),
        ({"fails": "build", "says": CRASHED_KERNEL}, PermanentError, "KernelCrashed", "illegal memory"),
        ({"fails": "build"}, PermanentError, "BuildFailed", "TensorRT 8.6.0"),
        ({"fails": "parse"}, PermanentError, "ParseFailed", "no such operator"),
        ({"fails": "start"}, EnvironmentFault, "NoGPU", "cannot be started"),
    ],
)  # fmt: skip
def test_whatever_happens_in_the_worker_is_an_answer(
    python: str,
    model: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    double: dict[str, Any],
    kind: type[EngineFleetError],
    reason: str,
    words: str,
) -> None:
    monkeypatch.setenv("DOUBLE", json.dumps(double))
    with pytest.raises(kind, match=words) as caught:
        TensorRt("tensorrt", python).build(model, RECIPE, work, Progress())
    assert caught.value.reason == reason
    assert not (work / "engine.plan").exists()


def test_a_build_that_hangs_ends_with_the_deadline(python: str, model: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBLE", json.dumps({"hangs": True}))
    started = time.monotonic()
    with pytest.raises(TransientFault, match="DeadlineExceeded"):
        TensorRt("tensorrt", python).build(model, RECIPE, work, Progress(Cancellation(4)))
    assert time.monotonic() - started < 20


def test_a_cancelled_build_leaves_no_process(python: str, model: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOUBLE", json.dumps({"hangs": True}))
    cancellation = Cancellation()

    class Until(Progress):
        def show(self, stage: str, done: float | None, total: float | None) -> None:
            if stage.endswith("parse"):
                threading.Timer(0.2, cancellation.cancel, [TransientFault("Terminated", "asked to end.")]).start()

    with pytest.raises(TransientFault, match="Terminated"):
        TensorRt("tensorrt", python).build(model, RECIPE, work, Until(cancellation))
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    assert not [pid for path in children for pid in path.read_text().split() if "worker" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_the_worker_is_ended_before_the_node_runs_out_of_memory(
    python: str, model: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE", json.dumps({"hangs": True}))
    available = memory_available()
    assert available is not None
    with pytest.raises(TransientFault, match=r"MemoryLow: \d+ bytes of memory were left"):
        TensorRt("tensorrt", python, reserve=available * 8).build(model, RECIPE, work, Progress())


def test_what_the_image_or_node_lacks(python: str, model: Path, work: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"RuntimeMissing: /no/python cannot be started"):
        TensorRt("tensorrt", "/no/python").build(model, RECIPE, work, Progress())
    with pytest.raises(EnvironmentFault, match="RuntimeMissing: tensorrt_rtx cannot be loaded"):
        TensorRt("tensorrt-rtx", python).build(model, RECIPE, work, Progress())
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(EnvironmentFault, match="RuntimeMissing: the worker's interpreter has no module numpy"):
        TensorRt("tensorrt", str(bare)).build(model, RECIPE, work, Progress())
    monkeypatch.setenv("CUDA_STANDIN_NO_GPU", "1")
    with pytest.raises(EnvironmentFault, match=r"NoGPU: there is no GPU that this process may use: cuInit: .*100"):
        TensorRt("tensorrt", python).build(model, RECIPE, work, Progress())


def test_a_worker_ends_with_its_driver(python: str, model: Path, work: Path, tmp_path: Path) -> None:
    """kill -9 of the driver in mid-build: nobody is left who would end the build."""
    script = f"""
import sys
from pathlib import Path
from enginefleet_builder.backends.tensorrt import TensorRt
from enginefleet_builder.io import Progress

class Shown(Progress):
    def show(self, stage, done, total):
        print(stage, flush=True)

TensorRt("tensorrt", {python!r}).build(Path({str(model)!r}), {RECIPE!r}, Path({str(work)!r}), Shown())
"""
    variables = os.environ | {"DOUBLE": json.dumps({"hangs": True}), "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=variables)
    assert driver.stdout is not None
    while "parse" not in driver.stdout.readline():
        pass
    (worker,) = [int(pid) for path in Path(f"/proc/{driver.pid}/task").glob("*/children") for pid in path.read_text().split()]
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 20
    while _runs(worker):
        assert time.monotonic() < deadline, f"worker {worker} lives on"
        os.sched_yield()


def _runs(pid: int) -> bool:
    try:
        state = re.search(r"^State:\t(\w)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state is not None and state[1] != "Z"


# ---- remedies ----


def test_a_layer_without_a_kernel_stays_in_higher_precision(
    python: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(quantized(), path)
    line = "Could not find any implementation for node conv2.weight + conv2_QuantizeLinear + conv2 + PWN(relu2)."
    monkeypatch.setenv("DOUBLE", json.dumps({"unless_without": "conv2.scale", "says": [["ERROR", line]]}))
    progress = Progress()
    built = TensorRt("tensorrt", python).build(path, RECIPE, work, progress)
    assert built.excluded == ["conv2"]
    assert any("Remedy: layer conv2.weight" in warning and "stays in higher precision" in warning for warning in built.warnings)
    changed = onnx.load(work / "changed" / "model.onnx")
    assert [node.name for node in changed.graph.node if node.op_type == "QuantizeLinear"] == ["conv1_QuantizeLinear"]


def test_remedies_end(python: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(quantized(1), path)
    line = "Could not find any implementation for node conv1."
    monkeypatch.setenv("DOUBLE", json.dumps({"fails": "build", "says": [["ERROR", line]]}))
    # without its one layer the model would not be quantized any more: this precision fails
    with pytest.raises(PermanentError, match=r"NoImplementation: TensorRT 8\.6\.0 has no kernel for the layer conv1"):
        TensorRt("tensorrt", python).build(path, RECIPE, work, Progress())


def test_the_freed_layer_computes_the_same_less_its_rounding() -> None:
    model = quantized(3)
    found = remedies.without_layer(model, "conv2.weight_quantized + conv2", Path())
    assert found is not None
    freed, nodes = found
    assert nodes == ["conv2"]
    assert [node.name for node in freed.graph.node if node.op_type == "QuantizeLinear"] == ["conv1_QuantizeLinear", "conv3_QuantizeLinear"]
    given = {"x": np.random.default_rng(1).random((2, 3, 8, 8), np.float32)}
    before, after = (computed(one, given) for one in (model, freed))
    assert 0 < np.abs(before - after).max() < 0.1
    assert remedies.without_layer(model, "some other layer", Path()) is None


def test_a_layer_that_only_moves_data_is_cured_where_its_result_is_read() -> None:
    # what TensorRT 8.6 said of a real ResNet whose first node resizes the picture: it takes the Q of the first Conv across the Resize
    model = quantized(3)
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "resize.scales")
    model.graph.initializer.append(scales)
    model.graph.node.insert(0, helper.make_node("Resize", ["x", "", "resize.scales"], ["resized"], name="/0/Resize", mode="nearest"))
    model.graph.node[1].input[0] = "resized"
    del model.graph.output[0].type.tensor_type.shape.dim[2:]
    found = remedies.without_layer(model, "/0/Resize", Path())
    assert found is not None
    freed, nodes = found
    assert nodes == ["conv1"]
    assert [node.name for node in freed.graph.node if node.op_type == "QuantizeLinear"] == ["conv2_QuantizeLinear", "conv3_QuantizeLinear"]


def computed(model: ModelProto, feeds: dict[str, Any]) -> Any:
    session: Any = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # type: ignore[attr-defined]
    return session.run(None, feeds)[0]


def test_dimensions_named_alike_get_names_of_their_own(python: str, work: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    alike = plain()
    for dim in alike.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    onnx.save(alike, path)
    built = TensorRt("tensorrt", python).build(path, RECIPE, work, Progress())
    assert built.warnings == ["Remedy: dimensions named alike and of unlike size (?) got names of their own."]
    changed = onnx.load(work / "changed" / "model.onnx").graph.input[0]
    assert [dim.dim_param for dim in changed.type.tensor_type.shape.dim] == ["x_d0", "x_d1", "x_d2", "x_d3"]


def test_dimensions_that_are_alike_keep_their_name() -> None:
    model = plain()
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "side"
    several = [{"min": [1, 3, side, side], "opt": [1, 3, side, side], "max": [1, 3, side, side]} for side in (8, 16)]
    assert remedies.separate_dimensions(model, [{"name": "x", "profiles": several}]) == []


# ---- a DLA ----


def test_q_dq_nodes_become_scales_beside_the_network() -> None:
    model = quantized(2)
    plain_model, scales = implicit(model, Path())
    assert is_plain(plain_model)
    # what stands before a Relu gets the Relu's: TensorRT fuses the two
    assert scales == pytest.approx({"x": 0.02, "conv1.relu": 0.02, "conv1.y": 0.02})
    given = {"x": np.random.default_rng(1).random((2, 3, 8, 8), np.float32)}
    assert 0 < np.abs(computed(model, given) - computed(plain_model, given)).max() < 0.1


def test_int8_for_a_dla_goes_through_the_worker(python: str, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(quantized(), path)
    recipe = RECIPE | {"precision": "int8", "dla": {"core": 0, "allowGpuFallback": True}}
    says = [("VERBOSE", "[DlaLayer] {ForeignNode[conv1...relu]}"), ("INFO", "[GpuLayer] SHUFFLE: a"), ("VERBOSE", "[GpuLayer] SHUFFLE: b")]
    monkeypatch.setenv("DOUBLE", json.dumps({"dlas": 1, "says": says}))
    built = TensorRt("tensorrt", python).build(path, recipe, work, Progress())
    assert built.warnings == [
        "DLA: the model's 3 scales were given beside a network without Q/DQ nodes.",
        "DLA: 2 of 3 layers of the network may run there, the others on the GPU.",
        "DLA: the engine has 1 parts for it and 2 layers for the GPU, as TensorRT tells.",
    ]
    monkeypatch.setenv("DOUBLE", "{}")
    with pytest.raises(EnvironmentFault, match="NoDLA"):
        TensorRt("tensorrt", python).build(path, recipe, work, Progress())
    onnx.save(plain(), path)
    with pytest.raises(PermanentError, match="DlaScales"):
        TensorRt("tensorrt", python).build(path, recipe, work, Progress())


# ---- pure ----


def test_what_a_file_says_of_its_precision() -> None:
    assert facts_of(plain()).precision == "fp32"
    assert facts_of(quantized()).precision == "int8"
    half = plain()
    half.graph.initializer.append(numpy_helper.from_array(np.array(1, np.float16), "half"))
    assert facts_of(half).precision == "fp16"
    eight = quantized()
    for tensor in eight.graph.initializer:
        if tensor.data_type == TensorProto.INT8:
            tensor.data_type = TensorProto.FLOAT8E4M3FN
    found = facts_of(eight)
    assert (found.quantized, found.float8, found.precision) == (False, True, "fp8")


def test_types_in_an_inspectors_words() -> None:
    assert tensor_type("Row major linear FP32") == "float"
    assert tensor_type("Channel major FP16 format where channel % 8 == 0") == "float16"
    assert tensor_type("Half") == "float16"
    assert tensor_type("Thirty-two wide channel vectorized row major Int8 format") == "int8"
    assert tensor_type("N/A due to dynamic shapes") == ""


def test_numbers_of_requests() -> None:
    assert workspace_bytes("auto") is None
    assert workspace_bytes("1.5Gi") == 3 << 29
    assert parser_opset("TensorRT 8.6.0") == 17
    assert parser_opset("TensorRT for RTX 1.7.1.116") is None
