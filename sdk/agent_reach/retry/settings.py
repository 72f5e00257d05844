"""How the library behaves; every setting can be given in code or as ``REACH_RETRY_…`` in the environment."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from agent_reach.durable import EngineSettings, QueueSettings

from .strategies import MAX_GAP_SECONDS

MAX_ATTEMPTS = 1_000_000


def _concurrency() -> int:
    return (os.cpu_count() or 1) + 1


_Seconds = Annotated[float, Field(le=MAX_GAP_SECONDS)]


class RetrySettings(BaseSettings):
    """The settings of one process, with their bounds."""

    model_config = SettingsConfigDict(env_prefix="REACH_RETRY_", frozen=True, extra="forbid")

    scan_interval_seconds: _Seconds = Field(
        20.0, ge=1, description="Pause between two scans for tasks that become due."
    )
    preload_multiplier: float = Field(
        2.0,
        ge=1,
        le=1000,
        description="Tasks due within scan interval times this are claimed ahead and start to the millisecond.",
    )
    max_in_memory: int = Field(
        3000,
        ge=100,
        description="Tasks this process holds at most; when it is full the scan pauses, nothing is dropped.",
    )
    concurrency: int = Field(default_factory=_concurrency, ge=1, description="Tasks at work at once in this process.")
    heartbeat_seconds: _Seconds = Field(3.0, gt=0, description="Pause between two renewals of this process's lease.")
    instance_timeout_seconds: float = Field(
        30.0, ge=1, le=240, description="A process that was not heard of for so long counts as dead."
    )
    sweep_seconds: _Seconds = Field(5.0, gt=0, description="Pause between two searches for tasks of dead processes.")
    drain_seconds: _Seconds = Field(20.0, ge=0, description="How long a stopping process lets running tasks go on.")
    dead_task_check: bool = Field(
        default=True, description="Whether tasks that run beyond their limit go back, with the attempt counted."
    )
    dead_task_seconds: _Seconds = Field(
        1800.0, gt=0, description="The limit for tasks that have no maximum execution time of their own."
    )
    cleanup: bool = Field(default=False, description="Whether tasks that ended long ago are deleted.")
    cleanup_cron: str = Field("0 3 * * *", description="When the clean-up runs, as a cron expression in UTC.")
    cleanup_older_than_days: float = Field(
        30.0, gt=0, le=36_500, description="Tasks that ended earlier than this are deleted."
    )
    cleanup_rows: int = Field(100, ge=1, description="Tasks deleted in one round of the clean-up.")
    first_delay_seconds: _Seconds = Field(
        5.0, ge=0, description="From a task's creation to its first planned attempt."
    )
    strategy: str = Field("fixed", description="Name of the strategy of tasks that name none.")
    max_attempts: int = Field(3, ge=1, le=MAX_ATTEMPTS, description="Attempts of tasks that name no number.")
    notify: bool = Field(
        default=True,
        description="Whether registrations wake the workers when they commit, by one notification in 50 ms at most; "
        "without it the scans find the tasks.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = Field(
        "INFO", description="What the library logs at least."
    )

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_capitals(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("cleanup_cron")
    @classmethod
    def _is_a_cron_expression(cls, value: str) -> str:
        try:
            CronSim(value, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise ValueError(f"{value!r} is no cron expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _outlives_heartbeats(self) -> Self:
        if self.instance_timeout_seconds < 3 * self.heartbeat_seconds:
            raise ValueError("instance_timeout_seconds must be 3 heartbeats or more")
        if self.concurrency > self.max_in_memory:
            raise ValueError("max_in_memory must be at least concurrency")
        return self

    def for_engine(self) -> EngineSettings:
        """Returns what the durable engine is told."""
        return EngineSettings(
            self.instance_timeout_seconds, self.heartbeat_seconds, self.sweep_seconds, self.drain_seconds
        )

    def for_queue(self) -> QueueSettings:
        """Returns the limits of the queue."""
        return QueueSettings(
            slots=self.max_in_memory,
            concurrency=self.concurrency,
            batch_size=min(self.concurrency, 100),
            scan_interval_seconds=self.scan_interval_seconds,
            preload_multiplier=self.preload_multiplier,
        )
