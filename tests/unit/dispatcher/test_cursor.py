"""The cursor of outcomes: what a stream gives can be passed back, anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.errors import InvalidFieldsError
from services.dispatcher.outcomes import Cursor

_NUMBER = st.integers(0, 2**63 - 1)
_CURSOR = st.builds(Cursor, st.integers(1, 1_000), _NUMBER, _NUMBER)


@given(_CURSOR)
def test_a_cursor_survives_being_written_and_read(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor


@given(_CURSOR, _CURSOR)
def test_cursors_are_ordered_like_the_outcomes(one: Cursor, other: Cursor) -> None:
    assert (one < other) is ((one.epoch, one.xid, one.seq) < (other.epoch, other.xid, other.seq))


@given(st.integers(2, 2**62), st.integers(0, 2**62))
def test_the_place_below_a_transaction_is_after_all_before_it_and_before_all_of_it(xid: int, seq: int) -> None:
    below = Cursor.below(1, xid)
    assert Cursor(1, xid - 1, seq) < below < Cursor(1, xid, 0)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.3.4", "a.b.c", "-1.2.3", "1.-2.3", "1.2.-3", f"1.{2**63}.0", f"1.0.{2**63}", "1.2.3;x"],
)
def test_what_is_no_cursor_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidFieldsError) as refusal:
        Cursor.parse(text)
    assert [violation.field for violation in refusal.value.violations] == ["cursor"]
