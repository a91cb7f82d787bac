"""tests/jetson/run: dry runs of the whole command on stand-ins, what they leave, and that none can pass for a record of hardware."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api.jetsons import MODULES
from enginefleet_builder.device.files import HostFiles
from tests.jetson.hostrecord import NO_UUID, Recording, without_paths
from tests.jetson.record import DOCS, ROOT, Record
from tools import jetson_table

RUN = ROOT / "tests" / "jetson" / "run"
needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="the stand-ins need a C compiler (cc) to be compiled")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([RUN, *arguments], capture_output=True, text=True, timeout=240, check=False)


@needs_cc
def test_a_dry_run_goes_the_whole_way_and_says_what_it_is(tmp_path: Path) -> None:
    host = "jetpack-6.2"
    done = run("--dry-run", host, "--precision", "int8", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    assert all(line.startswith("jetson (DRY RUN)") for line in told)
    assert "Its figures mean nothing" in told[-1]
    # no file has the name of a real one
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dry-run-host.json", "dry-run.json"]
    text = (tmp_path / "out" / "dry-run.json").read_text()
    record = json.loads(text)
    assert next(iter(record.items())) == ("simulated", True)
    assert record["about"].startswith("DRY RUN ON STAND-INS")
    assert record["standIns"] == record["facts"]["simulated"] == "EngineFleet simulated CUDA, EngineFleet simulated TensorRT"
    assert record["device"] == "SIMULATED Orin Nano 8GB devkit (p3767-0005), SM 8.7 x8, TensorRT 10.3.0.30, L4T 36.4.3"
    (case,) = record["cases"]
    # the double computes what the prepared file says
    assert (case["precision"], case["answer"]) == ("int8-entropy", "Pass")
    assert float(case["value"]) > 0.95
    assert [item["batch"] for item in case["latency"]] == [1, 16]
    # an Orin Nano has no DLA
    (refused,) = record["dla"]
    assert refused["refused"].startswith("NoDLA: TensorRT 10.3.0.30 finds no DLA here")
    kill = record["kill"]
    assert (kill["ok"], kill["killed"], kill["workersLeft"], kill["published"], kill["again"]) == (True, 1, 0, 0, "Pass")
    assert kill["said"].startswith("EngineProcessKilled: ")
    assert str(Path.home()) not in text
    assert str(ROOT) not in text
    recorded = json.loads((tmp_path / "out" / "dry-run-host.json").read_text())["files"]
    planted = json.loads((ROOT / "tests" / "hosts" / f"{host}.json").read_text())["files"]
    assert {name: recorded[name]["text"] for name in recorded} == {name: planted[name]["text"] for name in recorded}
    assert {"etc/nv_tegra_release", "proc/cpuinfo", "var/lib/nvpmodel/status"} <= set(recorded)
    with pytest.raises(jetson_table.NoRecord, match="made on stand-ins"):
        jetson_table.rows({"jetson-x.json": record})


@needs_cc
def test_a_dry_run_is_not_written_among_the_records() -> None:
    before = sorted(DOCS.rglob("*"))
    done = run("--dry-run", "jetpack-6.2", "--out", DOCS / "benchmarks")
    assert done.returncode == 2
    assert "is no record of hardware and is not written below" in done.stdout
    assert sorted(DOCS.rglob("*")) == before


@needs_cc
def test_ctrl_c_says_where_what_was_done_is_to_be_found(tmp_path: Path) -> None:
    command: list[str | Path] = [RUN, "--dry-run", "jetpack-6.2", "--out", tmp_path]
    # what runs in a shell's background ignores SIGINT, and its children inherit that
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        assert any(" prepare fp32" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"stopped; {tmp_path / 'dry-run.json'} has what was done until then, and the same command goes on from there" in told
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "dry-run.json").read_text())["failure"].startswith("Stopped")


@needs_cc
def test_a_run_that_was_killed_goes_on_where_it_stopped_and_a_dla_is_built_for(tmp_path: Path) -> None:
    command: list[str | Path] = ["--dry-run", "jetpack-6.0", "--precision", "int8", "--out", tmp_path]
    with subprocess.Popen([RUN, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert any('{"precision": "int8-entropy", "answer": "Pass"' in line for line in process.stdout)
        process.kill()
    before = json.loads((tmp_path / "dry-run.json").read_text())
    assert "failed" not in before
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"goes on with {tmp_path / 'dry-run.json'}, which was cut off" in done.stdout
    assert " prepare int8" not in done.stdout
    record = json.loads((tmp_path / "dry-run.json").read_text())
    assert {name: record[name] for name in ("date", "before", "prepare", "cases")} == {
        name: before[name] for name in ("date", "before", "prepare", "cases")
    }
    assert (record["resumed"], record["failed"], record["kill"]["ok"]) == (1, 0, True)
    (on_dla,) = record["dla"]
    assert (on_dla["precision"], on_dla["answer"]) == ("int8-entropy", "Pass")
    assert on_dla["dla"] == {"may": 2, "layers": 3, "parts": 1, "gpu": 1}
    assert any("scales were given beside a network without Q/DQ nodes" in text for text in on_dla["warnings"])
    assert [item["batch"] for item in on_dla["latency"]] == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dry-run-host.json", "dry-run.json"]


def left_behind(out: Path, **changes: Any) -> tuple[Record, dict[str, Any]]:
    known = {"fingerprint": "fp-1", "asked": ["fp32"], "driverPython": "3.12.1"}
    record = Record(out, "", {})
    record.file.write_text(json.dumps({"simulated": False, **known, "cases": [{"precision": "fp32", "answer": "Pass"}]} | changes))
    return record, known


@pytest.mark.parametrize(
    ("changes", "goes_on"),
    [
        ({}, True),
        ({"failure": "Stopped: interrupted before the end"}, True),
        ({"failed": 0}, False),
        ({"fingerprint": "fp-2"}, False),
        ({"asked": ["fp32", "int8-entropy"]}, False),
        ({"simulated": True}, False),
    ],
)
def test_only_what_the_same_board_was_asked_and_did_not_end_is_gone_on_with(tmp_path: Path, changes: dict[str, Any], goes_on: bool) -> None:
    record, known = left_behind(tmp_path, **changes)
    assert record.take_up(known) is goes_on
    assert ("cases" in record.data) is goes_on
    assert "failure" not in record.data


def test_a_record_that_cannot_be_read_begins_anew(tmp_path: Path) -> None:
    record, known = left_behind(tmp_path)
    record.file.write_text('{"simulated": fal')
    assert not record.take_up(known)


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = run("--out", tmp_path / "out")
    assert done.returncode == 2
    assert re.match(r"jetson: (NoGPU|RuntimeMissing): ", done.stdout) or "this machine is no Jetson" in done.stdout
    assert not (tmp_path / "out").exists()


def test_what_tells_one_device_from_another_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("Features\t: asimd\nSerial\t\t: 1422520007\nGPU UUID: \t GPU-x\nRevision\t: 0020\n")
    (tmp_path / "uuid").write_text("id 3F2504E0-4F89-11D3-9A0C-0305E82C3301.")
    files = Recording(tmp_path)
    assert files.text("proc/cpuinfo") == HostFiles(tmp_path).text("proc/cpuinfo")
    assert (files.text("none"), files.number("uuid")) == (None, None)
    texts = {name: file["text"] for name, file in files.fixture("a host", "here")["files"].items()}
    assert texts == {"proc/cpuinfo": "Features\t: asimd\nRevision\t: 0020\n", "uuid": f"id {NO_UUID}."}
    names = {Path("/home/ann"): "~", Path("/home/ann/out"): "<out>"}
    assert without_paths({"said": ["no /home/ann/out/x, no /home/ann/y", 3]}, names) == {"said": ["no <out>/x, no ~/y", 3]}


RECORD: dict[str, Any] = {
    "simulated": False,
    "date": "2000-01-01",
    "facts": {"jetson": {"module": "p3767-0000", "l4t": "36.4.3"}, "backendVersion": "10.3.0.30"},
    "cases": [{"precision": "fp32", "answer": "Pass"}, {"precision": "fp16", "failure": "x"}],
    "dla": [
        {"precision": "fp16", "answer": "Pass", "dla": {"may": 7, "layers": 9, "parts": 1, "gpu": 2}},
        {"precision": "int8-entropy", "refused": "NoDLA: none here."},
    ],
}


def test_a_row_says_never_run_until_there_is_a_record() -> None:
    def cells(records: dict[str, Any]) -> dict[str, str]:
        return {row[0]: row[-1] for row in jetson_table.rows(records)[1:]}

    without, having = cells({}), cells({"jetson-a.json": RECORD})
    assert set(without.values()) == {jetson_table.NEVER}
    assert len(without) == sum(part[:5] in jetson_table.FAMILIES for part in MODULES)
    changed = {name: cell for name, cell in having.items() if cell != without[name]}
    assert changed == {
        "Orin NX 16GB (`p3767-0000`)": "[2000-01-01](benchmarks/jetson-a.json): L4T 36.4.3, TensorRT 10.3.0.30: `fp32` pass, `fp16` failed,"
        " `fp16` on a DLA pass (7 of 9 layers), `int8-entropy` on a DLA refused (NoDLA)"
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"simulated": True},
        {"simulated": None},
        {"facts": RECORD["facts"] | {"simulated": "EngineFleet simulated CUDA"}},
        {"facts": {"backendVersion": "10.3.0"}},
    ],
)
def test_what_is_no_record_of_hardware_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(jetson_table.NoRecord):
        jetson_table.rows({"jetson-a.json": RECORD | changes})
