"""Fetching models and data sets: what arrives is what was named, and only what may be reached is reached."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import onnx
import pytest

from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.identity import tree_digest
from enginefleet_api.jobs import Source
from enginefleet_builder import http_source, sources
from enginefleet_builder.http_source import is_forbidden
from enginefleet_builder.io import Progress
from enginefleet_builder.sources import fetch_source, model_files
from localcluster.s3 import S3Server
from tests.builder.models import classifier, save_model
from tests.store.proxy import Fault, FaultyProxy
from tests.store.support import BUCKET, admin

MODEL = b"onnx" * 100_000


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def refused(source: Source, folder: Path, **options: Any) -> EngineFleetError:
    with pytest.raises(EngineFleetError) as caught:
        fetch_source(source, folder, **options)
    return caught.value


# ---- s3 ----


@pytest.fixture
def bucket(s3: S3Server, credentials: None) -> S3Server:
    for key, body in {"m/model.onnx": MODEL, "m/weights/a.bin": b"a", "one.onnx": b"one"}.items():
        admin(s3).put_object(Bucket=BUCKET, Key=key, Body=body)
    return s3


def s3_source(s3: S3Server, key: str, **options: Any) -> Source:
    return Source(uri=f"s3://{BUCKET}/{key}", endpoint=s3.endpoint, credentials="store", **options)


def test_a_folder_in_s3_is_fetched_with_its_tree_digest(bucket: S3Server, tmp_path: Path) -> None:
    expected = tree_digest([("model.onnx", sha(MODEL)), ("weights/a.bin", sha(b"a"))])
    fetched = fetch_source(s3_source(bucket, "m/", digest=expected), tmp_path)
    assert fetched.digest == expected
    assert (tmp_path / "weights/a.bin").read_bytes() == b"a"
    assert model_files(tmp_path) == tmp_path / "model.onnx"


def test_one_file_in_s3_has_a_tree_of_one_line(bucket: S3Server, tmp_path: Path) -> None:
    assert fetch_source(s3_source(bucket, "one.onnx"), tmp_path).digest == tree_digest([("one.onnx", sha(b"one"))])


@pytest.mark.parametrize("key", ["nothing/", "nothing.onnx"])
def test_what_is_not_in_s3_is_not_found(bucket: S3Server, tmp_path: Path, key: str) -> None:
    found = refused(s3_source(bucket, key), tmp_path)
    assert (type(found), found.reason) == (PermanentError, "SourceNotFound")


def test_another_digest_names_both(bucket: S3Server, tmp_path: Path) -> None:
    wanted = "sha256:" + "0" * 64
    found = refused(s3_source(bucket, "one.onnx", digest=wanted), tmp_path)
    assert found.reason == "DigestMismatch"
    assert wanted in found.message
    assert tree_digest([("one.onnx", sha(b"one"))]) in found.message


def test_a_source_that_is_down_is_transient_under_its_own_name(bucket: S3Server, proxy: FaultyProxy, tmp_path: Path) -> None:
    proxy.faults = [Fault("truncate")]
    found = refused(Source(uri=f"s3://{BUCKET}/one.onnx", endpoint=proxy.endpoint, credentials="store"), tmp_path)
    assert (type(found), found.reason) == (TransientFault, "SourceTruncated")


def test_a_source_has_its_own_credentials(bucket: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = s3_source(bucket, "one.onnx").model_copy(update={"credentials": "model"})
    fetch_source(source, tmp_path)
    monkeypatch.setenv("ENGINEFLEET_MODEL_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("ENGINEFLEET_MODEL_SECRET_ACCESS_KEY", "else")
    assert refused(source, tmp_path).reason == "SourceAccessDenied"


def test_a_folder_beyond_the_limit_is_refused(bucket: S3Server, tmp_path: Path) -> None:
    assert refused(s3_source(bucket, "m/"), tmp_path, size_limit=1000).reason == "SourceTooLarge"


# ---- files ----


def test_files_are_for_the_command_line_only(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(MODEL)
    source = Source(uri=(tmp_path / "m.onnx").as_uri())
    assert refused(source, tmp_path / "out").reason == "SourceNotAllowed"
    assert fetch_source(source, tmp_path / "out", allow_file=True).digest == tree_digest([("m.onnx", sha(MODEL))])


def test_a_file_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.png")).write_bytes(b"x")
    error = refused(Source(uri=folder.as_uri()), tmp_path / "out", allow_file=True)
    assert error.reason == "SourceNotAllowed"
    assert "a name in UTF-8" in error.message


@pytest.mark.parametrize(
    ("name", "body", "reason"),
    [
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "SourceIsLfsPointer"),
        ("m.onnx", b"\n<!DOCTYPE html><html>", "SourceIsHtml"),
        ("m.onnx", b"", "SourceEmpty"),
    ],
)
def test_what_is_often_fetched_instead_is_named(tmp_path: Path, name: str, body: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(body)
    assert refused(Source(uri=(tmp_path / name).as_uri()), tmp_path / "out", allow_file=True).reason == reason


def test_a_folder_with_two_models_names_both(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(PermanentError, match=r"2 .onnx files, expected one: a.onnx, b.onnx"):
        model_files(tmp_path)


def test_a_folder_without_a_model_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(PermanentError, match=r"no .onnx file; found: model.pt"):
        model_files(tmp_path)


# ---- https ----


class Web(ThreadingHTTPServer):
    daemon_threads = True
    cut = 0
    """answers that break off in the middle"""
    version = '"1"'
    """ETag; empty: none"""
    shift = 0
    """bytes that a partial answer begins too late"""
    ranges: list[str]
    files: dict[str, bytes]
    """by path, less what stands after the question mark"""
    asked: list[str]
    """paths as they were asked for"""


class _Pages(BaseHTTPRequestHandler):
    server: Web

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.server.ranges.append(wanted)
        self.server.asked.append(self.path)
        match self.path:
            case path if (known := self.server.files.get(path.partition("?")[0])) is not None:
                self._file(known, wanted)
            case "/to-metadata":
                self._redirect("https://169.254.169.254/latest/meta-data/")
            case "/to-file":
                self._redirect("file:///etc/passwd")
            case "/round":
                self._redirect("/round")
            case "/compressed":
                self.send_response(200)
                self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", "0")
                self.end_headers()
            case "/busy":
                self.send_error(503)
            case _:
                self.send_error(404)

    def _file(self, known: bytes, wanted: str) -> None:
        same = self.headers.get("If-Range", self.server.version) == self.server.version
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0) + self.server.shift if wanted and same else 0
        body = known[start:]
        self.send_response(206 if start else 200)
        if self.server.version:
            self.send_header("ETag", self.server.version)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(known) - 1}/{len(known)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.server.cut > 0
        self.server.cut -= 1
        self.wfile.write(body[: len(body) // 2] if cut else body)

    def _redirect(self, target: str) -> None:
        self.send_response(302)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving() -> Iterator[Web]:
    web = Web(("127.0.0.1", 0), _Pages)
    web.ranges, web.asked = [], []
    web.files = dict.fromkeys(("/m.onnx", "/m.zip", "/m.tar.gz"), MODEL)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield web
    finally:
        web.shutdown()
        thread.join()
        web.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


def page(web: Web, path: str) -> Source:
    """On this machine, so allowed only as the configured endpoint."""
    origin = f"http://127.0.0.1:{web.server_address[1]}"
    return Source(uri=origin + path, endpoint=origin)


def test_a_file_that_breaks_off_is_resumed_where_it_ended(web: Web, tmp_path: Path) -> None:
    web.cut = 2
    assert fetch_source(page(web, "/m.onnx"), tmp_path).digest == tree_digest([("m.onnx", sha(MODEL))])
    assert web.ranges == ["", "bytes=200000-", "bytes=300000-"]


@pytest.mark.parametrize(
    ("path", "kind", "reason"),
    [
        ("/missing", PermanentError, "SourceNotFound"),
        ("/busy", TransientFault, "SourceUnavailable"),
        ("/to-metadata", PermanentError, "SourceNotAllowed"),
        ("/to-file", PermanentError, "SourceNotAllowed"),
        ("/round", PermanentError, "SourceNotFound"),
        ("/compressed", PermanentError, "SourceRefused"),
        ("/m.zip", PermanentError, "SourceIsArchive"),
        ("/m.tar.gz", PermanentError, "SourceIsArchive"),
    ],
)
def test_answers_are_told_apart_and_redirects_checked(web: Web, tmp_path: Path, path: str, kind: type[Exception], reason: str) -> None:
    found = refused(page(web, path), tmp_path)
    assert (type(found), found.reason) == (kind, reason)


@pytest.mark.parametrize(
    "uri", ["http://example.org/m.onnx", "https://localhost:1/m.onnx", "https://127.0.0.1/m.onnx", "https://[::1]/m.onnx", "ftp://x/m"]
)
def test_what_is_local_or_unencrypted_is_refused(tmp_path: Path, uri: str) -> None:
    assert refused(Source(uri=uri), tmp_path).reason == "SourceNotAllowed"


def test_plain_http_is_allowed_where_the_digest_says_what_must_come(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "is_forbidden", lambda _: False)
    uri, digest = page(web, "/m.onnx").uri, tree_digest([("m.onnx", sha(MODEL))])
    assert fetch_source(Source(uri=uri, digest=digest), tmp_path / "right").digest == digest
    assert refused(Source(uri=uri), tmp_path / "unknown").reason == "SourceNotAllowed"
    other = refused(Source(uri=uri, digest=tree_digest([("m.onnx", sha(b"x"))])), tmp_path / "other")
    assert isinstance(other, PermanentError)
    assert digest in other.message


@pytest.mark.parametrize("version", ["", 'W/"1"'], ids=["none", "weak"])
def test_without_a_strong_version_it_starts_again(web: Web, tmp_path: Path, version: str) -> None:
    """What is there could be another file by now, and the rest of it would not fit to the beginning."""
    web.cut, web.version = 1, version
    assert fetch_source(page(web, "/m.onnx"), tmp_path).digest == tree_digest([("m.onnx", sha(MODEL))])
    assert web.ranges == ["", ""]


def test_another_version_in_between_starts_again(web: Web, tmp_path: Path) -> None:
    class Replaced(Progress):
        def show(self, stage: str, done: float | None, total: float | None) -> None:
            web.version = '"2"'

    web.cut = 1
    assert fetch_source(page(web, "/m.onnx"), tmp_path, progress=Replaced()).digest == tree_digest([("m.onnx", sha(MODEL))])
    assert web.ranges == ["", "bytes=200000-"]


def test_a_range_that_was_not_asked_for_is_not_put_together(web: Web, tmp_path: Path) -> None:
    web.cut, web.shift = 1, 7
    assert fetch_source(page(web, "/m.onnx"), tmp_path).digest == tree_digest([("m.onnx", sha(MODEL))])
    assert web.ranges == ["", "bytes=200000-", ""]


def test_a_disk_that_is_too_small_is_this_nodes_fault(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    found = refused(page(web, "/m.onnx"), tmp_path)
    assert (type(found), found.reason) == (EnvironmentFault, "DiskFull")
    assert f"{len(MODEL)} bytes are to be downloaded, 1000 are free" in found.message


def test_a_file_beyond_the_limit_is_refused(web: Web, tmp_path: Path) -> None:
    assert refused(page(web, "/m.onnx"), tmp_path, size_limit=1000).reason == "SourceTooLarge"


# ---- external data beside a model ----

DATA = "w/teil 1?ü.bin"
"""A name that an address has to write otherwise."""


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model that keeps its tensors in DATA."""
    path = save_model(classifier(), tmp_path / "given" / "m.onnx", external="data.bin")
    located(path, DATA)
    (path.parent / DATA).parent.mkdir()
    (path.parent / "data.bin").rename(path.parent / DATA)
    return path


def located(path: Path, location: str) -> None:
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = location
    path.write_bytes(model.SerializeToString())


def offered(web: Web, path: Path) -> None:
    web.files = {"/a/m.onnx": path.read_bytes(), "/a/w/teil%201%3F%C3%BC.bin": (path.parent / DATA).read_bytes()}


def tree(path: Path) -> str:
    return tree_digest([("m.onnx", sha(path.read_bytes())), (DATA, sha((path.parent / DATA).read_bytes()))])


def test_external_data_comes_with_its_model(web: Web, external: Path, tmp_path: Path) -> None:
    offered(web, external)
    source = page(web, "/a/m.onnx?token=t").model_copy(update={"digest": tree(external)})
    fetched = fetch_source(source, tmp_path / "in")
    assert [entry.path for entry in fetched.files] == ["m.onnx", DATA]
    assert web.asked == ["/a/m.onnx?token=t", "/a/w/teil%201%3F%C3%BC.bin?token=t"]
    model = onnx.load(tmp_path / "in" / "m.onnx")
    assert model.graph.initializer[0].raw_data


def test_external_data_that_breaks_off_is_resumed(web: Web, external: Path, tmp_path: Path) -> None:
    class CutTheSecond(Progress):
        def show(self, stage: str, done: float | None, total: float | None) -> None:
            web.cut = 1 if len(web.asked) == 1 else web.cut

    offered(web, external)
    size = (external.parent / DATA).stat().st_size
    assert fetch_source(page(web, "/a/m.onnx"), tmp_path / "in", progress=CutTheSecond()).digest == tree(external)
    assert web.ranges == ["", "", f"bytes={size // 2}-"]


def test_external_data_counts_towards_the_limit(web: Web, external: Path, tmp_path: Path) -> None:
    offered(web, external)
    size = external.stat().st_size + (external.parent / DATA).stat().st_size
    assert refused(page(web, "/a/m.onnx"), tmp_path / "in", size_limit=size - 1).reason == "SourceTooLarge"
    assert fetch_source(page(web, "/a/m.onnx"), tmp_path / "again", size_limit=size).digest == tree(external)


def test_external_data_that_is_not_there_is_named(web: Web, external: Path, tmp_path: Path) -> None:
    offered(web, external)
    del web.files["/a/w/teil%201%3F%C3%BC.bin"]
    found = refused(page(web, "/a/m.onnx"), tmp_path / "in")
    assert found.reason == "ExternalDataMissing"
    assert "teil%201%3F%C3%BC.bin answers 404" in found.message


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../b", "..\\x", "a\nb", ".", ""])
def test_external_data_out_of_the_folder_is_not_asked_for(web: Web, external: Path, tmp_path: Path, location: str) -> None:
    """Preflight refuses the model: see test_external_data_never_leaves_the_models_folder there."""
    offered(web, external)
    located(external, location)
    web.files |= {"/a/m.onnx": external.read_bytes(), "/secret": b"s", "/etc/passwd": b"p", "/b": b"b"}
    assert [entry.path for entry in fetch_source(page(web, "/a/m.onnx"), tmp_path / "in").files] == ["m.onnx"]
    assert web.asked == ["/a/m.onnx"]


def test_a_model_in_more_files_than_anyone_writes_is_refused(
    web: Web, external: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(web, external)
    monkeypatch.setattr(sources, "EXTERNAL_LIMIT", 0)
    found = refused(page(web, "/a/m.onnx"), tmp_path / "in")
    assert (found.reason, web.asked) == ("SourceTooLarge", ["/a/m.onnx"])


def test_external_data_comes_from_s3_and_from_folders_too(s3: S3Server, credentials: None, external: Path, tmp_path: Path) -> None:
    for key in ("m.onnx", DATA):
        admin(s3).put_object(Bucket=BUCKET, Key=f"external/{key}", Body=(external.parent / key).read_bytes())
    fetched = fetch_source(s3_source(s3, "external/m.onnx"), tmp_path / "in")
    assert fetched.digest == tree(external)
    assert fetch_source(Source(uri=external.as_uri()), tmp_path / "copy", allow_file=True).digest == fetched.digest


@pytest.mark.parametrize(
    ("address", "forbidden"),
    [
        ("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("169.254.169.254", True), ("fe80::1", True), ("fd00:ec2::254", True),
        ("0.0.0.0", True), ("168.63.129.16", True), ("10.0.0.1", False), ("93.184.216.34", False),
    ],
)  # fmt: skip
def test_which_addresses_are_forbidden(address: str, forbidden: bool) -> None:
    assert is_forbidden(ipaddress.ip_address(address)) is forbidden
