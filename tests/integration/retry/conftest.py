from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from agent_reach.retry import Retries, RetrySettings

from .field import FAST, Field


@pytest.fixture(autouse=True)
def plain_log() -> Iterator[None]:
    """The default log draws tracebacks with all their variables, which takes seconds and stops the loop."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(),
        ]
    )
    yield
    structlog.reset_defaults()


@pytest.fixture
def retry(database: str) -> Retries:
    """An application with the library's tables and a few of its own."""
    retry = Retries(database, settings=RetrySettings(**FAST))
    retry.install()
    Field(database).query("CREATE TABLE orders (id integer PRIMARY KEY)")
    return retry


@pytest.fixture
def field(database: str) -> Field:
    """The database of the test, looked at from outside."""
    return Field(database)
