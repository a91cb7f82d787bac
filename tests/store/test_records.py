"""Records: what is published is whole, what decides is the newest, what is damaged is healed or named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from enginefleet_api.documents import Answer, Baseline, BuildRecord, FileEntry, Metric, PreparedManifest, Verdict
from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.identity import tree_digest
from enginefleet_builder.store import BlobDamaged, layout
from enginefleet_builder.store.records import Records
from tests.store.support import Place

ENGINE, GATE = "e" * 64, "9" * 64
BLOBS = ["sha256:" + digit * 64 for digit in "12"]


def verdict(answer: Answer, second: int, blob: str = BLOBS[0], holder: str = "pod-1") -> Verdict:
    time = layout.timestamp(1_700_000_000 + second)
    return Verdict(engine_key=ENGINE, gate_key=GATE, blob=blob, fingerprint="fp-1", answer=answer, time=time, holder=holder)


def test_a_blob_is_published_and_read_back(place: Place, tmp_path: Path) -> None:
    records = Records(place.open())
    (tmp_path / "engine").write_bytes(b"engine")
    digest = records.publish_blob(tmp_path / "engine", tmp_path / "back")
    assert digest == "sha256:" + hashlib.sha256(b"engine").hexdigest()
    assert (tmp_path / "back").read_bytes() == b"engine"
    assert records.publish_blob(tmp_path / "engine", tmp_path / "back") == digest


def test_a_damaged_blob_is_named_when_fetched_and_replaced_when_published_again(place: Place, tmp_path: Path) -> None:
    store = place.open()
    records = Records(store)
    (tmp_path / "engine").write_bytes(b"engine")
    digest = "sha256:" + hashlib.sha256(b"engine").hexdigest()
    store.put_if_absent(layout.blob(digest), b"damage")
    with pytest.raises(BlobDamaged):
        records.fetch_blob(digest, tmp_path / "out")
    assert records.publish_blob(tmp_path / "engine", tmp_path / "back") == digest
    records.fetch_blob(digest, tmp_path / "out", size=6)
    assert (tmp_path / "out").read_bytes() == b"engine"


def test_the_newest_verdict_decides(place: Place) -> None:
    records = Records(place.open())
    assert records.newest_verdict(ENGINE, GATE) is None
    for answer, second, blob in [
        (Answer.PASS, 2, BLOBS[0]),
        (Answer.FAIL, 1, BLOBS[0]),
        (Answer.INCONCLUSIVE, 3, BLOBS[1]),
    ]:
        records.add_verdict(verdict(answer, second, blob))
    newest = records.newest_verdict(ENGINE, GATE)
    about_first = records.newest_verdict(ENGINE, GATE, BLOBS[0])
    assert newest is not None
    assert about_first is not None
    assert (newest[1].answer, about_first[1].answer) == (Answer.INCONCLUSIVE, Answer.PASS)
    assert records.newest_verdict(ENGINE, "8" * 64) is None


def test_a_verdict_is_newer_than_those_before_whatever_the_clock_said(place: Place) -> None:
    records = Records(place.open())
    ahead = 10_000_000_000.0
    for told in (records.store.now() + 1, ahead):
        before = verdict(Answer.PASS, 0).model_copy(update={"time": layout.timestamp(told)})
        records.add_verdict(before)
        again = before.model_copy(update={"answer": Answer.FAIL, "gate_key": "8" * 64, "time": records.verdict_time(ENGINE)})
        records.add_verdict(again)
        assert again.time > before.time
        assert records.gates(ENGINE)[-1] == "8" * 64


def test_a_verdict_is_never_overwritten(place: Place) -> None:
    records = Records(place.open())
    records.add_verdict(verdict(Answer.PASS, 1))
    with pytest.raises(TransientFault, match="VerdictExists"):
        records.add_verdict(verdict(Answer.FAIL, 1))
    records.add_verdict(verdict(Answer.FAIL, 1, holder="pod-2"))


def test_an_unreadable_newest_verdict_is_an_error_and_not_the_one_before(place: Place) -> None:
    store = place.open()
    records = Records(store)
    records.add_verdict(verdict(Answer.PASS, 1))
    store.put_if_absent(layout.verdict(ENGINE, GATE, BLOBS[0], layout.timestamp(1_700_000_009), "pod-2"), b'{"answer": "Great"}')
    with pytest.raises(PermanentError, match="StoreRecordUnreadable"):
        records.newest_verdict(ENGINE, GATE)


def test_build_records_come_oldest_first_and_the_first_of_a_blob_stands(place: Place) -> None:
    records = Records(place.open())
    base = BuildRecord(
        engine_key=ENGINE, blob=BLOBS[0], size=1, fingerprint="fp-1", facts={}, prepared_key="p", prepared_model="m", precision="fp32",
        recipe={}, time=layout.timestamp(2), holder="pod-1",
    )  # fmt: skip
    records.add_build(base)
    records.add_build(base.model_copy(update={"holder": "pod-2"}))
    records.add_build(base.model_copy(update={"blob": BLOBS[1], "time": layout.timestamp(1)}))
    assert [(record.blob, record.holder) for record in records.builds(ENGINE)] == [(BLOBS[1], "pod-1"), (BLOBS[0], "pod-1")]
    assert records.build(ENGINE, BLOBS[0]) == base


def prepared(folder: Path, content: bytes) -> PreparedManifest:
    folder.mkdir()
    (folder / "model.onnx").write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    return PreparedManifest(
        prepared_key="f" * 64, source_model=BLOBS[0], model=tree_digest([("model.onnx", sha256)]), precision="fp32", flavour="onnxruntime",
        files=[FileEntry(path="model.onnx", sha256=sha256, size=len(content))], inputs=[], outputs=[],
    )  # fmt: skip


def test_of_two_prepared_models_the_first_manifest_stands_with_its_own_files(place: Place, tmp_path: Path) -> None:
    records = Records(place.open())
    first, second = prepared(tmp_path / "1", b"first"), prepared(tmp_path / "2", b"second")
    assert records.prepared(first.prepared_key) is None
    assert records.publish_prepared(first, tmp_path / "1") == first
    assert records.publish_prepared(second, tmp_path / "2") == first
    records.fetch_prepared(first, tmp_path / "out")
    assert (tmp_path / "out/model.onnx").read_bytes() == b"first"


def test_the_first_baseline_stands(place: Place) -> None:
    records = Records(place.open())
    metric = Metric(name="top1", value="0.9", samples=10)
    first = Baseline(baseline_key="b" * 64, model=BLOBS[0], validation=BLOBS[1], metric=metric, outputs_digest="")
    assert records.put_baseline(first) == first
    assert records.put_baseline(first.model_copy(update={"outputs_digest": "other"})) == first
    assert records.baseline("b" * 64) == first
    assert records.baseline("c" * 64) is None


@pytest.mark.parametrize(
    "make", [lambda: layout.blob("1" * 64), lambda: layout.claim("../x"), lambda: layout.verdict(ENGINE, GATE, BLOBS[0], "12", "h")]
)
def test_keys_are_made_of_keys_and_digests_only(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="expected"):
        make()
