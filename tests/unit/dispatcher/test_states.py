"""The whole table of states: what a provider's word does to a task."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dispatcher.states import BEYOND_SENDING, RANK, WITHDRAWABLE, ReceiptKind, State, receive

P, C, S, T, D, F, U, E = (
    State.PENDING,
    State.SCHEDULED,
    State.SENDING,
    State.SENT,
    State.DELIVERED,
    State.FAILED,
    State.SUPPRESSED,
    State.EXPIRED,
)
# From each state (in the order of `_FROM`), the state after a receipt of that kind.
_FROM = (P, C, S, T, D, F, U, E)
_TABLE = {
    ReceiptKind.ACCEPTED: (T, T, T, T, D, F, U, E),
    ReceiptKind.REJECTED: (F, F, F, F, D, F, U, E),
    ReceiptKind.DELIVERED: (D, D, D, D, D, F, U, E),
    ReceiptKind.BOUNCED: (F, F, F, F, F, F, U, E),
    ReceiptKind.COMPLAINED: _FROM,
    ReceiptKind.OPENED: (D, D, D, D, D, F, U, E),
    ReceiptKind.CLICKED: (D, D, D, D, D, F, U, E),
    ReceiptKind.UNSUBSCRIBED: _FROM,
}
_CELLS = [(before, kind, after) for kind, row in _TABLE.items() for before, after in zip(_FROM, row, strict=True)]


def test_the_table_knows_every_state_and_every_receipt() -> None:
    assert set(_FROM) == set(State) == set(RANK)
    assert set(_TABLE) == set(ReceiptKind)


@pytest.mark.parametrize(("before", "kind", "after"), _CELLS, ids=str)
def test_a_receipt_leads_where_the_table_says(before: State, kind: ReceiptKind, after: State) -> None:
    transition = receive(before, "as it was", kind)
    assert transition.state is after
    assert transition.changed is (after is not before)


def test_a_bounce_after_delivery_makes_it_failed_and_says_with_which_code() -> None:
    transition = receive(State.DELIVERED, "", ReceiptKind.BOUNCED, "5.1.1")
    assert (transition.state, transition.reason) == (State.FAILED, "bounced:5.1.1")
    assert transition.changed
    assert transition.announced


def test_a_delivery_after_failure_leaves_the_state_and_is_told_as_delivered_late() -> None:
    transition = receive(State.FAILED, "http_503", ReceiptKind.DELIVERED)
    assert (transition.state, transition.reason) == (State.FAILED, "delivered_late")
    assert not transition.changed
    assert transition.announced


def test_a_rejection_after_delivery_is_ignored() -> None:
    transition = receive(State.DELIVERED, "", ReceiptKind.REJECTED, "550")
    assert (transition.state, transition.changed, transition.announced) == (State.DELIVERED, False, False)


def test_a_reason_of_waiting_does_not_survive_good_news() -> None:
    assert receive(State.SCHEDULED, "http_503", ReceiptKind.DELIVERED).reason == ""


@given(st.sampled_from(State), st.lists(st.tuples(st.sampled_from(ReceiptKind), st.text(max_size=8)), max_size=12))
def test_no_history_of_receipts_makes_the_rank_fall(state: State, history: list[tuple[ReceiptKind, str]]) -> None:
    reason = ""
    for kind, code in history:
        transition = receive(state, reason, kind, code)
        assert RANK[transition.state] >= RANK[state]
        assert transition.changed is (transition.state is not state)
        assert transition.announced or not transition.changed, "whatever changes is told"
        if transition.changed:
            state, reason = transition.state, transition.reason


@given(st.sampled_from(State), st.sampled_from(ReceiptKind), st.text(max_size=8))
def test_the_same_receipt_again_changes_nothing(state: State, kind: ReceiptKind, code: str) -> None:
    once = receive(state, "", kind, code)
    twice = receive(once.state, once.reason, kind, code)
    assert not twice.changed


def test_what_can_be_withdrawn_has_not_begun_to_leave() -> None:
    assert {P, C} == WITHDRAWABLE
    assert {T, D, F, U, E} == BEYOND_SENDING
