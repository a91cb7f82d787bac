"""What `enginefleet prepare` makes of --precision, --method, --calibration and --repair."""

from __future__ import annotations

from typing import Literal

import pytest

from enginefleet_api.errors import PermanentError
from enginefleet_api.variants import Variant
from enginefleet_builder import by_hand


@pytest.mark.parametrize(
    ("precision", "method", "data", "repair", "expected"),
    [
        ("fp32", "auto", False, False, ["fp32"]),
        ("int8", "auto", True, False, ["int8-entropy"]),
        ("int8", "max", True, False, ["int8-max"]),
        ("int8", "auto", False, True, ["int8"]),
        ("int8", "max", True, True, ["int8-max", "int8-repaired"]),
        ("auto", "auto", True, False, ["int8-entropy", "int8-max", "fp16", "fp32"]),
        ("auto", "auto", True, True, ["int8-entropy", "int8-max", "int8-repaired", "fp16", "fp32"]),
        ("auto", "auto", False, True, ["fp16", "fp32"]),
        ("fp16", "auto", True, True, ["fp16"]),
    ],
)
def test_variants(precision: str, method: Literal["auto", "entropy", "max"], data: bool, repair: bool, expected: list[str]) -> None:
    made = by_hand.variants(precision, method, data=data, repair=repair)
    assert expected == [Variant.model_validate(one).id for one in made]


def test_a_precision_that_nobody_knows() -> None:
    with pytest.raises(PermanentError, match=r"PrecisionNotSupported.*'int3'"):
        by_hand.variants("int3", "auto", data=False, repair=False)
