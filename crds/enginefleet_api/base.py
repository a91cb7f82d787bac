"""The shared pydantic base and the text types (durations, quantities, decimals) of the contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


def _camel(name: str) -> str:
    """camelCase with the spellings that Kubernetes uses: `imageID`, `bootID`."""
    return {"boot_id": "bootID", "image_id": "imageID"}.get(name, to_camel(name))


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in CEL that the API server checks; `message` says what to write instead. `path`: the field at fault, like `.replicas`."""

    rule: str
    message: str
    path: str = ""

    def to_schema(self) -> dict[str, Any]:
        return {"rule": self.rule, "message": self.message} | ({"fieldPath": self.path} if self.path else {})


class Contract(BaseModel):
    """Base of every model: camelCase outside, unknown fields ignored (a newer writer must not crash an older reader), immutable."""

    # a process needs few of the hundred models; building all of them took a third of the start of `enginefleet fetch`
    model_config = ConfigDict(
        alias_generator=_camel, populate_by_name=True, extra="ignore", frozen=True, str_max_length=65536, defer_build=True
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()
    """What the API server checks across fields. Pydantic does not: what comes from the API server was checked there."""

    def to_json_dict(self, *, exclude_none: bool = True) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_none=exclude_none)


def matching(pattern: str, write: str, **limits: Any) -> Any:
    """A pydantic Field for text of a pattern. `write` completes "write …": API servers say only which pattern did not match."""
    rule = Rule(f"self.matches(r'{pattern}')", f"write {write}")
    return Field(pattern=pattern, json_schema_extra={"x-kubernetes-validations": [rule.to_schema()]}, **limits)


DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
DECIMAL_PATTERN = r"^-?[0-9]+(\.[0-9]+)?$"
FRACTION_PATTERN = r"^(-?[0-9]+(\.[0-9]+)?|[0-9]+/[0-9]*[1-9][0-9]*)$"
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
PERCENT_PATTERN = r"^(100|[1-9]?[0-9])%$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
NAME_PATTERN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

Digest = Annotated[str, matching(DIGEST_PATTERN, "the digest as sha256:<64 hex digits>", max_length=71)]
DecimalText = Annotated[str, matching(DECIMAL_PATTERN, 'a decimal in quotes, like "0.95"', max_length=32)]
FractionText = Annotated[str, matching(FRACTION_PATTERN, 'a decimal or a fraction in quotes, like "0.5" or "1/255"', max_length=32)]
DurationText = Annotated[str, matching(DURATION_PATTERN, "a duration like 12ms, 90s, 10m or 1h30m", max_length=32)]
QuantityText = Annotated[str, matching(QUANTITY_PATTERN, "a quantity like 512Mi or 1Gi", max_length=32)]
NameText = Annotated[
    str, matching(NAME_PATTERN, "the object's name: lower-case letters, digits, '-' and '.'", min_length=1, max_length=253)
]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str) -> float:
    """Seconds of a duration such as `1h30m` or `12ms`; ValueError for other text."""
    if not re.fullmatch(DURATION_PATTERN, duration):
        raise ValueError(f"{duration!r} is not a duration: write it like 90s, 10m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, _, unit in re.findall(r"([0-9]+(\.[0-9]+)?)(ms|s|m|h)", duration))


def fraction(text: str) -> float:
    """The value of `0.5` or `1/255`; ValueError for other text."""
    if not re.fullmatch(FRACTION_PATTERN, text):
        raise ValueError(f"{text!r} is neither a decimal nor a fraction: write it like 0.5 or 1/255")
    numerator, _, denominator = text.partition("/")
    return float(Decimal(numerator) / Decimal(denominator or "1"))


_SUFFIX: Mapping[str, float] = {
    "": 1,
    "n": 1e-9,
    "u": 1e-6,
    "m": 0.001,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
} | {unit + "i": 1024**power for power, unit in enumerate("KMGTPE", start=1)}


def quantity(text: str) -> float:
    """The value of a Kubernetes quantity as specs of ours take it (`1Gi`, `500m`, `2`); ValueError for other text."""
    if not re.fullmatch(QUANTITY_PATTERN, text):
        raise ValueError(f"{text!r} is not a quantity: write it like 500m, 2 or 1Gi")
    return any_quantity(text)


def any_quantity(text: str) -> float:
    """The value of any quantity that an API server lets through, like `2e3` and `1Ei` of a node or of somebody else's pod."""
    number = text.rstrip("numkKMGTPEi")
    return float(number) * _SUFFIX[text[len(number) :]]
