"""The commands that need the services: plugged into the SDK's `reach` by the entry point in pyproject.toml."""

from __future__ import annotations

from agent_reach.cli.policy import policy

from .local import demo, up
from .operate import migrate, serve

commands = (up, demo, serve, migrate, policy)

__all__ = ["commands"]
