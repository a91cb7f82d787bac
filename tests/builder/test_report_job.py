"""Reports of engines that were really built: what the Job leaves in the store, and the command that makes them again."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from enginefleet_api.documents import Answer
from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import BuildReport, PrepareReport, StoreRef
from enginefleet_api.judging import Benchmark, PacedRun
from enginefleet_builder.build.job import build
from enginefleet_builder.gate.samples import Dataset
from enginefleet_builder.io import Progress
from enginefleet_builder.main import app
from enginefleet_builder.report.data import ReportData
from enginefleet_builder.report.job import make_report
from enginefleet_builder.report.pictures import MOST_PICTURES, PICTURE_BYTES, pictures
from tests.builder.support import Bench


@pytest.fixture(scope="module")
def built(proven: tuple[Bench, BuildReport], tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, BuildReport, BuildReport]:
    """A bench with an FP32 and an INT8 engine of one model, judged by one gate."""
    done, fp32 = proven
    bench = Bench(tmp_path_factory.mktemp("reports"))
    shutil.copytree(done.folder / "store", bench.folder / "store")
    return bench, fp32, bench.build(bench.prepare("int8"))


def reports(bench: Bench, report: BuildReport) -> list[Path]:
    return sorted((bench.folder / "store" / "reports" / report.engine_key / report.gate_key).glob("*.[hj]*"))


def test_judging_leaves_page_and_json_beside_the_verdict(built: tuple[Bench, BuildReport, BuildReport]) -> None:
    bench, _, int8 = built
    page, data = reports(bench, int8)
    found = bench.records.newest_verdict(int8.engine_key, int8.gate_key)
    assert found is not None
    assert (page.suffix, data.suffix) == (".html", ".json")
    assert page.stem == data.stem == found[0].rpartition("/")[2].removesuffix(".json")
    read = ReportData.model_validate_json(data.read_bytes())
    assert (read.answer, read.blob, read.warnings) == (Answer.PASS, int8.blob, [])
    assert read.request is not None
    assert page.read_text().startswith('<!doctype html>\n<html lang="en">')


def test_layers_say_what_ran_in_int8(built: tuple[Bench, BuildReport, BuildReport]) -> None:
    bench, fp32, int8 = built
    layers = [make_report(bench.store, item.engine_key, None, (), Progress()).layers for item in (fp32, int8)]
    assert layers[0] is not None
    assert layers[1] is not None
    assert "int8" not in {row.type for row in layers[0].types}
    assert "int8" in {row.type for row in layers[1].types}
    assert sum(float(row.share) for row in layers[1].types) == pytest.approx(1, abs=0.001)


def test_all_that_was_asked_of_speed_is_measured_and_shown(bench: Bench, prepared: PrepareReport) -> None:
    """By the Job itself, on this machine: marks may be there or not, as busy as it is."""
    benchmark = Benchmark(batch_sizes=[1, 4], paced=PacedRun(rate="200", duration="100ms"), end_to_end=True)
    report = build(bench.build_request(prepared, benchmark=benchmark), Progress())
    page, data = reports(bench, report)
    read = ReportData.model_validate_json(data.read_bytes())
    first, fourth = read.latency
    assert (first.batch, fourth.batch) == (1, 4)
    assert first.paced is not None
    assert first.paced.iterations == 20
    assert first.end_to_end is not None
    assert fourth.end_to_end is None
    assert read.memory["host"] > 1_000_000
    assert set(read.conditions) == {"idle", "before", "after"}
    assert sum(read.providers.values()) > 0
    assert read.accuracy is not None
    assert read.accuracy.consistency is not None
    text = page.read_text()
    for words in (
        "200 a second, batch 1",
        "end to end at batch 1",
        "load (1, 5, 15 minutes)",
        "of its process",
        "nodes on CPU",
        "alone and in a batch",
    ):
        assert words in text
    assert ("These figures of speed are doubtful" in text) is any(row.marks for row in read.latency)


def test_engines_of_the_model_find_each_other(built: tuple[Bench, BuildReport, BuildReport]) -> None:
    """The page of the one that was built first knows the second when it is made again."""
    bench, fp32, int8 = built
    again = make_report(bench.store, fp32.engine_key, fp32.gate_key, (), Progress())
    assert [(row.engine_key, row.this) for row in again.precisions] == [(fp32.engine_key, True), (int8.engine_key, False)]


def test_an_engine_of_another_gate_is_not_compared(built: tuple[Bench, BuildReport, BuildReport]) -> None:
    bench, fp32, _ = built
    again = make_report(bench.store, fp32.engine_key, None, ["7" * 64], Progress())
    assert [line for line in again.warnings if "7" * 64 in line and "cannot be compared" in line] != []


def test_the_command_writes_a_page_or_json(built: tuple[Bench, BuildReport, BuildReport], tmp_path: Path) -> None:
    bench, _, int8 = built
    where = ["report", "--store", str(bench.folder / "store"), "--engine", int8.engine_key]
    page = CliRunner().invoke(app, [*where, "--out", str(tmp_path / "page.html")])
    assert (page.exit_code, "answer: Pass" in page.stdout) == (0, True)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    told = CliRunner().invoke(app, [*where, "--json"])
    assert json.loads(told.stdout)["kind"] == "EngineReport"


@pytest.mark.parametrize(("key", "reason"), [("0" * 64, "VerdictMissing"), ("../../etc/passwd", "BadRequest"), ("", "BadRequest")])
def test_an_engine_that_is_not_there_has_no_report(bench: Bench, key: str, reason: str) -> None:
    (bench.folder / "store").mkdir()
    with pytest.raises(PermanentError) as caught:
        make_report(bench.store, key, None, (), Progress())
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "command", [["report", "--engine", "0" * 64], ["build", "--prepared", "0" * 64], ["judge", "--prepared", "0" * 64]]
)
@pytest.mark.parametrize("found", ["does not exist", "is a file"])
def test_a_store_that_is_no_folder_is_called_so_and_none_is_made(tmp_path: Path, command: list[str], found: str) -> None:
    folder = tmp_path / "stroe"
    if found == "is a file":
        folder.write_text("notes")
    told = CliRunner().invoke(app, [*command, "--store", str(folder), "--json"])
    failure = json.loads(told.stdout)["failure"]
    assert (told.exit_code, failure["reason"]) == (42, "StoreNotFound")
    assert failure["message"] == f"the store's folder {folder} {found}; expected the folder of a store."
    assert "Correct the path" in failure["hint"]
    assert list(tmp_path.iterdir()) == ([folder] if found == "is a file" else [])


def test_reading_a_store_leaves_no_trace_in_it(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["report", "--engine", "0" * 64, "--store", str(tmp_path), "--json"])
    assert json.loads(told.stdout)["failure"]["reason"] == "VerdictMissing"
    assert list(tmp_path.iterdir()) == []


def test_a_verdict_that_is_missing_is_told_by_what_is_there(built: tuple[Bench, BuildReport, BuildReport], tmp_path: Path) -> None:
    bench, fp32, _ = built

    def failure(store: StoreRef, engine: str, gate: str | None) -> str:
        with pytest.raises(PermanentError) as caught:
            make_report(store, engine, gate, (), Progress())
        assert caught.value.reason == "VerdictMissing"
        return str(caught.value)

    assert "holds no engine with the key 0000" in failure(bench.store, "0" * 64, None)
    assert f"those of {fp32.gate_key} are there. Name one of these with --gate" in failure(bench.store, fp32.engine_key, "0" * 64)
    shutil.copytree(bench.folder / "store" / "engines", tmp_path / "engines")
    shutil.rmtree(tmp_path / "engines" / fp32.engine_key / "verdicts")
    assert "was built, but no verdict about it is there" in failure(StoreRef(uri=tmp_path.as_uri()), fp32.engine_key, None)


def test_a_report_that_cannot_be_written_is_a_warning_and_the_verdict_stands(bench: Bench, prepared: PrepareReport) -> None:
    (bench.folder / "store" / "reports").write_text("a file where a folder is wanted")
    report = bench.build(prepared)
    assert report.answer is Answer.PASS
    assert [line for line in report.warnings if line.startswith("ReportNotWritten: ")] != []
    assert bench.records.newest_verdict(report.engine_key, report.gate_key) is not None


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"kind": "EngineReport", "schemaVersion": 99}', b"\xff"])
def test_an_earlier_report_that_cannot_be_read_is_a_warning(built: tuple[Bench, BuildReport, BuildReport], body: bytes) -> None:
    bench, fp32, _ = built
    page = reports(bench, fp32)[1]
    before = page.read_bytes()
    try:
        page.write_bytes(body)
        again = make_report(bench.store, fp32.engine_key, fp32.gate_key, (), Progress())
    finally:
        page.write_bytes(before)
    assert again.layers is None
    assert [line for line in again.warnings if "cannot be read" in line] != []


def test_a_verdict_under_a_foreign_key_is_refused(built: tuple[Bench, BuildReport, BuildReport]) -> None:
    bench, fp32, _ = built
    found = bench.records.newest_verdict(fp32.engine_key, fp32.gate_key)
    assert found is not None
    bench.records.store.put_if_absent(found[0].replace(fp32.engine_key, "8" * 64), found[1].model_dump_json(by_alias=True).encode())
    with pytest.raises(PermanentError) as caught:
        make_report(bench.store, "8" * 64, None, (), Progress())
    assert caught.value.reason == "StoreRecordUnreadable"


# ---- pictures ----


def dataset(image: Image.Image | None, array: np.ndarray | None = None) -> Dataset:
    return Dataset(100, None, (), lambda _: {"": np.zeros((2, 3)) if array is None else array}, picture=lambda _: image)


def test_a_large_picture_becomes_small_in_bytes_and_keeps_its_shape() -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (1200, 1600, 3), dtype=np.uint8))
    shown = pictures(dataset(noise), [3])[3]
    assert (shown.width, shown.height) == (1600, 1200)
    assert shown.uri.startswith("data:image/jpeg;base64,")
    assert len(shown.uri) < PICTURE_BYTES * 4 / 3 + 40


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "LA", "I", "F"])
def test_pictures_of_any_mode_can_be_shown(mode: str) -> None:
    assert pictures(dataset(Image.new(mode, (30, 20))), [0])[0].uri.startswith("data:image/png;base64,")


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((1, 28, 28), True), ((3, 8, 9), True), ((8, 9, 3), True), ((28, 28), True), ((7,), False), ((5, 6, 7), False), ((1, 2, 2), False)],
)
def test_stored_tensors_are_shown_when_they_look_like_pictures(shape: tuple[int, ...], shown: bool) -> None:
    array = np.linspace(-1, np.nan if shape == (28, 28) else 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    assert bool(pictures(dataset(None, array), [0])) is shown


def test_only_the_first_pictures_are_made_and_no_metadata_goes_along() -> None:
    exif = Image.Exif()
    exif[0x010E] = "the address of somebody"
    file = io.BytesIO()
    Image.new("RGB", (300, 200)).save(file, "JPEG", exif=exif)
    found = pictures(dataset(Image.open(file)), range(50))
    assert len(found) == MOST_PICTURES
    assert b"the address" in file.getvalue()
    assert b"the address" not in base64.b64decode(found[0].uri.partition(",")[2])
