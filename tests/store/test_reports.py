"""Reports in a real S3 store: what the build Job leaves, how engines of one model find each other, and the commands on the page."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from enginefleet_api.jobs import BuildReport, BuildRequest, PrepareReport, Source, StoreRef
from enginefleet_builder.build.job import build
from enginefleet_builder.io import Progress
from enginefleet_builder.main import app
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.report.data import ReportData
from enginefleet_builder.report.job import make_report
from enginefleet_builder.store import layout, open_store
from enginefleet_builder.store.records import Records
from localcluster.ports import free_port
from localcluster.s3 import S3Server
from tests.builder.support import Bench, Undisturbed
from tests.builder.test_report_by_hand import Reader
from tests.store.proxy import Fault, FaultyProxy
from tests.store.support import BUCKET, admin, s3_place

AWS = f"""exec "{sys.executable}" -c '
import sys
import boto3
from urllib.parse import urlsplit
_, copy, address, _, _, endpoint = sys.argv[1:]
parts = urlsplit(address)
sys.stdout.buffer.write(boto3.client("s3", endpoint_url=endpoint).get_object(Bucket=parts.netloc, Key=parts.path[1:])["Body"].read())
' "$@\""""
"""What `aws s3 cp s3://bucket/key - --endpoint-url URL` does, where it is not installed."""


@dataclass(frozen=True)
class Site:
    """A bench whose model, data and store are in S3."""

    bench: Bench
    store: StoreRef
    data: str

    def source(self, name: str) -> Source:
        return Source(uri=f"{self.data}{name}", endpoint=self.store.endpoint, credentials="ambient" if name == "model/" else "validation")

    def prepare(self, precision: str) -> PrepareReport:
        request = self.bench.prepare_request(
            precision,
            store=self.store,
            model=self.source("model/"),
            calibration_source=self.source("calibration.npz"),
            validation_source=self.source("validation.npz"),
        )
        return prepare(request, Progress())

    def request(self, prepared: PrepareReport) -> BuildRequest:
        return self.bench.build_request(prepared, store=self.store, validation_source=self.source("validation.npz"))

    def build(self, prepared: PrepareReport) -> BuildReport:
        return build(self.request(prepared), Progress(), Undisturbed())


@pytest.fixture(scope="module")
def site(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    bench = Bench(tmp_path_factory.mktemp("reports"))
    place = s3_place(s3.endpoint)
    data = place.ref.uri + "data/"
    for file in (bench.model, bench.validation, bench.calibration):
        name = "model/model.onnx" if file == bench.model else file.name
        admin(s3).upload_file(str(file), BUCKET, f"{data.removeprefix(f's3://{BUCKET}/')}{name}")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ENGINEFLEET_STORE_", "AWS_"):
            patch.setenv(f"{name}ACCESS_KEY_ID", s3.access_key)
            patch.setenv(f"{name}SECRET_ACCESS_KEY", s3.secret_key)
        yield Site(bench, place.ref, data)


@pytest.fixture(scope="module")
def built(site: Site) -> tuple[BuildReport, BuildReport]:
    """FP32 and INT8, judged by one gate."""
    return site.build(site.prepare("fp32")), site.build(site.prepare("int8"))


def test_page_and_json_stand_beside_the_verdict_and_both_engines_in_the_index(
    site: Site, built: tuple[BuildReport, BuildReport], s3: S3Server
) -> None:
    fp32, int8 = built
    store = open_store(site.store, writes=False)
    found = Records(store).newest_verdict(int8.engine_key, int8.gate_key)
    assert found is not None
    name = found[0].rpartition("/")[2].removesuffix(".json")
    texts = [store.get(layout.report(int8.engine_key, int8.gate_key, f"{name}.{suffix}")) for suffix in ("html", "json")]
    assert texts[0] is not None
    assert texts[1] is not None
    assert texts[0].body.startswith(b"<!doctype html>")
    assert ReportData.model_validate_json(texts[1].body).blob == int8.blob
    assert s3.secret_key.encode() not in texts[0].body + texts[1].body
    assert sorted(key.rpartition("/")[2] for key in store.list("models/")) == sorted([fp32.engine_key, int8.engine_key])


def test_the_page_of_the_first_engine_made_again_compares_it_with_the_second(site: Site, built: tuple[BuildReport, BuildReport]) -> None:
    fp32, int8 = built
    again = make_report(site.store, fp32.engine_key, None, (), Progress())
    assert [(row.engine_key, row.this) for row in again.precisions] == [(fp32.engine_key, True), (int8.engine_key, False)]
    assert again.warnings == []
    assert again.worst == make_report(site.store, fp32.engine_key, fp32.gate_key, (), Progress()).worst


def test_making_a_page_writes_nothing(site: Site, built: tuple[BuildReport, BuildReport], proxy: FaultyProxy, tmp_path: Path) -> None:
    """Whoever may only read can make it: a write would fail here, or be tried for minutes."""
    proxy.faults = [Fault("unavailable", method) for method in ("PUT", "POST", "DELETE")]
    where = ["report", "--store", site.store.uri, "--endpoint", proxy.endpoint, "--engine", built[1].engine_key]
    told = CliRunner().invoke(app, [*where, "--out", str(tmp_path / "page.html")])
    assert told.exit_code == 0, told.output
    assert [fault.applied for fault in proxy.faults] == [0, 0, 0]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("uri", "engine", "code", "reason", "message"),
    [
        ("s3://nobodys/", "0" * 64, 42, "StoreNotFound", "s3://nobodys"),
        (f"s3://{BUCKET}/empty/", "0" * 64, 42, "VerdictMissing", f"s3://{BUCKET}/empty/"),
        (f"s3://{BUCKET}/empty/", "0" * 63, 42, "BadRequest", "is not a key"),
    ],
)
def test_what_is_not_in_s3_is_named(site: Site, uri: str, engine: str, code: int, reason: str, message: str) -> None:
    told = CliRunner().invoke(app, ["report", "--store", uri, "--endpoint", site.store.endpoint, "--engine", engine, "--json"])
    failure = json.loads(told.stdout)["failure"]
    assert (told.exit_code, failure["reason"]) == (code, reason)
    assert message in failure["message"]
    assert failure["hint"]


def test_keys_that_may_not_read_are_called_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEFLEET_STORE_ACCESS_KEY_ID", "somebody")
    told = CliRunner().invoke(app, ["report", "--store", site.store.uri, "--endpoint", site.store.endpoint, "--engine", "0" * 64, "--json"])
    assert (told.exit_code, json.loads(told.stdout)["failure"]["reason"]) == (42, "StoreAccessDenied")


def test_the_commands_of_a_report_work_for_a_reader_with_keys_of_their_own(
    site: Site, built: tuple[BuildReport, BuildReport], s3: S3Server, tmp_path: Path
) -> None:
    """The usual variables of S3 tools; the data sets' endpoint is on the page."""
    page = make_report(site.store, built[1].engine_key, None, (), Progress())
    keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key, "AWS_DEFAULT_REGION": s3.region}
    reader = Reader(tmp_path, **keys, ENGINEFLEET_STORE_ACCESS_KEY_ID="", ENGINEFLEET_STORE_SECRET_ACCESS_KEY="")
    if shutil.which("aws") is None:
        reader.program("aws", AWS)
    told = reader.follow(page)
    assert layout.digest_hex(page.blob) in told["Check the engine's bytes"]
    assert json.loads(told["Read the verdict itself"])["engineKey"] == page.engine_key
    assert "answer: Pass" in told["Judge the engine again"]
    assert "qdqNodes: " in told["Run the engine yourself"]
    prepared_key = next(fact.value for fact in page.inputs if fact.name == "prepared key")
    assert f"preparedKey: {prepared_key}" in told["Prepare the model again"]
    assert f"engineKey: {page.engine_key}" in told["Build and judge it again"]
    assert "answer: Pass" in told["Build and judge it again"]


def test_a_store_that_is_down_is_tried_again_later(site: Site) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enginefleet_builder.store.s3.PATIENCE", 0.0)
        told = CliRunner().invoke(app, ["report", "--store", site.store.uri, "--endpoint", endpoint, "--engine", "0" * 64, "--json"])
    assert (told.exit_code, json.loads(told.stdout)["failure"]["reason"]) == (44, "StoreUnavailable")
