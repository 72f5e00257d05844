"""System tools that some tests need, and that not every machine has."""

from __future__ import annotations

import os
import shutil

import pytest

# Where Debian keeps servers, which is not on everybody's PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def require_tool(name: str, package: str) -> str:
    """Returns the path of a program; without it the test is skipped, and under `CI=true` it fails.

    Args:
        name: of the program.
        package: of Debian, that brings it.
    """
    path = shutil.which(name, path=_PATH)
    if path is not None:
        return path
    missing = f"{name} is not installed: apt-get install {package}"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)
