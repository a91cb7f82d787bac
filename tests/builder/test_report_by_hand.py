"""A reader checks a report: the commands on the page, run in a shell as they stand there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from enginefleet_api.jobs import PrepareReport, StoreRef
from enginefleet_builder.io import Progress
from enginefleet_builder.main import app
from enginefleet_builder.report.data import ReportData
from enginefleet_builder.report.job import make_report
from enginefleet_builder.store import layout, open_store
from enginefleet_builder.store.records import Records
from tests.builder.models import classifier, samples, save_model
from tests.builder.support import Bench


class Reader:
    """Somebody with the page, a shell, and `enginefleet` in its path."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        self.program("enginefleet", f'exec "{sys.executable}" -m enginefleet_builder.main "$@"')
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | variables

    def program(self, name: str, line: str) -> None:
        file = self.folder / "bin" / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)

    def follow(self, data: ReportData, *titles: str) -> dict[str, str]:
        """What each step (or those of these titles) prints, run as it stands on the page."""
        told = {}
        for step in data.steps if not titles else [step for step in data.steps if step.title in titles]:
            command = ["sh", "-ec", step.command]
            done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{step.title}: {done.stdout}{done.stderr}"
            told[step.title] = done.stdout
        return told


def test_the_commands_of_a_report_work_in_a_shell(bench: Bench, prepared: PrepareReport, tmp_path: Path) -> None:
    # an engine of its own: the commands write where the page says that it was judged
    fp32 = bench.build(prepared)
    data = make_report(bench.store, fp32.engine_key, None, (), Progress())
    outputs = Reader(tmp_path).follow(data)
    assert layout.digest_hex(data.blob) in outputs["Check the engine's bytes"]
    assert json.loads(outputs["Read the verdict itself"])["blob"] == data.blob
    assert "answer: Pass" in outputs["Judge the engine again"]
    assert "operators:" in outputs["Run the engine yourself"]
    assert (tmp_path / "report.html").is_file()


SPEC = """
metadata: {name: yard, namespace: vision}
spec:
  precision: int8
  inputs: [{name: x, profiles: [{min: [1, 1, 8, 8], opt: [2, 1, 8, 8], max: [4, 1, 8, 8]}]}]
  preprocessing: {color: GRAY, scale: "1/255", mean: ["0.1"]}
  calibration: {uri: calibration/, minSamples: 40, exclude: {opTypes: [Relu]}}
  validation: {uri: validation/, minSamples: 60, requiredClasses: [a, d], acceptance: {minimum: "0.9", maxDrop: "0.1"}}
  benchmark: {batchSizes: [1, 4]}
  build: {threads: "1"}
"""


def gray_folders(root: Path, count: int, seed: int) -> None:
    """tests.builder.models.samples as pictures in a folder a class."""
    images, labels = samples(count, seed)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        file = root / "abcd"[label] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image[0] * 255).round().astype(np.uint8)).save(file)


def test_all_that_was_asked_is_on_the_page_and_gives_the_same_keys_digest_and_answer_in_a_new_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preprocessing, profiles, exclusions (but not those that the repair found), thresholds, threads, an FP32 partner, the model's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    save_model(classifier(outlier=300), tmp_path / "model.onnx")
    gray_folders(tmp_path / "validation", 80, seed=1)
    gray_folders(tmp_path / "calibration", 60, seed=2)

    def told(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, [*arguments, "--spec", "spec.yaml", "--store", "store", "--json"])
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.exit_code == 0, found
        return found

    prepared = told("prepare", "--model", "model.onnx", "--repair")
    partner = told("prepare", "--model", "model.onnx", "--precision", "fp32")["prepared"][0]
    key, baseline = prepared["prepared"][-1]["preparedKey"], prepared["baselineKey"]
    engine = told("build", "--prepared", key, "--baseline", baseline, "--partner", partner["preparedKey"])
    page = make_report(StoreRef(uri=(tmp_path / "store").as_uri()), engine["engineKey"], None, (), Progress())
    assert page.label == "int8-repaired"
    assert len(page.exclude) == 2

    written = json.loads(next(step.command for step in page.steps if step.title.startswith("Prepare")).split("END")[1].strip("'\n"))
    spec = written["spec"]
    assert [spec[name]["digest"] for name in ("model", "calibration", "validation")] == [
        prepared[name] for name in ("model", "calibration", "validation")
    ]

    reader = tmp_path / "reader"
    reader.mkdir()
    steps = Reader(reader).follow(page, "Prepare the model again", "Build and judge it again")
    for word in (f"preparedKey: {key}", f"preparedKey: {partner['preparedKey']}", f"baselineKey: {baseline}"):
        assert word in steps["Prepare the model again"]
    for word in (f"engineKey: {engine['engineKey']}", f"gateKey: {engine['gateKey']}", "answer: Pass"):
        assert word in steps["Build and judge it again"]
    assert page.name == "vision/yard"
    assert make_report(StoreRef(uri=(reader / "again").as_uri()), engine["engineKey"], None, (), Progress()).name == page.name
    first, again = (Records(open_store(StoreRef(uri=folder.as_uri()))).prepared(key) for folder in (tmp_path / "store", reader / "again"))
    assert first is not None
    assert again is not None
    assert (again.model, again.files) == (first.model, first.files)
