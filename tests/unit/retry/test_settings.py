"""The settings: their defaults, their bounds, and where they come from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent_reach.durable import EngineSettings
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
    ("wrong", "told"),
    [
        ({"scan_interval_seconds": 0.9}, "greater than or equal to 1"),
        ({"max_in_memory": 99}, "greater than or equal to 100"),
        ({"instance_timeout_seconds": 241}, "less than or equal to 240"),
        ({"instance_timeout_seconds": 8.9}, "must be 3 heartbeats or more"),
        ({"preload_multiplier": 0.5}, "greater than or equal to 1"),
        ({"concurrency": 0}, "greater than or equal to 1"),
        ({"max_in_memory": 100, "concurrency": 101}, "must be at least concurrency"),
        ({"cleanup_cron": "at three"}, "'at three' is no cron expression"),
        ({"cleanup_rows": 0}, "greater than or equal to 1"),
        ({"cleanup_older_than_days": 0}, "greater than 0"),
        ({"dead_task_seconds": 0}, "greater than 0"),
        ({"first_delay_seconds": -1}, "greater than or equal to 0"),
        ({"log_level": "LOUD"}, "'DEBUG', 'INFO'"),
        ({"unheard_of": 1}, "not permitted"),
        ({"max_attempts": 1_000_001}, "less than or equal to 1000000"),
        *(
            ({name: number}, "less than or equal to")
            for name, setting in RetrySettings.model_fields.items()
            for number in (float("inf"), float("nan"))
            if setting.annotation is float
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_out_of_bounds_is_refused_by_its_name(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=f"{next(iter(wrong))}(.|\\n)*{told}"):
        RetrySettings(**wrong)


def test_they_come_from_the_environment_and_code_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REACH_RETRY_SCAN_INTERVAL_SECONDS", "7")
    monkeypatch.setenv("REACH_RETRY_INSTANCE_TIMEOUT_SECONDS", "240")
    settings = RetrySettings(scan_interval_seconds=9)
    assert (settings.scan_interval_seconds, settings.instance_timeout_seconds) == (9, 240)
    assert RetrySettings().scan_interval_seconds == 7


def test_levels_are_taken_in_upper_and_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REACH_RETRY_LOG_LEVEL", "warning")
    assert RetrySettings().log_level == "WARNING"


def test_every_setting_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "retry.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", page[page.index("\n## Settings") :], re.MULTILINE))
    spoken: dict[object, str] = {True: "on", False: "off"}
    for name, setting in RetrySettings.model_fields.items():
        assert setting.description
        default = "CPUs + 1" if name == "concurrency" else setting.default
        shown = (
            spoken[default]
            if isinstance(default, bool)
            else f"{default:,g}"
            if isinstance(default, float)
            else default
        )
        assert rows.pop(name).replace("`", "") == (f"{shown:,}" if isinstance(shown, int) else shown), name
    assert not rows, "what is documented exists"


def test_the_engine_is_told() -> None:
    settings = RetrySettings(
        concurrency=200,
        max_in_memory=500,
        instance_timeout_seconds=240,
        heartbeat_seconds=7,
        sweep_seconds=11,
        drain_seconds=13,
        scan_interval_seconds=3,
        preload_multiplier=5,
    )
    assert settings.for_engine() == EngineSettings(
        lease_seconds=240, heartbeat_seconds=7, sweep_seconds=11, drain_seconds=13
    )
    queue = settings.for_queue()
    assert (queue.slots, queue.concurrency, queue.batch_size) == (500, 200, 100)
    assert (queue.scan_interval_seconds, queue.preload_seconds) == (3, 15)
