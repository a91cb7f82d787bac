"""Timing caches: the newest is found, two builders lose nothing to each other, and whatever is wrong costs time alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginefleet_api.errors import TransientFault
from enginefleet_builder.io import Cancellation, Progress, terminated
from enginefleet_builder.store import Store, layout
from enginefleet_builder.store.base import sha256_of
from enginefleet_builder.store.timing_caches import MOST_BYTES, TimingCachePointer, TimingCaches
from tests.store.proxy import Fault, FaultyProxy
from tests.store.support import Place, race, s3_place

FP = "fp-0123456789abcdef"
POINTER = layout.timing_cache_pointer(FP)


class Job:
    """One build Job's view; a cache is a set of lines here, so that what is in one can be seen."""

    def __init__(self, store: Store, folder: Path, *, fingerprint: str = FP, progress: Progress | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.warnings, self.merges = folder, list[str](), 0
        self.caches = TimingCaches(store, fingerprint, folder.name, progress or Progress(), self.warnings)

    def fetch(self) -> set[str]:
        path = self.caches.fetch(self.folder / "cache")
        return set() if path is None else lines(path)

    def publish(self, *measured: str, mergeable: bool = True) -> None:
        file = self.folder / "made"
        file.write_text("\n".join(sorted({*self.fetched, *measured})))
        self.caches.publish(file, self.merge if mergeable else lambda *_: False)

    @property
    def fetched(self) -> set[str]:
        path = self.folder / "cache"
        return lines(path) if path.exists() else set()

    def merge(self, ours: Path, theirs: Path, target: Path) -> bool:
        self.merges += 1
        target.write_text("\n".join(sorted(lines(ours) | lines(theirs))))
        return True


def lines(path: Path) -> set[str]:
    return set(path.read_text().splitlines())


def blob_key(store: Store) -> str:
    stored = store.get(POINTER)
    assert stored is not None
    return layout.timing_cache(FP, TimingCachePointer.model_validate_json(stored.body).digest)


def test_the_next_build_begins_with_what_the_last_one_measured(place: Place, tmp_path: Path) -> None:
    store = place.open()
    first = Job(store, tmp_path / "1")
    assert first.fetch() == set()
    first.publish("conv")
    second = Job(store, tmp_path / "2")
    assert second.fetch() == {"conv"}
    second.publish("gemm")
    assert Job(store, tmp_path / "3").fetch() == {"conv", "gemm"}
    assert first.warnings + second.warnings == []


def test_another_fingerprint_has_its_own(place: Place, tmp_path: Path) -> None:
    store = place.open()
    Job(store, tmp_path / "1").publish("conv")
    assert Job(store, tmp_path / "2", fingerprint="fp-fedcba9876543210").fetch() == set()


def test_a_job_that_builds_twice_publishes_both(place: Place, tmp_path: Path) -> None:
    """The engine and its FP32 partner."""
    store = place.open()
    job = Job(store, tmp_path / "1")
    job.fetch()
    job.publish("conv")
    job.publish("conv", "gemm")
    job.publish("conv", "gemm", "pool")
    assert Job(store, tmp_path / "2").fetch() == {"conv", "gemm", "pool"}
    assert (job.merges, job.warnings) == (0, [])


def test_an_unchanged_cache_is_not_published_again(place: Place, tmp_path: Path) -> None:
    store = place.open()
    Job(store, tmp_path / "1").publish("conv")
    before = store.version(POINTER)
    again = Job(store, tmp_path / "2")
    again.fetch()
    again.publish()
    assert store.version(POINTER) == before


def test_two_that_end_together_lose_nothing_to_each_other(place: Place, tmp_path: Path) -> None:
    store = place.open()
    Job(store, tmp_path / "0").publish("conv")
    one, two = Job(store, tmp_path / "1"), Job(store, tmp_path / "2")
    assert one.fetch() == two.fetch() == {"conv"}
    one.publish("gemm")
    two.publish("pool")
    assert Job(store, tmp_path / "3").fetch() == {"conv", "gemm", "pool"}
    assert (one.merges, two.merges) == (0, 1)


def test_of_caches_that_do_not_go_together_the_one_that_stands_stays(place: Place, tmp_path: Path) -> None:
    store = place.open()
    one, two = Job(store, tmp_path / "1"), Job(store, tmp_path / "2")
    one.publish("conv")
    two.publish("gemm", mergeable=False)
    assert Job(store, tmp_path / "3").fetch() == {"conv"}


def test_racing_processes_keep_every_measurement(place: Place, tmp_path: Path) -> None:
    def work(store: Store, number: int) -> list[str]:
        job = Job(store, tmp_path / str(number))
        job.fetch()
        job.publish(f"measured-{number}")
        return job.warnings

    # each loses at most to the three others
    assert race(place, 4, work) == [[]] * 4
    assert Job(place.open(), tmp_path / "end").fetch() == {f"measured-{number}" for number in range(4)}


def test_a_damaged_cache_is_named_not_used_and_replaced(place: Place, tmp_path: Path) -> None:
    store = place.open()
    Job(store, tmp_path / "1").publish("conv")
    key = blob_key(store)
    version = store.version(key)
    assert version is not None
    assert store.replace_if(key, version, b"conx")
    job = Job(store, tmp_path / "2")
    assert job.fetch() == set()
    assert "BlobDamaged" in job.warnings[0]
    job.publish("gemm")
    assert Job(store, tmp_path / "3").fetch() == {"gemm"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "StoreRecordUnreadable"),
        (b"{}", "StoreRecordUnreadable"),
        (b'{"digest":"../../etc/passwd","size":1,"time":"","holder":""}', "StoreRecordUnreadable"),
        (b'{"digest":"sha256:%b","size":4,"time":"","holder":""}' % (b"0" * 64), "ObjectMissing"),
        (b'{"digest":"sha256:%b","size":%d,"time":"","holder":""}' % (b"0" * 64, MOST_BYTES + 1), "expected at most"),
    ],
    ids=["empty", "fields missing", "a path", "names nothing", "too large"],
)
def test_a_pointer_that_cannot_be_followed_is_named_and_replaced(place: Place, tmp_path: Path, body: bytes, says: str) -> None:
    store = place.open()
    store.put_if_absent(POINTER, body)
    job = Job(store, tmp_path / "1")
    assert job.fetch() == set()
    assert says in job.warnings[0]
    job.publish("conv")
    assert Job(store, tmp_path / "2").fetch() == {"conv"}


def test_a_pointer_that_turns_bad_meanwhile_is_replaced(place: Place, tmp_path: Path) -> None:
    store = place.open()
    job = Job(store, tmp_path / "1")
    job.fetch()
    store.put_if_absent(POINTER, b"bad")
    job.publish("conv")
    assert Job(store, tmp_path / "2").fetch() == {"conv"}


def test_a_cache_that_is_too_large_is_not_published(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginefleet_builder.store.timing_caches.MOST_BYTES", 3)
    store = place.open()
    job = Job(store, tmp_path / "1")
    job.publish("conv")
    assert "expected at most 3" in job.warnings[0]
    assert store.get(POINTER) is None


def test_a_store_that_is_down_costs_the_cache_alone(proxy: FaultyProxy, tmp_path: Path) -> None:
    store = s3_place(proxy.endpoint).open(patience=0.2)
    job = Job(store, tmp_path / "1")
    proxy.faults += [Fault("unavailable", method) for method in ("GET", "PUT", "HEAD")]
    assert job.fetch() == set()
    job.publish("conv")
    assert ["StoreUnavailable" in warning for warning in job.warnings] == [True, True]


def test_cancellation_is_not_taken_for_a_bad_cache(proxy: FaultyProxy, tmp_path: Path) -> None:
    cancellation = Cancellation()
    store = s3_place(proxy.endpoint).open(patience=0.2)
    job = Job(store, tmp_path / "1", progress=Progress(cancellation))
    proxy.faults += [Fault("unavailable", method) for method in ("GET", "PUT", "HEAD")]
    cancellation.cancel(terminated("SIGTERM"))
    with pytest.raises(TransientFault, match="SIGTERM"):
        job.fetch()


def test_the_content_lies_under_its_digest(place: Place, tmp_path: Path) -> None:
    store = place.open()
    Job(store, tmp_path / "1").publish("conv")
    assert blob_key(store) == layout.timing_cache(FP, "sha256:" + sha256_of(b"conv"))
