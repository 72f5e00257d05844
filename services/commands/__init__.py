"""The commands that need the services: plugged into the SDK's `reach` by the entry point in pyproject.toml."""

from __future__ import annotations

from .local import demo, up
from .operate import migrate, policy, serve

commands = (up, demo, serve, migrate, policy)

__all__ = ["commands"]
