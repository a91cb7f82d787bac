"""The reference server speaks the Open Inference Protocol v2, says what does not fit, and drains."""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from typer.testing import CliRunner

from enginefleet_api.errors import EngineFleetError, EnvironmentFault
from enginefleet_api.resources import Preprocessing
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.main import app
from enginefleet_builder.serve.app import make_app
from enginefleet_builder.serve.engine import load
from localcluster.ports import free_port
from tests.serve.support import REQUEST, write_engine, write_picture_engine


class Client:
    """Requests to an application without a socket."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)


@pytest.fixture
def client(tmp_path: Path) -> Client:
    write_engine(tmp_path)
    return Client(make_app(load(tmp_path), body_limit=10_000))


def test_health_and_metadata(client: Client) -> None:
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2").json()["name"] == "enginefleet"
    assert client.get("/v2/models/adder/ready").json() == {"name": "adder", "ready": True}
    model = client.get("/v2/models/adder").json()
    assert model["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert [output["datatype"] for output in model["outputs"]] == ["FP32", "INT64"]


@pytest.mark.parametrize(
    ("told", "given", "called"), [("adder", "", "adder"), ("adder", "yard-1", "yard-1"), ("", "yard-1", "yard-1"), ("", "", "model")]
)
def test_the_model_is_called_as_the_caller_says_else_as_the_manifest_does(tmp_path: Path, told: str, given: str, called: str) -> None:
    write_engine(tmp_path, model_name=told)
    client = Client(make_app(load(tmp_path, name=given)))
    assert client.get(f"/v2/models/{called}").json()["name"] == called
    assert client.post(f"/v2/models/{called}/infer", json=REQUEST).json()["model_name"] == called
    missed = client.get("/v2/models/other")
    assert (missed.status_code, f"expected '{called}'" in missed.json()["error"]) == (404, True)


def test_a_name_that_fits_no_address_is_refused(tmp_path: Path) -> None:
    write_engine(tmp_path)
    told = CliRunner().invoke(app, ["serve", "--engine", str(tmp_path), "--name", "a/b"])
    assert (told.exit_code, "NameNotPossible" in told.output) == (42, True)


def test_an_inference(client: Client) -> None:
    answer = client.post("/v2/models/adder/infer", json=REQUEST)
    assert answer.status_code == 200
    assert answer.json() == {
        "model_name": "adder",
        "model_version": "1",
        "id": "7",
        "outputs": [
            {"name": "sum", "datatype": "FP32", "shape": [2, 3], "data": [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]},
            {"name": "same", "datatype": "INT64", "shape": [1], "data": [9]},
        ],
    }


def test_only_the_outputs_that_are_asked_for(client: Client) -> None:
    answer = client.post("/v2/models/adder/infer", json=REQUEST | {"outputs": [{"name": "same"}]})
    assert [output["name"] for output in answer.json()["outputs"]] == ["same"]


def changed(index: int, **changes: Any) -> dict[str, Any]:
    request = copy.deepcopy(REQUEST)
    request["inputs"][index] |= changes
    return request


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "the body is a list"),
        ({}, "'inputs' must be a list"),
        ({"inputs": []}, "found the inputs none, expected 'x', 'y', 'count'"),
        (changed(0, name="z"), "found the inputs 'z', 'y', 'count', expected 'x', 'y', 'count'"),
        (changed(0, datatype="FP64"), "input 'x': found datatype 'FP64', expected 'FP32'"),
        (changed(0, shape=[3, 2]), "input 'x': found shape [3, 2], expected [-1, 3]"),
        (changed(0, shape=[2, 3, 1]), "input 'x': found shape [2, 3, 1], expected [-1, 3]"),
        (changed(0, shape=[-1, 3]), "input 'x': 'shape' must be a list of sizes, found [-1, 3]"),
        (changed(0, data=[1, 2]), "input 'x': found 2 values, shape [2, 3] needs 6"),
        (changed(0, data=[[1, 2], [3]]), "input 'x': 'data' is a list of unequal lists"),
        (changed(0, data=["a"] * 6), "input 'x': found values of type <U1, expected FP32"),
        (changed(2, data=[1.5]), "input 'count': found values of type float64, expected INT64"),
        (changed(2, data=[2**70]), "input 'count': found values of type object, expected INT64"),
        (REQUEST | {"outputs": [{"name": "z"}]}, "found the outputs 'z', the model has 'sum', 'same'"),
    ],
)
def test_what_does_not_fit_is_said_with_what_was_expected(client: Client, body: Any, said: str) -> None:
    answer = client.post("/v2/models/adder/infer", json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_a_body_that_is_no_json(client: Client) -> None:
    answer = client.post("/v2/models/adder/infer", content=b"{")
    assert (answer.status_code, "not JSON" in answer.json()["error"]) == (400, True)


def test_a_body_that_is_too_large(client: Client) -> None:
    assert client.post("/v2/models/adder/infer", content=b"x" * 10_001).status_code == 413


def test_another_model_and_another_path(client: Client) -> None:
    assert client.get("/v2/models/other").json() == {"error": "found the model name 'other', expected 'adder'"}
    assert client.get("/v3").status_code == 404
    assert client.get("/v2/models/adder/infer").status_code == 405


# ---- loading ----


def failure(folder: Path) -> EngineFleetError:
    with pytest.raises(EngineFleetError) as caught:
        load(folder)
    return caught.value


def test_an_engine_with_another_digest_is_not_loaded(tmp_path: Path) -> None:
    manifest = write_engine(tmp_path)
    with (tmp_path / "model.onnx").open("ab") as file:
        file.write(b"x")
    found = failure(tmp_path)
    assert (type(found), found.reason) == (EnvironmentFault, "EngineDamaged")
    assert manifest.blob in found.message


def test_an_engine_of_another_runtime_is_not_loaded(tmp_path: Path) -> None:
    facts = {"backend": "onnxruntime", "backendVersion": "1.0.0", "executionProvider": "CPU"}
    write_engine(tmp_path, facts=facts)
    found = failure(tmp_path)
    assert found.reason == "RuntimeMismatch"
    assert "proven with 1.0.0" in found.message


def test_a_folder_without_an_engine(tmp_path: Path) -> None:
    assert failure(tmp_path).reason == "EngineMissing"


# ---- the process ----


def png(array: np.ndarray[Any, Any]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


PREPROCESSING = Preprocessing(resize="letterbox", size=[8, 8], scale="1/255", mean=["0.5"], std=["0.25"])
PICTURES = [np.random.default_rng(number).integers(0, 255, (20, 12, 3), np.uint8) for number in range(2)]


@pytest.fixture
def pictures(tmp_path: Path) -> Client:
    write_picture_engine(tmp_path, preprocessing=PREPROCESSING)
    return Client(make_app(load(tmp_path), body_limit=100_000))


def ask_with(data: Any, shape: list[int], **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "images", "datatype": "BYTES", "shape": shape, "data": data} | more]}


def test_pictures_become_input_as_calibration_and_gate_make_it(pictures: Client) -> None:
    answer = pictures.post("/v2/models/pictures/infer", json=ask_with([png(p) for p in PICTURES], [2])).json()
    found = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
    expected = np.stack([Preprocessor.of(PREPROCESSING).picture(Image.fromarray(p)) for p in PICTURES])
    assert np.allclose(found, expected, atol=1e-6)
    assert pictures.get("/v2/models/pictures").json()["parameters"]["pictures"] == "BYTES"


@pytest.mark.parametrize(
    ("data", "shape", "says"),
    [
        ([png(PICTURES[0])], [2], "list of n base64 texts of shape [n], found shape [2]"),
        ("text", [1], "list of n base64 texts"),
        ([7], [1], "list of n base64 texts"),
        (["no base64!"], [1], "picture 0 is not base64"),
        ([base64.b64encode(b"GIF89a nothing").decode()], [1], "no readable picture"),
        ([png(PICTURES[0])[:400]], [1], "no readable picture"),
        ([png(np.zeros((5001, 5000), np.uint8))], [1], "5000 x 5001 pixels, at most 25000000 are decoded"),
    ],
)
def test_what_is_no_picture_is_answered_with_what_was_found(pictures: Client, data: Any, shape: list[int], says: str) -> None:
    response = pictures.post("/v2/models/pictures/infer", json=ask_with(data, shape))
    assert response.status_code == 400
    assert says in response.json()["error"]


def test_without_known_preprocessing_pictures_are_refused(client: Client, tmp_path: Path) -> None:
    write_picture_engine(tmp_path / "plain")
    plain = Client(make_app(load(tmp_path / "plain")))
    response = plain.post("/v2/models/pictures/infer", json=ask_with([png(PICTURES[0])], [1]))
    assert (response.status_code, "known preprocessing" in response.json()["error"]) == (400, True)


def test_sigterm_lets_an_inference_finish(tmp_path: Path) -> None:
    write_engine(tmp_path)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "enginefleet_builder.main", "serve", "--engine", str(tmp_path), "--host", "127.0.0.1", "--port", str(port)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "ENGINEFLEET_MODEL_NAME": "named"}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stderr is not None
        assert "serving named" in server.stderr.readline()
        body = json.dumps(REQUEST).encode()
        _until_up(urllib.request.Request(f"http://127.0.0.1:{port}/v2/health/ready"))
        with socket.create_connection(("127.0.0.1", port)) as slow:
            head = b"POST /v2/models/named/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            slow.sendall(head % len(body))
            # it is in flight when the server asks for the body
            assert slow.recv(100).startswith(b"HTTP/1.1 100")
            slow.sendall(body[:10])
            server.send_signal(signal.SIGTERM)
            _until_refused(port)
            slow.sendall(body[10:])
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()


def _until_up(request: urllib.request.Request) -> None:
    """The port is bound a moment after the announcement."""
    for _ in range(100):
        try:
            with urllib.request.urlopen(request):
                return
        except OSError:
            threading.Event().wait(0.1)
    raise AssertionError("the server does not answer")


def _until_refused(port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        threading.Event().wait(0.1)
    raise AssertionError("the server still takes connections")
