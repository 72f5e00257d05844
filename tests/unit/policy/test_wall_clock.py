"""Which instant "08:00 next morning" is, at both clock changes, too."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.policy.decision import LocalTime
from services.policy.wall_clock import next_instant

NEW_YORK = ZoneInfo("America/New_York")
MONDAY, SUNDAY = 0, 6


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("wanted", "after", "instant"),
    [
        # Clocks there go forward on 2026-03-08 at 07:00 UTC (02:00 -> 03:00): 08:00 by the new clock.
        (LocalTime(time(8)), "2026-03-07T17:00", "2026-03-08T12:00"),
        (LocalTime(time(8)), "2026-06-01T11:59", "2026-06-01T12:00"),
        # Strictly after: at 08:00 sharp the next one is tomorrow's.
        (LocalTime(time(8)), "2026-06-01T12:00", "2026-06-02T12:00"),
        (LocalTime(time(9), weekday=MONDAY), "2026-06-01T12:59", "2026-06-01T13:00"),
        (LocalTime(time(9), weekday=MONDAY), "2026-06-01T13:00", "2026-06-08T13:00"),
        (LocalTime(time(9), weekday=SUNDAY), "2026-03-02T12:00", "2026-03-08T13:00"),
        (LocalTime(time(9), day=date(2026, 7, 4)), "2026-06-01T12:00", "2026-07-04T13:00"),
        # A time that spring leaves out stands for the instant of the jump ...
        (LocalTime(time(2, 30)), "2026-03-07T17:00", "2026-03-08T07:00"),
        (LocalTime(time(2, 30)), "2026-03-08T07:00", "2026-03-09T06:30"),
        # ... and of a time that comes twice in autumn the first counts; the second once that is over.
        (LocalTime(time(1, 30)), "2026-10-31T17:00", "2026-11-01T05:30"),
        (LocalTime(time(1, 30)), "2026-11-01T05:30", "2026-11-01T06:30"),
        (LocalTime(time(1, 30)), "2026-11-01T06:30", "2026-11-02T06:30"),
    ],
)
def test_the_next_time_at_which_the_recipients_clock_shows_it(wanted: LocalTime, after: str, instant: str) -> None:
    assert next_instant(wanted, NEW_YORK, at(after)) == at(instant)


def test_a_date_that_is_over_never_comes() -> None:
    assert next_instant(LocalTime(time(8), day=date(2026, 6, 1)), NEW_YORK, at("2026-06-01T12:00")) is None


def test_a_day_that_a_zone_left_out_stands_for_the_instant_of_the_jump() -> None:
    # Samoa went from the 29th of December 2011 to the 31st, at 10:00 UTC.
    apia = ZoneInfo("Pacific/Apia")
    wanted = LocalTime(time(8), day=date(2011, 12, 30))
    assert next_instant(wanted, apia, at("2011-12-29T12:00")) == at("2011-12-30T10:00")


ZONES = st.sampled_from(
    [
        "UTC",
        "America/New_York",
        "Europe/Zurich",
        "Asia/Kolkata",
        "Australia/Lord_Howe",  # half an hour of summer time
        "Pacific/Apia",  # left out a whole day in 2011
        "America/Sao_Paulo",  # changed its clock at midnight until 2019
        "Africa/Casablanca",
        "Pacific/Kiritimati",
        "America/St_Johns",
    ]
).map(ZoneInfo)
TIMES = st.times(max_value=time(23, 59)).map(lambda value: value.replace(second=0, microsecond=0))
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2037, 1, 1)).map(  # noqa: DTZ001 - the zone follows
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(st.builds(LocalTime, TIMES, st.none() | st.integers(0, 6)), ZONES, MOMENTS)
def test_there_is_always_a_next_one_ahead_and_not_far_and_the_clock_shows_it(
    wanted: LocalTime, zone: ZoneInfo, after: datetime
) -> None:
    instant = next_instant(wanted, zone, after)
    assert instant is not None
    days = 1 if wanted.weekday is None else 7
    assert after < instant <= after + timedelta(days=days, hours=25)
    local = instant.astimezone(zone)
    if local.time() == wanted.at:
        assert wanted.weekday in {None, local.weekday()}
    else:  # left out: it is the instant of a jump over the wanted time
        before = (instant - timedelta(seconds=1)).astimezone(zone)
        assert local.utcoffset() != before.utcoffset()


@given(TIMES, ZONES, MOMENTS)
def test_nothing_is_passed_over(at_time: time, zone: ZoneInfo, after: datetime) -> None:
    instant = next_instant(LocalTime(at_time), zone, after)
    assert instant is not None
    shown = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while shown < instant:
        local = shown.astimezone(zone)
        assert (local.hour, local.minute) != (at_time.hour, at_time.minute)
        shown += timedelta(minutes=1)
