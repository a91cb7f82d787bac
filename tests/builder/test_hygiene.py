"""What is said of samples that can be read and yet are no good."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Preprocessing, Validation
from enginefleet_builder.gate import hygiene
from enginefleet_builder.gate.datasets import Dataset, Task, open_dataset
from enginefleet_builder.gate.hygiene import Concern, Survey
from enginefleet_builder.gate.preprocessing import Preprocessor
from tests.builder import data
from tests.builder.support import Bench

PICTURES = [TensorSpec(name="x", dtype="float32", shape=[None, 3, 24, 32])]
LETTERBOX = Preprocessor.of(Preprocessing(resize="letterbox", size=[24, 32], scale="1/255"))
CALIBRATED_AND_JUDGED: tuple[Task, Task] = ("calibration", "detection")
Floats = NDArray[np.float64]


def scenes(count: int, seed: int = 0) -> Floats:
    """Unlike pictures (count, 3, 24, 32), smooth, from 0 to 1."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:24, 0:32]
    waves = [
        np.sin(random.uniform(0, 6) + rows * random.uniform(0.05, 0.6) + columns * random.uniform(-0.6, 0.6)) for _ in range(3 * count)
    ]
    return np.asarray((np.stack(waves) + 1).reshape(count, 3, 24, 32) / 2)


def stored(samples: NDArray[Any], **more: Any) -> Dataset:
    return Dataset(len(samples), None, (), lambda index: {"": samples[index]}, **more)


def survey(dataset: Dataset, inputs: list[TensorSpec] = PICTURES) -> Survey:
    return hygiene.survey(dataset, inputs, lambda _done, _total: None)


def said(samples: NDArray[Any], preprocessing: Preprocessing | None = None) -> list[Concern]:
    return hygiene.concerns("calibration", survey(stored(samples)), preprocessing)


def test_good_pictures_give_no_concern() -> None:
    assert said(scenes(40)) == []


BROKEN = scenes(40)
BROKEN[7, 0, 0, 0] = np.nan
HALF_FLAT = scenes(40)
HALF_FLAT[::2] = np.arange(20).reshape(20, 1, 1, 1) / 20
BURST = scenes(1).repeat(40, axis=0) + np.random.default_rng(1).normal(0, 0.005, (40, 3, 24, 32))
COPIES = scenes(40)
COPIES[10:] = COPIES[:1]


@pytest.mark.parametrize(
    ("samples", "severity", "reason", "says"),
    [
        (BROKEN, "error", "NonFiniteSamples", "1 of 40 samples hold NaN or infinite values, first 7"),
        (np.zeros((40, 3, 24, 32)) + np.arange(40).reshape(40, 1, 1, 1), "error", "ConstantSamples", "40 of 40 pictures have one value"),
        (HALF_FLAT, "warning", "ConstantSamples", "20 of 40 pictures have one value"),
        (np.zeros((40, 3, 24, 32)), "error", "SamplesAlike", "39 of the 40 calibration samples looked at are copies of others"),
        (COPIES, "warning", "SamplesAlike", "30 of the 40 calibration samples looked at are copies of others, 10 are different"),
        (np.random.default_rng(0).random((40, 3, 24, 32)), "warning", "NoiseSamples", "random noise?"),
        (scenes(40) * 255, "warning", "ValueRange", "most networks expect 0 to 1, or a mean of 0"),
        (scenes(40) / 255, "warning", "ValueRange", "were they scaled twice?"),
        (BURST, "warning", "NearDuplicates", "98% of 40 pictures look almost like an earlier one"),
    ],
    ids=["NaN", "all flat", "half flat", "all the same", "copies", "noise", "0 to 255", "scaled twice", "a burst"],
)
def test_concerns(samples: Floats, severity: str, reason: str, says: str) -> None:
    matching = [concern for concern in said(samples) if concern.reason == reason]
    assert [severity] == [concern.severity for concern in matching]
    assert says in matching[0].message
    assert matching[0].hint


def test_pixels_for_a_model_that_subtracts_a_mean_are_as_they_should_be() -> None:
    assert said(scenes(40) * 255, Preprocessing(mean=["104", "117", "123"])) == []


def test_noise_in_picture_files_is_an_error(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 24, 32, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=noise)
    dataset = open_dataset(tmp_path, Preprocessor.of(Preprocessing(scale="1/255")), "calibration")
    assert [("error", "NoiseSamples")] == [(item.severity, item.reason) for item in hygiene.concerns("calibration", survey(dataset), None)]


def test_vectors_are_not_looked_at_as_pictures() -> None:
    vectors = stored(np.random.default_rng(0).normal(0, 1000, (40, 16)))
    found = survey(vectors, [TensorSpec(name="x", dtype="float32", shape=[None, 16])])
    assert hygiene.concerns("calibration", found, None) == []


def test_whole_numbers_scaled_to_nothing_are_seen_as_the_model_gets_them() -> None:
    found = survey(stored(scenes(40) * 0.9), [TensorSpec(name="x", dtype="uint8", shape=[None, 3, 24, 32])])
    assert "ConstantSamples" in [concern.reason for concern in hygiene.concerns("calibration", found, None)]


def test_a_file_that_is_no_picture_is_named_with_how_many_there_are(tmp_path: Path) -> None:
    data.class_folders(tmp_path, "ant", "bee")
    for name in ("ant/0.png", "bee/1.png"):
        data.write(tmp_path / name, "404")
    dataset = open_dataset(tmp_path, Preprocessor.of(None), "calibration")
    concern = hygiene.concerns("calibration", survey(dataset, [TensorSpec(name="x", dtype="float32", shape=[None, 3, 30, 40])]), None)[0]
    assert ("error", "DataSetUnreadable") == (concern.severity, concern.reason)
    assert "sample ant/0.png" in concern.message
    assert "2 of the 4 samples looked at" in concern.message


def test_of_many_samples_some_are_looked_at() -> None:
    looked: list[int] = []

    def sample(index: int) -> dict[str, Any]:
        looked.append(index)
        return {"": np.full((3, 24, 32), index)}

    assert survey(Dataset(10_000, None, (), sample)).seen == hygiene.MOST == len(set(looked))
    assert max(looked) > 9_900


# ---- both sets together


def test_sets_of_other_ranges() -> None:
    concerns = hygiene.compare(survey(stored(scenes(40) * 255)), survey(stored(scenes(40, seed=1))))
    assert [("error", "RangesDiffer")] == [(concern.severity, concern.reason) for concern in concerns]
    assert "calibration goes to 25" in concerns[0].message


def test_samples_that_are_judged_too() -> None:
    concerns = hygiene.compare(survey(stored(scenes(40))), survey(stored(scenes(20))))
    assert ["20 of the 40 calibration samples looked at are in the validation set, too; expected none."] == [
        item.message for item in concerns
    ]


def test_classes_that_are_not_calibrated_with() -> None:
    labelled = replace(stored(scenes(3)), labels=np.array([0, 0, 2]), classes=("ant", "bee", "cow"))
    judged = replace(stored(scenes(3, seed=1)), labels=np.array([0, 1, 2]), classes=("ant", "bee", "cow"))
    concerns = hygiene.compare(survey(labelled), survey(judged))
    assert ["the calibration set has no samples of 1 of 3 classes that are judged: bee."] == [concern.message for concern in concerns]


def test_classes_of_boxes_that_are_not_calibrated_with(tmp_path: Path) -> None:
    data.yolo(tmp_path)
    (tmp_path / "labels" / "train" / "c.txt").write_text("0 0.5 0.5 0.1 0.1\n")
    calibrated, judged = (open_dataset(tmp_path, LETTERBOX, task) for task in CALIBRATED_AND_JUDGED)
    concerns = hygiene.compare(survey(calibrated), survey(judged))
    assert ["the calibration set has no samples of 1 of 2 classes that are judged: dog."] == [
        concern.message for concern in concerns if concern.reason == "ClassesMissing"
    ]


@pytest.mark.parametrize(
    ("required", "least", "says"),
    [
        ([], 10, None),
        (["dog"], 1, None),
        (["cat", "dog"], 1, None),
        (["dog", "cat"], 2, "fewer than 2 samples or objects of 2 of 2 requiredClasses: cat (1), dog (1)."),
        (["dog", "horse"], 1, "fewer than 1 samples or objects of 1 of 2 requiredClasses: horse (0); it knows cat, dog."),
    ],
)
def test_required_classes_that_the_judged_samples_do_not_show(tmp_path: Path, required: list[str], least: int, says: str | None) -> None:
    dataset = open_dataset(data.yolo(tmp_path), LETTERBOX, "detection")
    asked = Validation.model_validate({"uri": "file:///", "task": "detection", "requiredClasses": required, "minInstances": least})
    expected = [] if says is None else [f"the validation set has {says}"]
    assert expected == [item.message for item in hygiene.required(dataset, asked)]


def test_required_classes_are_counted_on_the_samples_that_a_device_judges() -> None:
    labelled = replace(stored(scenes(4)), labels=np.array([0, 0, 1, 1]), classes=("ant", "bee"))
    asked = Validation.model_validate({"uri": "file:///", "requiredClasses": ["ant"], "minInstances": 2, "onDevice": {"maxSamples": 2}})
    assert ["the validation set has fewer than 2 samples or objects of 1 of 1 requiredClasses: ant (1)."] == [
        item.message for item in hygiene.required(labelled, asked)
    ]


def test_every_concern_is_documented() -> None:
    source = Path(hygiene.__file__).read_text()
    documented = re.findall(r"^\| `(\w+)` \| ", (Path(__file__).parents[2] / "docs" / "data.md").read_text(), re.MULTILINE)
    assert set(re.findall(r'Concern\(.*?"([A-Z][a-z]\w+)"', source)) == {name for name in documented if name[0].isupper()}


# ---- in the prepare Job


def test_prepare_refuses_what_no_result_could_be_trusted_with(bench: Bench) -> None:
    np.savez(bench.calibration, images=np.full((200, 1, 8, 8), np.nan, np.float32))
    with pytest.raises(PermanentError, match="NonFiniteSamples"):
        bench.prepare("int8")


def test_prepare_notes_required_classes_that_the_set_does_not_have(bench: Bench) -> None:
    report = bench.prepare("fp32", validation=bench.gate(required_classes=["77"]))
    assert any(note.startswith("RequiredClassesMissing: the validation set has fewer than 10") for note in report.notes)


def test_prepare_notes_what_somebody_should_look_at(bench: Bench) -> None:
    with np.load(bench.calibration) as given:
        images = given["images"]
    images[:50] = images[50]
    np.savez(bench.calibration, images=images)
    report = bench.prepare("int8")
    assert any(note.startswith("SamplesAlike: 50 of the 200 calibration samples") for note in report.notes)
