"""The schema of a model in the form that Kubernetes takes.

Pydantic gives JSON Schema; Kubernetes wants a *structural* schema, a subset without `$ref`, `title`, `anyOf` with types or null. The CRDs are made of
it, and the command line checks manifests by it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from .base import Contract

Schema = dict[str, Any]

KEPT = (
    "type", "format", "description", "enum", "default", "required", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "uniqueItems", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-map-type", "x-kubernetes-validations",
)  # fmt: skip
"""Keywords that are taken over as they are; what is neither here nor translated is an error, not silently lost."""
DROPPED = ("title", "discriminator", "additionalProperties", "propertyNames")


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with defaults made by factories, the rules of each model, and the docstrings of attributes."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        if "default_factory" in schema:
            return schema["default_factory"]()  # type: ignore[call-arg]  # no factory of ours takes the validated data
        return super().get_default_value(schema)

    def encode_default(self, dft: Any) -> Any:
        """A nested model whole: the API server tries rules on a default as it stands, before it fills in defaults further down."""
        if isinstance(dft, Contract):
            return dft.to_json_dict()
        return super().encode_default(dft)

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        model = schema["cls"]
        if "__doc__" not in vars(model) or model.__doc__ is None:
            found.pop("description", None)
        for name, text in _attribute_docs(model).items():
            alias = model.model_fields[name].alias
            found["properties"][alias]["description"] = text
        if rules := model.RULES:
            found["x-kubernetes-validations"] = [rule.to_schema() for rule in rules]
        return found


def _attribute_docs(model: type[Contract]) -> dict[str, str]:
    """Field name -> the text that stands below the field in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            match text.value:
                case ast.Constant(value=str(doc)) if field.target.id in model.model_fields:
                    docs[field.target.id] = inspect.cleandoc(doc)
    return docs


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """The structural form of a JSON Schema node. Raises ValueError for what has none."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix("#/$defs/")]
        # what stands beside the reference (a field's description or default) says more than the model that it refers to
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    if "anyOf" in schema:
        return _union(schema, definitions)
    result: Schema = {}
    for key, value in schema.items():
        if key in KEPT:
            result[key] = value
        elif key == "const":
            result["enum"] = [value]
        elif key not in ("properties", "items", "$defs", *DROPPED):
            raise ValueError(f"keyword {key!r} has no structural form here: {schema}")
    match schema.get("type"):
        case "object":
            _object(schema, definitions, result)
        case "array":
            result["items"] = structural(schema["items"], definitions)
            result.setdefault("x-kubernetes-list-type", "atomic")
        case "integer":
            result["format"] = "int64"
        case None if result.get("x-kubernetes-preserve-unknown-fields") is not True:
            raise ValueError(f"a structural schema needs a type everywhere: {schema}")
    if result.get("default", ...) is None:
        del result["default"]
    return result


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any], result: Schema) -> None:
    extra = schema.get("additionalProperties")
    if "properties" in schema:
        result["properties"] = {name: structural(value, definitions) for name, value in schema["properties"].items()}
    elif isinstance(extra, Mapping):
        result["additionalProperties"] = structural(extra, definitions)
    else:
        result["x-kubernetes-preserve-unknown-fields"] = True


def _union(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """`X | None` is an optional X; integer | text is Kubernetes' int-or-string; other unions have no structural form."""
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    branches = [branch for branch in schema["anyOf"] if branch.get("type") != "null"]
    if len(branches) == 1:
        # the field's own description wins over that of its type
        return structural({**branches[0], **beside}, definitions)
    if sorted(branch.get("type", "") for branch in branches) != ["integer", "string"]:
        raise ValueError(f"only unions with null and of integer and text have a structural form: {schema}")
    merged: Schema = {}
    for branch in branches:
        found = structural(branch, definitions)
        merged |= {key: value for key, value in found.items() if key not in ("type", "format")}
    merged |= {key: value for key, value in beside.items() if key in KEPT}
    return {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True, **merged}


def schema_of(model: type[Contract]) -> Schema:
    """The structural schema of one model."""
    found = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    return structural(found, found.get("$defs", {}))
