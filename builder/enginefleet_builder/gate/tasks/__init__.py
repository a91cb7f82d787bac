"""What is asked of a model, one module a task. All have the same form: a record of JSON a sample, and scores as a function of records.

A record holds what is needed to measure any selection of samples later without running the model again, and to show a person what went wrong.
A record {"broken": true} stands for outputs with NaN or infinite values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from enginefleet_api.documents import Baseline
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Validation

from ...io import Progress
from ..arrays import Array
from ..bootstrap import Scores
from ..samples import Dataset

Record: TypeAlias = dict[str, Any]
BROKEN: Record = {"broken": True}

METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("top1", "top5", "python"),
    "detection": ("map50", "map50_95", "python"),
    "segmentation": ("miou", "python"),
    "outputs": ("cosine", "max_abs_error", "python"),
}
BOXES = ("yolo", "yolov5", "yolox", "yolo_end2end", "boxes_scores_labels", "detr")
"""Decoders that give boxes."""


class Task(Protocol):
    """Judges samples of one data set."""

    rises: bool
    """Whether a worse engine has a greater value."""

    def record(self, outputs: Mapping[str, Array], index: int, shape: Sequence[int]) -> Record:
        """Of the outputs by name for sample `index` (no batch axis), whose first input has `shape`. Raises PermanentError `OutputsMismatch`."""

    def scores(self, records: Sequence[Record], indices: Sequence[int]) -> Scores:
        """Records of the samples `indices`, in the same order."""

    def loss(self, before: Record, after: Record, index: int) -> tuple[float, str]:
        """(how much `after` is worse than `before`, why in a few words); 0 or less: it is not."""


def require_supported(validation: Validation) -> None:
    """Raises PermanentError `NotYetSupported` for what does not go together: the API server refuses it, a request by hand may ask for it."""
    kinds = ("python", *BOXES) if validation.task == "detection" else ("logits", "python")
    decodes = validation.metric == "python" or validation.decoder.kind in kinds
    codes = "python" in (validation.metric, validation.decoder.kind)
    if validation.metric not in METRICS[validation.task] or not decodes or codes != (validation.python is not None):
        asked = f"task {validation.task} with metric {validation.metric} and decoder {validation.decoder.kind}"
        known = f"metric {', '.join(METRICS[validation.task])} and decoder {', '.join(kinds)}; python needs validation.python"
        raise PermanentError("NotYetSupported", f"{asked} cannot be judged; possible are {known}.", "Change spec.validation.")


@contextmanager
def open_task(validation: Validation, dataset: Dataset, progress: Progress, reference: Baseline | None = None) -> Iterator[Task]:
    """The task of a spec on its data set. `reference`: the baseline whose outputs count as right; needed for task outputs on a device."""
    from .. import python_metric
    from .classification import Classification
    from .outputs import Outputs
    from .own import Own
    from .segmentation import Segmentation

    require_supported(validation)
    with python_metric.open_code(validation.python, progress) as code:
        if validation.metric == "python":
            assert code is not None
            yield Own(code, validation, dataset)
        elif validation.task == "detection":
            from .detection import Detection

            yield Detection(validation, dataset, code)
        elif validation.task == "segmentation":
            yield Segmentation(validation, dataset, code)
        elif validation.task == "classification":
            yield Classification(validation, dataset, code)
        else:
            yield Outputs(validation, reference, code)
