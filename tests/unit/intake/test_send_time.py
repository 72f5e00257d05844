"""When an intent may leave: checked field by field, bounded, and part of what the person gets."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from agent_reach.v1 import message_pb2
from services.chassis.errors import InvalidFieldsError
from services.chassis.moments import timestamp
from services.intake.keys import content_hash
from tests.unit.intake.test_validation import NOW, draft, refused, spec

TTL = timedelta(days=1)


def local(time: str = "08:00", **fields: Any) -> message_pb2.LocalTime:
    return message_pb2.LocalTime(time=time, **fields)


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"send_at": NOW, "send_at_local": local()}, "send_at"),
        ({"send_at": NOW + timedelta(days=366, seconds=1)}, "send_at"),
        ({"send_at": Timestamp(seconds=2**50)}, "send_at"),
        ({"send_at_local": local("")}, "send_at_local.time"),
        ({"send_at_local": local("8:00")}, "send_at_local.time"),
        ({"send_at_local": local("24:00")}, "send_at_local.time"),
        ({"send_at_local": local("08:00\n")}, "send_at_local.time"),
        ({"send_at_local": local(weekday=8)}, "send_at_local.weekday"),
        ({"send_at_local": local(weekday=1, date="2026-05-11")}, "send_at_local.weekday"),
        ({"send_at_local": local(date="2026-02-29")}, "send_at_local.date"),
        ({"send_at_local": local(date="20260511")}, "send_at_local.date"),
        ({"send_at_local": local(date="0001-01-01")}, "send_at_local.date"),
        ({"send_at_local": local(date="2026-05-03")}, "send_at_local.date"),
        ({"send_at_local": local(date="2027-05-07")}, "send_at_local.date"),
    ],
)
def test_a_moment_that_cannot_be_kept_is_refused_and_named(fields: dict[str, Any], at_fault: str) -> None:
    assert set(refused(**fields)) == {at_fault}


def test_a_date_is_taken_as_long_as_it_lasts_somewhere_on_earth() -> None:
    """At noon UTC it is midnight at the date line's western side: there the day before has just ended."""
    assert draft(spec(send_at_local=local("00:01", date="2026-05-04"))).send_at_local
    assert set(refused(send_at_local=local("00:00", date="2026-05-04"))) == {"send_at_local.date"}


def test_a_moment_that_has_passed_is_now_so_that_a_call_may_be_repeated() -> None:
    past = draft(spec(send_at=NOW - timedelta(hours=1)))
    assert past.send_at == NOW - timedelta(hours=1)
    assert past.expires_at == NOW + TTL


@pytest.mark.parametrize(
    ("fields", "latest"),
    [
        ({"send_at": NOW + timedelta(days=300)}, NOW + timedelta(days=300)),
        ({"send_at_local": local()}, NOW + timedelta(days=1, hours=1)),
        ({"send_at_local": local(weekday=1)}, NOW + timedelta(days=7, hours=1)),
        ({"send_at_local": local(date="2026-06-01")}, datetime.fromisoformat("2026-06-01T20:00Z")),
    ],
)
def test_what_names_no_expiry_lives_on_after_the_latest_moment_at_which_it_can_leave(
    fields: dict[str, Any], latest: datetime
) -> None:
    assert draft(spec(**fields)).expires_at == latest + TTL


def test_only_where_the_moment_is_not_known_yet_the_expiry_is_left_to_be_found() -> None:
    soon = timestamp(NOW + timedelta(days=2))
    assert draft(spec(send_at_local=local())).lifetime_seconds == TTL.total_seconds()
    for fields in ({}, {"send_at": NOW + timedelta(days=1)}, {"send_at_local": local(), "expires_at": soon}):
        assert draft(spec(**fields)).lifetime_seconds is None


def test_what_expires_before_it_may_leave_is_refused() -> None:
    soon = timestamp(NOW + timedelta(hours=1))
    assert set(refused(send_at=NOW + timedelta(hours=2), expires_at=soon)) == {"expires_at"}
    assert set(refused(send_at_local=local(date="2026-06-01"), expires_at=soon)) == {"expires_at"}
    # Where nobody knows how late it is at the recipient's, the policy decides.
    assert draft(spec(send_at_local=local(), expires_at=soon)).expires_at == NOW + timedelta(hours=1)


def test_an_expiry_counts_from_the_moment_of_sending() -> None:
    far = NOW + timedelta(days=400)
    assert draft(spec(send_at=NOW + timedelta(days=100), expires_at=timestamp(far))).expires_at == far
    assert set(refused(expires_at=timestamp(far))) == {"expires_at"}


def test_the_moment_is_part_of_the_content_and_what_names_none_is_hashed_as_ever() -> None:
    same = [draft(spec(**fields)).content_hash for fields in ({}, {"priority": 1})]
    others = [
        draft(spec(**fields)).content_hash
        for fields in (
            {"send_at": NOW + timedelta(hours=1)},
            {"send_at": NOW + timedelta(hours=2)},
            {"send_at_local": local()},
            {"send_at_local": local("09:00")},
            {"send_at_local": local(weekday=1)},
            {"send_at_local": local(date="2026-06-01")},
        )
    ]
    assert len({*same, *others}) == 1 + len(others)
    assert same[0] == content_hash(
        user_id="u1",
        address="",
        scene="order_shipped",
        template="order_shipped",
        canonical_variables='{"order_id":5}',
        channels=(),
    )


@given(st.text(max_size=12), st.text(max_size=12), st.integers(-1, 9))
def test_whatever_is_sent_as_a_local_time_is_judged_and_never_a_crash(time: str, date: str, weekday: int) -> None:
    try:
        wish = message_pb2.LocalTime(time=time, date=date, weekday=weekday)  # type: ignore[arg-type]  # any number
    except UnicodeEncodeError:
        return
    try:
        passed = draft(spec(send_at_local=wish))
    except InvalidFieldsError:
        return
    assert passed.expires_at > NOW
