"""Settings of the policy service."""

from __future__ import annotations

from pydantic import Field

from services.chassis.settings import ChassisSettings


class PolicySettings(ChassisSettings):
    """What the policy service needs to know, from the environment (prefix ``REACH_``)."""

    policy_batches_in_work: int = Field(
        8, ge=1, le=256, description="Batches of one stream that the policy service judges at the same time."
    )
    suppress_wait_seconds: float = Field(
        10.0,
        gt=0,
        le=60,
        description="Longest time that Suppress waits for messages that are just being handed over.",
    )
    shadow_kept_days: int = Field(
        30, ge=1, le=366, description="Days for which decisions of a policy in shadow are kept where they differ."
    )
