"""The remedy ladder: which variants are tried, in which order."""

from __future__ import annotations

import pytest

from enginefleet_api.resources import Calibration
from enginefleet_api.variants import Variant, rungs

DATA = "s3://models/calibration.npz"


def ids(precision: str, calibration: Calibration | None, *candidates: str) -> list[str]:
    return [rung.id for rung in rungs(precision, calibration, candidates)]


@pytest.mark.parametrize(
    ("precision", "calibration", "candidates", "expected"),
    [
        ("fp32", None, (), ["fp32"]),
        ("fp16", Calibration(uri=DATA), (), ["fp16"]),
        ("int8", Calibration(uri=DATA), (), ["int8-entropy", "int8-max", "int8-repaired"]),
        ("int8", Calibration(uri=DATA, method="max"), (), ["int8-max"]),
        ("int8", Calibration(source="model"), (), ["int8"]),
        ("int8", None, (), ["int8"]),
        ("fp8", Calibration(uri=DATA), (), ["fp8-entropy", "fp8-max"]),
        ("auto", Calibration(uri=DATA), (), ["int8-entropy", "int8-max", "int8-repaired", "fp16", "fp32"]),
        ("auto", Calibration(uri=DATA, method="entropy"), (), ["int8-entropy", "fp16", "fp32"]),
        ("auto", Calibration(source="model"), (), ["int8", "fp16", "fp32"]),
        ("auto", None, (), ["fp16", "fp32"]),
        ("auto", None, ("int8", "bf16", "fp32", "bf16"), ["bf16", "fp32"]),
        ("auto", Calibration(uri=DATA), ("fp32", "int8"), ["fp32", "int8-entropy", "int8-max", "int8-repaired"]),
    ],
)
def test_the_ladder(precision: str, calibration: Calibration | None, candidates: tuple[str, ...], expected: list[str]) -> None:
    assert expected == ids(precision, calibration, *candidates)


def test_a_precision_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="precision"):
        rungs("int3", None)


def test_a_variant_survives_its_json() -> None:
    for variant in rungs("auto", Calibration(uri=DATA)):
        assert variant == Variant.model_validate(variant.to_json_dict())
