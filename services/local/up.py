"""`reach up`: starts the whole system, stays, and stops everything it started."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agent_reach.cli.endpoints import Endpoints
from services.chassis.background import background

from .configuration import ConfigurationWatch
from .data import DataDirectory
from .mailbox import Mailbox, keep_in
from .ports import Ports
from .screen import Screen
from .stack import LocalStack
from .supervisor import supervise

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(path: Path, port_base: int) -> int:
    """Runs the system until a signal; returns the exit code.

    Raises:
        StartupError: a part did not start, or could not be kept alive; everything is stopped.
        LocalServerError: PostgreSQL or Redis did not start; everything is stopped.
    """
    data = DataDirectory(path)
    with data.held():
        asyncio.run(_run_until_signal(_System(data, Ports.choose(port_base), Screen(Console(highlight=False)))))
    return 0


@dataclass(slots=True)
class _System:
    data: DataDirectory
    ports: Ports
    screen: Screen
    started: bool = False

    async def run(self, stop: asyncio.Event) -> None:
        """Starts everything, keeps it alive until `stop` is set, stops everything."""
        async with AsyncExitStack() as parts:
            mail = await parts.enter_async_context(_mail(self.data, os.environ))
            stack = LocalStack(
                self.data,
                self.ports,
                config=self.data.config(),
                environment={**os.environ, **mail.settings},
                on_progress=self.screen.starting,
            )
            await parts.enter_async_context(stack)
            self.started = True
            stack.endpoints.save(self.data.path)
            parts.callback(Endpoints.remove, self.data.path)
            self.screen.serving(stack, mail.told)
            watch = ConfigurationWatch(stack.config, self.screen.event)
            await parts.enter_async_context(background(watch.run()))
            await supervise([*stack.servers, *stack.roles.values()], stop, self.screen.event)
            self.screen.stopping()
        self.screen.stopped()


async def _run_until_signal(system: _System) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(system.run(stop))

    def on_signal() -> None:
        # A start is broken off, a running system drains; a second signal changes nothing.
        if not stop.is_set() and not system.started:
            running.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await running
    except asyncio.CancelledError:
        if not stop.is_set():
            raise


@dataclass(frozen=True, slots=True)
class _Mail:
    """Where e-mail goes: settings for the dispatcher, and what the user is told."""

    settings: Mapping[str, str]
    told: str


@asynccontextmanager
async def _mail(data: DataDirectory, environment: Mapping[str, str]) -> AsyncIterator[_Mail]:
    """Uses the mail server that the environment names, else a development mailbox."""
    if host := environment.get("REACH_SMTP_HOST"):
        yield _Mail({}, f"goes to {host}")
        return
    async with Mailbox(keep_in(data.mail)) as mailbox:
        yield _Mail(mailbox.settings, f"is kept in {data.mail} (set REACH_SMTP_HOST to send it)")
