"""The child's side: `python -m enginefleet_builder.backends.ort_child` serves one parent until its standard input ends.

build {model, engine, threads, inline, provider, recipe}; load {engine, threads, level, provider, recipe}; run;
timings {warm_up, iterations, seconds}; profile {engine, threads, runs, folder, provider, recipe}. See frames.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..gate.arrays import Array
from . import ort_session
from .frames import serve
from .providers import PROVIDERS

MAX_ITERATIONS = 2_000_000
"""Bound of memory for a sustained run of tiny models."""


class Server:
    def __init__(self) -> None:
        self._session: ort_session.InferenceSession | None = None

    def answer(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[dict[str, Any], dict[str, Array]]:
        provider = PROVIDERS[header.get("provider", "CPU")]
        match header["do"]:
            case "build":
                model, engine = Path(header["model"]), Path(header["engine"])
                placed = ort_session.build(model, engine, header["threads"], header["inline"], provider, header["recipe"])
                return {"placement": placed}, {}
            case "load":
                session = ort_session.load(Path(header["engine"]), header["threads"], header["level"], provider, header["recipe"])
                self._session = session
                return {"inputs": ort_session.inputs(session), "outputs": ort_session.outputs(session)}, {}
            case "run":
                return {}, self._run(arrays)
            case "timings":
                return {}, {"seconds": self._timings(arrays, header["warm_up"], header["iterations"], header["seconds"])}
            case "profile":
                engine, folder = Path(header["engine"]), Path(header["folder"])
                ran = ort_session.profile(engine, header["threads"], arrays, header["runs"], folder, provider, header["recipe"])
                return {"nodes": ran}, {}
            case other:
                raise ValueError(f"unknown request {other!r}")

    def _loaded(self) -> ort_session.InferenceSession:
        if self._session is None:
            raise ValueError("no engine is loaded")
        return self._session

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        session = self._loaded()
        results = session.run(None, dict(feeds))
        return {item.name: np.asarray(result) for item, result in zip(session.get_outputs(), results, strict=True)}

    def _timings(self, feeds: Mapping[str, Array], warm_up: int, iterations: int, seconds: float) -> Array:
        session, named = self._loaded(), dict(feeds)
        for _ in range(warm_up):
            session.run(None, named)
        times: list[float] = []
        start = now = time.perf_counter()
        while (len(times) < iterations or now - start < seconds) and len(times) < MAX_ITERATIONS:
            session.run(None, named)
            before, now = now, time.perf_counter()
            times.append(now - before)
        return np.array(times, np.float64)


if __name__ == "__main__":
    serve(Server().answer)
