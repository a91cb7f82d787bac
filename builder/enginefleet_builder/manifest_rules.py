"""What an API server refuses of a ModelDeployment: values that the models do not take, unknown fields, items that stand twice, and what the CRD's
rules in CEL forbid.

Models and schema are the CRD's own, and its rules are evaluated as they stand: nothing is written down a second time. A rule of transition
(`oldSelf`) is about two versions of an object, of which there is one here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from enginefleet_api.base import seconds
from enginefleet_api.kinds import MODEL_DEPLOYMENT
from enginefleet_api.schema import Schema, schema_of

if TYPE_CHECKING:
    from celpy import Environment, Runner

VALUE_ERRORS = frozenset({"string_pattern_mismatch", "greater_than_equal", "less_than_equal", "string_too_short", "too_short"})
"""Errors of pydantic beside which rules still make sense: the value has its type, and a size that is bounded."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`path`: the field, like `spec.inputs[0].name`. `unsure`: a rule that fell over, as it may on a value that another problem names."""

    path: str
    says: str
    unsure: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.says}" if self.path else self.says


def can_check_rules() -> bool:
    """Whether cel-python (extra `cli`) is installed."""
    try:
        import celpy  # noqa: F401
    except ImportError:
        return False
    return True


def without_null(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """As an API server takes it: a null field is one that is not there. What YAML repeats by an alias is copied once."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {}
        seen[id(value)] = fields
        fields |= {name: without_null(item, seen) for name, item in value.items() if item is not None}
        return fields
    if isinstance(value, list):
        items: list[Any] = []
        seen[id(value)] = items
        items += [without_null(item, seen) for item in value]
        return items
    return value


def problems(spec: Mapping[str, Any], *, name: str = "by-hand", rules: bool = True) -> list[Problem]:
    """All that is wrong with the spec (without null) of a ModelDeployment of this name. A value of the wrong type keeps the rest from being looked at."""
    by_model, wrong_types = _by_model(spec)
    if wrong_types:
        return by_model
    by_schema = list(_walk(_schema(), {"metadata": {"name": name}, "spec": spec}, "", rules))
    sure = [problem for problem in by_schema if not problem.unsure]
    # a pattern tells less than its rule
    named = {problem.path for problem in sure}
    return [problem for problem in by_model if problem.path not in named] + sure or by_schema


@cache
def _schema() -> Schema:
    """Of the object, as far as rules see it."""
    return {
        "properties": {"metadata": {"properties": {"name": {"type": "string"}}}, "spec": schema_of(MODEL_DEPLOYMENT.spec)},
        "x-kubernetes-validations": [rule.to_schema() for rule in MODEL_DEPLOYMENT.rules],
    }


def _by_model(spec: Mapping[str, Any]) -> tuple[list[Problem], bool]:
    """What pydantic says, and whether a value is of the wrong type (or missing, or too long)."""
    try:
        MODEL_DEPLOYMENT.spec.model_validate(spec, strict=True)
    except ValidationError as error:
        by_path: dict[str, list[tuple[str, str]]] = {}
        for item in error.errors(include_url=False, include_context=False, include_input=False):
            by_path.setdefault(_path_of(item["loc"], spec), []).append((item["type"], item["msg"]))
    else:
        return [], False
    found: list[Problem] = []
    wrong_types = False
    for path, errors in by_path.items():
        # a union says something for each of its types: that of the type which is there counts
        of_value = [error for error in errors if error[0] in VALUE_ERRORS]
        wrong_types = wrong_types or not of_value
        found += [Problem(path, message) for _, message in of_value or errors]
    return found, wrong_types


def _path_of(location: Sequence[str | int], spec: Mapping[str, Any]) -> str:
    """As the API server writes it; what pydantic adds to name the types of a union ends it."""
    path = "spec"
    at: Any = spec
    for part in location:
        if isinstance(at, Mapping):
            path, at = f"{path}.{part}", at.get(part)
        elif isinstance(at, list) and isinstance(part, int):
            path, at = f"{path}[{part}]", at[part]
        else:
            break
    return path


def _walk(schema: Schema, value: Any, path: str, rules: bool) -> Generator[Problem, None, Any]:
    """Gives problems, and returns the value as rules see it: with defaults, and without what an object of any form holds."""
    stored = value
    if isinstance(value, Mapping):
        stored = yield from _walk_object(schema, value, path, rules)
    elif isinstance(value, list):
        stored = []
        for number, item in enumerate(value):
            stored.append((yield from _walk(schema["items"], item, f"{path}[{number}]", rules)))
        yield from _twice(schema, stored, path)
    if rules and "x-kubernetes-validations" in schema:
        text = json.dumps(stored)
        for rule in schema["x-kubernetes-validations"]:
            if "oldSelf" in rule["rule"]:
                continue
            holds = _holds(rule["rule"], text)
            if not holds:
                yield Problem(path + rule.get("fieldPath", ""), rule["message"], unsure=holds is None)
    return stored


def _walk_object(schema: Schema, value: Mapping[str, Any], path: str, rules: bool) -> Generator[Problem, None, dict[str, Any]]:
    stored: dict[str, Any] = {}
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return stored
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        inner = known.get(name, others)
        if inner is None:
            yield Problem("", f'unknown field "{path}.{name}"')
        else:
            stored[name] = yield from _walk(inner, item, f"{path}.{name}".removeprefix("."), rules)
    for name, inner in known.items():
        if "default" in inner and name not in value:
            stored[name] = yield from _walk(inner, inner["default"], f"{path}.{name}", rules)
    return stored


def _twice(schema: Schema, items: list[Any], path: str) -> Iterator[Problem]:
    if schema.get("x-kubernetes-list-type") not in ("set", "map"):
        return
    keys = schema.get("x-kubernetes-list-map-keys")
    seen: set[str] = set()
    for number, item in enumerate(items):
        key = json.dumps({name: item.get(name) for name in keys} if keys else item)
        if key in seen:
            yield Problem(f"{path}[{number}]", f"Duplicate value: {key}")
        seen.add(key)


@cache
def _holds(rule: str, text: str) -> bool | None:
    """`text`: the value as JSON; with flags over a file most are looked at twice. None: the rule could not be evaluated."""
    from celpy.adapter import CELJSONDecoder
    from celpy.evaluation import CELEvalError

    try:
        return bool(_program(rule).evaluate({"self": json.loads(text, cls=CELJSONDecoder)}))
    except (CELEvalError, ValueError):
        # ValueError: an integer of more than 64 bits
        return None


@cache
def _program(rule: str) -> Runner:
    environment = _environment()
    return environment.program(environment.compile(rule), functions=_functions())


@cache
def _environment() -> Environment:
    import celpy

    return celpy.Environment()


@cache
def _functions() -> dict[str, Any]:
    """Those functions of Kubernetes' CEL which rules of ModelDeployment call and cel-python lacks, and one that it has. They raise ValueError only."""
    from celpy.celtypes import BoolType, DurationType, StringType

    def lower_ascii(text: StringType) -> StringType:
        return StringType(re.sub("[A-Z]+", lambda found: found[0].lower(), text))

    def replace(text: StringType, old: StringType, new: StringType) -> StringType:
        return StringType(text.replace(old, new))

    def duration(text: StringType) -> DurationType:
        # cel-python's own takes exponential time for some texts
        try:
            return DurationType(timedelta(seconds=seconds(text)))
        except OverflowError as error:
            raise ValueError(f"{text} is too long") from error

    def is_url(text: StringType) -> BoolType:
        return BoolType(_URL.fullmatch(text) is not None)

    def get_hostname(url: StringType) -> StringType:
        found = _URL.fullmatch(url)
        return StringType((found and found["host"]) or "")

    return {
        "lowerAscii": lower_ascii,
        "replace": replace,
        "duration": duration,
        "isURL": is_url,
        "url": StringType,
        "getHostname": get_hostname,
    }


_HOST = r"""\[[0-9A-Fa-f:.]+(?:%25[^\[\]]+)?\]|(?:[\w.~!$&'()*+,;=<>"-]|[^\x00-\x7f]|%[89A-Fa-f][0-9A-Fa-f])*"""
_URL = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*://(?:[^@/?]*@)?(?P<host>{_HOST})(?::[0-9]*)?(?:/(?:[^%?\x00-\x1f\x7f]|%[0-9A-Fa-f]{{2}})*)?(?:\?[^\x00-\x1f\x7f]*)?",
    re.ASCII,
)
"""An absolute URL as Go's net/url takes it (ParseRequestURI), which Kubernetes' isURL() asks."""
