"""Pixels of our preprocessing against those that Ultralytics and torchvision gave: parity/make_expected.py wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from enginefleet_api.resources import Preprocessing
from enginefleet_builder.gate.preprocessing import Preprocessor

HERE = Path(__file__).parent / "parity"
CASES: dict[str, dict[str, Any]] = json.loads((HERE / "cases.json").read_text())
EXPECTED = dict(np.load(HERE / "expected.npz"))
PICTURES = sorted({name.split("|")[0] for name in EXPECTED if name.endswith("|input")})


def preprocessor(**spec: Any) -> Preprocessor:
    return Preprocessor.of(Preprocessing.model_validate(spec))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("picture", PICTURES)
def test_pixels_are_theirs(case: str, picture: str) -> None:
    """Pillow resizes for both, so torchvision's are equal; OpenCV's are within one level of 255."""
    expected = EXPECTED[f"{picture}|{case}"]
    found = preprocessor(**CASES[case], layout="NHWC").picture(Image.fromarray(EXPECTED[f"{picture}|input"]))
    linear = CASES[case]["resize"] == "letterbox" or CASES[case].get("interpolation") == "linear"
    assert expected.shape == found.shape
    assert np.abs(expected.astype(np.float32) - found).max() <= (1 if linear else 0)


def test_channels_scale_and_layout_are_torchvisions() -> None:
    spec = {"resize": "center-crop", "size": [56, 56], "shorterSide": 64, "scale": "1/255"}
    normalise = {"mean": ["0.485", "0.456", "0.406"], "std": ["0.229", "0.224", "0.225"]}
    found = preprocessor(**spec, **normalise).picture(Image.fromarray(EXPECTED["chelsea|input"]))
    assert np.allclose(EXPECTED["chelsea|normalised"], found, atol=1e-6)


def test_masks_are_resized_as_torchvision_does() -> None:
    classes = EXPECTED["chelsea|input"][:, :, 0].astype(np.int64) // 32
    assert np.array_equal(EXPECTED["chelsea|mask"], preprocessor(resize="stretch", size=[64, 96]).mask(classes))


@pytest.mark.parametrize("case", CASES)
def test_bgr_is_rgb_in_reverse(case: str) -> None:
    image = Image.fromarray(EXPECTED["rings|input"])
    bgr = preprocessor(**CASES[case], layout="NHWC", color="BGR").picture(image)
    assert np.array_equal(bgr[:, :, ::-1], preprocessor(**CASES[case], layout="NHWC").picture(image))
