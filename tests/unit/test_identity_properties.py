"""What must hold for every input of identity, found out by Hypothesis."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from enginefleet_api.identity import SAFE_INTEGER, canonical_json, digest, engine_key, key_of, object_name, tree_digest, without_defaults

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTEGERS = st.integers(-SAFE_INTEGER, SAFE_INTEGER)
LEAVES = st.none() | st.booleans() | INTEGERS | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=5)
SHA = st.text("0123456789abcdef", min_size=64, max_size=64)
PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\n\r\0"), min_size=1, max_size=8).filter(
    lambda part: part not in (".", "..")
)
PATHS = st.lists(PART, min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(PATHS, SHA, min_size=1, max_size=6)
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def shuffled(value: Any, seed: int) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        items = list(value.items())
        random.Random(seed).shuffle(items)
        return {key: shuffled(item, seed + 1) for key, item in items}
    return [shuffled(item, seed + 1) for item in value] if isinstance(value, list) else value


def same(a: Any, b: Any) -> bool:
    """Equality as JSON has it: True is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@given(VALUES, st.integers())
def test_the_order_of_keys_does_not_matter(value: Any, seed: int) -> None:
    assert canonical_json(shuffled(value, seed)) == canonical_json(value)


@given(VALUES)
def test_the_canonical_form_is_json_of_the_same_value(value: Any) -> None:
    assert same(json.loads(canonical_json(value)), value)


@given(VALUES, VALUES)
def test_unlike_values_have_unlike_forms(a: Any, b: Any) -> None:
    assert (canonical_json(a) == canonical_json(b)) is same(a, b)


@given(OBJECTS)
def test_keys_are_in_the_order_of_utf16_code_units(value: dict[str, Any]) -> None:
    """As ECMAScript sorts them; code points would put U+FFFF before U+10000."""
    keys = list(json.loads(canonical_json(value)))

    assert keys == sorted(
        keys, key=lambda key: [int.from_bytes(pair, "big") for pair in zip(*[iter(key.encode("utf-16-be"))] * 2, strict=True)]
    )


@given(st.text(st.characters(categories=["Cs"]), min_size=1, max_size=2), TEXT, st.booleans())
def test_lone_surrogates_are_refused_wherever_they_stand(surrogates: str, around: str, as_key: bool) -> None:
    text = around + surrogates + around
    assume("\ud800" <= text and any("\ud800" <= character <= "\udfff" for character in text))

    with pytest.raises(ValueError, match="lone surrogate"):
        canonical_json({text: 1} if as_key else {"a": [text]})


@given(st.floats(), VALUES)
def test_floats_are_refused_wherever_they_stand(number: Any, beside: Any) -> None:
    with pytest.raises(TypeError, match="write decimals as strings"):
        canonical_json({"a": [beside, {"b": number}]})


@given(st.integers(min_value=SAFE_INTEGER + 1) | st.integers(max_value=-SAFE_INTEGER - 1))
def test_integers_that_others_would_round_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="write it as a string"):
        canonical_json([number])


@given(OBJECTS, OBJECTS)
def test_a_field_at_its_default_does_not_change_a_key(value: dict[str, Any], defaults: dict[str, Any]) -> None:
    """So a new field with a default changes no key of those who do not use it."""
    bare = key_of("kind", 1, value, defaults)

    assert key_of("kind", 1, {**defaults, **value}, defaults) == bare


@given(OBJECTS, OBJECTS)
def test_leaving_defaults_out_twice_is_leaving_them_out_once(value: dict[str, Any], defaults: dict[str, Any]) -> None:
    once = without_defaults(value, defaults)

    assert same(without_defaults(once, defaults), once)


@given(st.dictionaries(TEXT, LEAVES, max_size=5), st.dictionaries(TEXT, LEAVES, max_size=5), st.dictionaries(TEXT, LEAVES, max_size=5))
def test_unlike_values_keep_unlike_keys(a: dict[str, Any], b: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Once missing fields are taken at their defaults."""
    alike = same({**defaults, **a}, {**defaults, **b})

    assert (key_of("kind", 1, a, defaults) == key_of("kind", 1, b, defaults)) is alike


@given(TREES, st.randoms(use_true_random=False))
def test_the_order_of_files_does_not_matter(tree: dict[str, str], order: random.Random) -> None:
    files = list(tree.items())
    order.shuffle(files)

    assert tree_digest(files) == tree_digest(tree.items())


@given(TREES, TREES)
def test_unlike_trees_have_unlike_digests(a: dict[str, str], b: dict[str, str]) -> None:
    assert (tree_digest(a.items()) == tree_digest(b.items())) is (a == b)


@given(st.lists(st.sampled_from(["", ".", "..", "a", "a\\b"]), min_size=1, max_size=4), SHA)
def test_no_path_leaves_its_folder(parts: list[str], sha: str) -> None:
    path = "/".join(parts)
    if all(part == "a" for part in parts):
        tree_digest([(path, sha)])
    else:
        with pytest.raises(ValueError, match="expected a relative POSIX path"):
            tree_digest([(path, sha)])


@given(st.text(max_size=80).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)), st.lists(TEXT, max_size=3))
def test_a_generated_name_is_a_dns_label(name: str, owner: list[str]) -> None:
    """At most 63 characters is what labels take; room is left for what controllers append (`-<10>-<5>`)."""
    found = object_name(name, *owner)

    assert LABEL.fullmatch(found)
    assert len(found) <= 51


@given(st.lists(TEXT, min_size=1, max_size=4), st.lists(TEXT, min_size=1, max_size=4))
def test_two_owners_never_get_the_same_name(a: list[str], b: list[str]) -> None:
    assert (object_name(*a) == object_name(*b)) is (a == b)


@given(st.sampled_from(["profiles", "workspace", "optimizationLevel", "dla", "plugins", "tacticSources", "threads"]))
def test_a_recipe_that_spells_out_a_default_is_the_same_recipe(field: str) -> None:
    default: Any = {
        "profiles": [],
        "workspace": "auto",
        "optimizationLevel": 3,
        "dla": None,
        "plugins": [],
        "tacticSources": [],
        "threads": "auto",
    }[field]

    assert engine_key(prepared_model="m", recipe={field: default}, fingerprint="f") == engine_key(
        prepared_model="m", recipe={}, fingerprint="f"
    )


@given(VALUES)
def test_digests_do_not_depend_on_the_process(value: Any) -> None:
    """No hash seed, no memory address: the same twice, from a copy."""
    assert digest(json.loads(json.dumps(value))) == digest(value)
