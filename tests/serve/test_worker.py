"""Engines that run in a process of their own: shown with ONNX Runtime's, which is the same seam that TensorRT's worker stands behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError
from enginefleet_api.jobs import EngineManifest
from enginefleet_builder.backends.onnxruntime import OnnxRuntime
from enginefleet_builder.serve.app import make_app
from enginefleet_builder.serve.engine import Engine, load
from enginefleet_builder.serve.protocol import Tensor
from enginefleet_builder.serve.worker import WorkerSession
from tests.serve.support import REQUEST, write_engine

FEEDS: dict[str, Any] = {"x": np.ones((2, 3), np.float32), "y": np.ones((1, 3), np.float32), "count": np.array([9], np.int64)}
TENSORS = (Tensor("x", "FP32", (-1, 3)), Tensor("y", "FP32", (1, 3)), Tensor("count", "INT64", (1,)))


@pytest.fixture
def session(tmp_path: Path) -> Iterator[WorkerSession]:
    write_engine(tmp_path)
    opened = WorkerSession(lambda progress: OnnxRuntime().load(tmp_path / "model.onnx", {"threads": "1"}, progress))
    yield opened
    opened.close()


def pid(session: WorkerSession) -> int:
    return int(session._session.pid)  # type: ignore[attr-defined]


def test_it_answers_the_outputs_that_are_asked_for(session: WorkerSession) -> None:
    same, total = session.run(["same", "sum"], FEEDS)
    assert (same.tolist(), total.tolist()) == ([9], [[2.0] * 3] * 2)


def test_threads_take_turns(session: WorkerSession) -> None:
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        found[number] = session.run(["same"], FEEDS | {"count": np.array([number], np.int64)})[0].tolist()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [number] for number in range(20)}


def test_inputs_that_do_not_fit_are_the_senders_fault_alone(session: WorkerSession) -> None:
    with pytest.raises(EngineFleetError) as caught:
        session.run(["sum"], FEEDS | {"x": np.ones((2, 4), np.float32)})
    assert caught.value.reason == "ShapeRefused"
    assert session.fault is None
    assert session.run(["same"], FEEDS)[0].tolist() == [9]


def app(session: WorkerSession) -> Any:
    manifest = EngineManifest(engine_key="e", blob="sha256:b", size=1, fingerprint="fp-1", file="model.plan", facts={"backend": "tensorrt"})
    return make_app(Engine("adder", manifest, session, TENSORS, (Tensor("sum", "FP32", (-1, 3)), Tensor("same", "INT64", (1,)))))


def asked(session: WorkerSession, *requests: tuple[str, str, Any]) -> list[httpx.Response]:
    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app(session)), base_url="http://server") as client:
            return [await client.request(method, path, json=body) for method, path, body in requests]

    return asyncio.run(ask())


def test_a_process_that_died_makes_the_server_end_its_life(session: WorkerSession) -> None:
    model, answer = asked(session, ("GET", "/v2/models/adder", None), ("POST", "/v2/models/adder/infer", REQUEST))
    assert (model.json()["platform"], answer.json()["outputs"][0]["data"]) == ("tensorrt_plan", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5])
    os.kill(pid(session), signal.SIGKILL)
    infer, live, ready, again = asked(
        session, ("POST", "/v2/models/adder/infer", REQUEST), ("GET", "/v2/health/live", None), ("GET", "/v2/health/ready", None),
        ("POST", "/v2/models/adder/infer", REQUEST),
    )  # fmt: skip
    assert [answer.status_code for answer in (infer, live, ready, again)] == [503] * 4
    assert "EngineProcessKilled" in live.json()["error"]


def test_a_process_that_hangs_is_a_fault_too_and_is_ended(tmp_path: Path) -> None:
    write_engine(tmp_path)
    session = WorkerSession(lambda progress: OnnxRuntime().load(tmp_path / "model.onnx", {"threads": "1"}, progress), patience=0.3)
    process = pid(session)
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(EngineFleetError, match=r"longer than 0\.3 s"):
        session.run(["same"], FEEDS)
    assert session.fault is not None
    assert session.fault.reason == "InferenceHung"
    session.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_loading_may_take_longer_than_a_run(tmp_path: Path) -> None:
    write_engine(tmp_path)
    session = WorkerSession(lambda progress: OnnxRuntime().load(tmp_path / "model.onnx", {"threads": "1"}, progress), patience=0.001)
    session.close()
    with pytest.raises(EngineFleetError, match="ending"):
        session.run(["same"], FEEDS)


def test_an_interpreter_that_has_no_tensorrt_is_the_images_fault(tmp_path: Path) -> None:
    write_engine(tmp_path, facts={"backend": "tensorrt", "backendVersion": "10.3.0.30"})
    with pytest.raises(EnvironmentFault) as caught:
        load(tmp_path, python="/nonexistent/python3")
    assert caught.value.reason == "RuntimeMissing"


@pytest.mark.parametrize("file", ["../model.onnx", "/etc/passwd"])
def test_a_manifest_that_points_out_of_its_folder_is_refused(tmp_path: Path, file: str) -> None:
    write_engine(tmp_path, file=file)
    with pytest.raises(EnvironmentFault, match="outside of its folder"):
        load(tmp_path)


def test_an_engine_below_the_folder_is_found(tmp_path: Path) -> None:
    write_engine(tmp_path, file="models/adder/1/model.onnx", layout="triton")
    (tmp_path / "models/adder/1").mkdir(parents=True)
    (tmp_path / "model.onnx").rename(tmp_path / "models/adder/1/model.onnx")
    assert load(tmp_path).name == "adder"


def test_a_backend_that_this_server_does_not_know_is_refused(tmp_path: Path) -> None:
    write_engine(tmp_path, facts={"backend": "nothing"})
    with pytest.raises(PermanentError, match="BackendUnknown"):
        load(tmp_path)
