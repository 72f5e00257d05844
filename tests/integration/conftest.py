"""The suite of services for integration tests."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest
from pydantic import SecretStr

from agent_reach.local import LocalRedis
from tests.conftest import Dsns
from tests.support.suite import CONFIG, Suite


@pytest.fixture
def suite(migrated: Dsns, redis_server: LocalRedis, tmp_path: Path) -> Suite:
    """Services that are not started yet, on a fresh database and keys of their own in Redis.

    Their configuration is a copy of the shipped one that a test may change, with retries after 0.1 s.
    """
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    policies = config / "policies.yaml"
    policies.write_text(policies.read_text().replace("base_seconds: 3,", "base_seconds: 0.1,"))
    return Suite(
        settings={
            "postgres_engine_dsn": SecretStr(migrated.engine),
            "postgres_direct_dsn": SecretStr(migrated.engine),
            "postgres_api_dsn": SecretStr(migrated.api),
            "redis_url": SecretStr(redis_server.url),
            "deployment": f"test-{uuid.uuid4().hex[:8]}",
            "config_dir": config,
            "drain_seconds": 5.0,
            "webhook_allowed_networks": ("127.0.0.0/8",),
            "scan_interval_seconds": 0.5,
        },
        keys_file=tmp_path / "api_keys.json",
    )
