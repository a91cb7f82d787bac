"""Durations, quantities, fractions; and the base of every model."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from enginefleet_api.base import DURATION_PATTERN, FRACTION_PATTERN, QUANTITY_PATTERN, Contract, Rule, fraction, quantity, seconds
from enginefleet_api.resources import NodeFingerprintSpec, Preprocessing, Window


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0s", 0),
        ("12ms", 0.012),
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1m30ms", 60.03),
        ("2h0m0s", 7200),
        ("1s1s", 2),
    ],
)
def test_seconds(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("2", 2),
        ("500m", 0.5),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 1.5 * 2**30),
        ("1M", 1e6),
        ("1Mi", 2**20),
        ("1T", 1e12),
        ("2Ti", 2 * 2**40),
        ("1P", 1e15),
        ("1Pi", 2**50),
    ],
)
def test_quantity(text: str, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("-1", -1), ("1/255", 1 / 255), ("0/5", 0), ("10/4", 2.5), ("007", 7)])
def test_fraction(text: str, value: float) -> None:
    assert fraction(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("function", "text", "hint"),
    [
        *(
            (seconds, text, "write it like 90s, 10m or 1h30m")
            for text in ("", "5", "m", "-1s", "1d", "1 s", "1s ", "1s\n", ".5s", "1S", "١s")
        ),
        *((quantity, text, "write it like 500m, 2 or 1Gi") for text in ("", "Gi", "-1", "1 Gi", "1gb", "1KI", "1e3", "1Gi\n", ".5", "1.")),
        *(
            (fraction, text, "write it like 0.5 or 1/255")
            for text in ("", "1/0", "1/00", "-1/2", "1/", "/2", "1/2/3", "a", "1e3", "nan", "0.5\n", "1,5")
        ),
    ],
)
def test_other_text_is_refused_with_a_hint(function: Callable[[str], float], text: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)) as refused:
        function(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(("function", "pattern"), [(seconds, DURATION_PATTERN), (quantity, QUANTITY_PATTERN), (fraction, FRACTION_PATTERN)])
def test_what_the_schema_accepts_can_be_read(function: Callable[[str], float], pattern: str) -> None:
    """The API server lets through what matches the pattern: reading it must not fail later."""

    @given(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    def check(text: str) -> None:
        assert isinstance(function(text), float)

    check()


def test_models_are_read_by_the_names_of_kubernetes() -> None:
    spec = NodeFingerprintSpec.model_validate(
        {"node": "a", "bootID": "b", "observations": [{"class": "c", "imageDigest": "d", "id": "f", "facts": {}}], "fromTheFuture": 1}
    )

    assert (spec.boot_id, spec.observations[0].hardware_class, spec.observations[0].image_digest) == ("b", "c", "d")
    assert spec.to_json_dict() == {
        "node": "a",
        "bootID": "b",
        "observations": [{"class": "c", "imageDigest": "d", "device": "cpu", "id": "f", "summary": "", "facts": {}, "hostDigest": ""}],
    }


def test_models_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Preprocessing().scale = "2"  # type: ignore[misc]


@pytest.mark.parametrize("start", ["24:00", "1:00", "12:60", "12:00\n"])
def test_patterns_hold_in_the_models_too(start: str) -> None:
    with pytest.raises(ValidationError, match="start"):
        Window.model_validate({"days": ["Mon"], "start": start, "duration": "1h"})


def test_a_rule_names_its_field_only_where_it_has_one() -> None:
    assert Rule("true", "write x").to_schema() == {"rule": "true", "message": "write x"}
    assert Rule("true", "write x", ".a").to_schema() == {"rule": "true", "message": "write x", "fieldPath": ".a"}


def test_rules_are_no_fields() -> None:
    assert "RULES" not in Contract.model_fields | Preprocessing.model_fields
    assert "RULES" not in Preprocessing().model_dump()
