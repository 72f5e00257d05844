"""Where is it night now, and where is it day?"""

from __future__ import annotations

from datetime import datetime, time
from zoneinfo import ZoneInfo

# Around the world; wherever one of them is in daylight saving time, another one still fits.
_ZONES = (
    "Pacific/Auckland",
    "Australia/Sydney",
    "Asia/Tokyo",
    "Asia/Shanghai",
    "Asia/Bangkok",
    "Asia/Dhaka",
    "Asia/Karachi",
    "Asia/Dubai",
    "Africa/Nairobi",
    "Africa/Johannesburg",
    "Europe/Berlin",
    "Europe/London",
    "Atlantic/Azores",
    "America/Sao_Paulo",
    "America/Halifax",
    "America/New_York",
    "America/Chicago",
    "America/Denver",
    "America/Los_Angeles",
    "America/Anchorage",
    "Pacific/Honolulu",
)
# Quiet hours are 22:30-08:00; well inside, so that they neither begin nor end while the demo runs.
_NIGHT = (time(23, 0), time(7, 0))
_DAY = (time(9, 0), time(21, 0))


def night_zone(now: datetime) -> str:
    """Returns a time zone in which it is the middle of the night, at least an hour before the quiet hours end."""
    return next(zone for zone in _ZONES if not _NIGHT[1] < _local(now, zone) < _NIGHT[0])


def day_zone(now: datetime) -> str:
    """Returns a time zone in which it is day."""
    return next(zone for zone in _ZONES if _DAY[0] < _local(now, zone) < _DAY[1])


def _local(now: datetime, zone: str) -> time:
    return now.astimezone(ZoneInfo(zone)).time()
