"""Stored events reach the dispatcher, whatever happens meanwhile, and none is applied twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from agent_reach.v1 import message_pb2, suppression_pb2, timeline_pb2
from services.chassis.clock import ManualClock

from .support import Dispatcher, Dsns, Receipts, dispatching, event, receipts, until

RESULTS = "SELECT idempotency_key, result FROM receipts.events WHERE finished_at IS NOT NULL ORDER BY 1"


async def finished(service: Receipts, count: int) -> list[tuple[object, ...]]:
    async def enough() -> bool:
        return len(await service.rows(RESULTS)) >= count

    await until(enough)
    return await service.rows(RESULTS)


async def test_an_event_is_applied_at_once_with_all_it_says(service: Receipts, dispatcher: Dispatcher) -> None:
    dispatcher.known = {"k-1"}
    answer = await service.post(
        event(1, kind="bounced", code="5.1.1", provider_message_id="<m@x>", occurred_at="2026-03-07T17:00:00Z")
    )

    assert await finished(service, 1) == [("k-1", "applied")]
    [item] = dispatcher.asked
    assert item.receipt_id == answer.document["receipt_ids"][0]
    assert (item.provider, item.code, item.provider_message_id) == ("demo", "5.1.1", "<m@x>")
    assert item.kind == timeline_pb2.RECEIPT_KIND_BOUNCED
    assert item.occurred_at.ToDatetime(UTC) == datetime(2026, 3, 7, 17, tzinfo=UTC)


async def test_a_repetition_is_not_applied_again(service: Receipts, dispatcher: Dispatcher) -> None:
    dispatcher.known = {"k-1", "k-2"}
    await service.post(event(1))
    await finished(service, 1)

    await service.post([event(1), event(2)])
    await finished(service, 2)

    assert [item.idempotency_key for item in dispatcher.asked] == ["k-1", "k-2"]


async def test_a_receipt_that_comes_before_its_task_waits_for_it(service: Receipts, dispatcher: Dispatcher) -> None:
    await service.post(event(1))

    async def asked_twice() -> bool:
        return len(dispatcher.asked) >= 2

    await until(asked_twice)
    assert await service.rows(RESULTS) == []
    dispatcher.known = {"k-1"}

    assert await finished(service, 1) == [("k-1", "applied")]
    assert len(dispatcher.applied) == 1


async def test_after_three_days_a_receipt_of_no_task_is_laid_aside(migrated: Dsns, dispatcher: Dispatcher) -> None:
    clock = ManualClock(datetime.now(UTC) + timedelta(days=3, hours=1))
    dispatcher.known = {"k-2"}

    async with dispatching(dispatcher) as port, receipts(migrated, port, clock=clock) as service:
        await service.post([event(1), event(2)])

        assert await finished(service, 2) == [("k-1", "task_unknown"), ("k-2", "applied")]


async def test_a_dispatcher_that_is_away_costs_no_attempt(migrated: Dsns, dispatcher: Dispatcher) -> None:
    dispatcher.known = {f"k-{number}" for number in range(20)}
    async with dispatching(dispatcher) as port:
        pass

    async with receipts(migrated, port) as service:
        await service.post([event(number) for number in range(20)])
        assert (await service.rows("SELECT count(*) FROM receipts.events"))[0] == (20,)
        async with dispatching(dispatcher, port):
            assert {result for _, result in await finished(service, 20)} == {"applied"}
        assert await service.rows("SELECT DISTINCT attempts FROM receipts.events") == [(1,)]

    assert len(dispatcher.applied) == len(set(dispatcher.applied)) == 20


async def test_one_event_that_the_dispatcher_cannot_digest_does_not_hold_up_the_others(
    service: Receipts, dispatcher: Dispatcher
) -> None:
    dispatcher.known = {f"k-{number}" for number in range(30)}
    dispatcher.poison = {"k-17"}

    await service.post([event(number) for number in range(30)])
    assert {result for _, result in await finished(service, 29)} == {"applied"}

    dispatcher.poison = set()
    await finished(service, 30)
    assert len(dispatcher.applied) == len(set(dispatcher.applied)) == 30


async def test_what_one_process_left_the_next_one_applies(migrated: Dsns, dispatcher: Dispatcher) -> None:
    async with dispatching(dispatcher) as port:
        async with receipts(migrated, port) as service:
            await service.post([event(number) for number in range(10)])
        dispatcher.known = {f"k-{number}" for number in range(10)}
        async with receipts(migrated, port) as service:
            assert {result for _, result in await finished(service, 10)} == {"applied"}

    assert len(dispatcher.applied) == len(set(dispatcher.applied)) == 10


async def test_who_complained_unsubscribed_or_is_gone_is_suppressed_and_nobody_else(
    service: Receipts, dispatcher: Dispatcher
) -> None:
    kinds = {
        "k-1": {"kind": "complained"},
        "k-2": {"kind": "unsubscribed"},
        "k-3": {"kind": "bounced", "code": "5.1.1"},
        "k-4": {"kind": "bounced", "code": "4.2.2"},
        "k-5": {"kind": "delivered"},
        "k-6": {"kind": "complained"},
    }
    dispatcher.known = kinds.keys() - {"k-6"}
    await service.post([event(int(key[2:]), **changes) for key, changes in kinds.items()])
    await finished(service, 5)

    stored = {
        (request.tenant, each.address.value or each.user_id, each.source)
        for request in dispatcher.suppressed
        for each in request.suppressions
    }
    assert stored == {
        ("acme", "k-1@example.com", suppression_pb2.SUPPRESSION_SOURCE_COMPLAINT),
        ("acme", "k-2@example.com", suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE),
        ("acme", "k-3@example.com", suppression_pb2.SUPPRESSION_SOURCE_BOUNCE),
        ("acme", "ann", suppression_pb2.SUPPRESSION_SOURCE_COMPLAINT),
        ("acme", "ann", suppression_pb2.SUPPRESSION_SOURCE_UNSUBSCRIBE),
    }
    limits = {
        (each.channel, each.category)
        for request in dispatcher.suppressed
        for each in request.suppressions
        if each.user_id
    }
    assert limits == {(message_pb2.CHANNEL_EMAIL, message_pb2.CATEGORY_MARKETING)}


async def test_an_unsubscribe_waits_for_the_policy_and_is_never_lost(
    service: Receipts, dispatcher: Dispatcher
) -> None:
    dispatcher.known, dispatcher.deaf = {"k-1", "k-2"}, True
    await service.post([event(1, kind="unsubscribed"), event(2)])
    assert await finished(service, 1) == [("k-2", "applied")], "what asks for no silence does not wait"

    async def asked_twice() -> bool:
        return len(dispatcher.suppressed) >= 2

    await until(asked_twice)
    assert dispatcher.applied.count(dispatcher.applied[0]) == 1
    dispatcher.deaf = False
    assert await finished(service, 2) == [("k-1", "applied"), ("k-2", "applied")]
