"""Windows of time in which something may be done: `days`, `start` and `timeZone` say when one opens, `duration` for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from enginefleet_api.base import seconds
from enginefleet_api.fields import Window

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def unknown_zones(windows: Iterable[Window]) -> list[str]:
    """Names of time zones that this operator's time zone data does not have."""
    return sorted({window.time_zone for window in windows if _zone(window.time_zone) is None})


def open_at(windows: Sequence[Window], now: float) -> tuple[bool, float | None]:
    """Whether one of the windows is open at `now` (seconds since the epoch), and when that changes next; None: never.

    No windows: always open. A window of an unknown time zone never opens. On the day on which clocks are set, a window opens at its local
    time (a time that the day leaves out: as much later as is left out) and stays open for its whole duration.
    """
    if not windows:
        return True, None
    spans = sorted(span for window in windows for span in _spans(window, now))
    until = now
    for begin, end in spans:
        if begin <= until < end:
            until = end  # the next one may begin where this one ends
    if until > now:
        return True, until
    return False, min((begin for begin, _ in spans if begin > now), default=None)


def _spans(window: Window, now: float) -> Iterator[tuple[float, float]]:
    """(opens, closes) around `now`: those that may still be open, and a week ahead."""
    zone = _zone(window.time_zone)
    if zone is None:
        return
    length = seconds(window.duration)
    hour, minute = map(int, window.start.split(":"))
    today = datetime.fromtimestamp(now, zone).date()
    for offset in range(-int(length // 86400) - 2, 9):
        day = today + timedelta(days=offset)
        if DAYS[day.weekday()] in window.days:
            opens = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC).timestamp()
            yield opens, opens + length


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
