"""Where the user is, whether it is night there, and when the night ends. Pure; every answer is a definite instant.

A quiet window is an interval of instants, made from two times of the local clock. Where the clock shows a time
twice (autumn), the window starts at the first and ends at the second of them; where it leaves a time out (spring),
that time stands for the moment of the jump. So a window may be longer or shorter than its times say, even empty, but
nobody is disturbed while the clock on the wall says night.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from services.catalog.rules import QuietWindow
from services.catalog.zones import find_zone

from .decision import Person
from .wall_clock import instants

ACTIVITY_TRUSTED = timedelta(days=30)
MAX_SPREAD = timedelta(minutes=30)
# Windows that follow each other without a gap are one; those that never leave a gap end here all the same.
_FARTHEST = timedelta(days=8)
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ZoneChoice:
    """The zone a user is judged in.

    Attributes:
        name: the zone.
        zone: the same, to calculate with.
        source: `kept` where it was chosen within the last two hours and another one would be by now; else `profile`,
            `activity` or `default`.
        warning: `zone_unknown` where the one on record is none; else empty.
    """

    name: str
    zone: ZoneInfo
    source: str
    warning: str = ""


@dataclass(frozen=True, slots=True)
class LocalMoment:
    """A moment as a user's clock shows it.

    Attributes:
        choice: the user's zone.
        text: date and time on that clock, with its offset.
        day: the date on it, YYYY-MM-DD.
        quiet_end: when the quiet time that runs there ends (UTC); None when none is running.
        open_for: how long nobody sleeps then, see `open_time`.
    """

    choice: ZoneChoice
    text: str
    day: str
    quiet_end: datetime | None
    open_for: timedelta


def zone_on_record(person: Person, now: datetime) -> tuple[str, str]:
    """Returns the zone that is known of a user, and where from: the profile, else an activity within 30 days."""
    if person.time_zone:
        return person.time_zone, "profile"
    if person.active_zone and person.active_at is not None and now - person.active_at <= ACTIVITY_TRUSTED:
        return person.active_zone, "activity"
    return "", "default"


def choose_zone(person: Person, default: str, now: datetime, kept: str = "") -> ZoneChoice:
    """Chooses the zone: the one on record, else the default; but one that is kept goes before.

    A name on record that is no zone gives the default, with a warning.

    Args:
        person: the user.
        default: zone of users of whom none is known.
        now: the moment.
        kept: the zone that was chosen for this user within the last two hours.
    """
    return resolve_zone(*zone_on_record(person, now), default, kept)


def resolve_zone(name: str, source: str, default: str, kept: str) -> ZoneChoice:
    """Chooses between a zone on record, the default and the one that is kept; see `choose_zone`."""
    on_record = find_zone(name) if name else None
    warning = "zone_unknown" if name and on_record is None else ""
    if kept and kept != name and (zone := find_zone(kept)) is not None:
        return ZoneChoice(kept, zone, "kept", warning)
    if on_record is not None:
        return ZoneChoice(name, on_record, source)
    return ZoneChoice(default, ZoneInfo(default), "default", warning)


def local_moment(choice: ZoneChoice, windows: Sequence[QuietWindow], now: datetime) -> LocalMoment:
    """Returns a moment as a user's clock shows it, and whether one of the quiet windows holds there."""
    local = now.astimezone(choice.zone)
    end = quiet_until(windows, choice.zone, now)
    open_for = MAX_SPREAD if end is None else open_time(windows, choice.zone, end)
    return LocalMoment(choice, local.isoformat(timespec="seconds"), local.date().isoformat(), end, open_for)


def quiet_until(windows: Sequence[QuietWindow], zone: ZoneInfo, now: datetime) -> datetime | None:
    """Returns the instant (UTC) at which the running quiet time ends, or None when none is running.

    Windows that overlap or follow each other without a gap are one quiet time.
    """
    end = _running_until(windows, zone, now)
    if end is None:
        return None
    while end - now < _FARTHEST and (further := _running_until(windows, zone, end)) is not None:
        end = further
    return end


def open_time(windows: Sequence[QuietWindow], zone: ZoneInfo, end: datetime) -> timedelta:
    """Returns how long after a quiet time nobody sleeps, at most as long as messages are spread."""
    gaps = (start - end for start, stop in _around(windows, zone, end) if end < start < stop)
    return min(MAX_SPREAD, min(gaps, default=MAX_SPREAD))


def spread(key: str, end: datetime, open_for: timedelta, expires_at: datetime | None) -> datetime:
    """Returns the instant after a quiet time at which a message is due, spread so that not all leave at once.

    The spread is 0 to 30 min, the same for the same key, so that a message judged again gets the same moment. It
    stays before the next quiet time and before the message expires.

    Args:
        key: names the message.
        end: when the quiet time ends.
        open_for: how long nobody sleeps then, see `open_time`.
        expires_at: when the message is worthless.
    """
    fraction = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") / 2**64
    width = min(MAX_SPREAD, open_for)
    if expires_at is not None:
        width = min(width, expires_at - end)
    return end + width * fraction


def _running_until(windows: Sequence[QuietWindow], zone: ZoneInfo, now: datetime) -> datetime | None:
    return max((end for start, end in _around(windows, zone, now) if start <= now < end), default=None)


def _around(windows: Sequence[QuietWindow], zone: ZoneInfo, now: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yields start and end of every window that may run at a moment, or starts soon after it."""
    today = now.astimezone(zone).date()
    # Yesterday's window may still run. Tomorrow's may run already where a zone skipped or repeats a whole day.
    for day in (today - _DAY, today, today + _DAY):
        for window in windows:
            if day.weekday() in window.days:
                yield _instants(window, zone, day)


@lru_cache(maxsize=8_192)
def _instants(window: QuietWindow, zone: ZoneInfo, day: date) -> tuple[datetime, datetime]:
    """Returns start and end (UTC) of the window that starts on a local day."""
    last_day = day if window.start < window.end else day + _DAY
    return instants(day, window.start, zone)[0], instants(last_day, window.end, zone)[1]
