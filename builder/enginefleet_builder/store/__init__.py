"""Where engines live: S3 or a folder, publish-once, claims, records."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from enginefleet_api.errors import PermanentError
from enginefleet_api.jobs import StoreRef
from enginefleet_builder.io import Progress

from .base import BlobDamaged, ObjectMissing, Store, Stored, StoreUnavailable

__all__ = ["BlobDamaged", "ObjectMissing", "Store", "StoreUnavailable", "Stored", "open_store"]


def open_store(ref: StoreRef, *, progress: Progress | None = None, writes: bool = True, patience: float | None = None) -> Store:
    """The store that `ref` names, with the credentials `ENGINEFLEET_STORE_…` or else the pod's own identity.

    `writes`: check that the server knows conditional writes (needs permission to write); else the place must be there already. `patience`: seconds
    that one operation is retried. Raises PermanentError `StoreNotFound`, `StoreAccessDenied`, `StoreWithoutConditionalWrites`, or StoreUnavailable.
    """
    parts = urlsplit(ref.uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        # takes an HTTP client along, which most processes that import this have no use for
        from urllib.request import url2pathname

        from .folder import FolderStore

        root = Path(url2pathname(parts.path))
        if not writes and not root.is_dir():
            found = "is a file" if root.exists() else "does not exist"
            hint = "Correct the path; `enginefleet prepare` and `build` make a store where there is none."
            raise PermanentError("StoreNotFound", f"the store's folder {root} {found}; expected the folder of a store.", hint)
        return FolderStore(root)
    if parts.scheme != "s3" or not parts.netloc:
        raise PermanentError(
            "StoreNotFound", f"{ref.uri!r} is not a store.", "Write s3://bucket/prefix/, or file:///folder/ on the command line."
        )
    from .client import s3_client
    from .s3 import PATIENCE, S3Store

    prefix = parts.path.strip("/")
    client = s3_client("store", endpoint=ref.endpoint, region=ref.region, ca_bundle=ref.ca_bundle)
    store = S3Store(client, parts.netloc, prefix and prefix + "/", progress=progress, patience=PATIENCE if patience is None else patience)
    if writes:
        store.check_conditional_writes()
    return store
