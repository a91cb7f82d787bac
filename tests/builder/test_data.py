"""Data sets, preprocessing, metrics: what is accepted, what is refused and in which words."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from enginefleet_api.documents import TensorSpec
from enginefleet_api.errors import PermanentError
from enginefleet_api.resources import Preprocessing
from enginefleet_builder.gate.datasets import open_dataset, stratified
from enginefleet_builder.gate.evaluate import batches
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.gate.readers import arrays, files

PLAIN = Preprocessor.of(None)
INPUT = [TensorSpec(name="x", dtype="float32", shape=["batch", 1, 4, 4])]


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(("images", "labels"), [("images", "labels"), ("X", "y"), ("x", "targets"), ("Xt", "yt"), ("data", "labels")])
def test_names_of_arrays(tmp_path: Path, images: str, labels: str) -> None:
    dataset = open_dataset(npz(tmp_path, **{images: np.ones((3, 1, 4, 4), np.float32), labels: [0, 2, 1]}), PLAIN, "classification")
    assert dataset.size == 3
    assert dataset.classes == ("0", "1", "2")
    assert dataset.feed([0, 1], INPUT)["x"].shape == (2, 1, 4, 4)


def test_a_file_with_both_gives_calibration_its_own_samples(tmp_path: Path) -> None:
    path = npz(tmp_path, Xt=np.zeros((3, 1, 4, 4)), cal=np.ones((5, 1, 4, 4)), yt=np.arange(3))
    assert open_dataset(path, PLAIN, "calibration").size == 5
    assert open_dataset(path, PLAIN, "classification").size == 3


def test_several_inputs_are_found_by_name(tmp_path: Path) -> None:
    specs = [TensorSpec(name="left", dtype="float32", shape=[None, 2]), TensorSpec(name="right", dtype="int64", shape=[None, 1])]
    dataset = open_dataset(npz(tmp_path, left=np.ones((4, 2)), right=np.arange(4)[:, None]), PLAIN, "calibration")
    assert [[0], [3]] == dataset.feed([0, 3], specs)["right"].tolist()


@pytest.mark.parametrize(
    ("arrays", "reason", "text"),
    [
        ({"images": np.ones((3, 1, 4, 4))}, "LabelsMissing", "expected labels under one of"),
        ({"images": np.ones((3, 1, 4, 4)), "labels": np.arange(4)}, "DataSetMismatch", "expected integers from 0 of shape [3]"),
        ({"images": np.ones((3, 1, 4, 4)), "labels": np.ones(3)}, "DataSetMismatch", "labels are float64"),
        ({"images": np.ones((3, 1, 4, 4)), "labels": np.array([0, -1, 1])}, "DataSetMismatch", "expected integers from 0"),
        ({"labels": np.arange(3)}, "DataSetMismatch", "expected samples under one of"),
        ({"images": np.array([{}, {}], object), "labels": np.arange(2)}, "DataSetUnreadable", "allow_pickle=False"),
    ],
    ids=["no labels", "too many labels", "labels that are fractions", "negative labels", "no samples", "pickled objects are never loaded"],
)
def test_refused_archives(tmp_path: Path, arrays: dict[str, Any], reason: str, text: str) -> None:
    with pytest.raises(PermanentError) as caught:
        open_dataset(npz(tmp_path, **arrays), PLAIN, "classification")
    assert reason == caught.value.reason
    assert text in caught.value.message


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_ARRAY_BYTES", 1000)
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, images=np.zeros((1000, 16), np.float32))
    with pytest.raises(PermanentError, match="DataSetTooLarge"):
        open_dataset(path, PLAIN, "calibration")


def test_a_header_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 4), }"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(PermanentError, match="DataSetUnreadable"):
        open_dataset(tmp_path / "a.npz", PLAIN, "calibration")


@pytest.mark.parametrize("content", [b"", b"<html>log in</html>", b"PK\x03\x04 cut off"], ids=["empty", "html", "truncated"])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(PermanentError, match="DataSetUnreadable"):
        open_dataset(path, PLAIN, "classification")


def test_shapes_that_do_not_fit_name_both(tmp_path: Path) -> None:
    dataset = open_dataset(npz(tmp_path, images=np.ones((2, 3, 4, 4), np.float32)), PLAIN, "calibration")
    with pytest.raises(PermanentError, match=r"shape \[3, 4, 4\], expected \[1, 4, 4\]"):
        dataset.feed([0], INPUT)


def pictures(folder: Path, **colors: tuple[int, int, int]) -> Path:
    for name, color in colors.items():
        (folder / name).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (8, 4), color).save(folder / name / f"{number}.png")
    return folder


def test_folders_are_classes_in_sorted_order(tmp_path: Path) -> None:
    preprocessor = Preprocessor.of(Preprocessing(resize="stretch", size=[4, 4], scale="1/255"))
    dataset = open_dataset(pictures(tmp_path / "set", red=(255, 0, 0), blue=(0, 0, 255)), preprocessor, "classification")
    assert dataset.classes == ("blue", "red")
    assert dataset.labels is not None
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    spec = [TensorSpec(name="x", dtype="float32", shape=[None, 3, 4, 4])]
    assert [1.0, 0.0, 0.0] == dataset.feed([2], spec)["x"][0, :, 0, 0].tolist()


def test_a_picture_too_large_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_PIXELS", 10)
    dataset = open_dataset(pictures(tmp_path / "set", red=(1, 2, 3)), PLAIN, "classification")
    with pytest.raises(PermanentError, match="8 x 4 pixels, at most 10"):
        dataset.sample(0)


def test_a_file_that_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_text("not found")
    with pytest.raises(PermanentError, match="DataSetUnreadable"):
        open_dataset(tmp_path, PLAIN, "classification").sample(0)


@pytest.mark.parametrize(
    ("spec", "shape", "first"),
    [
        ({}, (3, 4, 8), [10, 20, 30]),
        ({"layout": "NHWC"}, (4, 8, 3), [10, 10, 10]),
        ({"color": "BGR"}, (3, 4, 8), [30, 20, 10]),
        ({"color": "GRAY"}, (1, 4, 8), [18]),
        ({"resize": "stretch", "size": [2, 2]}, (3, 2, 2), [10, 20, 30]),
        ({"resize": "letterbox", "size": [8, 8]}, (3, 8, 8), [114, 114, 114]),
        ({"resize": "center-crop", "size": [4, 4]}, (3, 4, 4), [10, 20, 30]),
        ({"scale": "1/10", "mean": ["1", "1", "1"], "std": ["1", "1", "2"]}, (3, 4, 8), [0, 1, 1]),
        ({"mean": ["10"], "std": ["10"]}, (3, 4, 8), [0, 1, 2]),
    ],
    ids=["none", "nhwc", "bgr", "gray", "stretch", "letterbox", "center-crop", "scale, mean, std", "one mean for all"],
)
def test_preprocessing(spec: dict[str, Any], shape: tuple[int, ...], first: list[float]) -> None:
    result = Preprocessor.of(Preprocessing.model_validate(spec)).picture(Image.new("RGB", (8, 4), (10, 20, 30)))
    assert shape == result.shape
    values = result[:, 0, 0] if shape[0] in (1, 3) else result[0, :3, 0]
    assert np.allclose(first, values, atol=0.51)


def test_stored_pictures_and_files_are_treated_alike(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 6, 10, 3), np.uint8)
    Image.fromarray(pixels[0]).save(tmp_path / "a.png")
    preprocessor = Preprocessor.of(Preprocessing(resize="letterbox", size=[8, 8], color="BGR", scale="1/255"))
    stored = open_dataset(npz(tmp_path / "..", images=pixels), preprocessor, "calibration").sample(0)[""]
    assert np.array_equal(stored, open_dataset(tmp_path, preprocessor, "calibration").sample(0)[""])


def test_tensors_cannot_be_resized() -> None:
    with pytest.raises(PermanentError, match="works on pictures"):
        Preprocessor.of(Preprocessing(resize="stretch", size=[2, 2])).sample(np.ones((1, 4, 4), np.float32))


def test_a_mean_of_the_wrong_length() -> None:
    with pytest.raises(PermanentError, match="mean has 3 values, the samples have 1 channels"):
        Preprocessor.of(Preprocessing(mean=["0", "0", "0"])).sample(np.ones((1, 4, 4), np.float32))


def test_stratified_takes_evenly_from_all_classes_and_always_the_same() -> None:
    labels = np.array([0] * 900 + [1] * 90 + [2] * 10)
    chosen = stratified(labels, 1000, 60)
    assert chosen == sorted(set(chosen)) == stratified(labels, 1000, 60)
    assert [25, 25, 10] == [int((labels[chosen] == label).sum()) for label in range(3)]
    assert list(range(1000)) == stratified(labels, 1000, 1000)


def test_the_last_batch_of_a_fixed_batch_model_is_filled_up() -> None:
    fixed = [TensorSpec(name="x", dtype="float32", shape=[4, 2])]
    assert [([0, 1, 2, 3], 4), ([4, 4, 4, 4], 1)] == batches(range(5), fixed, [])
    assert [([0, 1, 2, 3, 4], 5)] == batches(range(5), INPUT, [])
