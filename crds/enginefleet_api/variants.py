"""Variants of a model: a precision and how its scales are found. Pure; prepare makes them, the operator chooses among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from .base import Contract
from .model import Calibration

CANDIDATES = ("int8", "fp16", "fp32")
"""What `precision: auto` tries, fastest first."""
SCALED = ("int8", "fp8")
"""Precisions that need scales."""
CAST = ("fp16", "bf16")
"""Precisions that a calibration set is not needed for, but tells which values are too large."""


class Variant(Contract):
    """One prepared form of a model.

    `method`: how ranges are found from a calibration set; empty without one (int8 and fp8 whose scales stand in the model), and for a
    repaired variant, which takes the better method. `repaired`: the layers that lose most stay in higher precision.
    """

    precision: Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
    method: Literal["", "entropy", "max"] = ""
    repaired: bool = False

    @property
    def id(self) -> str:
        """`fp16`, `int8-entropy`, `int8-max`, `int8-repaired`; `int8` with scales of the model's own."""
        suffix = "repaired" if self.repaired else self.method
        return f"{self.precision}-{suffix}" if suffix else self.precision


def rungs(precision: str, calibration: Calibration | None, candidates: Sequence[str] = ()) -> tuple[Variant, ...]:
    """The remedy ladder: variants in the order in which they are tried.

    `candidates` replaces CANDIDATES for precision `auto`. Precisions that need scales are left out of `auto` when there is no calibration;
    asked for by name they are one rung that prepare refuses.
    """
    if precision != "auto":
        return tuple(_expanded(precision, calibration))
    wanted = [one for one in (candidates or CANDIDATES) if calibration is not None or one not in SCALED]
    return tuple(dict.fromkeys(rung for one in wanted for rung in _expanded(one, calibration)))


def _expanded(precision: str, calibration: Calibration | None) -> Iterator[Variant]:
    if precision not in SCALED or calibration is None or calibration.source == "model":
        yield Variant.model_validate({"precision": precision})
    elif calibration.method != "auto":
        yield Variant.model_validate({"precision": precision, "method": calibration.method})
    else:
        yield Variant.model_validate({"precision": precision, "method": "entropy"})
        yield Variant.model_validate({"precision": precision, "method": "max"})
        if precision == "int8":
            yield Variant(precision="int8", repaired=True)
