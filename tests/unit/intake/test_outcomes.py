"""An intent's state is that of its latest hop, whatever order its outcomes come in."""

from __future__ import annotations

import uuid

from agent_reach.v1 import message_pb2, outcome_pb2
from services.intake.outcomes import fold

INTENT = uuid.uuid4()


def outcome(state: str, hop: int = 0) -> outcome_pb2.Outcome:
    return outcome_pb2.Outcome(intent_id=str(INTENT), hop=hop, state=message_pb2.State.Value(f"STATE_{state}"))


def folded(*outcomes: outcome_pb2.Outcome) -> str:
    return fold(outcomes)[INTENT].state


def test_a_retry_goes_back_to_waiting() -> None:
    assert folded(outcome("SENDING"), outcome("SCHEDULED")) == "SCHEDULED"


def test_what_was_delivered_is_not_sent_again_by_a_late_line() -> None:
    assert folded(outcome("DELIVERED"), outcome("SENT")) == "DELIVERED"


def test_a_bounce_goes_before_a_delivery() -> None:
    assert folded(outcome("DELIVERED"), outcome("FAILED")) == "FAILED"


def test_of_a_fallback_on_the_same_page_it_is_kept_why_it_was_needed() -> None:
    failed = outcome("FAILED")
    failed.reason = "no_provider"
    state = fold([failed, outcome("PENDING", hop=1), outcome("SUPPRESSED", hop=1)])[INTENT]
    assert (state.state, state.fallback_after) == ("SUPPRESSED", "no_provider")
    assert fold([outcome("SUPPRESSED", hop=1)])[INTENT].fallback_after == ""


def test_a_fallback_opens_the_intent_again() -> None:
    assert folded(outcome("FAILED"), outcome("PENDING", hop=1), outcome("SENT", hop=1)) == "SENT"
