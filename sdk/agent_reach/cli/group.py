"""The group of all commands: loads the plugged-in ones, and tells failures as part, why, what to do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

import click

from . import messages, policy, preferences, profiles, retry, status, suppressions
from .failures import describe, show

ENTRY_POINTS = "agent_reach.cli"


class ReachGroup(click.Group):
    """Shows a failure that it can describe without a traceback and exits with 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            failure = describe(error)
            if failure is None:
                raise
            show(failure)
            ctx.exit(1)


@click.group(cls=ReachGroup, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": None})
@click.version_option(package_name="agent-reach")
def reach() -> None:
    """Tells people what agents want to say, when and how they may be told."""


def load_commands() -> click.Group:
    """Returns the group with every command, the plugged-in ones too."""
    for command in (
        *messages.commands,
        status.status,
        profiles.profiles,
        preferences.preferences,
        suppressions.suppressions,
        retry.retry,
        policy.policy,
    ):
        reach.add_command(command)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        plugged_in: Sequence[click.Command] = entry.load()
        for command in plugged_in:
            reach.add_command(command)
    return reach


def main() -> None:
    """Runs the command line."""
    sys.exit(load_commands()(prog_name="reach"))
