"""A client of the Open Inference Protocol, and a poller that asks all the time and counts what went wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from demo.kube import KubeError

Array = NDArray[np.float32]


def load_samples(path: Path) -> tuple[Array, NDArray[np.int64]]:
    """Samples and labels of an .npz, under the names that validation data may use."""
    with np.load(path) as data:
        samples = next(data[name] for name in ("images", "X", "x", "Xt", "data") if name in data)
        labels = next(data[name] for name in ("labels", "y", "yt", "targets") if name in data)
    return samples.astype(np.float32), labels.astype(np.int64)


def ask(address: str, method: str, path: str, body: object = None, timeout: float = 5.0) -> Any:
    """The JSON answer; OSError when there is none, or it is not a 200."""
    host, _, port = address.rpartition(":")
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=timeout)) as connection:
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
    if response.status != http.HTTPStatus.OK:
        raise ConnectionError(f"{method} {path}: {response.status} {text.decode(errors='replace')[:300]}")
    return json.loads(text)


def infer(address: str, model: str, samples: Array) -> NDArray[np.int64]:
    """The class of each sample: POST /v2/models/<model>/infer."""
    spec = ask(address, "GET", f"/v2/models/{model}")["inputs"][0]
    tensor = {"name": spec["name"], "shape": list(samples.shape), "datatype": "FP32", "data": [float(value) for value in samples.ravel()]}
    output = ask(address, "POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})["outputs"][0]
    scores = np.asarray(output["data"], dtype=np.float32).reshape(output["shape"])
    best: NDArray[np.int64] = np.argmax(scores.reshape(len(samples), -1), axis=1)
    return best


def picture(sample: Array) -> str:
    """A digit as text, two rows of pixels a line."""
    plane = sample.reshape(sample.shape[-2:]) if sample.ndim >= 2 else sample.reshape(28, 28)
    level = (plane - plane.min()) / max(float(plane.max() - plane.min()), 1e-6)
    rows = level[::2] if len(level) % 2 else (level[::2] + level[1::2]) / 2
    shades = " .:*#"
    return "\n".join("".join(shades[min(4, int(value * 5))] for value in row).rstrip() for row in rows if row.max() > 0.2)


class Poller:
    """Asks again and again in a thread, each time at the address that `where()` gives; a context manager."""

    def __init__(self, where: Callable[[], str], model: str, samples: Array) -> None:
        self._where, self._model, self._samples = where, model, samples
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers: list[float] = []
        """Monotonic times of good answers."""
        self.failures: list[tuple[float, str]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(10)

    def until(self, moment: float) -> tuple[int, list[str]]:
        """How many good answers, and which failures, before a moment."""
        return sum(at < moment for at in self.answers), [why for at, why in self.failures if at < moment]

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            asked_at = time.monotonic()
            try:
                infer(self._where(), self._model, self._samples)
                self.answers.append(asked_at)
            except (OSError, LookupError, ValueError, KubeError) as error:
                self.failures.append((asked_at, str(error)))
