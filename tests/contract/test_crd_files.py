"""The committed CRDs are what the models give, and keep to what the API server and we ask of a schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import yaml
from pydantic import Field

from enginefleet_api.base import Contract
from enginefleet_api.crd import files, main, manifest, status_schema
from enginefleet_api.fields import CountOrPercent
from enginefleet_api.kinds import ENGINE_STORE, HARDWARE_CLASS, KINDS, MODEL_DEPLOYMENT, Kind
from enginefleet_api.schema import schema_of

FOLDER = Path(__file__).resolve().parents[2] / "crds"


def nodes(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, value in schema.get("properties", {}).items():
        yield from nodes(value, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


def spec_nodes(kind: Kind) -> list[tuple[str, dict[str, Any]]]:
    return list(nodes(schema_of(kind.spec), "spec"))


def test_the_committed_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(FOLDER)]) == 0, capsys.readouterr().out


def test_check_shows_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path)])
    assert main(["--check", str(tmp_path)]) == 0
    path = tmp_path / "enginestores.enginefleet.io.yaml"
    path.write_text(path.read_text().replace("shortNames:\n    - es", "shortNames:\n    - store"))

    assert main(["--check", str(tmp_path)]) == 1

    shown = capsys.readouterr()
    assert "-    - store" in shown.out
    assert "+    - es" in shown.out
    assert "make generate" in shown.err


def test_check_misses_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []
    shown = capsys.readouterr().out
    assert [name for name in files() if name not in shown] == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_file_is_the_manifest(kind: Kind) -> None:
    assert manifest(kind) == yaml.safe_load((FOLDER / f"{kind.plural}.enginefleet.io.yaml").read_text())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_text_list_and_map_of_a_spec_is_bounded(kind: Kind) -> None:
    """The API server estimates the cost of rules from these bounds, and refuses a CRD without them."""
    unbounded = [
        path
        for path, node in spec_nodes(kind)
        if (node.get("type") == "string" and "enum" not in node and "maxLength" not in node)
        or (node.get("type") == "array" and "maxItems" not in node)
        or ("additionalProperties" in node and "maxProperties" not in node)
    ]
    assert unbounded == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_rule_says_what_to_write(kind: Kind) -> None:
    rules = [rule for _, node in spec_nodes(kind) for rule in node.get("x-kubernetes-validations", [])]
    rules += manifest(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].get("x-kubernetes-validations", [])

    helpful = ("write ", "start with ", "add it to ", "leave ", "put ", "delete ")
    assert [rule["message"] for rule in rules if not any(word in rule["message"] for word in helpful)] == []


@pytest.mark.parametrize("kind", [MODEL_DEPLOYMENT, HARDWARE_CLASS, ENGINE_STORE], ids=lambda kind: kind.name)
def test_every_field_that_people_write_is_explained(kind: Kind) -> None:
    """`kubectl explain` is the reference that is at hand."""
    assert [path for path, node in spec_nodes(kind) if "description" not in node and not path.endswith("[]")] == []


def test_every_pattern_has_a_rule_with_a_message() -> None:
    """What an API server says of a pattern is the pattern."""
    silent = [path for kind in KINDS for path, node in spec_nodes(kind) if "pattern" in node and "x-kubernetes-validations" not in node]

    assert silent == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_status_has_no_default_but_the_one_that_tools_wait_for(kind: Kind) -> None:
    schema = status_schema(kind.status)

    assert schema.get("default") == ({"observedGeneration": -1} if "observed_generation" in kind.status.model_fields else None)
    assert [path for path, node in nodes(schema, "status") if "default" in node and path != "status"] == []


class Inner(Contract):
    """Something inside."""

    number: int = 1


class Sample(Contract):
    """A sample."""

    plain: str
    """A text."""
    inner: Inner = Field(default_factory=Inner)
    """What is inside here."""
    maybe: Annotated[list[Inner], Field(max_length=2)] | None = None
    either: CountOrPercent = "10%"
    free: dict[str, Any] = Field(default_factory=dict)
    KNOWN: ClassVar[int] = 1


def test_the_schema_of_a_sample() -> None:
    inner = {
        "type": "object",
        "description": "Something inside.",
        "properties": {"number": {"type": "integer", "format": "int64", "default": 1}},
    }

    schema = schema_of(Sample)

    assert schema["required"] == ["plain"]
    found = schema["properties"]
    assert found["plain"] == {"type": "string", "description": "A text.", "maxLength": 65536}
    assert found["inner"] == {**inner, "description": "What is inside here.", "default": {"number": 1}}
    assert found["maybe"] == {"type": "array", "maxItems": 2, "items": inner, "x-kubernetes-list-type": "atomic"}
    either = found["either"]
    assert either["x-kubernetes-int-or-string"] is True
    assert either["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert (either["minimum"], either["maximum"], either["pattern"]) == (0, 100000, "^(100|[1-9]?[0-9])%$")
    assert found["free"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "default": {}}


class TwoKinds(Contract):
    value: Inner | str


def test_refuses_what_has_no_structural_form() -> None:
    with pytest.raises(ValueError, match="only unions with null and of integer and text have a structural form"):
        schema_of(TwoKinds)
