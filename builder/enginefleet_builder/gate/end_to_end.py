"""From stored pictures to predictions: what decoding, preprocessing and postprocessing cost beside the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from enginefleet_api.documents import EndToEnd

from ..backends.base import Session
from .arrays import Array
from .latency import runs, spread
from .preprocessing import Preprocessor
from .samples import Dataset
from .tasks import Task

ROUNDS = 100
LONGEST = 10.0
"""Seconds: slow models get fewer rounds."""


def measure(
    session: Session,
    dataset: Dataset,
    task: Task,
    preprocessor: Preprocessor,
    batch: int,
    check: Callable[[], None],
    *,
    cuda_graph: bool = False,
) -> EndToEnd | None:
    """Batches of `batch` samples in the data set's order, as our own code makes and reads them. None: outputs have no batch axis.

    The model's share is measured in the engine's own process: handing arrays over to it is the judge's way of doing it, not a server's.
    """
    rounds: list[tuple[float, float, float, float]] = []
    pictures = False
    began = time.monotonic()
    while len(rounds) < ROUNDS and (time.monotonic() - began < LONGEST or not rounds):
        check()
        indices = [dataset.at(len(rounds) * batch + place) for place in range(batch)]
        started = time.perf_counter()
        decoded = [dataset.picture(index) for index in indices]
        images = [image for image in decoded if image is not None]
        pictures = len(images) == batch and len(session.inputs) == 1
        read = time.perf_counter() if pictures else started
        if pictures:
            name, dtype = session.inputs[0].name, session.inputs[0].dtype
            feeds = {name: np.stack([preprocessor.picture(image) for image in images]).astype(dtype, copy=False)}
        else:
            feeds = dataset.feed(indices, session.inputs)
        ready = time.perf_counter()
        infer = float(runs(session, feeds, iterations=1, seconds=0, cuda_graph=cuda_graph).seconds[0])
        outputs = session.run(feeds)
        if any(output.ndim < 1 or len(output) != batch for output in outputs.values()) and batch > 1:
            return None
        shape = next(iter(feeds.values())).shape[1:]
        answered = time.perf_counter()
        for place, index in enumerate(indices):
            task.record(_sample(outputs, place, batch), index, shape)
        rounds.append((read - started, ready - read, infer, time.perf_counter() - answered))
    return _summary(rounds, pictures)


def _sample(outputs: dict[str, Array], place: int, batch: int) -> dict[str, Array]:
    """One sample's outputs without the batch axis; of a batch of 1 some detectors have none."""
    return {name: output[place] if batch > 1 or (output.ndim and len(output) == 1) else output for name, output in outputs.items()}


def _summary(rounds: Sequence[tuple[float, float, float, float]], pictures: bool) -> EndToEnd:
    stages = np.array(rounds, np.float64)
    decode, preprocess, infer, postprocess = (spread(column) for column in stages.T)
    whole = spread(stages.sum(axis=1))
    return EndToEnd(decode=decode if pictures else None, preprocess=preprocess, infer=infer, postprocess=postprocess, whole=whole)
