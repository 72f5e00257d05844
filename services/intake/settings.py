"""Intake's settings."""

from __future__ import annotations

from pydantic import Field

from services.chassis.settings import ChassisSettings


class IntakeSettings(ChassisSettings):
    """What intake needs to know beside the chassis."""

    submit_queue: int = Field(
        5_000, ge=1, description="Unary submits that may wait for the next write; beyond that they are refused."
    )
    submit_batch: int = Field(500, ge=1, le=1_000, description="Unary submits written together, at most.")
    scan_interval_seconds: float = Field(2.0, gt=0, description="Pause between two looks for intents to pump.")
    lease_seconds: float = Field(30.0, ge=5, description="Silence after which this process counts as dead.")
    pump_slots: int = Field(2_000, ge=10, le=20_000, description="Intents held in memory at once.")
