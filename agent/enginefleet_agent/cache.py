"""The node's engine cache: `<cache>/sha256/<64 hex digits>`, one verified blob a file, with its documents in folders beside it.

Init containers of serving pods, which do not run as root, put things in and check every digest again when they take one out; the agent
only makes the folders and keeps the blobs below a limit.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

BLOBS = "sha256"
DOCUMENTS = ("verdicts", "builds")
"""A few kilobytes an engine, without which a cached blob may not serve while the store is down; not counted."""
ANYONE_ADDS_NOBODY_LISTS = 0o1733
"""Every user adds files; only their owner and the folder's (the agent) remove or rename them; whoever knows a digest may read it."""
ABANDONED_SECONDS = 24 * 3600.0
"""A file that is no blob after a day is a download that was cut off."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    path: Path
    size: int
    used: float
    """Seconds since the epoch of the last use: the later of access and change, since file systems may be mounted without access times."""


def prepare(cache: Path) -> Path:
    """Make the folders, or mend their modes; returns the one for blobs."""
    for name in (BLOBS, *DOCUMENTS):
        folder = cache / name
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o7777 != ANYONE_ADDS_NOBODY_LISTS:
            folder.chmod(ANYONE_ADDS_NOBODY_LISTS)
    return cache / BLOBS


def entries(blobs: Path) -> list[Entry]:
    """Regular files directly in the folder; a link is nobody's blob and is not followed."""
    found = []
    with os.scandir(blobs) as listing:
        for item in listing:
            try:
                status = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed or renamed meanwhile
            if item.is_file(follow_symlinks=False):
                found.append(Entry(Path(item.path), status.st_size, max(status.st_atime, status.st_mtime)))
    return found


def to_remove(found: Collection[Entry], limit: int, keep: Collection[str], now: float) -> list[Entry]:
    """What goes: downloads cut off a day ago, then blobs above `limit` bytes in all, longest unused first.

    `keep` holds beginnings of digests that never go, whatever the limit. A clock that was set back makes nothing look abandoned.
    """
    abandoned = [entry for entry in found if not _DIGEST.fullmatch(entry.path.name) and now - entry.used > ABANDONED_SECONDS]
    blobs = sorted((entry for entry in found if _DIGEST.fullmatch(entry.path.name)), key=lambda entry: entry.used)
    excess = sum(entry.size for entry in blobs) - limit
    surplus = []
    for entry in blobs:
        if excess <= 0:
            break
        if not entry.path.name.startswith(tuple(keep)):
            surplus.append(entry)
            excess -= entry.size
    return abandoned + surplus


def prune(blobs: Path, limit: int, pinned: Callable[[], Collection[str]]) -> list[Entry]:
    """Remove what goes; returns it. `pinned` gives what to keep; it is asked only when a blob would go."""
    found, now = entries(blobs), time.time()
    gone = to_remove(found, limit, (), now)
    if any(_DIGEST.fullmatch(entry.path.name) for entry in gone):
        gone = to_remove(found, limit, pinned(), now)
    for entry in gone:
        entry.path.unlink(missing_ok=True)
    return gone
