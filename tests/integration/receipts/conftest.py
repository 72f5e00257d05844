"""The dispatcher at the other end, and the service under test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .support import Dispatcher, Dsns, Receipts, dispatching, receipts


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher()


@pytest.fixture
async def service(migrated: Dsns, dispatcher: Dispatcher) -> AsyncIterator[Receipts]:
    async with dispatching(dispatcher) as port, receipts(migrated, port) as service:
        yield service
