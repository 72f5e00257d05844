"""At every moment of the year it is the middle of the night somewhere, and day somewhere else."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from services.demo.zones import day_zone, night_zone

_MOMENTS = st.integers(0, 366 * 24 * 60).map(
    lambda minutes: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
)


@given(_MOMENTS)
def test_night_is_within_quiet_hours_and_an_hour_from_their_end(now: datetime) -> None:
    local = now.astimezone(ZoneInfo(night_zone(now))).time()
    assert local >= time(23) or local <= time(7)


@given(_MOMENTS)
def test_day_is_far_from_quiet_hours(now: datetime) -> None:
    assert time(9) < now.astimezone(ZoneInfo(day_zone(now))).time() < time(21)
