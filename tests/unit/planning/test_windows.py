"""When windows are open: tables over time zones, midnight, and the days on which clocks are set."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginefleet_api.fields import Window
from enginefleet_operator.planning.windows import DAYS, open_at, unknown_zones


def window(**changes: Any) -> Window:
    return Window.model_validate({"days": ["Sat", "Sun"], "start": "02:00", "duration": "4h", "timeZone": "Europe/Berlin"} | changes)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("windows", "now", "is_open", "changes"),
    [
        ([], "2027-01-15T08:00:00Z", True, None),
        ([window()], "2027-01-15T08:00:00Z", False, "2027-01-16T02:00:00+01:00"),
        ([window()], "2027-01-16T02:00:00+01:00", True, "2027-01-16T06:00:00+01:00"),
        ([window()], "2027-01-16T05:59:59+01:00", True, "2027-01-16T06:00:00+01:00"),
        ([window()], "2027-01-16T06:00:00+01:00", False, "2027-01-17T02:00:00+01:00"),
        # past midnight, of the day on which it opened
        ([window(days=["Fri"], start="22:00")], "2027-01-16T01:00:00+01:00", True, "2027-01-16T02:00:00+01:00"),
        ([window(days=["Fri"], start="22:00")], "2027-01-15T01:00:00+01:00", False, "2027-01-15T22:00:00+01:00"),
        # two that meet are one; of two that overlap the later end counts
        (
            [window(days=["Sat"]), window(days=["Sat"], start="06:00", duration="1h")],
            "2027-01-16T03:00:00+01:00",
            True,
            "2027-01-16T07:00:00+01:00",
        ),
        (
            [window(days=["Sat"]), window(days=["Sat"], start="01:00", duration="2h")],
            "2027-01-16T02:30:00+01:00",
            True,
            "2027-01-16T06:00:00+01:00",
        ),
        # clocks go forward on 2027-03-28, 02:00 does not exist: it opens as much later, for its whole duration
        ([window(days=["Sun"], start="02:30", duration="1h")], "2027-03-28T03:45:00+02:00", True, "2027-03-28T04:30:00+02:00"),
        # and back on 2027-10-31, 02:30 comes twice: it opens the first time
        ([window(days=["Sun"], start="02:30", duration="1h")], "2027-10-31T02:45:00+02:00", True, "2027-10-31T02:30:00+01:00"),
        ([window(days=["Mon"], duration="200h")], "2027-01-15T08:00:00Z", True, None),
        ([window(timeZone="Asia/Kolkata", days=["Sat"])], "2027-01-15T20:30:00Z", True, "2027-01-16T00:30:00Z"),
        ([window(timeZone="Nowhere/Atall")], "2027-01-16T03:00:00+01:00", False, None),
    ],
)
def test_a_window_is_open_from_its_local_start_for_its_duration(
    windows: list[Window], now: str, is_open: bool, changes: str | None
) -> None:
    found, until = open_at(windows, at(now))
    assert found is is_open
    if changes is not None:
        assert until == at(changes)
    elif not windows or not is_open:
        assert until is None


def test_a_time_zone_that_nobody_knows_is_named() -> None:
    assert unknown_zones([window(), window(timeZone="Europe/Berlinn"), window(timeZone="UTC")]) == ["Europe/Berlinn"]


@given(
    now=st.floats(1.7e9, 2.0e9),
    days=st.sets(st.sampled_from(DAYS), min_size=1),
    hour=st.integers(0, 23),
    hours=st.integers(1, 48),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
)
def test_it_is_the_other_way_round_when_it_changes(now: float, days: set[str], hour: int, hours: int, zone: str) -> None:
    windows = [window(days=sorted(days), start=f"{hour:02}:00", duration=f"{hours}h", timeZone=zone)]
    is_open, until = open_at(windows, now)
    if until is None:
        return
    assert until > now
    if is_open:
        assert open_at(windows, until - 0.5)[0]
    else:
        assert open_at(windows, until)[0]
        assert not open_at(windows, (now + until) / 2)[0]
