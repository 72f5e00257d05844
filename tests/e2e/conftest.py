"""Whole systems for end-to-end tests: five processes, real PostgreSQL, Redis, SMTP and HTTP."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """An empty directory with a short path, as Unix sockets lie below it."""
    directory = Path(tempfile.mkdtemp(prefix="reach-e2e-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
