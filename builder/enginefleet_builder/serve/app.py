"""The HTTP side of the reference server."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from importlib import metadata
from typing import Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from enginefleet_api.errors import EngineFleetError

from .engine import Engine
from .protocol import BadRequest, answer, parse_inputs, parse_outputs
from .worker import SENDERS_FAULT

BODY_LIMIT = 64 << 20
DRAIN_SECONDS = 25
"""Requests in flight at SIGTERM may take this long; pods have 30 s by default."""
CONCURRENT = 4
"""Inferences at a time; more wait. ONNX Runtime uses all cores for one."""


def make_app(engine: Engine, body_limit: int = BODY_LIMIT) -> Starlette:
    slots = CapacityLimiter(CONCURRENT)
    picture = engine.picture if engine.preprocessor is not None else None

    async def server(_request: Request) -> Response:
        return JSONResponse({"name": "enginefleet", "version": _version(), "extensions": []})

    async def live(_request: Request) -> Response:
        # a lost CUDA context or a crash is cured by a new process only: the kubelet starts one
        return JSONResponse({"live": True}) if engine.fault is None else _error(503, str(engine.fault))

    async def ready(_request: Request) -> Response:
        # The engine is loaded before the server listens.
        return JSONResponse({"ready": True}) if engine.fault is None else _error(503, str(engine.fault))

    async def model(_request: Request) -> Response:
        return JSONResponse(
            {
                "name": engine.name,
                "versions": ["1"],
                "platform": engine.platform,
                "inputs": [tensor.describe() for tensor in engine.inputs],
                "outputs": [tensor.describe() for tensor in engine.outputs],
                "parameters": {
                    "engine": engine.manifest.blob,
                    "fingerprint": engine.manifest.fingerprint,
                    "pictures": "BYTES" if picture is not None else "",
                },
            }
        )

    async def model_ready(_request: Request) -> Response:
        return JSONResponse({"name": engine.name, "ready": True}) if engine.fault is None else _error(503, str(engine.fault))

    async def infer(request: Request) -> Response:
        body = await _read(request, body_limit)
        if body is None:
            return _error(413, f"the body is larger than {body_limit} bytes")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            return _error(400, f"the body is not JSON: {error}")
        try:
            # pictures take their time to decode
            feeds = await to_thread.run_sync(parse_inputs, value, engine.inputs, picture, limiter=slots)
            outputs = parse_outputs(value, engine.outputs)
        except BadRequest as error:
            return _error(400, str(error))
        request_id = value.get("id")
        try:
            arrays = await to_thread.run_sync(engine.run, [tensor.name for tensor in outputs], feeds, limiter=slots)
        except EngineFleetError as error:
            return _error(400 if error.reason == SENDERS_FAULT else 503, str(error))
        return JSONResponse(answer(engine.name, None if request_id is None else str(request_id), outputs, arrays))

    def named(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
        async def checked(request: Request) -> Response:
            name = request.path_params["model"]
            if name != engine.name:
                return _error(404, f"found the model name {name!r}, expected {engine.name!r}")
            response: Response = await handler(request)
            return response

        return checked

    return Starlette(
        routes=[
            Route("/v2", server),
            Route("/v2/health/live", live),
            Route("/v2/health/ready", ready),
            Route("/v2/models/{model}", named(model)),
            Route("/v2/models/{model}/ready", named(model_ready)),
            Route("/v2/models/{model}/infer", named(infer), methods=["POST"]),
        ],
        exception_handlers={404: _not_found, 405: _not_found, 500: _internal},
    )


def serve(engine: Engine, host: str, port: int) -> None:
    """Serve until SIGTERM, then finish what is in flight."""
    # uvicorn raises the signal again once it has drained; a handler of our own makes that the end of this function, not of the process.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        uvicorn.run(make_app(engine), host=host, port=port, log_level="warning", timeout_graceful_shutdown=DRAIN_SECONDS)
    finally:
        engine.close()


async def _read(request: Request, limit: int) -> bytes | None:
    """The body, or None when it is larger than `limit`; stops reading there."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)


async def _not_found(request: Request, error: Exception) -> Response:
    return _error(getattr(error, "status_code", 404), f"no {request.method} {request.url.path} here; see GET /v2")


async def _internal(_request: Request, error: Exception) -> Response:
    return _error(500, f"inference failed: {type(error).__name__}: {str(error)[:400]}")


def _version() -> str:
    try:
        return metadata.version("enginefleet")
    except metadata.PackageNotFoundError:
        return "unknown"
