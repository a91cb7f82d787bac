"""Wrong manifests are refused by the API server, with a message that says what to write instead."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from enginefleet_builder.manifest_rules import problems, without_null
from tests.contract.manifests import FULL, MINIMAL, Object, changed
from tests.contract.server import ApiServer, Refused
from tests.contract.wrong import LOCAL, LOCAL_HOSTS, OTHER_HOSTS, WRONG, Wrong

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.title)
def test_refuses(api: ApiServer, wrong: Wrong) -> None:
    with pytest.raises(Refused) as refused:
        api.create(changed(wrong.base, wrong.changes), dry_run=True)

    assert refused.value.status == 422
    assert wrong.says in refused.value.message
    assert "evaluating rule" not in refused.value.message, "a rule fell over instead of answering"


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_refuses_a_model_on_a_host_that_is_local_to_the_pod(api: ApiServer, host: str) -> None:
    with pytest.raises(Refused) as refused:
        api.create(changed(MINIMAL, {"spec.model.uri": f"https://{host}/model.onnx"}), dry_run=True)

    assert LOCAL in refused.value.message or "write https://<host>/<path>" in refused.value.message


@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_accepts_a_model_on_any_other_host(api: ApiServer, host: str) -> None:
    api.create(changed(MINIMAL, {"spec.model.uri": f"https://{host}/model.onnx"}), dry_run=True)


def test_the_table_is_as_long_as_it_should_be() -> None:
    """Each row is one mistake; two rows of one title would hide one another."""
    assert len({wrong.title for wrong in WRONG}) == len(WRONG) >= 45


# ---- the command line, which has no API server, says the same

VALUES: list[Any] = [
    None, "", 0, 1, -1, 2, 1.5, True, "0", "1", "-1", "0.5", "95", "abc", "10%", "0%", "120%", "1h", "0s", "31m", "s" * 33, "9" * 20 + "h", "a b", "A",
    "s3://b/", "s3://bucket/x", "https://h/x", "https:///x", "https://[::1]/x", "https://a:b/x", "https://a_b/x", "https://ä/x", "https://a/%zz",
    "https://a#b", "https://a|b/", "https://u@h/x", "https://h:/x", "HTTPS://h/x", "file:///x", "http://x/y", [], [1], ["a"], ["a", "a"], {}, {"a": "b"},
    {"name": "x"}, [{}], [[1]], "auto", "int8", "python", "detection", "outputs", "Deployment", "None", "/usr", "/engine/..", 10**12, 2**63, "a" * 64,
    "a" * 2000,
]  # fmt: skip
MORE_FIELDS = [
    ("validation", "python"), ("validation", "baseline"), ("benchmark", "paced"), ("model", "export"), ("model", "endpoint"), ("unknown",),
    ("auto", "candidates"), ("preprocessing", "shorterSide"), ("validation", "acceptance", "minimumPerSubgroup"), ("rollout", "canary", "percent"),
    ("benchmark", "acceptance", "minSpeedup"), ("targets", 0, "hardwareClassSelector"),
]  # fmt: skip

Place = tuple[str | int, ...]


def places(value: object, place: Place = ()) -> Iterator[Place]:
    """Of each value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*place, key)
        yield from places(item, (*place, key))


def spoiled(chance: random.Random) -> Object:
    """The full example with one value replaced or removed."""
    manifest = copy.deepcopy(FULL)
    *parents, last = chance.choice([*places(FULL["spec"]), *MORE_FIELDS])
    at: Any = manifest["spec"]
    for key in parents:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    if chance.random() < 0.1 and last in (at if isinstance(at, dict) else range(len(at))):
        del at[last]
    else:
        at[last] = chance.choice(VALUES)
    return manifest


OWN_WORDS = ("Input should", "String should", "List should", "Field required", "Duplicate value")
"""Beginnings of what is said otherwise: what pydantic says of a schema, and items that are the same."""


def answer(api: ApiServer, manifest: Object) -> str:
    """Empty when it is accepted."""
    try:
        api.create(manifest, dry_run=True, strict=True)
    except Refused as refused:
        return refused.message
    return ""


def test_by_hand_the_same_is_refused(api: ApiServer) -> None:
    chance = random.Random(4)
    accepted = 0
    for _ in range(120):
        manifest = spoiled(chance)
        by_hand = problems(without_null(manifest["spec"]), name=manifest["metadata"]["name"])
        says = answer(api, manifest)
        assert bool(by_hand) == bool(says), (by_hand, says)
        # an API server that does not know a field looks no further
        if "unknown field" not in says:
            assert [one for one in by_hand if one.says not in says and not one.says.startswith(OWN_WORDS)] == [], says
        accepted += not says
    assert 10 < accepted < 110
