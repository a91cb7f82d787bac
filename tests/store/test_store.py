"""Both stores keep what the layers above rely on: created once, replaced knowingly, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api.errors import EngineFleetError
from enginefleet_builder.io import Progress
from enginefleet_builder.store import BlobDamaged, ObjectMissing
from enginefleet_builder.store.s3 import MULTIPART_FROM
from tests.store.support import Place, race, start, stop_here


def test_an_object_is_created_once(place: Place) -> None:
    store = place.open()
    assert store.put_if_absent("a/b", b"one")
    assert not store.put_if_absent("a/b", b"two")
    stored = store.get("a/b")
    assert stored is not None
    assert stored.body == b"one"


def test_an_object_is_replaced_only_in_the_version_that_was_read(place: Place) -> None:
    store = place.open()
    store.put_if_absent("k", b"one")
    first = store.version("k")
    assert first is not None
    second = store.replace_if("k", first, b"two")
    assert second == store.version("k")
    assert store.replace_if("k", first, b"three") is None
    stored = store.get("k")
    assert stored is not None
    assert (stored.body, stored.etag) == (b"two", second)


def test_an_object_that_is_gone_is_not_replaced(place: Place) -> None:
    assert place.open().replace_if("k", '"00000000000000000000000000000000"', b"x") is None


def test_absent_objects_are_absent(place: Place) -> None:
    store = place.open()
    assert store.get("k") is None
    assert store.version("k") is None
    assert not store.exists("k")
    assert list(store.list("k")) == []


def test_keys_are_listed_by_prefix_and_sorted(place: Place) -> None:
    store = place.open()
    for key in ("v/2", "v/10", "v/1", "w/1"):
        store.put_if_absent(key, b".")
    assert list(store.list("v/")) == ["v/1", "v/10", "v/2"]
    assert list(store.list("v/1")) == ["v/1", "v/10"]


@pytest.mark.parametrize("key", ["", "/a", "a/../b", "a//b", "./a", "a\\b", "a/"])
def test_a_key_cannot_leave_the_prefix(place: Place, key: str) -> None:
    with pytest.raises(ValueError, match="store key"):
        place.open().put_if_absent(key, b"x")


@pytest.mark.parametrize("size", [0, 1, 20 << 20], ids=["empty", "one byte", "three parts"])
def test_a_download_is_what_was_stored(place: Place, tmp_path: Path, size: int) -> None:
    store, body = place.open(), os.urandom(size)
    sha256 = hashlib.sha256(body).hexdigest()
    store.put_if_absent("k", body)
    assert store.download("k", tmp_path / "out", sha256=sha256, size=size) == sha256
    assert (tmp_path / "out").read_bytes() == body
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_a_download_with_another_digest_is_refused_and_leaves_no_file(place: Place, tmp_path: Path) -> None:
    store = place.open()
    store.put_if_absent("k", b"one")
    with pytest.raises(BlobDamaged, match=hashlib.sha256(b"one").hexdigest()):
        store.download("k", tmp_path / "out", sha256=hashlib.sha256(b"two").hexdigest())
    with pytest.raises(BlobDamaged, match="expected 4 bytes"):
        store.download("k", tmp_path / "out", size=4)
    assert not (tmp_path / "out").exists()


def test_a_download_of_an_absent_object_says_so(place: Place, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissing, match="blobs/x"):
        place.open().download("blobs/x", tmp_path / "out")


def test_of_twenty_processes_one_creates_the_object(place: Place) -> None:
    bodies = [secrets.token_bytes(100_000) for _ in range(20)]
    won = race(place, 20, lambda store, number: (number, store.put_if_absent("race/k", bodies[number])))
    winners = [number for number, created in won if created is True]
    stored = place.open().get("race/k")
    assert stored is not None
    assert len(winners) == 1, won
    assert stored.body == bodies[winners[0]]


def test_of_twenty_processes_one_replaces_the_version(place: Place) -> None:
    store = place.open()
    store.put_if_absent("race/k", b"before")  # an etag names content: racers must bring other bytes
    version = store.version("race/k")
    assert version is not None
    won = race(place, 20, lambda racer, number: racer.replace_if("race/k", version, b"%d" % number))
    assert len([etag for etag in won if etag is not None]) == 1, won


def test_a_writer_killed_in_mid_upload_leaves_nothing_visible(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = tmp_path / "engine"
    big.write_bytes(os.urandom(1 << 20) * (MULTIPART_FROM // (1 << 20) + 1))

    def write(pipe: Connection) -> None:
        class AfterOnePart(Progress):
            def show(self, stage: str, done: float | None, total: float | None) -> None:
                stop_here(pipe, "in mid-upload")

        def before_link(*paths: Any) -> None:
            stop_here(pipe, "in mid-upload")

        monkeypatch.setattr(os, "link", before_link)
        place.open(progress=AfterOnePart()).put_if_absent("blobs/x", big)
        pipe.send("done")

    place.open()
    writer, pipe = start(write)
    assert pipe.recv() == "in mid-upload"
    writer.kill()
    writer.join()
    store = place.open()
    assert not store.exists("blobs/x")
    assert list(store.list("blobs/")) == []
    assert store.put_if_absent("blobs/x", big)
    assert store.download("blobs/x", tmp_path / "out", size=big.stat().st_size)


def test_a_store_that_is_none_is_refused() -> None:
    from enginefleet_api.jobs import StoreRef
    from enginefleet_builder.store import open_store

    with pytest.raises(EngineFleetError, match=r"'ftp://x' is not a store"):
        open_store(StoreRef(uri="ftp://x"))
