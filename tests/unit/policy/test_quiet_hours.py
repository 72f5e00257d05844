"""When it is night where the user is, and when the night ends; at both clock changes, too."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.rules import QuietWindow
from services.policy.decision import Person
from services.policy.quiet_hours import choose_zone, quiet_until, spread

NEW_YORK = ZoneInfo("America/New_York")
NIGHT = QuietWindow(time(22, 30), time(8, 0))
# Clocks there go forward at 07:00 UTC (02:00 -> 03:00) ...
SPRING = datetime(2026, 3, 8, tzinfo=UTC)
# ... and back at 06:00 UTC (02:00 -> 01:00).
AUTUMN = datetime(2026, 11, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, zone: ZoneInfo = NEW_YORK, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-06-01T22:29:59", None),
        ("2026-06-01T22:30:00", "2026-06-02T08:00:00"),
        ("2026-06-02T00:00:00", "2026-06-02T08:00:00"),
        ("2026-06-02T07:59:59", "2026-06-02T08:00:00"),
        ("2026-06-02T08:00:00", None),
    ],
)
def test_a_window_that_crosses_midnight(now: str, end: str | None) -> None:
    assert quiet_until(NIGHT, NEW_YORK, local(now)) == (None if end is None else local(end))


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-06-01T12:59:59", None),
        ("2026-06-01T13:00:00", "2026-06-01T14:00:00"),
        ("2026-06-01T14:00:00", None),
        ("2026-06-01T23:59:00", None),
    ],
)
def test_a_window_within_the_day(now: str, end: str | None) -> None:
    window = QuietWindow(time(13), time(14))
    assert quiet_until(window, NEW_YORK, local(now)) == (None if end is None else local(end))


def test_the_morning_after_the_clock_went_forward_is_at_eight_by_the_new_clock() -> None:
    # 2026-03-07 23:00 in New York; the night of the change is an hour shorter.
    assert quiet_until(NIGHT, NEW_YORK, at("2026-03-08T04:00")) == at("2026-03-08T12:00")


def test_the_morning_after_the_clock_went_back_is_at_eight_by_the_new_clock() -> None:
    assert quiet_until(NIGHT, NEW_YORK, at("2026-11-01T03:00")) == at("2026-11-01T13:00")


def test_a_window_that_ends_at_a_time_the_spring_leaves_out_ends_at_the_jump() -> None:
    window = QuietWindow(time(22, 30), time(2, 30))
    jump = at("2026-03-08T07:00")
    assert quiet_until(window, NEW_YORK, jump - timedelta(seconds=1)) == jump
    assert quiet_until(window, NEW_YORK, jump) is None


def test_a_window_that_starts_at_a_time_the_spring_leaves_out_starts_at_the_jump() -> None:
    window = QuietWindow(time(2, 15), time(4, 0))
    jump = at("2026-03-08T07:00")
    assert quiet_until(window, NEW_YORK, jump - timedelta(seconds=1)) is None
    assert quiet_until(window, NEW_YORK, jump) == at("2026-03-08T08:00")


def test_a_window_that_the_spring_leaves_out_as_a_whole_is_empty() -> None:
    window = QuietWindow(time(2, 10), time(2, 50))
    for minutes in range(5 * 60, 9 * 60):
        assert quiet_until(window, NEW_YORK, SPRING + timedelta(minutes=minutes)) is None


def test_a_window_inside_the_hour_that_autumn_repeats_lasts_until_its_second_end() -> None:
    window = QuietWindow(time(1, 10), time(1, 50))
    end = local("2026-11-01T01:50:00", fold=1).astimezone(UTC)
    assert end == at("2026-11-01T06:50")
    assert quiet_until(window, NEW_YORK, at("2026-11-01T05:09:59")) is None
    for now in ("05:10:00", "05:49:00", "05:55:00", "06:05:00", "06:10:00", "06:49:59"):
        assert quiet_until(window, NEW_YORK, at(f"2026-11-01T{now}")) == end
    assert quiet_until(window, NEW_YORK, end) is None


def test_a_night_that_ends_inside_the_repeated_hour_ends_once() -> None:
    window = QuietWindow(time(22, 30), time(1, 30))
    end = at("2026-11-01T06:30")
    now = at("2026-11-01T03:00")
    while now < end:
        assert quiet_until(window, NEW_YORK, now) == end
        now += timedelta(minutes=7)
    assert quiet_until(window, NEW_YORK, end) is None


ZONES = st.sampled_from(
    [
        "UTC",
        "America/New_York",
        "Europe/Zurich",
        "Asia/Kolkata",
        "Asia/Tokyo",
        "Australia/Lord_Howe",  # half an hour of summer time
        "Pacific/Apia",  # left out a whole day in 2011
        "America/Sao_Paulo",  # changed its clock at midnight until 2019
        "Africa/Casablanca",
        "Pacific/Kiritimati",
    ]
).map(ZoneInfo)
TIMES = st.times(max_value=time(23, 59)).map(lambda value: value.replace(second=0, microsecond=0))
WINDOWS = st.tuples(TIMES, TIMES).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: QuietWindow(*pair))
MOMENTS = st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1)).map(  # noqa: DTZ001 - the zone follows
    lambda moment: moment.replace(tzinfo=UTC)
)


@given(WINDOWS, ZONES, MOMENTS)
def test_the_end_of_any_window_is_ahead_and_not_far(window: QuietWindow, zone: ZoneInfo, now: datetime) -> None:
    end = quiet_until(window, zone, now)
    if end is not None:
        assert now < end <= now + timedelta(hours=50)


@given(WINDOWS, ZONES, MOMENTS)
def test_nobody_is_disturbed_while_the_clock_on_the_wall_says_night(
    window: QuietWindow, zone: ZoneInfo, now: datetime
) -> None:
    wall = now.astimezone(zone).time()
    crosses = window.start > window.end
    night = (wall >= window.start or wall < window.end) if crosses else window.start <= wall < window.end
    if night:
        assert quiet_until(window, zone, now) is not None


@given(st.text(max_size=20), WINDOWS, MOMENTS, st.timedeltas(timedelta(seconds=1), timedelta(days=1)))
def test_the_spread_is_short_repeatable_and_before_the_expiry(
    key: str, window: QuietWindow, end: datetime, life: timedelta
) -> None:
    until = spread(key, end, window, end + life)
    assert until == spread(key, end, window, end + life)
    assert end <= until < end + min(life, timedelta(minutes=30))
    assert spread(key, end, window, None) < end + timedelta(minutes=30)


def test_the_spread_spreads() -> None:
    end = at("2026-06-02T08:00")
    moments = sorted(spread(f"intent-{number}:0", end, NIGHT, None) for number in range(1_000))
    assert moments[0] < end + timedelta(minutes=1)
    assert moments[-1] > end + timedelta(minutes=29)
    assert len({moment.replace(second=0, microsecond=0) for moment in moments}) == 30


NOW = at("2026-06-01T12:00")


@pytest.mark.parametrize(
    ("person", "name", "source", "warning"),
    [
        (Person(time_zone="Asia/Tokyo", active_zone="UTC", active_at=NOW), "Asia/Tokyo", "profile", ""),
        (Person(active_zone="Asia/Tokyo", active_at=NOW - timedelta(days=30)), "Asia/Tokyo", "activity", ""),
        (Person(active_zone="Asia/Tokyo", active_at=NOW - timedelta(days=30, seconds=1)), "UTC", "default", ""),
        (Person(), "UTC", "default", ""),
        (Person(time_zone="Asia/Nowhere"), "UTC", "default", "zone_unknown"),
        (Person(time_zone="../etc/passwd"), "UTC", "default", "zone_unknown"),
        (Person(time_zone="Asia"), "UTC", "default", "zone_unknown"),
        (Person(active_zone="Asia/Nowhere", active_at=NOW), "UTC", "default", "zone_unknown"),
    ],
)
def test_where_the_zone_comes_from(person: Person, name: str, source: str, warning: str) -> None:
    choice = choose_zone(person, "UTC", NOW)
    assert (choice.name, choice.source, choice.warning) == (name, source, warning)
    assert choice.zone.key == name
