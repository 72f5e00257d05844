"""`reach demo`: starts a world of its own, plays every line, explains two of them, leaves nothing behind."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.rule import Rule

from agent_reach.cli.explanation import print_explanation

from .scenarios import Line, Scenarios
from .table import Progress
from .world import World

_TIMEOUT_SECONDS = 45.0
# Where nobody looks (a log), lines may be long.
_PLAIN_WIDTH = 160


def run() -> int:
    """Plays the demo; returns the exit code: 0 only if every line ended as it must.

    Raises:
        StartupError: a part did not start.
        LocalServerError: PostgreSQL or Redis did not start.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH)
    # Short, as Unix sockets lie below it.
    directory = Path(tempfile.mkdtemp(prefix="reach-demo-"))
    keep = True
    try:
        good = asyncio.run(_play(console, directory))
        keep = not good
    except KeyboardInterrupt:
        keep = False
        raise
    finally:
        if keep:
            console.print(f"The logs are in {directory / 'logs'}.", markup=False, soft_wrap=True)
        else:
            shutil.rmtree(directory)
    return 0 if good else 1


async def _play(console: Console, directory: Path) -> bool:
    began = time.monotonic()
    async with World(directory, on_progress=lambda part: console.print(f"starting {part}", style="dim")) as world:
        progress = Progress(console)
        scenarios = Scenarios(world, progress.change)
        progress.start(scenarios.lines)
        try:
            good = await scenarios.play(_TIMEOUT_SECONDS)
        finally:
            progress.stop()
        for title, line in (("Why Grace got it", scenarios.order), ("Why Linus did not", scenarios.unsubscribed)):
            console.print(Rule(title, align="left"))
            print_explanation(console, line.explanation)
        console.print(Rule(align="left"))
        _conclude(console, scenarios, good=good)
        console.print("stopping everything …", style="dim")
    console.print(f"Done in {time.monotonic() - began:.1f} s.", style="dim")
    return good


def _conclude(console: Console, scenarios: Scenarios, *, good: bool) -> None:
    if good:
        console.print(f"All {len(scenarios.lines)} lines ended as they must; nothing was sent twice.", style="green")
        return
    for line in scenarios.lines:
        if line.fault:
            console.print(f"{line.title}: {_fault(line)}", style="bold red", markup=False, soft_wrap=True)
    for to in scenarios.sent_twice():
        console.print(f"sent twice: {to}", style="bold red", markup=False)


def _fault(line: Line) -> str:
    return f"{line.fault} ({line.answer})" if line.answer else line.fault
