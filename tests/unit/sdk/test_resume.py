"""When a call is tried again, and what is told when it is given up."""

from __future__ import annotations

import pytest

from agent_reach import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from agent_reach.client.resume import Attempts, Patience


def test_what_is_unavailable_is_tried_again_not_before_the_service_said() -> None:
    assert 2.0 <= Attempts(60).delay_after(UnavailableError("away", retry_after_seconds=2.0)) <= 3.0
    assert 0 < Attempts(60).delay_after(UnavailableError("away")) < 1


def test_a_call_is_not_tried_for_ever() -> None:
    attempts = Attempts(60)
    error = UnavailableError("away")
    for _ in range(3):
        attempts.delay_after(error)
    with pytest.raises(UnavailableError):
        attempts.delay_after(error)


def test_where_the_delay_would_not_be_in_time_the_answer_is_told_at_once() -> None:
    with pytest.raises(UnavailableError):
        Attempts(1).delay_after(UnavailableError("away", retry_after_seconds=5))


def test_no_attempt_is_begun_that_would_hardly_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("agent_reach.client.resume.time.monotonic", lambda: now)
    attempts = Attempts(10)
    assert attempts.begin() == 10
    # The service needed 5 s to say so: a second attempt, 2 s later, would be broken off with its end unknown.
    now = 5.0
    with pytest.raises(UnavailableError, match="PostgreSQL"):
        attempts.delay_after(UnavailableError("PostgreSQL is away", retry_after_seconds=2.0))


def test_a_deadline_that_ended_is_told_as_that() -> None:
    attempts = Attempts(60)
    attempts.delay_after(UnavailableError("away"))
    with pytest.raises(DeadlineExceededError):
        attempts.delay_after(DeadlineExceededError("late"))


@pytest.mark.parametrize("error", [InvalidArgumentError("no"), NotFoundError("no"), ResourceExhaustedError("full")])
def test_what_a_second_try_would_only_repeat_is_told_at_once(error: Exception) -> None:
    for decides in (Attempts(60), Patience(60)):
        with pytest.raises(type(error)):
            decides.delay_after(error)  # type: ignore[arg-type]


def test_streams_have_patience_with_overload_and_with_faults_of_the_transport() -> None:
    patience = Patience(60)
    assert patience.delay_after(ResourceExhaustedError("full", retry_after_seconds=1.0)) >= 1.0
    assert patience.delay_after(InternalError("Internal error from Core")) > 0
    with pytest.raises(InternalError):
        patience.delay_after(InternalError("unexpected fault", reason="INTERNAL"))


def test_a_stream_that_ended_at_its_deadline_is_opened_again_once_without_progress() -> None:
    patience = Patience(60)
    late = DeadlineExceededError("late")
    assert patience.delay_after(late) == 0
    patience.progress()
    assert patience.delay_after(late) == 0
    with pytest.raises(DeadlineExceededError):
        patience.delay_after(late)


def test_patience_ends() -> None:
    with pytest.raises(UnavailableError):
        Patience(0).delay_after(UnavailableError("away"))
