"""The worker against strict doubles of every recorded TensorRT, on a stand-in of CUDA's driver: what it calls, exists; what fails, is said."""

from __future__ import annotations

import ast
import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginefleet_builder.backends import frames
from tests.contract.doubles import RELEASES, Double, Tensor, surface_of
from tests.contract.worker import FOLDER, module

building, running, cuda, logs, failed, wire = (module(name) for name in ("building", "running", "cuda", "logs", "failed", "wire"))

FP32 = {"quantized": False, "float8": False, "types": ["float32"]}
BATCHES = [{"name": "x", "profiles": [{"min": [1, 4], "opt": [2, 4], "max": [4, 4]}, {"min": [8, 4], "opt": [8, 4], "max": [16, 4]}]}]


class Told:
    """What the worker sent while it worked."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.lines = logs.Lines(self.frames.append)
        self.said: list[tuple[Any, ...]] = []

    def say(self, *news: Any) -> None:
        self.said.append(news)


def build(
    trt: Double, folder: Path, told: Told, *, precision: str = "fp32", recipe: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    request = {"library": f"TensorRT {trt.release}", "model": "model.onnx", "engine": str(folder / "engine"), "precision": precision}
    answer: dict[str, Any] = building.build(
        trt, request | {"facts": FP32, "recipe": {"profiles": BATCHES} | (recipe or {})} | more, told.lines, told.say
    )
    return answer


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the stand-in of CUDA's driver")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = Path(__file__).parent / "standins" / "cuda_memory.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wno-unused-parameter", "-o", str(library), str(source)], check=True)
    return cuda.Device(library=str(library))


def load(trt: Double, device: Any, folder: Path, dla: Any = None) -> Any:
    return running.Engine(trt, device, str(folder / "engine"), (), Told().lines, dla=dla)


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_release_builds_and_runs_any_batch_of_its_profiles(release: str, device: Any, tmp_path: Path) -> None:
    trt, told = Double(release), Told()
    answer = build(trt, tmp_path, told)
    assert answer["size"] == len(b"a plan")
    assert trt.asked["profiles"] == [{"x": [(1, 4), (2, 4), (4, 4)]}, {"x": [(8, 4), (8, 4), (16, 4)]}]
    engine = load(trt, device, tmp_path)
    assert engine.described(engine.inputs) == [{"name": "x", "dtype": "float32", "shape": [None, 4]}]
    for batch in (1, 4, 8, 16, 3):
        given = np.random.default_rng(batch).random((batch, 4), np.float32)
        assert np.array_equal(engine.run({"x": given})["y"], given * 2)
    assert trt.state["profile"] == 0
    for batch in (5, 17):
        with pytest.raises(failed.Refused, match=rf"shape \[{batch}, 4\].*\[1, 4\] to \[4, 4\] or \[8, 4\] to \[16, 4\]"):
            engine.run({"x": np.zeros((batch, 4), np.float32)})
    with pytest.raises(failed.Refused, match="float64"):
        engine.run({"x": np.zeros((1, 4))})
    with pytest.raises(failed.Refused, match="no input x"):
        engine.run({})


def test_a_run_is_timed_with_and_without_transfers_and_as_a_graph(release: str, device: Any, tmp_path: Path) -> None:
    trt = Double(release)
    build(trt, tmp_path, Told())
    engine = load(trt, device, tmp_path)
    feeds = {"x": np.ones((2, 4), np.float32)}
    for transfers in (True, False):
        times, graph = engine.timings(feeds, 1, 7, 0, transfers, False)
        assert len(times["seconds"]) == len(times["enqueue"]) == 7
        assert not graph
        assert (times["seconds"] > 0).all()
    before = trt.state["runs"]
    _, graph = engine.timings(feeds, 1, 7, 0, False, True)
    assert graph
    # one to know the shapes, one while it is captured: the others launch the graph
    assert trt.state["runs"] == before + 2


def test_layers_and_their_times(release: str, device: Any, tmp_path: Path) -> None:
    trt = Double(release)
    build(trt, tmp_path, Told())
    engine = load(trt, device, tmp_path)
    assert engine.inspect()["Layers"][0]["Name"] == "double"
    assert engine.profile({"x": np.ones((2, 4), np.float32)}, 5) == {"double": [0.00025] * 5}


@pytest.mark.parametrize("release", ["8.6.0", "10.3.0", "RTX 1.7.1"])
def test_an_output_whose_shape_hangs_on_the_data(release: str, device: Any, tmp_path: Path) -> None:
    trt = Double(release, fails="data-dependent")
    build(trt, tmp_path, Told())
    engine = load(trt, device, tmp_path)
    given = np.array([[-1, 2, 3, -4], [5, -6, -7, 8]], np.float32)
    assert engine.run({"x": given})["y"].tolist() == [4, 6, 10, 16]
    assert engine.run({"x": -given})["y"].tolist() == [2, 8, 12, 14]
    assert engine.run({"x": np.full((1, 4), -1, np.float32)})["y"].tolist() == []
    many = np.ones((4, 4), np.float32)
    assert engine.run({"x": many})["y"].tolist() == [2] * 16
    _, graph = engine.timings({"x": given}, 1, 3, 0, True, True)
    assert not graph


def test_an_input_that_holds_a_shape_is_read_on_the_host(device: Any, tmp_path: Path) -> None:
    trt = Double("8.6.0", inputs=[Tensor("x", [-1, 4]), Tensor("size", [2], "INT32", shape_tensor=True)])
    sizes = {"name": "size", "profiles": [{"min": [1, 1], "opt": [32, 32], "max": [64, 64]}]}
    assert build(trt, tmp_path, Told(), recipe={"profiles": [*BATCHES, sizes]})["shape_tensors"] == ["size"]
    assert trt.asked["profiles"][1]["size"] == {"values": [[1, 1], [32, 32], [64, 64]]}
    engine = load(trt, device, tmp_path)
    # the model's type is int64, TensorRT's up to 8.6 int32
    engine.run({"x": np.ones((1, 4), np.float32), "size": np.array([16, 24], np.int64)})
    assert np.array_equal(np.frombuffer(ctypes.string_at(trt.state["at"]["size"], 8), np.int32), [16, 24])
    with pytest.raises(failed.Refused, match="int64"):
        engine.run({"x": np.ones((1, 4), np.float32), "size": np.array([1 << 40, 1], np.int64)})


def test_bfloat16_is_float32_to_clients(device: Any, tmp_path: Path) -> None:
    trt = Double("10.3.0", inputs=[Tensor("x", [-1, 4], "BF16")])
    build(trt, tmp_path, Told())
    engine = load(trt, device, tmp_path)
    assert engine.described(engine.outputs)[0]["dtype"] == "float32"
    given = np.array([[1.0, -2.5, 3.14159, 1e30]], np.float32)
    engine.place({"x": given})
    rounded = running.from_bits(running.to_bits(given))
    assert np.abs(rounded / given - 1).max() < 2**-8
    assert rounded[0, :2].tolist() == [1.0, -2.5]


def test_memory_comes_back(device: Any, tmp_path: Path) -> None:
    trt = Double("10.3.0")
    build(trt, tmp_path, Told())
    held = device.library.standin_held
    held.restype = ctypes.c_size_t
    engine = load(trt, device, tmp_path)
    for batch in (16, 1, 16, 4):
        engine.run({"x": np.ones((batch, 4), np.float32)})
    before = held()
    for _ in range(10):
        engine.run({"x": np.ones((16, 4), np.float32)})
    assert held() == before


def test_how_a_build_fails(tmp_path: Path) -> None:
    for fails, doing in (("start", "start"), ("parse", "parse"), ("build", "build")):
        trt = Double("8.6.0", fails=fails, says=[("ERROR", "the first"), ("ERROR", "the second")])
        with pytest.raises(failed.Failed) as caught:
            build(trt, tmp_path, Told())
        assert caught.value.doing == doing
        assert caught.value.lines
        if fails == "build":
            assert caught.value.lines == ["[E] the first", "[E] the second"]
    assert not (tmp_path / "engine").exists()


def test_what_is_no_plan_is_none_and_said(release: str, device: Any, tmp_path: Path) -> None:
    (tmp_path / "engine").write_bytes(b"\x00 something else")
    with pytest.raises(failed.Failed) as caught:
        load(Double(release), device, tmp_path)
    assert caught.value.doing == "load"
    assert caught.value.lines == ["[E] incompatible serialization version"]


def test_progress_rises_through_nested_phases(tmp_path: Path) -> None:
    told = Told()
    build(Double("10.3.0"), tmp_path, told)
    shares = [share for stage, share, *_ in told.said if stage == "build" and share is not None]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.125 in shares
    assert 0.5 in shares


def test_without_a_monitor_timed_layers_are_counted(tmp_path: Path) -> None:
    told = Told()
    says = [("VERBOSE", f"--------------- Timing Runner: /conv{index}/Conv (CaskConvolution[0x80000009])") for index in (1, 1, 2)]
    build(Double("8.6.0", says=says), tmp_path, told)
    assert [done for stage, _, _, *done in told.said if stage == "build"] == [[], [1], [1], [2]]


def test_tactics_that_memory_did_not_suffice_for_are_counted(tmp_path: Path) -> None:
    says = [
        ("WARNING", "Skipping tactic 3 due to insufficient memory on requested size of 4294967296 detected for tactic 0x3e2b881168d9689d."),
        ("VERBOSE", "Skipping tactic 4 due to Myelin error: out of memory."),
    ]
    assert build(Double("8.6.0", says=says), tmp_path, Told())["skipped_for_memory"] == 2
    assert build(Double("8.6.0"), tmp_path, Told())["skipped_for_memory"] == 0


def test_a_damaged_timing_cache_is_left_aside(release: str, tmp_path: Path) -> None:
    cache, kept = tmp_path / "cache", tmp_path / "kept"
    sound = f"timing cache of {release}".encode()
    for content, used in ((b"damaged", False), (sound, True)):
        cache.write_bytes(content)
        told, trt = Told(), Double(release)
        answer = build(trt, tmp_path, told, timing_cache=str(cache), timing_cache_out=str(kept))
        assert answer["timing_cache"] == {"used": used, "kept": len(sound)}
        assert trt.asked["mismatch"] is False
        assert kept.read_bytes() == sound
        assert any("timing cache" in line for line in answer["warnings"]) != used


@pytest.mark.parametrize(
    ("inputs", "profiles", "reason", "words"),
    [
        ([Tensor("x", [-1, 4])], [], "MissingProfile", "the inputs x have dynamic dimensions"),
        ([Tensor("x", [-1, 5])], BATCHES, "ShapeRefused", r"input x has the shape \[-1, 5\]"),
        ([Tensor("x", [2, 4])], BATCHES, "ShapeRefused", r"input x has the fixed shape \[2, 4\]"),
    ],
)
def test_shapes_that_do_not_go_with_the_model(inputs: list[Tensor], profiles: Any, reason: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(failed.Refused, match=words) as caught:
        build(Double("8.6.0", inputs=inputs), tmp_path, Told(), recipe={"profiles": profiles})
    assert caught.value.reason == reason


def test_a_dla_that_is_not_there_and_a_plugin_that_is_not(tmp_path: Path) -> None:
    with pytest.raises(failed.Refused, match="finds no DLA"):
        build(Double("8.6.0"), tmp_path, Told(), precision="fp16", recipe={"dla": {"core": 0, "allowGpuFallback": True}})
    with pytest.raises(failed.Refused, match=r"DLA core 1 was asked for, TensorRT .* finds 1 here"):
        build(Double("8.6.0", dlas=1), tmp_path, Told(), precision="fp16", recipe={"dla": {"core": 1}})
    with pytest.raises(failed.Refused, match=r"/no/such\.so cannot be loaded"):
        build(Double("8.6.0"), tmp_path, Told(), recipe={"plugins": ["/no/such.so"]})


@pytest.mark.parametrize(("release", "number"), [("8.6.0", 8600), ("10.3.0", 100300), ("10.7.0", 100700)])
def test_scales_reach_a_dla_as_a_calibration_cache(release: str, number: int, tmp_path: Path) -> None:
    trt = Double(release, dlas=2)
    recipe = {"dla": {"core": 1, "allowGpuFallback": True}}
    answer = build(trt, tmp_path, Told(), precision="int8", recipe=recipe, scales={"b": 0.5, "a": 1.0}, version=release)
    assert (answer["on_dla"], answer["layers"]) == (2, 3)
    assert trt.config.was_set["default_device_type"].name == "DLA"
    assert trt.config.was_set["DLA_core"] == 1
    calibrator = trt.config.was_set["int8_calibrator"]
    assert calibrator.read_calibration_cache() == f"TRT-{number}-EntropyCalibration2\na: 3f800000\nb: 3f000000\n".encode()
    assert calibrator.get_batch(["x"]) is None
    assert calibrator.get_batch_size() == 1


@pytest.mark.parametrize(("dla", "core"), [(None, None), ({"core": 1}, 1), ({"allowGpuFallback": True}, 0)])
def test_an_engine_is_loaded_on_the_dla_that_it_was_built_for(device: Any, dla: Any, core: int | None, tmp_path: Path) -> None:
    trt = Double("10.3.0", dlas=2)
    (tmp_path / "engine").write_bytes(b"a plan")
    load(trt, device, tmp_path, dla)
    assert trt.runtime.was_set.get("DLA_core") == core


def test_both_ends_speak_the_same_frames() -> None:
    arrays: dict[str, Any] = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([], np.int64), "c": np.array(True)}
    pairs: list[tuple[Any, Any]] = [(frames, wire), (wire, frames)]
    for send, take in pairs:
        data = b"".join(send.encode({"do": "run", "text": "ü"}, arrays))
        view = memoryview(data)

        def read(size: int) -> bytes:
            nonlocal view
            part, view = bytes(view[:size]), view[size:]
            return part

        header, found = take.decode(read)
        assert header == {"do": "run", "text": "ü"}
        assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
            name: (array.dtype, array.tolist()) for name, array in arrays.items()
        }
        assert not view
    assert frames.MAX_HEADER == wire.MAX_HEADER


def test_the_folder_is_python_3_8_and_needs_numpy_alone() -> None:
    files = sorted(FOLDER.glob("*.py"))
    own = {file.stem for file in files}
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        others = {name.partition(".")[0] for name in names} - own - sys.stdlib_module_names - {"numpy"}
        assert not others, f"{file.name} imports {others}"


def test_doubles_are_strict() -> None:
    builder = Double("11.4.0").Builder(None)
    with pytest.raises(AttributeError, match="Builder has no platform_has_fast_int8"):
        _ = builder.platform_has_fast_int8
    with pytest.raises(AttributeError, match="IBuilderConfig has no int8_calibrator"):
        builder.create_builder_config().int8_calibrator = None
    with pytest.raises(AttributeError):
        _ = Double("11.4.0").BuilderFlag.FP16
    assert {"shape", "is_shape_tensor", "dtype"} <= surface_of("8.6.0")["ITensor"] & surface_of("11.4.0")["ITensor"]
