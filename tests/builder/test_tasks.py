"""Records and values of each task, on outputs written by hand; how outputs reach them, and which samples are judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from enginefleet_api.documents import Baseline, Metric, TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Decoder, InputSpec, Profile, PythonMetric, Validation
from enginefleet_builder.gate import metrics, score
from enginefleet_builder.gate.evaluate import Evaluated, evaluate
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.gate.tasks import BROKEN, require_supported
from enginefleet_builder.gate.tasks.classification import Classification
from enginefleet_builder.gate.tasks.outputs import Outputs
from enginefleet_builder.gate.tasks.segmentation import Segmentation
from enginefleet_builder.gate.truth import Boxes

Arrays = dict[str, NDArray[Any]]


def gate(**changes: Any) -> Validation:
    return Validation.model_validate({"uri": "s3://b/v.npz", **changes})


def dataset(labels: list[int] | None = None, size: int = 0, **changes: Any) -> Dataset:
    known = None if labels is None else np.array(labels, np.int64)
    return Dataset(size or len(labels or []), known, ("a", "b", "c"), lambda index: {"": np.array([index], np.float32)}, **changes)


# ---- classification ----


def classified(scores: list[float], label: int, metric: str = "top1", **changes: Any) -> dict[str, Any]:
    task = Classification(gate(metric=metric, **changes), dataset([label]), None)
    return task.record({"y": np.array(scores, np.float32)}, 0, [1])


def test_the_highest_score_is_the_prediction() -> None:
    assert {"correct": True, "predicted": 1, "margin": 0.5} == classified([0.25, 0.75, 0.0], 1)
    assert {"correct": False, "predicted": 1, "margin": -0.5} == classified([0.25, 0.75, 0.0], 0)


def test_of_equal_scores_the_lower_class_counts_first() -> None:
    assert classified([1.0, 1.0, 0.0], 0)["correct"]
    assert not classified([1.0, 1.0, 0.0], 1)["correct"]


def test_top5_counts_five() -> None:
    scores = [float(-index) for index in range(8)]
    assert [True] * 5 + [False] * 3 == [
        Classification(gate(metric="top5"), dataset([label] * 8), None).record({"y": np.array(scores)}, 0, [1])["correct"]
        for label in range(8)
    ]


def test_outputs_that_are_not_finite_are_broken() -> None:
    assert BROKEN == classified([np.nan, 0.0, 1.0], 0)


def test_labels_beyond_the_model_are_refused() -> None:
    with pytest.raises(PermanentError, match="labels go up to 7, the model has 3 classes"):
        classified([0.0, 1.0, 2.0], 7)


def test_scores_of_another_shape_are_refused() -> None:
    task = Classification(gate(), dataset([0]), None)
    assert task.record({"y": np.zeros((3, 1, 1))}, 0, [1])["correct"]
    with pytest.raises(PermanentError, match=r"the output has shape \[3, 7, 7\] for one sample"):
        task.record({"y": np.zeros((3, 7, 7))}, 0, [1])


def test_the_output_that_is_judged_can_be_named() -> None:
    task = Classification(gate(decoder=Decoder(outputs=["head"])), dataset([1]), None)
    assert task.record({"features": np.ones(9), "head": np.array([0.0, 1.0])}, 0, [1])["correct"]
    with pytest.raises(PermanentError, match="the model has no output 'head'"):
        task.record({"features": np.ones(9)}, 0, [1])


# ---- segmentation ----

MASK = np.array([[0, 0, 1, 1], [0, 0, 1, 255]], np.int64)


def segmented(output: NDArray[Any]) -> tuple[float, list[float]]:
    task = Segmentation(gate(task="segmentation", metric="miou"), dataset(size=1, mask=lambda index: MASK), None)
    overall, classes = task.scores([task.record({"y": output}, 0, [3, 2, 4])], [0]).whole()
    return overall, classes.tolist()


def test_pixels_that_do_not_count_are_left_out() -> None:
    found = np.array([[0, 0, 1, 1], [0, 1, 1, 0]])
    # class 0: 3 of 4 (the pixel under 255 does not count), class 1: 3 of 4
    assert (0.75, [0.75, 0.75]) == segmented(found)


def test_scores_and_label_maps_say_the_same_whichever_axis_has_the_classes() -> None:
    labels = np.array([[0, 0, 1, 1], [0, 1, 1, 0]])
    scores = np.eye(3)[labels]
    assert segmented(labels) == segmented(scores) == segmented(scores.transpose(2, 0, 1)) == segmented(labels[None].astype(np.float32))


def test_a_map_of_another_size_is_brought_to_that_of_the_truth() -> None:
    assert (1.0, [1.0, 1.0]) == segmented(np.array([[0, 1]]))


def test_a_class_that_is_only_predicted_counts_as_missed() -> None:
    found = np.array([[0, 0, 1, 1], [0, 2, 1, 1]])
    overall, classes = segmented(found)
    assert pytest.approx((0.75 + 1 + 0) / 3) == overall
    assert [0.75, 1.0, 0.0] == classes


# ---- outputs ----


def baseline(**outputs: Any) -> Baseline:
    kept = metrics.keep([{name: np.array(array, np.float32)[row] for name, array in outputs.items()} for row in range(2)])
    metric = Metric(name="cosine", value="1", samples=2)
    return Baseline(
        baseline_key="b", model="m", validation="v", metric=metric, outputs_digest="d", sample_indices=[3, 8], sample_outputs=kept
    )


def test_the_worst_sample_counts() -> None:
    task = Outputs(gate(task="outputs", metric="cosine"), baseline(y=[[1.0, 0.0], [0.0, 1.0]]), None)
    records = [task.record({"y": np.array(values)}, index, [1]) for index, values in ((3, [1.0, 0.0]), (8, [1.0, 1.0]))]
    assert {"cosine": 1.0, "error": 0.0} == records[0]
    assert (pytest.approx(0.5**0.5), 1.0) == (records[1]["cosine"], records[1]["error"])
    assert pytest.approx(0.5**0.5) == task.scores(records, [3, 8]).whole()[0]


def test_of_several_outputs_the_worst_counts_unless_one_is_named() -> None:
    reference = baseline(y=[[1.0], [1.0]], z=[[5.0], [5.0]])
    outputs = {"z": np.array([5.0]), "y": np.array([1.5])}
    assert 0.5 == Outputs(gate(task="outputs", metric="max_abs_error"), reference, None).record(outputs, 3, [1])["error"]
    named = gate(task="outputs", metric="max_abs_error", decoder=Decoder(outputs=["z"]))
    assert 0.0 == Outputs(named, reference, None).record(outputs, 3, [1])["error"]


@pytest.mark.parametrize("output", [{"y": np.array([np.inf, 0.0])}, {"y": np.zeros(3)}, {"other": np.zeros(2)}])
def test_outputs_that_cannot_be_compared_are_broken(output: Arrays) -> None:
    task = Outputs(gate(task="outputs", metric="cosine"), baseline(y=[[1.0, 0.0], [0.0, 1.0]]), None)
    assert BROKEN == task.record(output, 3, [1])


def test_kept_outputs_are_the_same_numbers_and_thinned_where_they_are_too_many() -> None:
    values = np.random.default_rng(1).normal(size=(2, 7)).astype(np.float32)
    (kept,) = metrics.keep([{"y": row} for row in values])
    assert (values == np.array(kept.values, np.float32)).all()
    large = metrics.KEPT_NUMBERS
    (thin,) = metrics.keep([{"y": np.zeros(large, np.float32)}, {"y": np.ones(large, np.float32)}])
    assert (2, large // 2) == (thin.step, len(thin.values[0]))
    assert [] == metrics.keep([{"y": np.zeros(3)}, {"y": np.zeros(4)}]), "outputs that change their size are not compared"


# ---- what goes together ----


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "detection", "metric": "map50"},
        {"decoder": Decoder(kind="yolo")},
        {"task": "outputs"},
        {"metric": "miou"},
        {"metric": "python"},
        {"python": PythonMetric(code="x = 1")},
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PermanentError, match="NotYetSupported"):
        require_supported(gate(**changes))


# ---- running ----

INPUT = [TensorSpec(name="x", dtype="float32", shape=["batch", 1])]


def run_all(
    answer: Any, count: int, profiles: list[InputSpec] | None = None, inputs: list[TensorSpec] = INPUT
) -> tuple[list[Evaluated], list[int]]:
    sizes: list[int] = []

    def run(feeds: Mapping[str, Any]) -> Arrays:
        sizes.append(len(feeds["x"]))
        return dict(answer(feeds["x"]))

    indices = list(range(count))
    return list(evaluate(run, dataset([0] * count), indices, inputs, profiles or [], lambda done, total: None)), sizes


def test_each_sample_gets_its_row_of_every_output() -> None:
    found, sizes = run_all(lambda x: {"a": x * 2, "b": np.stack([x, x], axis=1)}, 20)
    assert [16, 4] == sizes
    assert [(index, 2.0 * index, [2, 1]) for index in range(20)] == [
        (item.index, item.outputs["a"][0], list(item.outputs["b"].shape)) for item in found
    ]
    assert {(1,)} == {item.shape for item in found}


def test_outputs_without_a_batch_axis_make_the_model_run_sample_by_sample() -> None:
    """As detectors do whose boxes have no batch axis: one run with 16 shows it, all others have one sample."""
    found, sizes = run_all(lambda x: {"boxes": np.tile(x[:1], (3, 4))}, 20)
    assert [16, *[1] * 20] == sizes
    assert [(3, 4)] * 20 == [item.outputs["boxes"].shape for item in found]
    assert [float(index) for index in range(20)] == [float(item.outputs["boxes"][0, 0]) for item in found]


def test_a_fixed_batch_without_a_batch_axis_is_refused() -> None:
    fixed = [TensorSpec(name="x", dtype="float32", shape=[4, 1])]
    with pytest.raises(PermanentError, match="do not have the 4 samples as first axis"):
        run_all(lambda x: {"boxes": np.zeros((3, 4))}, 8, inputs=fixed)


def test_the_last_batch_is_filled_up_and_its_filling_is_not_counted() -> None:
    profile = InputSpec(name="x", profiles=[Profile(min=[4, 1], opt=[4, 1], max=[8, 1])])
    found, sizes = run_all(lambda x: {"a": x}, 9, [profile])
    assert [8, 4] == sizes
    assert list(range(9)) == [item.index for item in found]


def test_text_outputs_are_refused() -> None:
    with pytest.raises(PermanentError, match="output 'a' is <U1, expected numbers"):
        run_all(lambda x: {"a": np.array(["x"] * len(x))}, 2)


# ---- which samples ----


def chosen(data: Dataset, limit: int, **changes: Any) -> list[int]:
    found = score.device_indices(gate(on_device={"max_samples": limit}, **changes), data, None)
    assert found == sorted(set(found))
    return found


def test_classes_keep_their_shares() -> None:
    labels = [0] * 900 + [1] * 90 + [2] * 10
    found = np.array(labels)[chosen(dataset(labels), 100)]
    assert [90, 9, 1] == np.bincount(found).tolist()


def test_subgroups_keep_their_shares() -> None:
    labels = [index % 3 for index in range(300)]
    scenes = tuple("night" if index < 60 else "day" for index in range(300))
    found = chosen(dataset(labels, groups={"scene": scenes}), 50, subgroups={"column": "scene"})
    assert 10 == sum(scenes[index] == "night" for index in found)


def test_pictures_of_a_rare_class_keep_their_share() -> None:
    def boxes(index: int) -> Boxes:
        classes = [0, 1] if index % 10 == 0 else [0] if index % 2 else []
        return Boxes.of(np.tile([0.0, 0.0, 1.0, 1.0], (len(classes), 1)), np.array(classes, np.int64))

    found = chosen(dataset(size=1000, boxes=boxes), 100, task="detection", metric="map50", decoder=Decoder(kind="yolo"))
    assert 10 == sum(index % 10 == 0 for index in found)


def test_all_are_judged_where_they_are_few() -> None:
    assert list(range(30)) == chosen(dataset([0] * 30), 30)
