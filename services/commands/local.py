"""`reach up` and `reach demo`: everything on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from agent_reach.cli.connection import data_option


@click.command()
@data_option
@click.option(
    "--port-base",
    type=click.IntRange(0, 65_000),
    default=7401,
    show_default=True,
    envvar="REACH_PORT_BASE",
    help="First port; 0 takes free ones.",
)
def up(data: Path, port_base: int) -> None:
    """Starts the whole system on this machine, until Ctrl-C; its data is kept."""
    from services.local.up import run  # noqa: PLC0415 - imported when it runs, `reach submit` must not wait for it

    sys.exit(run(data, port_base))


@click.command()
def demo() -> None:
    """Shows the whole way of a message in a system of its own; nothing is left behind."""
    from services.demo.run import run  # noqa: PLC0415 - imported when it runs, `reach submit` must not wait for it

    sys.exit(run())
