"""How long to wait before trying again."""

from __future__ import annotations

from random import Random


def exponential_jitter(
    attempt: int, base_seconds: float, cap_seconds: float, jitter_ratio: float, random: Random
) -> float:
    """Returns the seconds to wait after the ``attempt``-th failure.

    The wait doubles with each attempt and stops growing at the cap; then a random share is added or taken, so
    that rows which failed together do not come back together.

    Args:
        attempt: 1 for the first failure; less counts as 1.
        base_seconds: the wait after the first failure, before jitter.
        cap_seconds: the most that is waited, before jitter.
        jitter_ratio: 0.3 spreads the wait evenly over 70 % to 130 % of itself.
        random: where the jitter comes from.
    """
    # Beyond 2**64 any base has met its cap, and a float would overflow.
    doublings = min(max(attempt, 1) - 1, 64)
    wait = min(base_seconds * 2.0**doublings, cap_seconds)
    return wait * (1.0 + jitter_ratio * (2.0 * random.random() - 1.0))
