"""Keys of the store, below its prefix: pure functions. The layout is part of the contract between sites that share a store."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from enginefleet_api.identity import is_digest

_HEX64 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{6})Z")


def prepared(prepared_key: str, path: str) -> str:
    """One file of a prepared model; `path` is relative to it."""
    return f"prepared/{_hex(prepared_key)}/{path}"


def prepared_manifest(prepared_key: str) -> str:
    return prepared(prepared_key, "manifest.json")


def baseline(baseline_key: str) -> str:
    return f"baselines/{_hex(baseline_key)}.json"


def dataset(digest: str, path: str = "") -> str:
    """One file of a data set, or the prefix of all; `path` is relative to it. `digest`: its tree digest."""
    return f"datasets/{digest_hex(digest)}/files/{path}"


def dataset_listing(digest: str) -> str:
    """What files a set has, wherever they lie."""
    return f"datasets/{digest_hex(digest)}/listing.json"


def dataset_manifest(digest: str) -> str:
    return f"datasets/{digest_hex(digest)}/manifest.json"


def blob(digest: str) -> str:
    """`digest`: `sha256:<64 hex>`."""
    name = digest_hex(digest)
    return f"blobs/sha256/{name[:2]}/{name}"


def claim(engine_key: str) -> str:
    return f"engines/{_hex(engine_key)}/claim.json"


def builds(engine_key: str) -> str:
    """Prefix of an engine key's build records."""
    return f"engines/{_hex(engine_key)}/builds/"


def build(engine_key: str, digest: str) -> str:
    return f"{builds(engine_key)}{digest_hex(digest)}.json"


def verdicts(engine_key: str, gate_key: str) -> str:
    """Prefix of a gate key's verdicts."""
    return f"engines/{_hex(engine_key)}/verdicts/{_hex(gate_key)}/"


def verdict(engine_key: str, gate_key: str, digest: str, time: str, holder: str) -> str:
    """`time` as of `timestamp`; in the name it has no punctuation."""
    return f"{verdicts(engine_key, gate_key)}{digest_hex(digest)}-{_compact(time)}-{_holder(holder)}.json"


def context_verdict(engine_key: str, gate_key: str, digest: str, time: str, holder: str) -> str:
    """A verdict about a published engine in another context: none of those that decide, which are below `verdicts`."""
    return verdict(engine_key, gate_key, digest, time, holder).replace("/verdicts/", "/contexts/", 1)


def verdict_order(key: str) -> tuple[str, str]:
    """What verdicts are ordered by, oldest first: time, then the rest of the name."""
    name = key.rpartition("/")[2]
    _, _, rest = name.partition("-")
    return rest.partition("-")[0], name


def verdict_seconds(key: str) -> float:
    """When it was judged, in seconds since the epoch; 0 of a key that has no time."""
    try:
        return datetime.strptime(verdict_order(key)[0], "%Y%m%dT%H%M%S%fZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def verdict_blob(key: str) -> str:
    return "sha256:" + key.rpartition("/")[2].partition("-")[0]


def gates(engine_key: str) -> str:
    """Prefix of all verdicts of an engine key."""
    return f"engines/{_hex(engine_key)}/verdicts/"


def variants(model: str, fingerprint: str) -> str:
    """Prefix of the index of engines that were made of one model, by its digest as given, for one kind of device."""
    return f"models/{digest_hex(model)}/{_holder(fingerprint)}/"


def variant(model: str, fingerprint: str, engine_key: str) -> str:
    return f"{variants(model, fingerprint)}{_hex(engine_key)}"


def timing_cache(fingerprint: str, digest: str) -> str:
    """Measurements of one builder on one kind of device, by content."""
    return f"timing-caches/{_holder(fingerprint)}/{digest_hex(digest)}"


def timing_cache_pointer(fingerprint: str) -> str:
    """Names the cache that the next build of the fingerprint begins with."""
    return f"timing-caches/{_holder(fingerprint)}/newest.json"


def report(engine_key: str, gate_key: str, name: str) -> str:
    return f"reports/{_hex(engine_key)}/{_hex(gate_key)}/{name}"


def timestamp(seconds: float) -> str:
    """The form of a record's `time`: `2026-01-31T12:00:00.000000Z`, which sorts as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def digest_hex(digest: str) -> str:
    if not is_digest(digest):
        raise ValueError(f"{digest!r} is not a digest: expected sha256:<64 hex digits>")
    return digest.removeprefix("sha256:")


def is_key(text: str) -> bool:
    return _HEX64.fullmatch(text) is not None


def _hex(key: str) -> str:
    if not is_key(key):
        raise ValueError(f"{key!r} is not a key: expected 64 hex digits")
    return key


def _compact(time: str) -> str:
    if not _TIME.fullmatch(time):
        raise ValueError(f"{time!r} is not a record's time: expected the form 2026-01-31T12:00:00.000000Z")
    return re.sub(r"[-:.]", "", time)


def _holder(holder: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", holder)[:80] or "unknown"
