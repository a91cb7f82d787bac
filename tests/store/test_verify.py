"""The look at what is published: it finds what a fetch would not get, and reads no more than it must."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from enginefleet_api.documents import Answer
from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.jobs import PublishedEngine, StoreRef, VerifyRequest
from enginefleet_builder.io import Progress
from enginefleet_builder.store import layout
from enginefleet_builder.store.s3 import MULTIPART_FROM, S3Store
from enginefleet_builder.verify import verify
from localcluster.ports import free_port
from localcluster.s3 import S3Server
from tests.store.support import BUCKET, Place, admin, s3_place
from tests.store.test_fetch import BLOB, BODY, ENGINE, GATE, published, say

__all__ = ["published"]


def looked(place: Place, *blobs: str, ref: StoreRef | None = None) -> dict[str, str]:
    engines = [PublishedEngine(engine_key=ENGINE, gate_key=GATE, blob=blob, size=len(BODY)) for blob in blobs or (BLOB,)]
    report = verify(VerifyRequest(engines=engines, store=ref or place.ref, timeout_seconds=5), Progress())
    assert report.verified == len(engines)
    return dict(report.lost)


def put(place: Place, body: bytes) -> None:
    """Other bytes in place of the engine's, as somebody would leave them there who knows nothing of us."""
    store = place.open()
    version = store.version(layout.blob(BLOB))
    assert version is not None
    assert store.replace_if(layout.blob(BLOB), version, body) is not None


def remove(place: Place, s3: S3Server) -> None:
    if place.ref.uri.startswith("file:"):
        (Path(place.ref.uri.removeprefix("file://")) / layout.blob(BLOB)).unlink()
    else:
        prefix = place.ref.uri.removeprefix(f"s3://{BUCKET}/")
        admin(s3).delete_object(Bucket=BUCKET, Key=f"{prefix}{layout.blob(BLOB)}")


def test_what_is_as_it_was_published_is_not_lost(published: Place) -> None:
    say(published, Answer.PASS)
    assert looked(published) == {}


@pytest.mark.parametrize("other", [b"engiNe" * 1000, b"engine" * 999, b""])
def test_other_bytes_are_damage_of_whatever_size_they_are(published: Place, other: bytes) -> None:
    say(published, Answer.PASS)
    put(published, other)
    assert looked(published) == {BLOB: "BlobDamaged"}


def test_an_object_that_is_gone_is_missing_and_the_others_are_looked_at_all_the_same(published: Place, s3: S3Server) -> None:
    say(published, Answer.PASS)
    never = "sha256:" + "0" * 64
    assert looked(published, never, BLOB) == {never: "NotProven"}
    remove(published, s3)
    assert looked(published, never, BLOB) == {never: "NotProven", BLOB: "ObjectMissing"}


@pytest.mark.parametrize("answers", [[], [Answer.PASS, Answer.FAIL]])
def test_an_engine_that_no_pod_would_be_given_is_not_proven(published: Place, answers: list[Answer]) -> None:
    for second, answer in enumerate(answers, start=1):
        say(published, answer, second)
    assert looked(published) == {BLOB: "NotProven"}


@pytest.mark.usefixtures("credentials")
def test_a_store_that_does_not_answer_says_nothing_of_any_engine() -> None:
    down = StoreRef(uri="s3://engines/", endpoint=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TransientFault):
        verify(
            VerifyRequest(engines=[PublishedEngine(engine_key=ENGINE, gate_key=GATE, blob=BLOB, size=1)], store=down, timeout_seconds=2),
            Progress(),
        )


# ---- S3: what its own checksums tell


@pytest.fixture
def bucket(s3: S3Server, credentials: None) -> S3Store:
    store = s3_place(s3.endpoint).open()
    assert isinstance(store, S3Store)
    return store


def test_a_digest_that_the_store_keeps_spares_the_reading(bucket: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put_if_absent("object", BODY)
    monkeypatch.setattr(bucket, "download", None)
    bucket.verify("object", tmp_path, sha256=BLOB[7:], size=len(BODY))


def test_an_object_that_was_written_in_parts_is_read(bucket: S3Store, tmp_path: Path) -> None:
    """What the store keeps of it is no digest of the whole."""
    big = tmp_path / "big"
    big.write_bytes(os.urandom(1 << 20) * (MULTIPART_FROM // (1 << 20) + 1))
    bucket.put_if_absent("object", big)
    right = hashlib.sha256(big.read_bytes()).hexdigest()
    bucket.verify("object", tmp_path, sha256=right, size=big.stat().st_size)
    with pytest.raises(PermanentError, match=right):
        bucket.verify("object", tmp_path, sha256=BLOB[7:], size=big.stat().st_size)
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
