"""Tables of somebody's own, as a mounted ConfigMap gives them: the newest that is right counts, and what is left aside is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from enginefleet_api.jobs import TABLES_VARIABLE, PreflightTarget
from enginefleet_builder.backends import texts
from enginefleet_builder.io import PlainProgress
from enginefleet_builder.prepare import targets
from enginefleet_builder.prepare.checks import Asked
from enginefleet_builder.prepare.preflight import preflight
from tests.builder.models import classifier, save_model

LATER = "2099-01-01"
Write = Callable[..., Path]
BOTH = pytest.mark.parametrize(("module", "name"), [(texts, "failures.json"), (targets, "targets.json")], ids=["failures", "targets"])


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a table into the mounted folder: ours with changes, or any text."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    monkeypatch.setenv(TABLES_VARIABLE, str(folder))

    def write(module: Any, name: str, text: str | None = None, to: Path = folder, **changes: Any) -> Path:
        path = to / name
        path.write_text(json.dumps(module.load().to_json_dict() | changes) if text is None else text)
        return path

    return write


@BOTH
def test_a_folder_without_the_file_leaves_ours_without_a_word(module: ModuleType, name: str, write: Write) -> None:
    write(module, "another.json", "{}")
    assert module.chosen().problems == ()
    assert module.load().updated < LATER, name


@BOTH
def test_a_newer_table_of_the_mounted_folder_replaces_ours(module: ModuleType, name: str, write: Write) -> None:
    write(module, name, updated=LATER)
    assert (module.load().updated, module.chosen().problems) == (LATER, ())


@BOTH
@pytest.mark.parametrize(
    ("text", "changes", "says"),
    [
        ("{", {}, "Invalid JSON"),
        (None, {"schemaVersion": 2}, "schemaVersion"),
        (None, {"updated": "2020-01-01"}, "updated is '2020-01-01', older than the program's own table"),
    ],
    ids=["no JSON", "another schema", "older"],
)
def test_a_table_that_is_wrong_or_older_is_left_aside_and_told(
    module: ModuleType, name: str, text: str | None, changes: dict[str, Any], says: str, write: Write
) -> None:
    path = write(module, name, text, **changes)
    (problem,) = module.chosen().problems
    assert says in problem.message
    assert str(path) in problem.message
    assert module.load().updated not in ("2020-01-01", LATER)


def test_an_images_own_table_counts_where_the_folder_has_none_that_is_right(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write(texts, "own.json", to=tmp_path, updated=LATER)
    write(texts, "failures.json", "{")
    monkeypatch.setenv(texts.FAILURES_VARIABLE, str(own))
    assert texts.load().updated == LATER
    assert len(texts.chosen().problems) == 1


def test_a_failure_that_is_not_known_says_that_a_table_was_left_aside(write: Write) -> None:
    write(texts, "failures.json", "{")
    error = texts.classify(["[E] nobody has seen this line before"], doing="build", facts={})
    assert error.reason == "BuildFailed"
    assert "FailuresInvalid" in error.hint
    assert error.hint.endswith("The program's own table is used.")
    (warning,) = texts.left_aside()
    assert warning.startswith("FailuresInvalid: ")


def test_preflight_warns_of_a_table_that_it_does_not_use_and_goes_on(write: Write, tmp_path: Path) -> None:
    model = save_model(classifier(), tmp_path / "model.onnx")
    write(targets, "targets.json", "{")
    found = preflight(model, Asked(), PlainProgress()).findings
    assert [(finding.severity, finding.reason) for finding in found] == [("warning", "TargetsInvalid")]
    assert found[0].message.endswith("The program's own table is used.")


def test_preflight_finds_what_a_newer_table_knows(write: Write, tmp_path: Path) -> None:
    bad = {"operators": ["Gemm"], "severity": "error", "what": "it breaks", "hint": "Wait.", "references": ["owner/repository#1"]}
    model = save_model(classifier(), tmp_path / "model.onnx")
    write(targets, "targets.json", updated=LATER, knownBad=[bad])
    target = PreflightTarget(name="line", backend="onnxruntime", version="1.24.4")
    found = preflight(model, Asked(targets=[target]), PlainProgress()).findings
    assert [(finding.severity, finding.reason) for finding in found] == [("error", "KnownTrouble")]
