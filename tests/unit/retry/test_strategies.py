"""When attempts are planned, to the second."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_reach.retry import BACKOFF, FIBONACCI, FIXED, INCREMENT, Strategy, StrategyError
from agent_reach.retry.strategies import MAX_GAP_SECONDS, check, gap_seconds

ALL = [FIXED, INCREMENT, FIBONACCI, BACKOFF]


def planned_seconds(strategy: Strategy, attempts: int, interval: float | None, first_delay: float) -> list[float]:
    """The planned moments of so many attempts, in seconds after the task's creation."""
    moments = [first_delay]
    for attempt in range(1, attempts):
        moments.append(moments[-1] + gap_seconds(strategy, attempt, interval, first_delay))
    return moments


@pytest.mark.parametrize(
    ("strategy", "planned"),
    [
        (FIXED, [2, 7, 12, 17, 22]),
        (INCREMENT, [2, 7, 17, 32, 52]),
        (FIBONACCI, [2, 7, 12, 22, 37]),
        (BACKOFF, [2, 7, 17, 37, 77]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_planned_moments_are_exact(strategy: Strategy, planned: list[float]) -> None:
    assert planned_seconds(strategy, 5, 5, 2) == planned
    assert planned_seconds(strategy, 1, 5, 2) == [2]


def test_an_attempt_is_never_planned_before_the_one_it_follows_however_many_there_are() -> None:
    for strategy in ALL:
        moments = planned_seconds(strategy, 2000, 5, 2)
        assert moments == sorted(moments)
        assert all(moment < float("inf") for moment in moments)


@given(
    strategy=st.sampled_from(ALL),
    attempt=st.integers(1, 10_000),
    interval=st.floats(0, 1e6),
    ratio=st.floats(0, 0.99),
    seed=st.integers(),
)
def test_gaps_do_not_shrink_and_jitter_stays_within_its_share(
    strategy: Strategy, attempt: int, interval: float, ratio: float, seed: int
) -> None:
    gap = gap_seconds(strategy, attempt, interval, 2)
    assert gap_seconds(strategy, attempt + 1, interval, 2) >= gap
    assert min(interval, MAX_GAP_SECONDS) <= gap <= MAX_GAP_SECONDS
    jittered = gap_seconds(strategy, attempt, interval, 2, ratio, Random(seed))
    assert jittered <= MAX_GAP_SECONDS
    assert jittered >= gap * (1 - ratio) * 0.999_999
    if gap * 2 < MAX_GAP_SECONDS:
        assert jittered <= gap * (1 + ratio) * 1.000_001


@given(first=st.floats(0, 1e6), attempts=st.integers(2, 50))
def test_without_jitter_the_same_task_is_always_planned_alike(first: float, attempts: int) -> None:
    for strategy in ALL:
        assert planned_seconds(strategy, attempts, 5, first) == planned_seconds(strategy, attempts, 5, first)


@pytest.mark.parametrize("strategy", [INCREMENT, FIBONACCI, BACKOFF, Strategy("own", lambda _, i: i)])
def test_a_strategy_that_needs_an_interval_and_has_none_is_refused(strategy: Strategy) -> None:
    with pytest.raises(StrategyError, match=f"{strategy.name} needs interval_seconds"):
        check(strategy, None)


def test_the_fixed_one_repeats_its_first_delay_instead() -> None:
    check(FIXED, None)
    assert planned_seconds(FIXED, 3, None, 5) == [5, 10, 15]


@pytest.mark.parametrize("answer", [-1.0, float("nan")])
def test_a_custom_strategy_that_answers_no_length_of_time_is_found_out(answer: float) -> None:
    with pytest.raises(StrategyError, match="own answered"):
        gap_seconds(Strategy("own", lambda _, __: answer), 1, 5, 2)
