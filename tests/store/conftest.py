"""One S3 server for all tests of the store; every test has its own prefix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.s3 import S3Server
from tests.store.proxy import FaultyProxy, faulty
from tests.store.support import BUCKET, Place, admin, folder_place, s3_place


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        admin(server).create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture
def credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEFLEET_STORE_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("ENGINEFLEET_STORE_SECRET_ACCESS_KEY", s3.secret_key)


@pytest.fixture(params=["s3", "folder"])
def place(request: pytest.FixtureRequest, s3: S3Server, credentials: None, tmp_path: Path) -> Place:
    return s3_place(s3.endpoint) if request.param == "s3" else folder_place(tmp_path / "store")


@pytest.fixture
def proxy(s3: S3Server, credentials: None) -> Iterator[FaultyProxy]:
    with faulty(s3) as server:
        yield server
