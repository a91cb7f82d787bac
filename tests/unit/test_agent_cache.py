"""The node cache: who may write, and what goes when it is full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from enginefleet_agent import cache
from enginefleet_agent.main import beat, is_alive, pinned

NOW = 2_000_000_000.0


def entry(name: str, size: int, used: float) -> cache.Entry:
    return cache.Entry(Path(name), size, used)


def digest(first: str) -> str:
    return first * 64


def test_folders_are_made_so_that_every_user_adds_nobody_lists_and_only_owners_remove(tmp_path: Path) -> None:
    blobs = cache.prepare(tmp_path / "cache")
    assert blobs == tmp_path / "cache" / "sha256"
    modes = {path.name: path.stat().st_mode & 0o7777 for path in (tmp_path / "cache").iterdir()}
    assert modes == dict.fromkeys(("sha256", "verdicts", "builds"), 0o1733)
    blobs.chmod(0o755)
    assert cache.prepare(tmp_path / "cache").stat().st_mode & 0o7777 == 0o1733


@pytest.mark.parametrize(
    ("limit", "keep", "gone"),
    [
        pytest.param(30, (), "", id="nothing at the limit"),
        pytest.param(29, (), "a", id="the longest unused one above it"),
        pytest.param(10, (), "ab", id="as many as it takes"),
        pytest.param(10, ("aaaa",), "bc", id="never one that a release pins"),
        pytest.param(0, ("aaaa", "bbbb", "cccc"), "", id="nothing when all are pinned"),
    ],
)
def test_blobs_that_go(limit: int, keep: tuple[str, ...], gone: str) -> None:
    found = [entry(digest(first), 10, NOW - age) for first, age in (("c", 1), ("a", 3), ("b", 2))]
    assert "".join(item.path.name[0] for item in cache.to_remove(found, limit, keep, NOW)) == gone


def test_a_download_that_was_cut_off_goes_after_a_day_and_one_under_way_stays() -> None:
    found = [entry("a.part", 10, NOW - 25 * 3600), entry("b.part", 10, NOW - 3600)]
    assert [item.path.name for item in cache.to_remove(found, 0, (), NOW)] == ["a.part"]


def test_a_clock_set_back_makes_nothing_look_abandoned() -> None:
    assert cache.to_remove([entry("a.part", 10, NOW + 10**6)], 0, (), NOW) == []


def test_pruning_removes_files_and_asks_what_is_pinned_only_when_a_blob_would_go(tmp_path: Path) -> None:
    blobs, asked = cache.prepare(tmp_path), []

    def releases() -> set[str]:
        asked.append(True)
        return {"aaaaaaaa"}

    for age, first in enumerate("cba"):
        path = blobs / digest(first)
        path.write_bytes(b"x" * 10)
        os.utime(path, (NOW - 10**8 - age, NOW - 10**8 - age))
    (blobs / digest("f")).symlink_to("/etc/passwd")
    assert cache.prune(blobs, 30, releases) == []
    assert asked == []
    assert [item.path.name[0] for item in cache.prune(blobs, 15, releases)] == ["b", "c"]
    assert sorted(path.name[0] for path in blobs.iterdir()) == ["a", "f"]


def test_release_labels_pin_the_beginning_of_an_engines_digest() -> None:
    labels = {
        "release.enginefleet.io/0123456789": "1a2b3c4d5e-deadbeef",
        "pool": "a-b",
        "release.enginefleet.io/ffff": "draining-to.11-cafecafe",
    }
    assert pinned(labels) == {"deadbeef", "cafecafe"}


def test_a_recent_heartbeat_is_alive_and_none_or_rubbish_is_not(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    assert not is_alive(path)
    beat(path)
    assert is_alive(path)
    path.write_text("rubbish")
    assert not is_alive(path)
    path.write_text("-1000")
    assert not is_alive(path)
