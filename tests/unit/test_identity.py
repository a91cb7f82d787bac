"""Golden values: a change here rebuilds fleets, or makes engines that are in stores impossible to find."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from enginefleet_api.identity import (
    baseline_key,
    canonical_json,
    digest,
    engine_key,
    fingerprint_id,
    gate_key,
    is_digest,
    key_of,
    object_name,
    prepared_key,
    release_id,
    revision_id,
    short_hash,
    tree_digest,
    without_defaults,
)

A, B = "a" * 64, "b" * 64


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---- canonical JSON


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "x"]}, '{"a":[true,null,"x"],"b":1}'),
        ((1, 2), "[1,2]"),
        ({}, "{}"),
        (-0, "0"),
        (2**53 - 1, "9007199254740991"),
        ("€ “ö” 😀", '"€ “ö” 😀"'),
        # RFC 8785, 3.2.2.2: short escapes where JSON has them, \u00xx in lower case else; nothing else is escaped
        ("\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/\x7f", '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f"'),
        ("\b\t\n\f\r\x1f", '"\\b\\t\\n\\f\\r\\u001f"'),
        # RFC 8785, 3.2.3: keys are sorted by UTF-16 code units, so 😀 (D83D…) comes before U+FB33
        (
            {"€": 1, "\r": 2, "\ufb33": 3, "1": 4, "😀": 5, "\u0080": 6, "ö": 7},
            '{"\\r":2,"1":4,"\u0080":6,"ö":7,"€":1,"😀":5,"\ufb33":3}',
        ),
    ],
)
def test_canonical_form(value: Any, text: str) -> None:
    assert canonical_json(value).decode() == text


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (0.5, TypeError, r"^\$: float cannot enter a key; write decimals as strings$"),
        ({"a": [1, {"b": 0.1}]}, TypeError, r"^\$\.a\[1\]\.b: float cannot enter a key"),
        ({"a": float("nan")}, TypeError, r"\$\.a: float"),
        (b"bytes", TypeError, "bytes cannot enter a key"),
        ({1: "a"}, TypeError, "key 1 is int, expected text"),
        ({"a": {1, 2}}, TypeError, "set cannot enter a key"),
        (2**53, ValueError, "integer 9007199254740992 is beyond"),
        ([-(2**53)], ValueError, r"\$\[0\]: integer -9007199254740992 is beyond"),
        ({"a": "\ud800"}, ValueError, r"\$\.a: text holds a lone surrogate"),
        ({"\udfff": 1}, ValueError, "text holds a lone surrogate"),
    ],
)
def test_what_cannot_enter_a_key_is_refused_with_its_path(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        canonical_json(value)


def test_a_digest_is_that_of_the_canonical_form() -> None:
    assert digest({"b": 1, "a": "é"}) == "sha256:" + sha256('{"a":"é","b":1}')


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("sha256:" + A, True),
        ("sha256:" + "A" * 64, False),
        ("sha256:" + "a" * 63, False),
        ("sha512:" + A, False),
        (f"sha256:{A}\n", False),
        ("", False),
    ],
)
def test_is_digest(text: str, answer: bool) -> None:
    assert is_digest(text) is answer


# ---- defaults


@pytest.mark.parametrize(
    ("value", "defaults", "kept"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, {"b": 2}),
        ({"a": True}, {"a": 1}, {"a": True}),
        ({"a": None}, {"a": None}, {}),
        ({"a": None}, {}, {"a": None}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 1, "y": 0}}, {"a": {"y": 2}}),
        ({"a": {"x": 1}}, {"a": {"x": 1, "y": 0}}, {}),
        ({"a": {"x": 1}}, {"a": None}, {"a": {"x": 1}}),
        ({"a": [1, 2]}, {"a": [2, 1]}, {"a": [1, 2]}),
        ({"a": (1, 2)}, {"a": [1, 2]}, {}),
    ],
)
def test_fields_that_have_their_default_are_left_out(value: Any, defaults: Any, kept: Any) -> None:
    assert without_defaults(value, defaults) == kept


def test_a_key_names_kind_and_schema() -> None:
    assert key_of("engine", 2, {"a": 1, "b": 0}, {"b": 0}) == sha256('{"kind":"engine","schema":2,"value":{"a":1}}')


# ---- tree digests


def test_tree_digest_of_one_file() -> None:
    assert tree_digest([("model.onnx", A)]) == "sha256:" + sha256(f"{A}  model.onnx\n")


def test_tree_digest_sorts_its_lines() -> None:
    """By line, so by the files' digests first."""
    assert tree_digest([("a/weights.bin", B), ("z.onnx", A), ("ä", B)]) == "sha256:" + sha256(f"{A}  z.onnx\n{B}  a/weights.bin\n{B}  ä\n")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "a tree without files has no digest"),
        ([("", A)], "expected a relative POSIX path"),
        ([("/etc/passwd", A)], "expected a relative POSIX path"),
        ([("../model.onnx", A)], "expected a relative POSIX path"),
        ([("a/../../b", A)], "expected a relative POSIX path"),
        ([("./a", A)], "expected a relative POSIX path"),
        ([("a//b", A)], "expected a relative POSIX path"),
        ([("a/", A)], "expected a relative POSIX path"),
        ([("a\\b", A)], "expected a relative POSIX path"),
        ([("a\nb", A)], "holds a line break or NUL"),
        ([("a\rb", A)], "holds a line break or NUL"),
        ([("a\0b", A)], "holds a line break or NUL"),
        ([("a", A), ("a", B)], "stands twice"),
        ([("a", A.upper())], "is not a sha256 in lower-case hex"),
        ([("a", "sha256:" + A)], "is not a sha256 in lower-case hex"),
        ([("a", A + "\n")], "is not a sha256 in lower-case hex"),
        ([("a\ud800", A)], "surrogates not allowed"),
    ],
)
def test_tree_digest_refuses(files: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tree_digest(files)


# ---- keys of identity

Key = tuple[Callable[..., str], dict[str, Any], str, dict[str, Any]]

KEYS: Mapping[str, Key] = {
    # name: (function, arguments, what is hashed, another value for each argument)
    "prepared": (
        prepared_key,
        {"model": "sha256:m", "precision": "int8", "flavour": "onnxruntime"},
        '{"kind":"prepared","schema":1,"value":{"flavour":"onnxruntime","model":"sha256:m","precision":"int8","recipe":2}}',
        {
            "model": "sha256:n",
            "precision": "fp32",
            "flavour": "tensorrt",
            "calibration": {"digest": "sha256:c", "method": "auto"},
            "preprocessing": {"scale": "1/255"},
            "exclude": {"nodes": ["x"], "opTypes": []},
            "recipe": 1,
        },
    ),
    "engine": (
        engine_key,
        {"prepared_model": "sha256:p", "recipe": {"threads": "4", "workspace": "auto"}, "fingerprint": "fp-1"},
        '{"kind":"engine","schema":1,"value":{"fingerprint":"fp-1","preparedModel":"sha256:p","recipe":{"threads":"4"},"version":1}}',
        {"prepared_model": "sha256:q", "recipe": {"threads": "8"}, "fingerprint": "fp-2", "version": 2},
    ),
    "baseline": (
        baseline_key,
        {
            "model": "sha256:m",
            "validation": "sha256:v",
            "preprocessing": None,
            "decoder": {"kind": "logits"},
            "metric": "top1",
            "task": "classification",
        },
        (
            '{"kind":"baseline","schema":1,"value":{"decoder":{"kind":"logits"},"metric":"top1","model":"sha256:m","task":"classification",'
            '"validation":"sha256:v","version":2}}'
        ),
        {
            "model": "sha256:n",
            "validation": "sha256:w",
            "preprocessing": {"scale": "1/255"},
            "decoder": {"kind": "yolo"},
            "metric": "top5",
            "task": "outputs",
            "version": 1,
        },
    ),
    "gate": (
        gate_key,
        {"baseline": "b", "acceptance": {"minimum": "0.9"}},
        '{"kind":"gate","schema":1,"value":{"acceptance":{"minimum":"0.9"},"baseline":"b"}}',
        {"baseline": "c", "acceptance": {"minimum": "0.91"}},
    ),
    "revision": (
        revision_id,
        {"model": "sha256:m", "precision": "int8", "recipes": {"prepare": 1, "engine": 1}, "calibration": None},
        '{"kind":"revision","schema":1,"value":{"model":"sha256:m","precision":"int8","recipes":{"engine":1,"prepare":1}}}',
        {"model": "sha256:n", "precision": "fp32", "recipes": {"prepare": 1, "engine": 2}, "calibration": "sha256:c"},
    ),
    "release": (
        release_id,
        {"revision": "rev-1", "image_digest": "sha256:i", "template": {"a": "b"}},
        '{"kind":"release","schema":1,"value":{"image":"sha256:i","revision":"rev-1","template":{"a":"b"}}}',
        {"revision": "rev-2", "image_digest": "sha256:j", "template": {"a": "c"}},
    ),
}
SHAPE: Mapping[str, Callable[[str], str]] = {
    "revision": lambda hexadecimal: "rev-" + hexadecimal[:10],
    "release": lambda hexadecimal: hexadecimal[:10],
}


@pytest.mark.parametrize("name", KEYS)
def test_golden_key(name: str) -> None:
    function, arguments, text, _ = KEYS[name]

    assert function(**arguments) == SHAPE.get(name, str)(sha256(text))


@pytest.mark.parametrize(("name", "field"), [(name, field) for name, (_, _, _, others) in KEYS.items() for field in others])
def test_a_key_changes_with_each_of_its_fields(name: str, field: str) -> None:
    function, arguments, _, others = KEYS[name]

    assert function(**arguments | {field: others[field]}) != function(**arguments)


def test_frozen_keys() -> None:
    """The same again as plain hex, so that a change of the hash itself cannot go unseen."""
    assert {name: function(**arguments)[:16] for name, (function, arguments, _, _) in KEYS.items()} == {
        "prepared": "6428f28ce5ad907f",
        "engine": "1d0177ef1c8cba24",
        "baseline": "856bebeed0e34923",
        "gate": "03c1219f69b00182",
        "revision": "rev-c5b2db9ea8",
        "release": "95a809e411",
    }


def test_no_exclusions_are_no_field() -> None:
    arguments = KEYS["prepared"][1]

    assert (
        prepared_key(**arguments, exclude={"opTypes": [], "nodes": []})
        == prepared_key(**arguments, exclude=None)
        == prepared_key(**arguments)
    )


def test_golden_fingerprint() -> None:
    """A fact that is unknown is a fact."""
    assert (
        fingerprint_id({"arch": "x86_64", "cpu": {"isa": None}})
        == "fp-" + sha256('{"facts":{"arch":"x86_64","cpu":{"isa":null}},"schema":1}')[:16]
    )
    assert fingerprint_id({"arch": "x86_64"}) != fingerprint_id({"arch": "x86_64", "cpu": None})


# ---- names


def test_parts_do_not_run_into_each_other() -> None:
    assert short_hash("ab", "c") != short_hash("a", "bc") != short_hash("a", "b", "c")


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("line-inspection", "line-inspection"),
        ("line.inspection.v7", "line-inspection-v7"),
        ("a" * 63, "a" * 40),
        ("a" * 39 + ".b", "a" * 39),
        ("Größe", "gr--e"),
        ("-x-", "x"),
        ("…", "x"),
    ],
)
def test_object_name(name: str, stem: str) -> None:
    assert object_name(name, "vision", "uid-1") == f"{stem}-{short_hash(name, 'vision', 'uid-1')}"
