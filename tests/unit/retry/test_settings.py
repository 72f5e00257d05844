"""The settings: their defaults, their bounds, and where they come from."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pydantic import ValidationError

from agent_reach.retry import RetrySettings


def test_the_defaults() -> None:
    settings = RetrySettings()
    assert settings.model_dump() == {
        "scan_interval_seconds": 20,
        "preload_multiplier": 2,
        "max_in_memory": 3000,
        "concurrency": (os.cpu_count() or 1) + 1,
        "heartbeat_seconds": 3,
        "instance_timeout_seconds": 30,
        "sweep_seconds": 5,
        "drain_seconds": 20,
        "dead_task_check": True,
        "dead_task_seconds": 1800,
        "cleanup": False,
        "cleanup_cron": "0 3 * * *",
        "cleanup_older_than_days": 30,
        "cleanup_rows": 100,
        "first_delay_seconds": 5,
        "strategy": "fixed",
        "max_attempts": 3,
        "notify": True,
        "log_level": "INFO",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"scan_interval_seconds": 0.9},
        {"max_in_memory": 99},
        {"instance_timeout_seconds": 241},
        {"instance_timeout_seconds": 8.9},
        {"preload_multiplier": 0.5},
        {"concurrency": 0},
        {"concurrency": 5000},
        {"cleanup_cron": "at three"},
        {"cleanup_rows": 0},
        {"log_level": "LOUD"},
        {"unheard_of": 1},
    ],
)
def test_what_is_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RetrySettings(**wrong)


def test_they_come_from_the_environment_and_code_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REACH_RETRY_SCAN_INTERVAL_SECONDS", "7")
    monkeypatch.setenv("REACH_RETRY_INSTANCE_TIMEOUT_SECONDS", "240")
    settings = RetrySettings(scan_interval_seconds=9)
    assert (settings.scan_interval_seconds, settings.instance_timeout_seconds) == (9, 240)
    assert RetrySettings().scan_interval_seconds == 7


def test_every_setting_is_documented() -> None:
    assert all(field.description for field in RetrySettings.model_fields.values())


def test_the_engine_is_told() -> None:
    settings = RetrySettings(concurrency=200, instance_timeout_seconds=240)
    assert settings.for_engine().lease_seconds == 240
    queue = settings.for_queue()
    assert (queue.slots, queue.concurrency, queue.batch_size, queue.preload_seconds) == (3000, 200, 100, 40)
