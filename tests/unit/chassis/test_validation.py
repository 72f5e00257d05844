from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.chassis.validation import check_storable, check_text


@pytest.mark.parametrize(
    ("value", "what"),
    [("", "is required"), ("abcd", "has 4 characters, at most 3"), ("a\x00", "NUL"), ("a\ud800", "lone surrogate")],
)
def test_what_is_wrong_is_said(value: str, what: str) -> None:
    [violation] = check_text("intent.scene", value, max_length=3, required=True)
    assert violation.field == "intent.scene"
    assert what in violation.description


def test_a_text_that_is_not_required_may_be_empty() -> None:
    assert check_text("note", "", max_length=3) == []


@given(st.text())
def test_text_that_passes_can_be_stored_and_sent(value: str) -> None:
    if not check_storable("field", value):
        assert "\x00" not in value
        value.encode()
