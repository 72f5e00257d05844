from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from .ground import Ground, create_tables


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
def ground(database: str) -> Ground:
    """An empty queue in a database of its own."""
    create_tables(database)
    return Ground(database)
