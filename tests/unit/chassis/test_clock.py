from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from services.chassis.clock import ManualClock, SystemClock

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(NOON)
    assert clock.now() == clock.now() == NOON
    clock.advance(90.5)
    assert clock.now() == NOON + timedelta(seconds=90.5)
    clock.set(NOON)
    assert clock.now() == NOON


def test_every_clock_tells_utc() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    clock = ManualClock(elsewhere)
    for now in (clock.now(), SystemClock().now()):
        assert now.tzinfo is UTC
    clock.set(elsewhere)
    assert clock.now().tzinfo is UTC
