"""Counters shown, and cleared for good: the audit comes first, and a rebuild heeds it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog

from services.catalog.holder import CatalogHolder

from .counters import KEPT, Counted, Counters
from .decision import UserKey
from .operator_store import OperatorStore

_log = structlog.get_logger(__name__)


class Clearing:
    """Shows and clears what counts on users' caps.

    Args:
        catalog: how far back the longest window looks.
        counters: the counters.
        store: the audit.
    """

    def __init__(self, catalog: CatalogHolder, counters: Counters, store: OperatorStore) -> None:
        self._catalog = catalog
        self._counters = counters
        self._store = store

    async def show(self, users: Sequence[UserKey]) -> list[Counted]:
        """Returns what counts, by user, newest first.

        Raises:
            UnavailableError: Redis, or the memory of sends, cannot be reached.
        """
        return await self._counters.show(users, self._reach)

    async def clear(self, user: UserKey, cleared_by: str, reason: str) -> int:
        """Has nothing count that was sent so far; returns how many messages that is.

        What is reserved at this moment counts again when it leaves.

        Raises:
            UnavailableError: Redis, or the memory of sends, cannot be reached. Once the audit has the entry, what was
                sent until then counts no more as soon as the counters are rebuilt; calling again is harmless.
        """
        # Loaded before the audit says that nothing counts: else nothing would be there to be counted.
        await self.show([user])
        entry = await self._store.clear(user, cleared_by, reason)
        cleared = await self._counters.clear(user, self._reach)
        await self._store.note_cleared(user.tenant, entry, cleared)
        _log.info("counters_cleared", user_id=user.user_id, cleared_by=cleared_by, cleared=cleared)
        return cleared

    @property
    def _reach(self) -> timedelta:
        return max(KEPT, self._catalog.current.policies.longest_window)
