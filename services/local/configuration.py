"""Tells at the terminal of `reach up` what becomes of a changed configuration; the services look at it themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from services.catalog.catalog import load_catalog
from services.catalog.errors import CatalogError

# The services have looked within 2 s; who sits at a terminal need not know earlier.
_LOOK_SECONDS = 1.0
_HASH_DIGITS = 12


class ConfigurationWatch:
    """Looks whether the files have come to say something else, or come to be wrong.

    Args:
        folder: of `policies.yaml` and `templates/`.
        tell: is given a line for people.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._stamps = _stamps(folder)
        self._version, _ = _state(folder)

    async def run(self) -> NoReturn:
        """Looks every second. Has no end."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            told = await asyncio.to_thread(self._look)
            if told:
                self._tell(told)

    def _look(self) -> str:
        """Returns what there is to tell; empty for nothing."""
        stamps = _stamps(self._folder)
        if stamps == self._stamps:
            return ""
        self._stamps = stamps
        before = self._version
        self._version, told = _state(self._folder)
        return "" if self._version == before else told


def _stamps(folder: Path) -> Mapping[Path, tuple[int, int]]:
    """Returns when each file was changed, and its size."""
    stamps: dict[Path, tuple[int, int]] = {}
    for file in folder.rglob("*"):
        try:
            status = file.stat()
        except OSError:  # gone between listing and looking; the next look sees it
            continue
        stamps[file] = (status.st_mtime_ns, status.st_size)
    return stamps


def _state(folder: Path) -> tuple[str, str]:
    """Returns by what the files are known, templates too, and in one line for people what they are."""
    try:
        catalog = load_catalog(folder)
    except CatalogError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        return str(error), f"configuration refused, the one before stays in force: {error.problems[0]}{more}"
    policies = catalog.policies
    return catalog.version, (
        f"configuration in force: version {policies.revision}, hash {policies.version[:_HASH_DIGITS]}"
    )
