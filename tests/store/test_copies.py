"""Validation sets from the web are copied into the store, and engines are judged from the copy; others only where the spec asks for it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginefleet_api.documents import Answer
from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.identity import tree_digest
from enginefleet_api.jobs import BuildReport, PrepareReport, Source, StoreRef
from enginefleet_api.judging import CopyToStore
from enginefleet_api.resources import OnDevice, Preprocessing, Validation
from enginefleet_builder import copies
from enginefleet_builder.build.job import build, judge
from enginefleet_builder.gate import latency, score
from enginefleet_builder.gate.datasets import files_of, open_dataset
from enginefleet_builder.gate.preprocessing import Preprocessor
from enginefleet_builder.io import Progress, terminated
from enginefleet_builder.prepare.job import prepare
from enginefleet_builder.sources import Fetched, fetch_source
from enginefleet_builder.store import layout
from enginefleet_builder.store.records import Records
from localcluster.s3 import S3Server
from tests.builder.data import picture, write
from tests.builder.drawn import PREPROCESSING, coco_set, mask_set
from tests.builder.support import Bench, Undisturbed
from tests.builder.test_report_by_hand import gray_folders
from tests.store.proxy import Fault, FaultyProxy
from tests.store.support import BUCKET, Place, admin, s3_place
from tests.store.test_sources import Web, page, serving, sha

NAME = "/validation.npz"


@dataclass
class Site:
    """A bench whose store is in S3 and whose validation set is on the web."""

    bench: Bench
    place: Place
    web: Web
    model: Source
    log: list[str] = field(default_factory=list)

    @property
    def records(self) -> Records:
        return Records(self.place.open())

    def copied(self) -> list[str]:
        return list(self.place.open().list("datasets/"))

    def prepare(self, source: Source | None = None, asked: CopyToStore = "Auto") -> PrepareReport:
        source = source or page(self.web, NAME)
        progress = Progress()
        request = self.bench.prepare_request(store=self.place.ref, model=self.model, calibration=None, calibration_source=None)
        validation = self.bench.gate().model_copy(update={"copy_to_store": asked})
        report = prepare(request.model_copy(update={"validation": validation, "validation_source": source}), progress)
        self.log = list(progress.log_tail)
        return report

    def build(
        self, prepared: PrepareReport, *, again: bool = False, source: Source | None = None, asked: CopyToStore = "Auto"
    ) -> BuildReport:
        """Its lines are in `log`, what it asked the web for in `web.asked`."""
        self.web.asked.clear()
        progress = Progress()
        validation = self.bench.gate().model_copy(update={"copy_to_store": asked})
        changes = {"validation": validation, "validation_source": source or page(self.web, NAME)}
        request = self.bench.build_request(prepared, store=self.place.ref, **changes)
        report = (judge if again else build)(request, progress, Undisturbed())
        self.log = list(progress.log_tail)
        return report


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with serving() as server:
        yield server


@pytest.fixture
def site(s3: S3Server, credentials: None, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(latency, "MEASURED_SECONDS", 0.02)
    bench = Bench(tmp_path)
    web.files = {NAME: bench.validation.read_bytes()}
    web.asked.clear()
    key = f"given/{secrets.token_hex(4)}/model.onnx"
    admin(s3).upload_file(str(bench.model), BUCKET, key)
    model = Source(uri=f"s3://{BUCKET}/{key}", endpoint=s3.endpoint, credentials="store")
    return Site(bench, s3_place(s3.endpoint), web, model)


def whole(site: Site, key: str) -> str:
    return f"{site.place.ref.uri.removeprefix(f's3://{BUCKET}/')}{key}"


def test_a_set_from_the_web_is_copied_once_as_it_is_and_engines_are_judged_from_the_copy(site: Site) -> None:
    prepared = site.prepare()
    body, digest = site.web.files[NAME], prepared.validation
    assert digest == tree_digest([("validation.npz", sha(body))])
    file = layout.dataset(digest, "validation.npz")
    assert site.copied() == [file, layout.dataset_manifest(digest)]
    stored = site.place.open().get(file)
    assert stored is not None
    assert stored.body == body, "encoded as it was given"
    assert f"the validation set ({len(body)} bytes) was copied into the store: builds read it there" in prepared.notes
    again = site.prepare()
    assert (again.reused, again.notes) == (True, [note for note in prepared.notes if "copied" not in note])

    built = site.build(prepared)
    assert (Answer.PASS, []) == (built.answer, site.web.asked), built.reasons
    found = site.records.newest_verdict(built.engine_key, built.gate_key)
    assert found is not None
    assert found[1].evidence["bytes"]["validation"] == len(body)


@pytest.mark.parametrize("harm", ["bytes", "file gone", "manifest of another set", "no manifest"])
def test_a_copy_that_is_damaged_or_missing_is_said_to_be_so_and_made_anew_from_the_source(site: Site, s3: S3Server, harm: str) -> None:
    prepared = site.prepare()
    assert prepared.validation is not None
    body = site.web.files[NAME]
    file, manifest = layout.dataset(prepared.validation, "validation.npz"), layout.dataset_manifest(prepared.validation)
    other = f'{{"digest": "{prepared.validation}", "files": [{{"path": "validation.npz", "sha256": "{sha(b"x")}", "size": 1}}]}}'
    match harm:
        case "bytes":
            admin(s3).put_object(Bucket=BUCKET, Key=whole(site, file), Body=body[:-1] + b"x")
        case "file gone":
            admin(s3).delete_object(Bucket=BUCKET, Key=whole(site, file))
        case "manifest of another set":
            admin(s3).put_object(Bucket=BUCKET, Key=whole(site, manifest), Body=other.encode())
        case "no manifest":
            admin(s3).delete_object(Bucket=BUCKET, Key=whole(site, manifest))
    assert site.build(prepared).answer is Answer.PASS
    assert site.web.asked == [NAME]
    said = "has no copy of the validation set" if harm == "no manifest" else "copy of the validation set cannot be used"
    assert [said in line for line in site.log] == [True], site.log
    assert site.build(prepared, again=True).answer is Answer.PASS
    assert (site.web.asked, site.log) == ([], [])


def test_a_source_that_changed_is_not_judged_with_and_not_copied(site: Site, s3: S3Server) -> None:
    prepared = site.prepare()
    assert prepared.validation is not None
    admin(s3).delete_object(Bucket=BUCKET, Key=whole(site, layout.dataset_manifest(prepared.validation)))
    site.web.files[NAME] += b"\0"
    with pytest.raises(PermanentError, match="DataSetChanged"):
        site.build(prepared)
    assert site.copied() == [layout.dataset(prepared.validation, "validation.npz")]


@pytest.mark.parametrize(("asked", "copied"), [("Auto", False), ("Always", True), ("Never", False)])
def test_data_with_a_secret_of_its_own_is_copied_only_where_the_spec_asks_for_it(site: Site, asked: CopyToStore, copied: bool) -> None:
    private = page(site.web, NAME).model_copy(update={"credentials": "validation"})
    prepared = site.prepare(private, asked)
    assert prepared.validation is not None
    file = layout.dataset(prepared.validation, "validation.npz")
    assert site.copied() == ([file, layout.dataset_manifest(prepared.validation)] if copied else [])
    assert site.build(prepared, source=private, asked=asked).answer is Answer.PASS
    assert site.web.asked == ([] if copied else [NAME])


def test_who_asks_for_copies_after_the_model_was_prepared_gets_them_with_the_next_build(site: Site) -> None:
    private = page(site.web, NAME).model_copy(update={"credentials": "validation"})
    prepared = site.prepare(private)
    asked: list[list[str]] = []
    for choice in ("Always", "Always", "Never"):
        assert site.build(prepared, again=bool(asked), source=private, asked=choice).answer is Answer.PASS
        asked.append(list(site.web.asked))
    assert asked == [[NAME], [], [NAME]]


HOME = "https://store.example"
AWAY: dict[str, str] = {"endpoint": "https://other.example"}


@pytest.mark.parametrize(
    ("source", "auto", "always"),
    [
        ({"uri": "https://data.example/set.npz"}, True, True),
        ({"uri": "https://data.example/set.npz", "credentials": "validation"}, False, True),
        ({"uri": "https://data.example/set.npz?X-Amz-Signature=1"}, False, True),
        ({"uri": f"{HOME}/engines/set.npz"}, False, False),
        ({"uri": "s3://data/set/", "credentials": "store", "endpoint": HOME}, False, False),
        ({"uri": "s3://data/set/", "credentials": "validation", "endpoint": f"{HOME}/"}, False, False),
        ({"uri": "s3://data/set/", "credentials": "validation"} | AWAY, False, True),
        ({"uri": "s3://data/set/", "credentials": "ambient"} | AWAY, False, True),
        ({"uri": "file:///data/set/"}, False, False),
    ],
)
def test_only_what_is_elsewhere_is_copied_and_by_itself_only_what_anybody_may_fetch(
    source: dict[str, str], auto: bool, always: bool
) -> None:
    store, given = StoreRef(uri="s3://engines/", endpoint=HOME), Source.model_validate(source)
    assert (auto, always, False) == tuple(copies.is_copied(given, store, asked) for asked in ("Auto", "Always", "Never"))


def test_a_set_beyond_the_limit_or_one_that_the_store_refuses_stays_where_it_is(
    site: Site, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin(s3).put_object(Bucket=BUCKET, Key=whole(site, "datasets"), Body=b"in the way of the folder")
    prepared = site.prepare()
    assert [line.startswith("the validation set is not copied into the store: ") for line in site.log] == [True], site.log
    assert [note for note in prepared.notes if "copied" in note] == []
    admin(s3).delete_object(Bucket=BUCKET, Key=whole(site, "datasets"))
    monkeypatch.setattr(copies, "COPY_LIMIT", 1000)
    site.prepare()
    assert ["more than 1000: it is not copied" in line for line in site.log] == [True], site.log
    assert site.copied() == []


class Interrupted(Progress):
    def show(self, stage: str, done: float | None, total: float | None) -> None:
        if stage.startswith("copy the data set") and done == 1:
            self.cancellation.cancel(terminated("SIGTERM"))


def test_a_copy_that_was_interrupted_goes_on_where_it_ended(proxy: FaultyProxy, tmp_path: Path) -> None:
    given = tmp_path / "given"
    (given / "ant").mkdir(parents=True)
    for name in ("ant/1.jpg", "ant/2.jpg", "manifest.json"):
        (given / name).write_bytes(name.encode())
    fetched = fetch_source(Source(uri=f"{given.as_uri()}/"), tmp_path / "fetched", allow_file=True)
    records = Records(s3_place(proxy.endpoint).open())
    with pytest.raises(TransientFault, match="SIGTERM"):
        records.publish_dataset(fetched.digest, fetched.files, fetched.folder, progress=Interrupted())
    assert records.dataset(fetched.digest) is None, "without its manifest a set is not there"
    there = len(list(records.store.list("datasets/")))
    assert 0 < there < len(fetched.files)
    writes = Fault("slow", "PUT")
    proxy.faults = [writes]
    assert records.publish_dataset(fetched.digest, fetched.files, fetched.folder)
    assert writes.applied == len(fetched.files) - there + 1
    manifest = records.dataset(fetched.digest)
    assert manifest is not None
    records.fetch_dataset(manifest, tmp_path / "again")
    assert {name: (tmp_path / "again" / name).read_text() for name in ("ant/1.jpg", "ant/2.jpg", "manifest.json")} == {
        name: name for name in ("ant/1.jpg", "ant/2.jpg", "manifest.json")
    }


# ---- of a folder of pictures only those that are judged ----


def class_set(root: Path) -> Path:
    for number in range(30):
        picture(root / "abc"[number % 2 + (number % 9 == 0)] / f"{number:03}.png", number)
    return root


def yolo_set(root: Path) -> Path:
    write(root / "data.yaml", "names: [red, green, blue]\nval: images/val\n")
    for number in range(30):
        picture(root / "images" / "val" / f"{number:03}.png", number)
        write(root / "labels" / "val" / f"{number:03}.txt", f"{number % 2 + (number % 9 == 0)} 0.5 0.5 0.5 0.5\n" if number % 5 else "")
    return root


@pytest.mark.parametrize(
    ("task", "made"),
    [
        ("classification", class_set),
        ("detection", yolo_set),
        ("detection", lambda root: coco_set(root, 30)),
        ("segmentation", lambda root: mask_set(root, 30)),
    ],
    ids=["folders", "YOLO", "COCO", "masks"],
)
def test_of_a_folder_in_s3_only_the_pictures_are_fetched_that_would_be_judged_of_the_whole(
    s3: S3Server, credentials: None, tmp_path: Path, task: Any, made: Callable[[Path], Path]
) -> None:
    root = made(tmp_path / "given")
    validation = Validation(uri="s3://any/", task=task, on_device=OnDevice(max_samples=6))
    place, key = s3_place(s3.endpoint), f"given/{secrets.token_hex(4)}/"
    for file in (file for file in root.rglob("*") if file.is_file()):
        admin(s3).upload_file(str(file), BUCKET, key + file.relative_to(root).as_posix())
    source = Source(uri=f"s3://{BUCKET}/{key}", endpoint=s3.endpoint, credentials="store")
    records = Records(place.open())
    whole = fetch_source(source, tmp_path / "whole")
    assert copies.keep(records, source, place.ref, whole, Progress()) is None
    expected = open_dataset(whole.folder, Preprocessor.of(PREPROCESSING), task)
    indices = score.device_indices(validation, expected, None)

    def choose(folder: Path) -> set[str]:
        dataset = open_dataset(folder, Preprocessor.of(PREPROCESSING), task)
        assert score.device_indices(validation, dataset, None) == indices, "decided without a picture"
        return files_of(dataset, indices, task)

    def fetched(name: str) -> Fetched:
        return copies.fetch_validation(
            records, source, place.ref, whole.digest, tmp_path / name, allow_file=False, progress=Progress(), choose=choose
        )

    some = fetched("some")
    pictures = [entry for entry in some.files if entry.path.endswith(".png")]
    assert (some.digest, len(pictures)) == (whole.digest, 6 * (2 if task == "segmentation" else 1))
    assert sum(entry.size for entry in pictures) < 0.3 * sum(entry.size for entry in whole.files if entry.path.endswith(".png"))
    dataset = open_dataset(some.folder, Preprocessor.of(PREPROCESSING), task)
    for index in indices:
        assert np.array_equal(dataset.sample(index)[""], expected.sample(index)[""])
    left_out = next(index for index in range(dataset.size) if index not in indices)
    with pytest.raises(PermanentError, match="DataSetUnreadable"):
        dataset.sample(left_out)

    admin(s3).put_object(Bucket=BUCKET, Key=key + expected.identity(left_out), Body=b"another")
    assert fetched("again").files == some.files, "what is not judged decides nothing"
    admin(s3).put_object(Bucket=BUCKET, Key=key + expected.identity(indices[0]), Body=b"another")
    with pytest.raises(PermanentError, match="DataSetChanged"):
        fetched("changed")


def test_an_engine_is_judged_on_the_pictures_that_were_fetched(site: Site, s3: S3Server, tmp_path: Path) -> None:
    root, key = tmp_path / "gray", f"given/{secrets.token_hex(4)}/"
    gray_folders(root, 40, seed=1)
    for file in root.rglob("*.png"):
        admin(s3).upload_file(str(file), BUCKET, key + file.relative_to(root).as_posix())
    source = Source(uri=f"s3://{BUCKET}/{key}", endpoint=s3.endpoint, credentials="store")
    gray = Preprocessing(color="GRAY", scale="1/255")
    gate = site.bench.gate(min_samples=20, on_device=OnDevice(max_samples=20))
    request = site.bench.prepare_request(store=site.place.ref, model=site.model, calibration=None, calibration_source=None)
    changes = {"validation": gate, "validation_source": source, "preprocessing": gray}
    prepared = prepare(request.model_copy(update=changes), Progress())
    wanted = site.bench.build_request(prepared, store=site.place.ref, **changes)
    progress = Progress()
    report = build(wanted, progress, Undisturbed())
    found = site.records.newest_verdict(wanted.engine_key, wanted.gate_key)
    assert found is not None
    assert found[1].accuracy is not None
    assert (found[1].accuracy.samples, found[1].accuracy.available) == (20, 40)
    assert "of the validation set's 40 pictures 20 were fetched: they are judged" in progress.log_tail
    all_bytes = sum(file.stat().st_size for file in root.rglob("*.png"))
    assert found[1].evidence["bytes"]["validation"] < 0.6 * all_bytes
    # with everything there the same samples are judged, with the same result
    admin(s3).delete_object(Bucket=BUCKET, Key=whole(site, layout.dataset_listing(str(prepared.validation))))
    again = judge(wanted, Progress(), Undisturbed())
    second = site.records.newest_verdict(wanted.engine_key, wanted.gate_key)
    assert second is not None
    assert (second[1].accuracy, again.answer) == (found[1].accuracy, report.answer)
    assert second[1].evidence["bytes"]["validation"] == all_bytes
