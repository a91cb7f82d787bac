"""The FP32 baseline: how the model as given does on the validation set, in ONNX Runtime on a CPU."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import numpy as np
import onnx

from enginefleet_api.documents import Baseline, Metric
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import InputSpec, Validation

from ..backends.onnxruntime import open_session
from ..gate import metrics, score
from ..gate.arrays import Array
from ..gate.chance import guessing
from ..gate.decoders import require_task
from ..gate.evaluate import evaluate
from ..gate.samples import Dataset, stratified
from ..gate.tasks import Record, open_task
from ..io import Progress
from .findings import named

KEPT_SAMPLES = 64
"""Samples whose outputs are kept, to tell how far an engine's lie from them."""
KEPT_SAMPLES_OUTPUTS = 1000
"""The same for task `outputs`, which is judged by nothing else."""


def compute(
    model: Path,
    key: str,
    digests: tuple[str, str],
    validation: Validation,
    dataset: Dataset,
    profiles: Sequence[InputSpec],
    progress: Progress,
) -> Baseline:
    """`digests`: of the model and of the validation set. Raises PermanentError `NonFiniteOutputs`, `SubgroupsMissing`, see gate/tasks."""
    started = time.monotonic()
    score.groups_of(validation, dataset)
    if validation.task == "detection" and validation.metric != "python":
        require_task({item.key: item.value for item in onnx.load(model, load_external_data=False).metadata_props})
    indices = list(range(dataset.size))
    wanted = KEPT_SAMPLES_OUTPUTS if validation.task == "outputs" and validation.metric != "python" else KEPT_SAMPLES
    kept = stratified(dataset.labels, dataset.size, wanted)
    digest, bad = hashlib.sha256(), 0
    records: list[Record] = []
    rows: list[Mapping[str, Array]] = []
    # `basic` leaves out what differs between machines: a baseline serves the whole fleet
    with open_task(validation, dataset, progress) as task:
        with open_session(model, "auto", progress, level="basic") as session:
            for sample in evaluate(
                session.run, dataset, indices, session.inputs, profiles, lambda done, total: progress("baseline", done, total)
            ):
                record = task.record(sample.outputs, sample.index, sample.shape)
                bad += "broken" in record
                records.append(record)
                for output in sample.outputs.values():
                    digest.update(np.ascontiguousarray(output, np.float32).tobytes())
                if len(rows) < len(kept) and sample.index == kept[len(rows)]:
                    rows.append({name: output for name, output in sample.outputs.items() if output.dtype.kind == "f"})
        require_finite(bad, len(indices))
        scores = task.scores(records, indices)
        metric = score.metric(validation.metric, scores, score.value_interval(scores, score.seed_of(key)))
    return Baseline(
        baseline_key=key,
        model=digests[0],
        validation=digests[1],
        metric=metric,
        outputs_digest="sha256:" + digest.hexdigest(),
        sample_indices=kept,
        sample_outputs=metrics.keep(rows),
        records=records,
        seconds=f"{time.monotonic() - started:.2f}",
    )


def require_finite(bad: int, samples: int) -> None:
    """`bad`: samples whose outputs are NaN or infinite where the task reads them."""
    if bad:
        message = f"the model as given has NaN or infinite outputs for {bad} of {samples} validation samples."
        raise PermanentError("NonFiniteOutputs", message, "Check spec.preprocessing and the model; nothing can be compared with NaN.")


def require_expected(metric: Metric, validation: Validation) -> None:
    """Raises PermanentError `BaselineNotReproduced` when the figure of the training is not met within its tolerance."""
    if validation.baseline is None:
        return
    expected, tolerance = Decimal(validation.baseline.expected), Decimal(validation.baseline.tolerance)
    value = metrics.number(metric.value)
    if value is None or abs(value - expected) > tolerance:
        message = f"FP32 {metric.name} is {metric.value} on {metric.samples} samples, expected {expected} within {tolerance}."
        hint = "Most often spec.preprocessing differs from the training's (scale, mean, colour order, layout, resize), or the labels do."
        raise PermanentError("BaselineNotReproduced", message, hint)


def require_knowledge(baseline: Baseline, validation: Validation, dataset: Dataset) -> None:
    """Raises PermanentError `BaselineAtChance` when a classifier is right no more often than blind answers are, or only with classes in another
    order: little or nothing is left that an engine could lose, so each would pass. Not where `validation.baseline` says which figure is right.
    """
    answers = [record.get("predicted") for record in baseline.records]
    if validation.task != "classification" or validation.baseline is not None or dataset.labels is None or None in answers:
        return
    found = guessing(dataset.labels, np.array(answers, np.int64))
    if found is None:
        return
    right = f"FP32 gives the label of {found.agreement:.3f} of {len(answers)} samples"
    blind = f"the same answers in any order would give that of {found.blind:.3f} ± {found.spread:.3f}"
    order = ""
    if found.renamed:
        pairs = named(
            [f"{dataset.class_name(answer)} where the label is {dataset.class_name(label)}" for answer, label in found.renamed.items()]
        )
        order = f" Each class is mostly taken for one other ({pairs}), so they stand in another order."
    hint = (
        "Compare the order of the data set's classes with that of the model's outputs, look whether labels belong to their samples, then at "
        "spec.preprocessing. If the figure is right, say so: validation.baseline.expected."
    )
    raise PermanentError("BaselineAtChance", f"{right}; {blind}.{order}", hint)
