"""When a task is tried again: how long the gaps between its attempts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from .errors import StrategyError

# No gap is longer; it also keeps what doubles for ever within what a date can hold.
MAX_GAP_SECONDS = 10 * 365 * 86_400.0

Gap = Callable[[int, float], float]


def seconds(length: object, *, zero: bool) -> float:
    """Returns a length of time in seconds.

    Args:
        length: seconds, or a ``timedelta``.
        zero: whether none is one.

    Raises:
        ValueError: it is none, or longer than any gap.
    """
    number = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(number, int | float) and not isinstance(number, bool):
        # NaN is neither.
        enough = number >= 0 if zero else number > 0
        if enough and number <= MAX_GAP_SECONDS:
            return float(number)
    least = "0" if zero else "more than 0"
    raise ValueError(f"must be {least} to {MAX_GAP_SECONDS:,.0f} seconds, or a timedelta")


@dataclass(frozen=True, slots=True)
class Strategy:
    """How the gaps between attempts grow.

    Attributes:
        name: under which tasks keep it in the database; lower-case.
        gap: called with the number of the attempt that failed (1 for the first) and the interval in seconds;
            returns the seconds to the next one. For a strategy that needs no interval and has none, the
            interval is the first delay.
        needs_interval: a task without an interval is refused at registration.
    """

    name: str
    gap: Gap
    needs_interval: bool = True


def of_function(gap: Gap) -> Strategy:
    """Returns the strategy that a function is, under its name.

    Raises:
        StrategyError: it is no function, or has no name under which another process could find it.
    """
    name = getattr(gap, "__name__", "<lambda>")
    if not callable(gap) or name == "<lambda>":
        raise StrategyError("a strategy is one of the library's, Strategy(name, function), a function, or a name")
    return Strategy(name, gap)


def _fibonacci(attempt: int, interval: float) -> float:
    before, number = 0, 1
    for _ in range(min(attempt, 100) - 1):
        before, number = number, before + number
    return interval * number


# With a first delay of 2 s and an interval of 5 s, the attempts are planned so many seconds after the creation:
FIXED = Strategy("fixed", lambda _, interval: interval, needs_interval=False)  # 2, 7, 12, 17
INCREMENT = Strategy("increment", lambda attempt, interval: interval * attempt)  # 2, 7, 17, 32
FIBONACCI = Strategy("fibonacci", _fibonacci)  # 2, 7, 12, 22
BACKOFF = Strategy("backoff", lambda attempt, interval: interval * 2.0 ** min(attempt - 1, 64))  # 2, 7, 17, 37

BUILT_IN = {strategy.name: strategy for strategy in (FIXED, INCREMENT, FIBONACCI, BACKOFF)}


def check(strategy: Strategy, interval_seconds: float | None) -> None:
    """Refuses a strategy that lacks what it needs.

    Raises:
        StrategyError: it needs an interval and has none.
    """
    if strategy.needs_interval and interval_seconds is None:
        raise StrategyError(f"the strategy {strategy.name} needs interval_seconds")


def gap_seconds(
    strategy: Strategy,
    attempt: int,
    interval_seconds: float | None,
    first_delay_seconds: float,
    jitter_ratio: float = 0.0,
    random: Random | None = None,
) -> float:
    """Returns the seconds between the planned moments of an attempt and the one after it.

    Args:
        strategy: how gaps grow.
        attempt: the number of the one that failed, 1 for the first.
        interval_seconds: the task's interval.
        first_delay_seconds: stands for the interval where a strategy can do without one.
        jitter_ratio: 0.3 spreads the gap evenly over 70 % to 130 % of itself; 0 leaves it exact.
        random: where the jitter comes from; none is no jitter.

    Raises:
        StrategyError: a custom strategy answered with something that is no length of time.
    """
    interval = first_delay_seconds if interval_seconds is None else interval_seconds
    gap = float(strategy.gap(attempt, interval))
    if not gap >= 0:
        raise StrategyError(f"the strategy {strategy.name} answered {gap} for attempt {attempt}")
    if jitter_ratio and random is not None:
        gap *= 1.0 + jitter_ratio * (2.0 * random.random() - 1.0)
    return min(gap, MAX_GAP_SECONDS)
