"""What stands in the store, as documents: blobs, build records, verdicts, prepared models, baselines, copies of data sets.

Order of publishing an engine: `publish_blob` (reads it back), judge it as read back, `add_build`, `add_verdict` last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from enginefleet_api.base import Contract
from enginefleet_api.documents import Baseline, BuildRecord, DataSetManifest, FileEntry, PreparedManifest, Verdict
from enginefleet_api.errors import PermanentError, TransientFault
from enginefleet_api.identity import tree_digest
from enginefleet_builder.io import Progress

from . import layout
from .base import BlobDamaged, Body, Store, sha256_of

Document = TypeVar("Document", bound=Contract)


class Records:
    def __init__(self, store: Store) -> None:
        self.store = store

    # ---- blobs ----

    def publish_blob(self, path: Path, read_back: Path, *, progress: Progress | None = None) -> str:
        """Store an engine under its digest and read it back into `read_back`; the digest.

        A damaged object that stands under this digest is replaced. Raises BlobDamaged when the store gives back other bytes than it got.
        """
        sha256, size = sha256_of(path), path.stat().st_size
        key = layout.blob("sha256:" + sha256)
        created = self.store.put_if_absent(key, path, sha256=sha256)
        try:
            self.store.download(key, read_back, sha256=sha256, size=size, progress=progress)
        except BlobDamaged:
            if created:
                raise
            self._replace_object(key, path, sha256)
            self.store.download(key, read_back, sha256=sha256, size=size, progress=progress)
        return "sha256:" + sha256

    def fetch_blob(self, digest: str, path: Path, *, size: int | None = None, progress: Progress | None = None) -> None:
        """Write the engine to `path`. Raises ObjectMissing, BlobDamaged, TransientFault."""
        self.store.download(layout.blob(digest), path, sha256=layout.digest_hex(digest), size=size, progress=progress)

    def _replace_object(self, key: str, body: Path, sha256: str) -> None:
        version = self.store.version(key)
        if version is None:
            self.store.put_if_absent(key, body, sha256=sha256)
        else:
            self.store.replace_if(key, version, body, sha256=sha256)

    # ---- builds and verdicts ----

    def add_build(self, record: BuildRecord) -> None:
        """A second record of the same blob changes nothing: the first stands."""
        self._put_document(layout.build(record.engine_key, record.blob), record)

    def build(self, engine_key: str, blob: str) -> BuildRecord | None:
        return self._document(layout.build(engine_key, blob), BuildRecord)

    def builds(self, engine_key: str) -> list[BuildRecord]:
        """Builds of an engine key, newest last."""
        found = (self._document(key, BuildRecord) for key in self.store.list(layout.builds(engine_key)) if key.endswith(".json"))
        return sorted((record for record in found if record is not None), key=lambda record: record.time)

    def verdict_time(self, engine_key: str) -> str:
        """The time of a verdict that is reached now: by the store's clock, and after every verdict that the engine key has.

        A store tells its time in whole seconds, and its clock may have been wrong when it was asked before: without this, a verdict could
        be older than the one that it replaces, and not decide.
        """
        # two microseconds: of a time as a float one may be lost
        last = max(map(layout.verdict_seconds, self.store.list(layout.gates(engine_key))), default=0.0)
        return layout.timestamp(max(self.store.now(), last + 2e-6))

    def add_verdict(self, verdict: Verdict, *, decides: bool = True) -> str:
        """Append; the key it stands under. `verdict.time` has the form of `layout.timestamp`. `decides`: whether the engine may be loaded."""
        place = layout.verdict if decides else layout.context_verdict
        key = place(verdict.engine_key, verdict.gate_key, verdict.blob, verdict.time, verdict.holder)
        if not self._put_document(key, verdict):
            raise TransientFault("VerdictExists", f"{key} is there already: two verdicts of one holder in the same microsecond.")
        return key

    def newest_verdict(self, engine_key: str, gate_key: str, blob: str | None = None) -> tuple[str, Verdict] | None:
        """(key, verdict) that decides: the newest of the gate key, or the newest about `blob`; None when there is none.

        An unreadable one is an error, not an older answer: nobody knows what it said.
        """
        keys = [key for key in self.store.list(layout.verdicts(engine_key, gate_key)) if key.endswith(".json")]
        if blob is not None:
            keys = [key for key in keys if layout.verdict_blob(key) == blob]
        if not keys:
            return None
        newest = max(keys, key=layout.verdict_order)
        verdict = self._document(newest, Verdict)
        return None if verdict is None else (newest, verdict)

    def gates(self, engine_key: str) -> list[str]:
        """Gate keys that an engine was judged by, the one with the newest verdict last."""
        keys = sorted((key for key in self.store.list(layout.gates(engine_key)) if key.endswith(".json")), key=layout.verdict_order)
        return list(reversed(dict.fromkeys(key.split("/")[-2] for key in reversed(keys))))

    def add_variant(self, model: str, fingerprint: str, engine_key: str) -> None:
        """Let those who compare engines of a model find this one. `model`: its digest as given."""
        self.store.put_if_absent(layout.variant(model, fingerprint, engine_key), engine_key.encode())

    def variants(self, model: str, fingerprint: str) -> list[str]:
        """Keys of the engines that were judged for this model on this kind of device."""
        return [key.rpartition("/")[2] for key in self.store.list(layout.variants(model, fingerprint))]

    # ---- prepared models and baselines ----

    def publish_prepared(self, manifest: PreparedManifest, folder: Path) -> PreparedManifest:
        """Store the files that the manifest names, then the manifest; the manifest that stands, which may be another writer's.

        Files of another writer are other bytes in general, so each writer's files have a folder of their own (by model digest).
        """
        for entry in manifest.files:
            self.store.put_if_absent(self._prepared_file(manifest, entry.path), folder / entry.path, sha256=entry.sha256)
        self._put_document(layout.prepared_manifest(manifest.prepared_key), manifest)
        standing = self.prepared(manifest.prepared_key)
        if standing is None:
            raise TransientFault("PreparedVanished", f"the manifest of {manifest.prepared_key} was removed while it was published.")
        return standing

    def prepared(self, prepared_key: str) -> PreparedManifest | None:
        return self._document(layout.prepared_manifest(prepared_key), PreparedManifest)

    def fetch_prepared(self, manifest: PreparedManifest, folder: Path, *, progress: Progress | None = None) -> None:
        """Write the prepared model's files into `folder`, each checked by digest and size."""
        self._fetch_files(manifest.files, lambda path: self._prepared_file(manifest, path), folder, progress)

    @staticmethod
    def _prepared_file(manifest: PreparedManifest, path: str) -> str:
        return layout.prepared(manifest.prepared_key, f"{layout.digest_hex(manifest.model)}/{path}")

    def put_baseline(self, baseline: Baseline) -> Baseline:
        """The baseline that stands, which may be another writer's."""
        key = layout.baseline(baseline.baseline_key)
        self._put_document(key, baseline)
        return self._document(key, Baseline) or baseline

    def baseline(self, baseline_key: str) -> Baseline | None:
        return self._document(layout.baseline(baseline_key), Baseline)

    # ---- data sets ----

    def publish_dataset(
        self, digest: str, files: Sequence[FileEntry], folder: Path, *, anew: bool = False, progress: Progress | None = None
    ) -> bool:
        """Store a data set's files as they are, then the manifest; False when it stands already. `digest`: their tree digest.

        What is there of an interrupted copy is not sent again. `anew`: whatever stands is replaced, because some of it is damaged.
        """
        if not anew and self.store.exists(layout.dataset_manifest(digest)):
            return False
        there = set(self.store.list(layout.dataset(digest)))
        for count, entry in enumerate(files, start=1):
            key = layout.dataset(digest, entry.path)
            if key not in there:
                self.store.put_if_absent(key, folder / entry.path, sha256=entry.sha256)
            elif anew:
                self._replace_object(key, folder / entry.path, entry.sha256)
            if progress is not None:
                progress("copy the data set into the store", count, len(files))
        manifest = DataSetManifest(digest=digest, files=sorted(files, key=lambda entry: entry.path))
        key = layout.dataset_manifest(digest)
        if not self._put_document(key, manifest) and anew and (standing := self.store.get(key)) is not None:
            self.store.replace_if(key, standing.etag, _body(manifest))
        return True

    def dataset(self, digest: str) -> DataSetManifest | None:
        """Raises PermanentError `StoreRecordUnreadable`, also when the files that it names are not those of the digest."""
        return self._files_of(layout.dataset_manifest(digest), digest)

    def list_dataset(self, digest: str, files: Sequence[FileEntry]) -> None:
        """Say which files a set has, so that some of them can be fetched from where it lies and be known to be what they were."""
        manifest = DataSetManifest(digest=digest, files=sorted(files, key=lambda entry: entry.path))
        self._put_document(layout.dataset_listing(digest), manifest)

    def dataset_listing(self, digest: str) -> DataSetManifest | None:
        """Raises as `dataset` does."""
        return self._files_of(layout.dataset_listing(digest), digest)

    def _files_of(self, key: str, digest: str) -> DataSetManifest | None:
        manifest = self._document(key, DataSetManifest)
        if manifest is None:
            return None
        try:
            found = tree_digest((entry.path, entry.sha256) for entry in manifest.files)
        except ValueError as error:
            found = str(error)
        if found != digest:
            message = f"{key} names files of another data set: {found}, expected {digest}."
            raise PermanentError("StoreRecordUnreadable", message, "Remove the object; the data set is copied again.")
        return manifest

    def fetch_dataset(self, manifest: DataSetManifest, folder: Path, *, progress: Progress | None = None) -> None:
        """Write the data set's files into `folder`, each checked by digest and size. Raises ObjectMissing, BlobDamaged, TransientFault."""
        self._fetch_files(manifest.files, lambda path: layout.dataset(manifest.digest, path), folder, progress)

    def _fetch_files(self, files: Sequence[FileEntry], key_of: Callable[[str], str], folder: Path, progress: Progress | None) -> None:
        for entry in files:
            target = folder / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            self.store.download(key_of(entry.path), target, sha256=entry.sha256, size=entry.size, progress=progress)

    # ---- reports ----

    def put_report(self, engine_key: str, gate_key: str, name: str, body: Body) -> None:
        """Something for people to read; the first of a name stands."""
        self.store.put_if_absent(layout.report(engine_key, gate_key, name), body)

    def report(self, engine_key: str, gate_key: str, name: str) -> bytes | None:
        stored = self.store.get(layout.report(engine_key, gate_key, name))
        return None if stored is None else stored.body

    # ---- documents ----

    def _put_document(self, key: str, document: Contract) -> bool:
        return self.store.put_if_absent(key, _body(document))

    def _document(self, key: str, kind: type[Document]) -> Document | None:
        stored = self.store.get(key)
        return None if stored is None else parse(key, stored.body, kind)


def _body(document: Contract) -> bytes:
    return document.model_dump_json(by_alias=True, exclude_none=True).encode()


def parse(key: str, body: bytes, kind: type[Document]) -> Document:
    """The document, or PermanentError `StoreRecordUnreadable`."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PermanentError(
            "StoreRecordUnreadable",
            f"{key} is not a {kind.__name__}: {where + ': ' if where else ''}{first['msg']}.",
            "Written by a newer version? Else remove the object; what it recorded is made again.",
        ) from error
