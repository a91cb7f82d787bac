"""The process that holds an engine: what its death means, and how it is ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_builder.backends.child import CLOSE_SECONDS
from enginefleet_builder.backends.classify import crashed, oom_kills, refused
from enginefleet_builder.backends.onnxruntime import open_session
from enginefleet_builder.backends.registry import backend_for
from enginefleet_builder.backends.threads import resolve_threads
from enginefleet_builder.io import Cancellation, Progress
from tests.builder.models import classifier, save_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(classifier(), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("number", "kind", "reason"),
    [
        (signal.SIGSEGV, PermanentError, "EngineCrashed"),
        (signal.SIGABRT, PermanentError, "EngineCrashed"),
        (signal.SIGILL, EnvironmentFault, "IllegalInstruction"),
        (signal.SIGKILL, TransientFault, "EngineProcessKilled"),
    ],
)
def test_a_crash_is_a_classified_failure(model: Path, number: signal.Signals, kind: type[EngineFleetError], reason: str) -> None:
    with open_session(model, "1", Progress()) as session:
        os.kill(session.pid, number)
        with pytest.raises(kind) as caught:
            session.run({"x": np.zeros((1, 1, 8, 8), np.float32)})
    assert reason == caught.value.reason
    assert number.name in caught.value.message or reason == "IllegalInstruction"


def test_a_wrong_shape_is_refused_and_the_engine_lives_on(model: Path) -> None:
    with open_session(model, "1", Progress()) as session:
        with pytest.raises(PermanentError, match="ShapeRefused"):
            session.run({"x": np.zeros((1, 1, 9, 9), np.float32)})
        assert session.run({"x": np.zeros((2, 1, 8, 8), np.float32)})["scores"].shape == (2, 4)


def test_what_is_no_engine(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"\x00\x01 no engine")
    with pytest.raises(PermanentError, match="NotAnEngine"), open_session(path, "1", Progress()):
        pass


def test_cancelling_ends_a_process_that_is_busy(model: Path) -> None:
    """A measurement of an hour is left within a second, and its process is gone."""
    cancellation = Cancellation()
    with ExitStack() as stack:
        session = stack.enter_context(open_session(model, "1", Progress(cancellation)))
        threading.Timer(0.5, cancellation.cancel, [TransientFault("Terminated", "asked to end.")]).start()
        started, pid = time.monotonic(), session.pid
        with pytest.raises(TransientFault, match="Terminated"):
            session.timings({"x": np.zeros((1, 1, 8, 8), np.float32)}, warm_up=1, iterations=1, seconds=3600)
        stack.close()
    assert time.monotonic() - started < CLOSE_SECONDS, "it is not asked to end, which it would not hear"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_timings_are_of_single_runs(model: Path) -> None:
    with open_session(model, "1", Progress()) as session:
        times = session.timings({"x": np.zeros((1, 1, 8, 8), np.float32)}, warm_up=1, iterations=50, seconds=0)
    assert (times > 0).all()
    assert len(times) == 50


def test_outputs_of_the_optimized_engine_are_the_models(model: Path, tmp_path: Path) -> None:
    backend, feeds = backend_for("onnxruntime"), {"x": np.random.default_rng(0).random((4, 1, 8, 8), np.float32)}
    engine = backend.build(model, {"threads": "1"}, tmp_path, Progress())
    with backend.load(engine.file, {"threads": "1"}, Progress()) as built, open_session(model, "1", Progress()) as given:
        assert np.allclose(built.run(feeds)["scores"], given.run(feeds)["scores"], atol=1e-6)


def test_external_data_becomes_part_of_the_one_file(tmp_path: Path) -> None:
    model = save_model(classifier(), tmp_path / "model" / "model.onnx", external="weights.bin")
    work = tmp_path / "work"
    work.mkdir()
    engine = backend_for("onnxruntime").build(model, {}, work, Progress())
    assert ["engine.onnx"] == [file.name for file in work.iterdir()]
    (model.parent / "weights.bin").unlink()
    with open_session(engine.file, "1", Progress()) as session:
        assert session.outputs[0].name == "scores"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : Fatal error: acme:Sparkle(-1) is not a registered function/op", "UnsupportedOp"),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Conv(11)", "NoImplementation"),
        ("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model failed:Protobuf parsing failed.", "NotAnEngine"),
        ("std::bad_alloc", "OutOfMemory"),
        ("OSError: [Errno 28] No space left on device", "DiskFull"),
        ("something new", "NotLoadable"),
    ],
)
def test_texts_of_onnx_runtime(text: str, reason: str) -> None:
    assert reason == refused(text, "load").reason


def test_killed_for_memory_is_permanent_and_a_bare_exit_shows_the_last_lines() -> None:
    assert crashed(-signal.SIGKILL, "", out_of_memory=True).reason == "OutOfMemory"
    assert "the last words" in crashed(3, "first\nthe last words\n").message


def test_the_kernels_kill_counter_is_read(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    assert oom_kills(tmp_path) == 2
    assert oom_kills(tmp_path / "none") == 0


def host(root: Path, cores: list[tuple[int, int]], quota: str | None) -> Path:
    for cpu, (package, core) in enumerate(cores):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{package}\n")
        (folder / "core_id").write_text(f"{core}\n")
    (root / "sys/fs/cgroup").mkdir(parents=True)
    if quota is not None:
        (root / "sys/fs/cgroup/cpu.max").write_text(quota)
    return root


@pytest.mark.parametrize(
    ("cpus", "quota", "threads"),
    [
        ([0, 1, 2, 3], None, 2),
        ([0, 1, 2, 3], "max 100000\n", 2),
        ([0, 2], "max 100000\n", 2),
        ([0, 1], "max 100000\n", 1),
        ([0, 1, 2, 3], "150000 100000\n", 2),
        ([0, 1, 2, 3], "50000 100000\n", 1),
    ],
    ids=["two hyper-threaded cores", "no limit", "one cpu of each core", "both of one core", "a limit of 1.5", "a limit of 0.5"],
)
def test_auto_threads(tmp_path: Path, cpus: list[int], quota: str | None, threads: int) -> None:
    root = host(tmp_path, [(0, 0), (0, 0), (0, 1), (0, 1)], quota)
    assert threads == resolve_threads("auto", cpus, root)


def test_threads_that_are_given_are_taken() -> None:
    assert resolve_threads("7") == 7
