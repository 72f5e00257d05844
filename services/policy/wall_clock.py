"""What instants a time on somebody's clock stands for, at both clock changes, too. Pure; always a definite answer.

Where a zone's clock shows a time twice (autumn), both instants are told; where it leaves a time out (spring), that
time stands for the instant of the jump.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from .decision import LocalTime

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
# A day of the week comes within seven days; the day before may still run where a zone repeated a whole day.
_DAYS = range(-1, 9)


def instants(day: date, at: time, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Returns the first and the last instant (UTC) at which a clock shows a time of a day; mostly the same one."""
    local = datetime.combine(day, at, zone)
    first = local.replace(fold=0).astimezone(UTC)
    last = local.replace(fold=1).astimezone(UTC)
    if first <= last:
        return first, last
    jump = _jump(zone, last, first)
    return jump, jump


def next_instant(wanted: LocalTime, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Returns the next instant (UTC), strictly after another, at which a clock shows a time.

    Returns:
        None where the wanted date is over.
    """
    today = after.astimezone(zone).date()
    days = (wanted.day,) if wanted.day is not None else (today + number * _DAY for number in _DAYS)
    for day in days:
        if wanted.weekday is None or day.weekday() == wanted.weekday:
            for instant in instants(day, wanted.at, zone):
                if instant > after:
                    return instant
    return None


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
