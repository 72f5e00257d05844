"""The catalog in force in this process: reloaded when its files change, or when asked."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import prometheus_client
import structlog
from watchfiles import awatch

from .catalog import Catalog, load_catalog
from .errors import CatalogError

# Within 2 s of a change the new catalog is in force: changes are gathered for this long ...
_DEBOUNCE_MILLISECONDS = 300
# ... and where the file system tells of none (network mounts), the files are looked at this often.
_LOOK_MILLISECONDS = 1_000

_log = structlog.get_logger(__name__)

Listener = Callable[[Catalog], None]
Signature = frozenset[tuple[str, int, int, int]]


class CatalogHolder:
    """Holds the catalog in force. An invalid file changes nothing, is logged and counted.

    Args:
        config_dir: folder of `policies.yaml` and `templates/`.
        metrics: where reloads are counted; a registry of its own when not given.

    Raises:
        CatalogError: at the start there is nothing to keep, so the first load must succeed.

    Attributes:
        last_error: why the files as they are now are not in force; None when they are.
    """

    def __init__(self, config_dir: Path, metrics: prometheus_client.CollectorRegistry | None = None) -> None:
        registry = prometheus_client.CollectorRegistry() if metrics is None else metrics
        self._reloads = prometheus_client.Counter(
            "reach_catalog_reloads", "Reloads of the configuration, by result.", ["result"], registry=registry
        )
        self._config_dir = config_dir
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._signature = _signature(config_dir)
        self._current = load_catalog(config_dir)
        self.last_error: CatalogError | None = None

    @property
    def current(self) -> Catalog:
        """The catalog in force; take it once for a piece of work, so that the work sees one version."""
        return self._current

    def subscribe(self, listener: Listener) -> None:
        """Has a function called with each new catalog, from the thread that loaded it."""
        self._listeners.append(listener)

    def reload(self) -> bool:
        """Reads the files again; for SIGHUP.

        Returns:
            Whether the files are in force now. If not, the log and `last_error` say why.
        """
        with self._lock:
            self._signature = _signature(self._config_dir)
            try:
                catalog = load_catalog(self._config_dir)
            except CatalogError as error:
                self.last_error = error
                self._reloads.labels("refused").inc()
                for problem in error.problems:
                    _log.error(
                        "configuration refused; the one before stays in force",
                        file=str(problem.file),
                        line=problem.line,
                        reason=problem.reason,
                        version=self._current.version,
                    )
                return False
            self.last_error = None
            changed = catalog.version != self._current.version
            self._current = catalog
            self._reloads.labels("loaded").inc()
        _log.info("configuration loaded", version=catalog.version, changed=changed)
        if changed:
            for listener in self._listeners:
                listener(catalog)
        return True

    async def watch(self, stopping: asyncio.Event) -> None:
        """Reloads within 2 s of a change of the files, until `stopping` is set."""
        while not stopping.is_set():
            try:
                await self._watch(stopping)
            except (OSError, RuntimeError) as error:  # the folder is gone, or the system has no watches left
                _log.warning("configuration cannot be watched; looking again", error=str(error))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), _LOOK_MILLISECONDS / 1_000)
                await asyncio.to_thread(self._reload_if_touched)

    async def _watch(self, stopping: asyncio.Event) -> None:
        changes = awatch(
            self._config_dir,
            stop_event=stopping,
            debounce=_DEBOUNCE_MILLISECONDS,
            rust_timeout=_LOOK_MILLISECONDS,
            yield_on_timeout=True,
        )
        async for _ in changes:
            await asyncio.to_thread(self._reload_if_touched)

    def _reload_if_touched(self) -> None:
        if _signature(self._config_dir) != self._signature:
            self.reload()


def _signature(folder: Path) -> Signature:
    """Returns what tells files apart without reading them: path, inode, size, time of change."""
    entries = set()
    for file in folder.rglob("*"):
        try:
            status = file.stat()
        except OSError:  # gone between listing and looking; the next look sees it
            continue
        entries.add((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return frozenset(entries)
