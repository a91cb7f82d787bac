"""What the store says when S3 is down, slow, wrong, or not S3 enough."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from enginefleet_api.errors import EngineFleetError, PermanentError, TransientFault
from enginefleet_api.jobs import StoreRef
from enginefleet_builder.io import Cancellation, Progress, terminated
from enginefleet_builder.store import BlobDamaged, StoreUnavailable, open_store
from enginefleet_builder.store.base import sha256_of
from localcluster.ports import free_port
from localcluster.s3 import S3Server
from tests.store.proxy import Fault, FaultyProxy
from tests.store.support import s3_place

BODY = os.urandom(20 << 20)
SHA256 = sha256_of(BODY)


def failure_of(ref: StoreRef, patience: float = 0) -> EngineFleetError:
    with pytest.raises(EngineFleetError) as caught:
        open_store(ref, patience=patience)
    return caught.value


def test_a_store_that_answers_503_for_a_while_is_waited_for(proxy: FaultyProxy) -> None:
    store = s3_place(proxy.endpoint).open()
    proxy.faults = [Fault("unavailable", "PUT", times=3)]
    assert store.put_if_absent("k", b"one")
    assert proxy.faults[0].applied == 3


def test_a_store_that_answers_503_for_too_long_is_unavailable(proxy: FaultyProxy) -> None:
    store = s3_place(proxy.endpoint).open(patience=1)
    proxy.faults = [Fault("unavailable", "GET")]
    started = time.monotonic()
    with pytest.raises(StoreUnavailable, match="503 SlowDown"):
        store.get("k")
    assert 1 <= time.monotonic() - started < 3


def test_sigterm_ends_waiting_for_a_store(proxy: FaultyProxy) -> None:
    cancellation = Cancellation()
    store = s3_place(proxy.endpoint).open(patience=60, progress=Progress(cancellation))
    proxy.faults = [Fault("unavailable", "GET")]
    cancellation.cancel(terminated("SIGTERM"))
    with pytest.raises(TransientFault, match="Terminated"):
        store.get("k")


def test_a_slow_answer_is_waited_for(proxy: FaultyProxy) -> None:
    store = s3_place(proxy.endpoint).open()
    proxy.faults = [Fault("slow", "PUT", times=1, seconds=1.5)]
    assert store.put_if_absent("k", b"one")


def test_a_store_that_is_down_is_unavailable(credentials: None) -> None:
    found = failure_of(StoreRef(uri="s3://engines/", endpoint=f"http://127.0.0.1:{free_port()}"))
    assert isinstance(found, StoreUnavailable)


def test_a_body_that_breaks_off_is_resumed(proxy: FaultyProxy, tmp_path: Path) -> None:
    store = s3_place(proxy.endpoint).open()
    store.put_if_absent("k", BODY)
    proxy.faults = [Fault("truncate", times=4)]
    store.download("k", tmp_path / "out", sha256=SHA256)
    assert (tmp_path / "out").read_bytes() == BODY
    assert proxy.faults[0].applied == 4


def test_a_store_that_goes_away_in_mid_download_is_waited_for(s3: S3Server, proxy: FaultyProxy, tmp_path: Path) -> None:
    store = s3_place(proxy.endpoint).open()
    store.put_if_absent("k", BODY)
    proxy.faults = [Fault("truncate", times=1), Fault("unavailable", times=3)]
    store.download("k", tmp_path / "out", sha256=SHA256)
    assert (tmp_path / "out").read_bytes() == BODY


def test_a_body_that_never_arrives_is_transient(proxy: FaultyProxy, tmp_path: Path) -> None:
    store = s3_place(proxy.endpoint).open()
    store.put_if_absent("k", b"x")
    proxy.faults = [Fault("truncate")]
    with pytest.raises(TransientFault, match="StoreTruncated: k broke off at byte 0 of 1"):
        store.download("k", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_bytes_altered_on_the_way_once_are_fetched_again(proxy: FaultyProxy, tmp_path: Path) -> None:
    store = s3_place(proxy.endpoint).open()
    store.put_if_absent("k", BODY)
    proxy.faults = [Fault("flip", times=1)]
    store.download("k", tmp_path / "out", sha256=SHA256)
    assert (tmp_path / "out").read_bytes() == BODY


def test_altered_bytes_are_refused(proxy: FaultyProxy, tmp_path: Path) -> None:
    store = s3_place(proxy.endpoint).open()
    store.put_if_absent("k", BODY)
    proxy.faults = [Fault("flip")]
    with pytest.raises(BlobDamaged, match=SHA256):
        store.download("k", tmp_path / "out", sha256=SHA256)
    assert list(tmp_path.iterdir()) == []


def test_a_created_object_whose_answer_was_lost_is_ours(proxy: FaultyProxy) -> None:
    store = s3_place(proxy.endpoint).open()
    proxy.faults = [Fault("lose-answer", "PUT", times=1)]
    assert store.put_if_absent("k", b"one")
    assert not store.put_if_absent("k", b"one")


def test_a_server_without_conditional_writes_is_refused(proxy: FaultyProxy) -> None:
    proxy.faults = [Fault("ignore-conditions", "PUT")]
    found = failure_of(s3_place(proxy.endpoint).ref, patience=5)
    assert (type(found), found.reason) == (PermanentError, "StoreWithoutConditionalWrites")


def test_checking_conditional_writes_leaves_one_object_whatever_the_server(proxy: FaultyProxy) -> None:
    place = s3_place(proxy.endpoint)
    place.open()
    place.open()
    assert list(place.open().list("")) == [".enginefleet/conditional-writes"]


def test_reading_needs_no_permission_to_write(proxy: FaultyProxy) -> None:
    proxy.faults = [Fault("unavailable", "PUT")]
    assert s3_place(proxy.endpoint).open(writes=False).get("k") is None


def test_a_bucket_that_is_not_there(s3: S3Server, credentials: None) -> None:
    found = failure_of(StoreRef(uri="s3://nowhere/", endpoint=s3.endpoint))
    assert (type(found), found.reason) == (PermanentError, "StoreNotFound")


def test_credentials_that_are_wrong(s3: S3Server, credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEFLEET_STORE_SECRET_ACCESS_KEY", "wrong")
    found = failure_of(s3_place(s3.endpoint).ref)
    assert (type(found), found.reason) == (PermanentError, "StoreAccessDenied")


def test_credentials_that_are_half_there(s3: S3Server, credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENGINEFLEET_STORE_SECRET_ACCESS_KEY")
    found = failure_of(s3_place(s3.endpoint).ref)
    assert "ENGINEFLEET_STORE_SECRET_ACCESS_KEY is not set" in found.message
