"""The catalog of a running process: loaded at the start, kept current and told of until the end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from services.chassis.background import background
from services.chassis.runtime import Runtime
from services.chassis.startup import StartupError

from .errors import CatalogError
from .holder import CatalogHolder
from .presence import Presence


@asynccontextmanager
async def running_catalog(runtime: Runtime, role: str) -> AsyncIterator[CatalogHolder]:
    """Loads the configuration and keeps it current: when a file changes, and on SIGHUP.

    Where Redis is configured, the process tells there what it has in force; health tells it in any case.

    Args:
        runtime: the process.
        role: what it is called there.

    Raises:
        StartupError: the files are not valid; it says where and why.
    """
    folder = runtime.settings.config_dir
    try:
        holder = CatalogHolder(folder, runtime.metrics, runtime.clock)
    except CatalogError as error:
        raise StartupError("configuration", str(error), f"mend the files below {folder}") from error
    runtime.details["configuration"] = holder.describe
    loop = asyncio.get_running_loop()
    hangup, ended = asyncio.Event(), asyncio.Event()
    # Signals belong to the main thread; in another one files are watched all the same. The handler stays until the loop
    # ends: without one, the signal would end a process that drains.
    with suppress(RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGHUP, hangup.set)
    async with AsyncExitStack() as stack:
        works = [_reload_on(hangup, holder)]
        if runtime.settings.redis_url.get_secret_value():
            presence = Presence(
                await stack.enter_async_context(runtime.redis()), runtime.settings.deployment, role, holder
            )
            stack.push_async_callback(presence.leave)
            works.append(presence.run())
        await stack.enter_async_context(background(*works))
        watching = asyncio.create_task(holder.watch(ended), name="catalog-watch")
        try:
            yield holder
        finally:
            ended.set()
            await watching


async def _reload_on(hangup: asyncio.Event, holder: CatalogHolder) -> None:
    """Reloads each time when it is asked for, beside the event loop, which has decisions to answer. Has no end."""
    while True:
        await hangup.wait()
        hangup.clear()
        await asyncio.to_thread(holder.reload)
