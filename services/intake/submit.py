"""Stores intents: checked one by one, written together, each answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg
import structlog
from psycopg import errors

from agent_reach.durable import Engine
from agent_reach.v1 import reach_pb2
from services.catalog.holder import CatalogHolder
from services.chassis.clock import Clock
from services.chassis.errors import ConflictError, InvalidFieldsError, OverloadedError, ServiceError, Violation
from services.chassis.postgres import Pool, past_deadlocks
from services.chassis.principal import Principal

from .draft import Draft
from .intent_queue import INTENTS, claim_of
from .store import earlier_intents, insert_intents, standing_intents
from .validation import draft_of

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stored:
    """An intent that stands, and whether it stood before."""

    id: UUID
    duplicate: bool


Result = Stored | ServiceError


class Submitter:
    """Validates and stores batches of intents.

    Args:
        pool: role engine.
        catalog: validated against what is in force.
        clock: the one clock; times the buckets of derived keys.
        engine: given what it has free places for, woken for the rest.
    """

    def __init__(self, pool: Pool, catalog: CatalogHolder, clock: Clock, engine: Engine) -> None:
        self._pool = pool
        self._catalog = catalog
        self._clock = clock
        self._engine = engine

    def draft(
        self, spec: reach_pb2.IntentSpec | None, principal: Principal, traceparent: str, path: str = "intent"
    ) -> Draft | InvalidFieldsError:
        """Checks one intent; None is one that could not be read."""
        if spec is None:
            return InvalidFieldsError([Violation(path, "is no valid message: one of its texts is not valid UTF-8")])
        try:
            return draft_of(
                spec,
                principal=principal,
                catalog=self._catalog.current,
                now=self._clock.now(),
                traceparent=traceparent,
                path=path,
            )
        except InvalidFieldsError as error:
            return error

    async def submit(
        self, specs: Sequence[reach_pb2.IntentSpec | None], principal: Principal, traceparent: str
    ) -> list[Result]:
        """Checks and stores a batch of one caller; one result for each, in order."""
        checked = [self.draft(spec, principal, traceparent, f"intents[{index}]") for index, spec in enumerate(specs)]
        stored = iter(await self.store([draft for draft in checked if isinstance(draft, Draft)]))
        return [next(stored) if isinstance(draft, Draft) else draft for draft in checked]

    async def store(self, drafts: Sequence[Draft]) -> list[Result]:
        """Stores checked intents, of any callers; one result for each, in order.

        Raises:
            psycopg.OperationalError: PostgreSQL cannot be reached; nothing of what was not answered is stored.
        """
        if not drafts:
            return []
        try:
            return await self._store(drafts)
        except (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded) as error:
            if len(drafts) == 1:
                _log.warning("intent_not_storable", intent_id=str(drafts[0].id), error=type(error).__name__)
                return [InvalidFieldsError([Violation("intent", "PostgreSQL cannot store it; check its texts")])]
        # One of them is at fault; halving finds it and stores the others.
        middle = len(drafts) // 2
        return [*await self.store(drafts[:middle]), *await self.store(drafts[middle:])]

    async def _store(self, drafts: Sequence[Draft]) -> list[Result]:
        derived = [draft for draft in drafts if draft.earlier_key_hash is not None]
        earlier = await earlier_intents(self._pool, derived) if derived else {}
        repeated = {
            draft.id: earlier[draft.tenant, draft.earlier_key_hash]
            for draft in derived
            if draft.earlier_key_hash is not None and (draft.tenant, draft.earlier_key_hash) in earlier
        }
        new = [draft for draft in drafts if draft.id not in repeated]
        inserted = await self._insert(new) if new else {}
        known = [(draft.tenant, draft.key_hash) for draft in new if draft.id not in inserted]
        standing = await standing_intents(self._pool, known) if known else {}
        results: list[Result] = []
        for draft in drafts:
            if draft.id in inserted:
                results.append(Stored(draft.id, duplicate=False))
            elif draft.id in repeated:
                results.append(Stored(repeated[draft.id], duplicate=True))
            else:
                first = standing[draft.tenant, draft.key_hash]
                if first.content_hash == draft.content_hash:
                    results.append(Stored(first.id, duplicate=True))
                else:
                    results.append(_reused(first.id))
        return results

    async def _insert(self, drafts: Sequence[Draft]) -> dict[UUID, datetime]:
        with self._engine.reserve(INTENTS, len(drafts)) as places:
            owned = drafts[: places.granted]
            owners = {draft.id: places.owner for draft in owned}
            inserted = await past_deadlocks(lambda: insert_intents(self._pool, drafts, owners))
            places.adopt(
                [claim_of(draft, places.owner, inserted[draft.id]) for draft in owned if draft.id in inserted]
            )
            if len(owned) < len(drafts):
                self._engine.wake(INTENTS)
            return inserted


def _reused(intent_id: UUID) -> ConflictError:
    return ConflictError(
        "this intent_key was used for other content; the first intent stands",
        metadata={"intent_id": str(intent_id)},
    )


class GroupCommit:
    """Lets concurrent unary submits share a write.

    While one write runs, the next gathers: under load the batches grow by themselves, alone a call waits for nobody.

    Args:
        submitter: stores the batches.
        queue: calls that may wait; beyond that they are refused.
        batch: calls written together, at most.
        writers: writes at once.
    """

    def __init__(self, submitter: Submitter, *, queue: int, batch: int, writers: int = 2) -> None:
        self._submitter = submitter
        self._waiting: asyncio.Queue[tuple[Draft, asyncio.Future[Result]]] = asyncio.Queue(queue)
        self._batch = batch
        self._writers = writers

    async def run(self) -> None:
        """Writes until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._writers):
                group.create_task(self._write())

    async def store(self, draft: Draft) -> Stored:
        """Stores one intent together with others.

        Raises:
            OverloadedError: too many are waiting.
            ConflictError: its key was used for other content.
            psycopg.OperationalError: PostgreSQL cannot be reached.
        """
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((draft, answer))
        except asyncio.QueueFull:
            raise OverloadedError("too many intents are waiting to be stored; slow down") from None
        result = await answer
        if isinstance(result, ServiceError):
            raise result
        return result

    async def _write(self) -> None:
        while True:
            entries = [await self._waiting.get()]
            while len(entries) < self._batch and not self._waiting.empty():
                entries.append(self._waiting.get_nowait())
            # Who went away meanwhile asked for nothing any more.
            entries = [entry for entry in entries if not entry[1].done()]
            try:
                results = await self._submitter.store([draft for draft, _ in entries])
            except Exception as error:  # noqa: BLE001 - each caller gets it, and the writer goes on
                for _, answer in entries:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for (_, answer), result in zip(entries, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
