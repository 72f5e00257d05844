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

from services.chassis.clock import Clock, SystemClock

from .catalog import TEMPLATES_FOLDER, Catalog, load_catalog
from .errors import CatalogError, Problem

# Within 2 s of a change the new catalog is in force: changes are gathered for this long ...
_DEBOUNCE_MILLISECONDS = 300
# ... and where the file system tells of none (network mounts), the files are looked at this often.
_LOOK_MILLISECONDS = 1_000

# The first faults help; the thousandth only fills the log.
_LOGGED_PROBLEMS = 20

_log = structlog.get_logger(__name__)

Listener = Callable[[], None]
Signature = frozenset[tuple[str, int, int, int]]


class CatalogHolder:
    """Holds the catalog in force. An invalid file changes nothing; log, metrics and health say so.

    Args:
        config_dir: folder of `policies.yaml` and `templates/`.
        metrics: where reloads are counted; a registry of its own when not given.
        clock: tells when a catalog came into force.

    Raises:
        CatalogError: at the start there is nothing to keep, so the first load must succeed.

    Attributes:
        last_error: why the files as they are now are not in force; None when they are.
        loaded_at: when the catalog in force was loaded first.
    """

    def __init__(
        self,
        config_dir: Path,
        metrics: prometheus_client.CollectorRegistry | None = None,
        clock: Clock | None = None,
    ) -> None:
        registry = prometheus_client.CollectorRegistry() if metrics is None else metrics
        self._reloads = prometheus_client.Counter(
            "reach_catalog_reloads", "Reloads of the configuration, by result.", ["result"], registry=registry
        )
        self._valid = prometheus_client.Gauge(
            "reach_catalog_valid",
            "1 when the files of the configuration are in force, 0 when they have a fault.",
            registry=registry,
        )
        self._clock = SystemClock() if clock is None else clock
        self._config_dir = config_dir
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._signature = _signature(config_dir)
        self._current = load_catalog(config_dir)
        self.loaded_at = self._clock.now()
        self.last_error: CatalogError | None = None
        self._valid.set(1)

    @property
    def current(self) -> Catalog:
        """The catalog in force; take it once for a piece of work, so that the work sees one version."""
        return self._current

    def subscribe(self, listener: Listener) -> None:
        """Has a function called when `current` or `last_error` has changed, from the thread that loaded."""
        self._listeners.append(listener)

    def describe(self) -> str:
        """Returns one line for people: what is in force, and why the files are not where they are not."""
        policies, error = self._current.policies, self.last_error
        line = f"version {policies.revision}, hash {policies.version[:12]}, loaded {self.loaded_at:%FT%TZ}"
        if error is None:
            return line
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        return f"{line}; the files as they are now are refused: {error.problems[0]}{more}"

    def reload(self) -> bool:
        """Reads the files again.

        Returns:
            Whether the files are in force now. If not, the log and `last_error` say why.
        """
        with self._lock:
            self._signature = _signature(self._config_dir)
            try:
                changed = self._take(load_catalog(self._config_dir))
            except CatalogError as error:
                changed = self._refuse(error)
            except Exception as error:  # noqa: BLE001 - whatever a file does to us, what is in force stays in force
                _log.exception("configuration_check_failed")
                reason = f"cannot be checked: {type(error).__name__}"
                changed = self._refuse(CatalogError([Problem(self._config_dir, None, reason)]))
            valid = self.last_error is None
        if changed:
            for listener in self._listeners:
                listener()
        return valid

    def _take(self, catalog: Catalog) -> bool:
        """Puts a catalog into force; returns whether that changes anything that listeners see."""
        new = catalog.version != self._current.version
        changed = new or self.last_error is not None
        self.last_error = None
        if new:
            self._current, self.loaded_at = catalog, self._clock.now()
        self._reloads.labels("loaded").inc()
        self._valid.set(1)
        _log.info("configuration loaded", version=catalog.version, changed=new)
        return changed

    def _refuse(self, error: CatalogError) -> bool:
        """Keeps what is in force; returns whether that changes anything that listeners see."""
        changed = self.last_error is None or str(self.last_error) != str(error)
        self.last_error = error
        self._reloads.labels("refused").inc()
        self._valid.set(0)
        for problem in error.problems[:_LOGGED_PROBLEMS]:
            _log.error(
                "configuration refused; the one before stays in force",
                file=str(problem.file),
                line=problem.line,
                reason=problem.reason,
                problems=len(error.problems),
                version=self._current.version,
            )
        return changed

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
    """Returns what tells files apart without reading them: path, inode, size, time of change.

    Links are followed, to files and to folders: Kubernetes swaps a ConfigMap by one link.
    """
    templates = folder / TEMPLATES_FOLDER
    entries = set()
    for place in (folder, templates, *_entries(templates)):
        for file in _entries(place):
            try:
                status = file.stat()
            except OSError:  # gone between listing and looking; the next look sees it
                continue
            entries.add((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return frozenset(entries)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # no folder, or gone
        return []
