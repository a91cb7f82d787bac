"""The init container: only a proven engine for this device reaches a pod, with a store or without."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from enginefleet_api.documents import Answer, BuildRecord, Verdict
from enginefleet_api.errors import EngineFleetError, EnvironmentFault, PermanentError, TransientFault
from enginefleet_api.jobs import EngineManifest, FetchRequest
from enginefleet_builder import probe
from enginefleet_builder.fetch import fetch
from enginefleet_builder.io import Progress
from enginefleet_builder.store import layout
from enginefleet_builder.store.records import Records
from localcluster.ports import free_port
from tests.store.support import Place

ENGINE, GATE = "e" * 64, "9" * 64
BODY = b"engine" * 1000
BLOB = "sha256:" + hashlib.sha256(BODY).hexdigest()
FACTS: dict[str, Any] = probe.host_facts() | {"backend": "onnxruntime", "backendVersion": "1.0", "executionProvider": "CPU"}


def say(place: Place, answer: Answer, second: int = 1, fingerprint: str = "fp-1") -> None:
    time = layout.timestamp(second)
    verdict = Verdict(
        engine_key=ENGINE, gate_key=GATE, blob=BLOB, fingerprint=fingerprint, answer=answer, reasons=["measured"], time=time, holder="pod"
    )
    Records(place.open()).add_verdict(verdict)


@pytest.fixture
def published(place: Place, tmp_path: Path) -> Place:
    records = Records(place.open())
    (tmp_path / "built").write_bytes(BODY)
    records.publish_blob(tmp_path / "built", tmp_path / "back")
    records.add_build(
        BuildRecord(
            engine_key=ENGINE, blob=BLOB, size=len(BODY), fingerprint="fp-1", facts=FACTS, prepared_key="p", prepared_model="m",
            precision="int8", recipe={"threads": "2"}, time=layout.timestamp(1), holder="pod",
        )
    )  # fmt: skip
    return place


@pytest.fixture
def request_(published: Place, tmp_path: Path) -> FetchRequest:
    return FetchRequest(
        engine_key=ENGINE, gate_key=GATE, blob=BLOB, size=len(BODY), fingerprint="fp-1", facts=FACTS, store=published.ref,
        engine_path=str(tmp_path / "engine"), cache_path=str(tmp_path / "cache"), timeout_seconds=4,
    )  # fmt: skip


def without_store(request: FetchRequest) -> FetchRequest:
    down = {"uri": "s3://engines/", "endpoint": f"http://127.0.0.1:{free_port()}"}
    return request.model_copy(update={"store": request.store.model_copy(update=down)})


def failure(request: FetchRequest) -> EngineFleetError:
    with pytest.raises(EngineFleetError) as caught:
        fetch(request, Progress())
    return caught.value


def engine(request: FetchRequest) -> Path:
    return Path(request.engine_path) / "model.onnx"


def test_a_proven_engine_is_fetched_with_its_manifest(published: Place, request_: FetchRequest) -> None:
    say(published, Answer.PASS)
    report = fetch(request_, Progress())
    manifest = EngineManifest.model_validate_json((Path(request_.engine_path) / "engine.json").read_bytes())
    assert (report.source, report.verdict) == ("store", f"{BLOB[7:]}-19700101T000001000000Z-pod.json")
    assert engine(request_).read_bytes() == BODY
    assert (manifest.blob, manifest.file, manifest.precision, manifest.recipe) == (BLOB, "model.onnx", "int8", {"threads": "2"})


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([], "has no verdict"),
        ([Answer.FAIL], r"was judged Fail \(measured\)"),
        ([Answer.PASS, Answer.FAIL], "was judged Fail"),
        ([Answer.PASS, Answer.INCONCLUSIVE], "was judged Inconclusive"),
    ],
)
def test_an_engine_that_is_not_proven_is_not_served(published: Place, request_: FetchRequest, answers: list[Answer], said: str) -> None:
    for second, answer in enumerate(answers):
        say(published, answer, second)
    with pytest.raises(PermanentError, match=said) as caught:
        fetch(request_, Progress())
    assert caught.value.reason == "NotProven"
    assert not engine(request_).exists()


def test_a_verdict_of_another_fingerprint_proves_nothing(published: Place, request_: FetchRequest) -> None:
    say(published, Answer.PASS, fingerprint="fp-2")
    assert failure(request_).reason == "NotProven"


def test_the_second_pod_takes_the_engine_from_the_cache(published: Place, request_: FetchRequest) -> None:
    say(published, Answer.PASS)
    fetch(request_, Progress())
    assert fetch(request_, Progress()).source == "cache"


def test_a_damaged_cache_entry_is_replaced_from_the_store(published: Place, request_: FetchRequest, tmp_path: Path) -> None:
    say(published, Answer.PASS)
    fetch(request_, Progress())
    cached = tmp_path / "cache/sha256" / BLOB[7:]
    cached.write_bytes(b"damage")
    assert fetch(request_, Progress()).source == "store"
    assert cached.read_bytes() == BODY
    assert engine(request_).read_bytes() == BODY


def test_without_a_store_a_cached_engine_with_its_verdict_is_served(published: Place, request_: FetchRequest) -> None:
    say(published, Answer.PASS)
    fetch(request_, Progress())
    report = fetch(without_store(request_), Progress())
    assert (report.source, report.verdict) == ("cache", "cached")


def test_without_a_store_and_a_cached_verdict_nothing_is_served(published: Place, request_: FetchRequest, tmp_path: Path) -> None:
    cached = tmp_path / "cache/sha256" / BLOB[7:]
    cached.parent.mkdir(parents=True)
    cached.write_bytes(BODY)
    assert isinstance(failure(without_store(request_)), TransientFault)
    assert not engine(request_).exists()


def test_a_verdict_that_came_later_counts_although_the_cache_has_an_older_one(published: Place, request_: FetchRequest) -> None:
    say(published, Answer.PASS)
    fetch(request_, Progress())
    say(published, Answer.FAIL, 2)
    assert failure(request_).reason == "NotProven"


def test_damaged_bytes_in_the_store_are_not_served(published: Place, request_: FetchRequest) -> None:
    say(published, Answer.PASS)
    store = published.open()
    version = store.version(layout.blob(BLOB))
    assert version is not None
    assert store.replace_if(layout.blob(BLOB), version, b"x" * len(BODY))
    assert failure(request_).reason == "BlobDamaged"
    assert not engine(request_).exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"arch": "riscv64"}, "the engine is for 'riscv64'"), ({"cpu": {"isa": ["amx_int8", "neon"]}}, "the CPU here lacks .*neon")],
)
def test_another_device_is_refused_before_the_store_is_asked(request_: FetchRequest, changed: dict[str, Any], said: str) -> None:
    request = without_store(request_).model_copy(update={"facts": FACTS | changed})
    with pytest.raises(EnvironmentFault, match=said):
        fetch(request, Progress())


def test_a_cache_that_cannot_be_written_costs_nothing(published: Place, request_: FetchRequest, tmp_path: Path) -> None:
    say(published, Answer.PASS)
    (tmp_path / "file").write_text("")
    assert fetch(request_.model_copy(update={"cache_path": str(tmp_path / "file")}), Progress()).source == "store"
