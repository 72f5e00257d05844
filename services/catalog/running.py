"""The catalog of a running process: loaded at the start, watched until the end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from services.chassis.runtime import Runtime
from services.chassis.startup import StartupError

from .errors import CatalogError
from .holder import CatalogHolder


@asynccontextmanager
async def running_catalog(runtime: Runtime) -> AsyncIterator[CatalogHolder]:
    """Loads the configuration and keeps it current: when a file changes, and on SIGHUP.

    Raises:
        StartupError: the files are not valid; it says where and why.
    """
    folder = runtime.settings.config_dir
    try:
        holder = CatalogHolder(folder, runtime.metrics)
    except CatalogError as error:
        raise StartupError("configuration", str(error), f"mend the files below {folder}") from error
    loop = asyncio.get_running_loop()
    # Signals belong to the main thread; where there is another one (tests), files are watched all the same.
    with suppress(RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGHUP, holder.reload)
    ended = asyncio.Event()
    watching = asyncio.create_task(holder.watch(ended), name="catalog-watch")
    try:
        yield holder
    finally:
        ended.set()
        await watching
        with suppress(RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGHUP)
