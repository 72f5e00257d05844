"""Applies receipts to the tasks they speak of: forward only, each once, all of a batch in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from psycopg import errors

from agent_reach.v1 import dispatcher_pb2
from services.chassis.clock import Clock
from services.chassis.postgres import Connection, Pool

from .states import receive
from .store import ReceiptApplied, known_receipts, lock_receipt_targets, write_receipts
from .wire import kind_from_wire, moment

_DEADLOCK_TRIES = 5


class Advancer:
    """Applies receipts.

    Args:
        pool: role engine.
        clock: stands in where the provider names no time.
    """

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def advance(
        self, items: Sequence[dispatcher_pb2.AdvanceItem]
    ) -> list[dispatcher_pb2.AdvanceResult.ValueType]:
        """Applies a batch of receipts and says what each did; repeating it is harmless."""
        for tries in range(1, _DEADLOCK_TRIES + 1):
            try:
                async with self._pool.connection() as connection, connection.transaction():
                    return await self._apply(connection, items)
            except (errors.DeadlockDetected, errors.SerializationFailure):
                if tries == _DEADLOCK_TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _apply(
        self, connection: Connection, items: Sequence[dispatcher_pb2.AdvanceItem]
    ) -> list[dispatcher_pb2.AdvanceResult.ValueType]:
        by_key, by_message, targets = await lock_receipt_targets(
            connection,
            [item.idempotency_key for item in items],
            [(item.provider, item.provider_message_id) for item in items if item.provider_message_id],
        )
        seen = await known_receipts(connection, [UUID(item.receipt_id) for item in items])
        standing = {target.id: (target.state, target.reason) for target in targets.values()}
        applied: list[ReceiptApplied] = []
        results: list[dispatcher_pb2.AdvanceResult.ValueType] = []
        for item in items:
            task_id = by_key.get(item.idempotency_key) or by_message.get((item.provider, item.provider_message_id))
            receipt_id, kind = UUID(item.receipt_id), kind_from_wire(item.kind)
            if task_id is None:
                results.append(dispatcher_pb2.ADVANCE_RESULT_TASK_UNKNOWN)
                continue
            if receipt_id in seen or kind is None:
                results.append(dispatcher_pb2.ADVANCE_RESULT_IGNORED)
                continue
            seen.add(receipt_id)
            transition = receive(*standing[task_id], kind, item.code)
            if transition.changed:
                standing[task_id] = (transition.state, transition.reason)
            occurred_at = moment(item.occurred_at) if item.HasField("occurred_at") else self._clock.now()
            applied.append(ReceiptApplied(receipt_id, task_id, kind, item.code, occurred_at, transition))
            results.append(
                dispatcher_pb2.ADVANCE_RESULT_APPLIED if transition.changed else dispatcher_pb2.ADVANCE_RESULT_IGNORED
            )
        if applied:
            await write_receipts(connection, applied)
        return results
