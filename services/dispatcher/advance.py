"""Applies receipts to the tasks they speak of: forward only, each once, all of a batch in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from agent_reach.v1 import dispatcher_pb2
from services.catalog.rules import Category, Channel
from services.catalog.wire import category_to_wire, channel_to_wire
from services.chassis.clock import Clock
from services.chassis.moments import moment
from services.chassis.postgres import Connection, Pool, past_deadlocks

from .states import receive
from .store import ReceiptApplied, ReceiptTarget, known_receipts, lock_receipt_targets, write_receipts
from .wire import kind_from_wire


class Advancer:
    """Applies receipts.

    Args:
        pool: role engine.
        clock: stands in where the provider names no time.
    """

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock

    async def advance(self, items: Sequence[dispatcher_pb2.AdvanceItem]) -> dispatcher_pb2.AdvanceResponse:
        """Applies a batch of receipts, says what each did, and whom it was about; repeating it is harmless."""

        async def work() -> dispatcher_pb2.AdvanceResponse:
            async with self._pool.connection() as connection, connection.transaction():
                return await self._apply(connection, items)

        return await past_deadlocks(work)

    async def _apply(
        self, connection: Connection, items: Sequence[dispatcher_pb2.AdvanceItem]
    ) -> dispatcher_pb2.AdvanceResponse:
        by_key, by_message, targets = await lock_receipt_targets(
            connection,
            [item.idempotency_key for item in items],
            [(item.provider, item.provider_message_id) for item in items if item.provider_message_id],
        )
        seen = await known_receipts(connection, [UUID(item.receipt_id) for item in items])
        standing = {target.id: (target.state, target.reason) for target in targets.values()}
        applied: list[ReceiptApplied] = []
        response = dispatcher_pb2.AdvanceResponse()
        for item in items:
            task_id = by_key.get(item.idempotency_key) or by_message.get((item.provider, item.provider_message_id))
            response.recipients.append(_recipient(targets.get(task_id) if task_id else None))
            receipt_id, kind = UUID(item.receipt_id), kind_from_wire(item.kind)
            if task_id is None:
                response.results.append(dispatcher_pb2.ADVANCE_RESULT_TASK_UNKNOWN)
                continue
            if receipt_id in seen or kind is None:
                response.results.append(dispatcher_pb2.ADVANCE_RESULT_IGNORED)
                continue
            seen.add(receipt_id)
            transition = receive(*standing[task_id], kind, item.code)
            if transition.changed:
                standing[task_id] = (transition.state, transition.reason)
            occurred_at = moment(item.occurred_at) if item.HasField("occurred_at") else self._clock.now()
            applied.append(ReceiptApplied(receipt_id, task_id, kind, item.code, occurred_at, transition))
            response.results.append(
                dispatcher_pb2.ADVANCE_RESULT_APPLIED if transition.changed else dispatcher_pb2.ADVANCE_RESULT_IGNORED
            )
        if applied:
            await write_receipts(connection, applied)
        return response


def _recipient(target: ReceiptTarget | None) -> dispatcher_pb2.ReceiptRecipient:
    """Returns whom a task is for, as the contract writes it; nobody for none."""
    if target is None:
        return dispatcher_pb2.ReceiptRecipient()
    category = category_to_wire(Category(target.category))
    recipient = dispatcher_pb2.ReceiptRecipient(tenant=target.tenant, user_id=target.user_id, category=category)
    if target.channel and target.address:
        recipient.address.channel = channel_to_wire(Channel(target.channel))
        recipient.address.value = target.address
    return recipient
