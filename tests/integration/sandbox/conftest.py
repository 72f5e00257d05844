"""A sandbox whose runs get their folders where a test can look."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.sandbox.runner import Limits, Sandbox

from .support import left_in


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    sandbox = Sandbox(Limits(places=4, folder=tmp_path))
    yield sandbox
    await sandbox.close()
    assert sandbox.free_places == 4
    assert left_in(tmp_path) == []
