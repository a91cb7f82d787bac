"""When the agent reads, writes, and wakes, against an API server made of a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from enginefleet_agent.api import ApiFault
from enginefleet_agent.facts import HostView
from enginefleet_agent.reporter import Reporter, backoff

HERE = HostView(boot_id="boot-1", host={"digest": "host-1", "summary": "", "facts": {"cpu": {"isa": None}}, "context": {}})
LATER = HostView(boot_id="boot-2", host=HERE.host)


class Stop(Exception):
    """Ends a thread that would watch for ever."""


class FakeApi:
    """One object; `down` makes every request fail; `events` is what one watch yields."""

    def __init__(self) -> None:
        self.object: dict[str, Any] | None = None
        self.calls: list[str] = []
        self.down = False
        self.events: list[tuple[str, str]] = []

    def fingerprint(self, node: str) -> dict[str, Any] | None:
        self._called("get")
        return self.object

    def apply(self, node: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        self._called("apply")
        others = {} if self.object is None else self.object["spec"]
        self.object = {"metadata": {"name": node, "resourceVersion": str(len(self.calls))}, "spec": {**others, **spec}}
        return self.object

    def changes(self, node: str, version: str) -> Iterator[tuple[str, str]]:
        self._called(f"watch from {version}")
        yield from self.events

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.down:
            raise ApiFault("down")


def reporter_of(api: FakeApi, wake: threading.Event | None = None) -> Reporter:
    return Reporter(api, "node-a", wake or threading.Event())  # type: ignore[arg-type]


def test_the_object_is_written_once_and_then_neither_read_nor_written() -> None:
    api = FakeApi()
    reporter = reporter_of(api)
    assert [reporter.sync(HERE) for _ in range(3)] == [True, False, False]
    assert api.calls == ["get", "apply"]


def test_an_equal_object_of_an_earlier_life_is_left_alone() -> None:
    api = FakeApi()
    reporter_of(api).sync(HERE)
    api.calls.clear()
    assert not reporter_of(api).sync(HERE)
    assert api.calls == ["get"]


def test_observations_of_others_are_no_difference() -> None:
    api = FakeApi()
    reporter_of(api).sync(HERE)
    assert api.object is not None
    api.object["spec"]["observations"] = [{"id": "fp-1"}]
    assert not reporter_of(api).sync(HERE)


def test_a_reboot_is_written() -> None:
    api = FakeApi()
    reporter = reporter_of(api)
    reporter.sync(HERE)
    assert reporter.sync(LATER)
    assert api.object is not None
    assert api.object["spec"]["bootID"] == "boot-2"


def test_a_failed_write_is_tried_again_though_the_host_did_not_change() -> None:
    api = FakeApi()
    reporter = reporter_of(api)
    api.down = True
    with pytest.raises(ApiFault):
        reporter.sync(HERE)
    api.down = False
    assert reporter.sync(HERE)


def listen_once(api: FakeApi, reporter: Reporter) -> list[float]:
    """One watch and the pause after it."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise Stop

    with pytest.raises(Stop):
        reporter.listen(sleep)
    return pauses


@pytest.mark.parametrize("event", [("DELETED", "9"), ("MODIFIED", "9"), ("ERROR", "")])
def test_news_wakes_and_the_object_is_looked_at_again(event: tuple[str, str]) -> None:
    api, wake = FakeApi(), threading.Event()
    reporter = reporter_of(api, wake)
    reporter.sync(HERE)
    api.object, api.events = None, [event]
    listen_once(api, reporter)
    assert wake.is_set()
    assert reporter.sync(HERE)


def test_the_watch_starts_at_the_version_that_was_written_and_follows_bookmarks() -> None:
    api = FakeApi()
    reporter = reporter_of(api)
    reporter.sync(HERE)
    api.events = [("BOOKMARK", "70")]
    listen_once(api, reporter)
    listen_once(api, reporter)
    assert [call for call in api.calls if call.startswith("watch")] == ["watch from 2", "watch from 70"]


def test_pauses_grow_to_a_minute() -> None:
    assert all(0.5 <= backoff(0) <= 1 for _ in range(20))
    assert all(30 <= backoff(failures) <= 60 for failures in range(7, 40))
