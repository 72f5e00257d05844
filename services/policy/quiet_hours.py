"""Where the user is, whether it is night there, and when the night ends. Pure; every answer is a definite instant.

A quiet window is an interval of instants, made from two times of the local clock. Where the clock shows a time
twice (autumn), the window starts at the first and ends at the second of them; where it leaves a time out (spring),
that time stands for the moment of the jump. So a window may be longer or shorter than its times say, even empty, but
nobody is disturbed while the clock on the wall says night.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from services.catalog.rules import QuietWindow

from .decision import Person

ACTIVITY_TRUSTED = timedelta(days=30)
MAX_SPREAD = timedelta(minutes=30)
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    """The zone a user is judged in.

    Attributes:
        name: the zone.
        zone: the same, to calculate with.
        source: `profile`, `activity` or `default`.
        warning: `zone_unknown` where the one on record is none; else empty.
    """

    name: str
    zone: ZoneInfo
    source: str
    warning: str = ""


@lru_cache(maxsize=1_024)
def find_zone(name: str) -> ZoneInfo | None:
    """Returns a zone by its IANA name, or None."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: names of folders, or too long
        return None


def choose_zone(person: Person, default: str, now: datetime) -> ZoneChoice:
    """Chooses the zone: the profile's, else that of an activity within 30 days, else the default.

    A name on record that is no zone gives the default, with a warning.
    """
    if person.time_zone:
        name, source = person.time_zone, "profile"
    elif person.active_zone and person.active_at is not None and now - person.active_at <= ACTIVITY_TRUSTED:
        name, source = person.active_zone, "activity"
    else:
        return ZoneChoice(default, ZoneInfo(default), "default")
    zone = find_zone(name)
    if zone is None:
        return ZoneChoice(default, ZoneInfo(default), "default", "zone_unknown")
    return ZoneChoice(name, zone, source)


def quiet_until(window: QuietWindow, zone: ZoneInfo, now: datetime) -> datetime | None:
    """Returns the instant (UTC) at which the running quiet window ends, or None when none is running.

    The end may touch the next window (a day of 24 quiet hours but a gap in spring): the caller judges again then.
    """
    today = now.astimezone(zone).date()
    # Yesterday's window may still run. Tomorrow's may run already where a zone skipped or repeats a whole day.
    for day in (today - _DAY, today, today + _DAY):
        start, end = _instants(window, zone, day)
        if start <= now < end:
            return end
    return None


def spread(key: str, end: datetime, window: QuietWindow, expires_at: datetime | None) -> datetime:
    """Returns the instant after a quiet window at which a message is due, spread so that not all leave at once.

    The spread is 0 to 30 min, the same for the same key, so that a message judged again gets the same moment. It
    stays before the next window and before the message expires.
    """
    fraction = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64
    width = min(MAX_SPREAD, _open_time(window))
    if expires_at is not None:
        width = min(width, expires_at - end)
    return end + width * fraction


def _open_time(window: QuietWindow) -> timedelta:
    """Returns how long nobody sleeps between two windows, by the clock on the wall."""
    anchor = date(2000, 1, 1)
    open_time = datetime.combine(anchor, window.start) - datetime.combine(anchor, window.end)
    return open_time % _DAY


@lru_cache(maxsize=8_192)
def _instants(window: QuietWindow, zone: ZoneInfo, day: date) -> tuple[datetime, datetime]:
    """Returns start and end (UTC) of the window that starts on a local day."""
    last_day = day if window.start < window.end else day + _DAY
    return _instant(day, window.start, zone, second=False), _instant(last_day, window.end, zone, second=True)


def _instant(day: date, at: time, zone: ZoneInfo, *, second: bool) -> datetime:
    local = datetime.combine(day, at, zone)
    first_reading = local.replace(fold=0).astimezone(UTC)
    second_reading = local.replace(fold=1).astimezone(UTC)
    if first_reading <= second_reading:  # once, or twice
        return second_reading if second else first_reading
    return _jump(zone, second_reading, first_reading)


def _jump(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Returns the instant between two at which the zone's clock jumps, found by bisection to the second."""
    offset = after.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if middle <= before:
            break
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after
