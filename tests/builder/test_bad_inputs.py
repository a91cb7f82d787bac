"""Every bad input through the real command line: the expected reason, what was found and what was expected, and never a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from enginefleet_builder.backends.child import Child
from enginefleet_builder.io import Progress
from enginefleet_builder.main import app
from enginefleet_builder.prepare import preflight
from tests.builder import bad_inputs
from tests.builder.bad_inputs import CASES, Bad

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def inspector() -> Iterator[Any]:
    """One process for all cases, which take a second each to start; a case that it does not survive gets the next one."""
    alive: list[Child] = []

    @contextmanager
    def shared(module: str, _progress: Progress, environment: Mapping[str, str]) -> Iterator[Child]:
        if not alive:
            alive.append(Child(module, Progress(), environment))
        try:
            yield alive[0]
        except BaseException:
            alive.pop().__exit__(Exception, Exception(), None)
            raise

    yield shared
    for child in alive:
        child.__exit__(None, None, None)


def findings(output: str) -> list[dict[str, str]]:
    """What the command said, as JSON: findings of preflight, or the failure of any command."""
    document = json.loads(output)
    if "failure" in document:
        return [document["failure"]]
    return [finding for finding in document["findings"] if finding["severity"] == "error"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_is_refused_with_its_reason(case: Bad, tmp_path: Path, inspector: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "Child", inspector)
    bad_inputs.write(case, tmp_path / "in")
    done = RUNNER.invoke(app, case.arguments(tmp_path / "in"))
    assert "Traceback" not in done.output
    assert done.exit_code == case.exit_code, done.output
    said = [finding for finding in findings(done.stdout) if finding["reason"] == case.reason]
    assert said, done.stdout
    text = " ".join(f"{finding['message']} {finding['hint']}" for finding in said)
    for part in case.says:
        assert part in text
    assert all(finding["message"].endswith(".") for finding in said)


def test_there_are_sixty_and_no_two_alike() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.command == bad_inputs.REQUEST for case in CASES) >= 25


def test_the_generator_writes_them_for_use_by_hand(tmp_path: Path) -> None:
    bad_inputs.main(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*/command.txt"))) == len(CASES)
    text = (tmp_path / "out" / "git-lfs-pointer" / "command.txt").read_text()
    assert text.startswith("enginefleet preflight ")
    assert "# NotAModel, exit code 42" in text
