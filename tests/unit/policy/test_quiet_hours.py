"""When it is night where the user is, and when the night ends; at both clock changes, too."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.catalog.rules import QuietWindow
from services.policy.decision import Person
from services.policy.quiet_hours import MAX_SPREAD, choose_zone, open_time, quiet_until, spread

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


NOW = at("2026-06-01T12:00")


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
    assert quiet_until((NIGHT,), NEW_YORK, local(now)) == (None if end is None else local(end))


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
    assert quiet_until((window,), NEW_YORK, local(now)) == (None if end is None else local(end))


def test_the_morning_after_the_clock_went_forward_is_at_eight_by_the_new_clock() -> None:
    # 2026-03-07 23:00 in New York; the night of the change is an hour shorter.
    assert quiet_until((NIGHT,), NEW_YORK, at("2026-03-08T04:00")) == at("2026-03-08T12:00")


def test_the_morning_after_the_clock_went_back_is_at_eight_by_the_new_clock() -> None:
    assert quiet_until((NIGHT,), NEW_YORK, at("2026-11-01T03:00")) == at("2026-11-01T13:00")


def test_a_window_that_ends_at_a_time_the_spring_leaves_out_ends_at_the_jump() -> None:
    window = QuietWindow(time(22, 30), time(2, 30))
    jump = at("2026-03-08T07:00")
    assert quiet_until((window,), NEW_YORK, jump - timedelta(seconds=1)) == jump
    assert quiet_until((window,), NEW_YORK, jump) is None


def test_a_window_that_starts_at_a_time_the_spring_leaves_out_starts_at_the_jump() -> None:
    window = QuietWindow(time(2, 15), time(4, 0))
    jump = at("2026-03-08T07:00")
    assert quiet_until((window,), NEW_YORK, jump - timedelta(seconds=1)) is None
    assert quiet_until((window,), NEW_YORK, jump) == at("2026-03-08T08:00")


def test_a_window_that_the_spring_leaves_out_as_a_whole_is_empty() -> None:
    window = QuietWindow(time(2, 10), time(2, 50))
    for minutes in range(5 * 60, 9 * 60):
        assert quiet_until((window,), NEW_YORK, SPRING + timedelta(minutes=minutes)) is None


def test_a_window_inside_the_hour_that_autumn_repeats_lasts_until_its_second_end() -> None:
    window = QuietWindow(time(1, 10), time(1, 50))
    end = local("2026-11-01T01:50:00", fold=1).astimezone(UTC)
    assert end == at("2026-11-01T06:50")
    assert quiet_until((window,), NEW_YORK, at("2026-11-01T05:09:59")) is None
    for now in ("05:10:00", "05:49:00", "05:55:00", "06:05:00", "06:10:00", "06:49:59"):
        assert quiet_until((window,), NEW_YORK, at(f"2026-11-01T{now}")) == end
    assert quiet_until((window,), NEW_YORK, end) is None


def test_a_night_that_ends_inside_the_repeated_hour_ends_once() -> None:
    window = QuietWindow(time(22, 30), time(1, 30))
    end = at("2026-11-01T06:30")
    now = at("2026-11-01T03:00")
    while now < end:
        assert quiet_until((window,), NEW_YORK, now) == end
        now += timedelta(minutes=7)
    assert quiet_until((window,), NEW_YORK, end) is None


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
    end = quiet_until((window,), zone, now)
    if end is not None:
        assert now < end <= now + timedelta(hours=75)


@given(WINDOWS, ZONES, MOMENTS)
def test_nobody_is_disturbed_while_the_clock_on_the_wall_says_night(
    window: QuietWindow, zone: ZoneInfo, now: datetime
) -> None:
    wall = now.astimezone(zone).time()
    crosses = window.start > window.end
    night = (wall >= window.start or wall < window.end) if crosses else window.start <= wall < window.end
    if night:
        assert quiet_until((window,), zone, now) is not None


SEVERAL = st.lists(
    st.builds(lambda window, days: replace(window, days=days), WINDOWS, st.frozensets(st.integers(0, 6), min_size=1)),
    max_size=3,
).map(tuple)


@given(SEVERAL, ZONES, MOMENTS)
def test_after_the_end_of_several_windows_it_is_quiet_no_more(
    windows: tuple[QuietWindow, ...], zone: ZoneInfo, now: datetime
) -> None:
    end = quiet_until(windows, zone, now)
    if end is not None:
        assert end > now
        # Windows that never leave a gap end all the same, or a message would wait for ever.
        assert quiet_until(windows, zone, end) is None or end >= now + timedelta(days=8)


@given(SEVERAL, WINDOWS, ZONES, MOMENTS)
def test_a_further_window_never_makes_less_quiet(
    windows: tuple[QuietWindow, ...], further: QuietWindow, zone: ZoneInfo, now: datetime
) -> None:
    before, after = quiet_until(windows, zone, now), quiet_until((*windows, further), zone, now)
    assert before is None or (after is not None and after >= before)


NOON_TOO = QuietWindow(time(13), time(14))
WEEKEND = QuietWindow(time(8), time(12), frozenset({5, 6}))


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ("2026-06-01T12:59:59", None),  # a Monday
        ("2026-06-01T13:30:00", "2026-06-01T14:00:00"),
        ("2026-06-01T23:00:00", "2026-06-02T08:00:00"),
        ("2026-06-05T09:00:00", None),  # a Friday
        ("2026-06-06T09:00:00", "2026-06-06T12:00:00"),
        # The night ends where the quiet morning of the weekend begins: one quiet time, and one deferral.
        ("2026-06-05T23:00:00", "2026-06-06T12:00:00"),
        ("2026-06-07T23:00:00", "2026-06-08T08:00:00"),
    ],
)
def test_several_windows_hold_together_each_on_its_days(now: str, end: str | None) -> None:
    windows = (NIGHT, NOON_TOO, WEEKEND)
    assert quiet_until(windows, NEW_YORK, local(now)) == (None if end is None else local(end))


def test_a_window_of_a_weekday_that_crosses_midnight_belongs_to_the_day_on_which_it_starts() -> None:
    friday_night = QuietWindow(time(22), time(6), frozenset({4}))
    assert quiet_until((friday_night,), NEW_YORK, local("2026-06-06T03:00:00")) == local("2026-06-06T06:00:00")
    assert quiet_until((friday_night,), NEW_YORK, local("2026-06-06T23:00:00")) is None
    assert quiet_until((friday_night,), NEW_YORK, local("2026-06-05T03:00:00")) is None


def test_windows_without_any_gap_end_in_a_week() -> None:
    always = (QuietWindow(time(0), time(12)), QuietWindow(time(12), time(0)))
    end = quiet_until(always, NEW_YORK, NOW)
    assert end is not None
    assert NOW + timedelta(days=8) <= end <= NOW + timedelta(days=10)


def test_messages_are_spread_over_no_more_than_the_time_until_the_next_window() -> None:
    soon = QuietWindow(time(8, 10), time(9))
    assert open_time((NIGHT, soon), NEW_YORK, local("2026-06-02T08:00:00")) == timedelta(minutes=10)
    assert open_time((NIGHT,), NEW_YORK, local("2026-06-02T08:00:00")) == MAX_SPREAD


@given(
    st.text(max_size=20),
    st.timedeltas(timedelta(seconds=1), timedelta(hours=2)),
    MOMENTS,
    st.timedeltas(timedelta(seconds=1), timedelta(days=1)),
)
def test_the_spread_is_short_repeatable_and_before_the_expiry(
    key: str, open_for: timedelta, end: datetime, life: timedelta
) -> None:
    until = spread(key, end, open_for, end + life)
    assert until == spread(key, end, open_for, end + life)
    assert end <= until < end + min(life, open_for, timedelta(minutes=30))
    assert spread(key, end, open_for, None) < end + min(open_for, timedelta(minutes=30))


def test_the_spread_spreads() -> None:
    end = at("2026-06-02T08:00")
    moments = sorted(spread(f"intent-{number}:0", end, MAX_SPREAD, None) for number in range(1_000))
    assert moments[0] < end + timedelta(minutes=1)
    assert moments[-1] > end + timedelta(minutes=29)
    assert len({moment.replace(second=0, microsecond=0) for moment in moments}) == 30


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
        (Person(time_zone="localtime"), "UTC", "default", "zone_unknown"),
        (Person(active_zone="Asia/Nowhere", active_at=NOW), "UTC", "default", "zone_unknown"),
    ],
)
def test_where_the_zone_comes_from(person: Person, name: str, source: str, warning: str) -> None:
    choice = choose_zone(person, "UTC", NOW)
    assert (choice.name, choice.source, choice.warning) == (name, source, warning)
    assert choice.zone.key == name


def test_a_zone_that_is_kept_goes_before_the_one_on_record() -> None:
    choice = choose_zone(Person(time_zone="Asia/Tokyo"), "UTC", NOW, kept="Europe/Zurich")
    assert (choice.name, choice.source) == ("Europe/Zurich", "kept")
    same = choose_zone(Person(time_zone="Asia/Tokyo"), "UTC", NOW, kept="Asia/Tokyo")
    assert (same.name, same.source) == ("Asia/Tokyo", "profile")


def test_a_zone_that_is_kept_takes_no_warning_away() -> None:
    choice = choose_zone(Person(time_zone="Asia/Nowhere"), "UTC", NOW, kept="Europe/Zurich")
    assert (choice.name, choice.source, choice.warning) == ("Europe/Zurich", "kept", "zone_unknown")
    unknown = choose_zone(Person(time_zone="Asia/Tokyo"), "UTC", NOW, kept="Asia/Nowhere")
    assert (unknown.name, unknown.source) == ("Asia/Tokyo", "profile")
