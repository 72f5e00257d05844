"""Receipts: whatever order they come in, each counts once, and none leads to a second send."""

from __future__ import annotations

import asyncio
import random
import uuid

import psycopg
from aiohttp import web

from agent_reach.v1 import dispatcher_pb2, message_pb2, timeline_pb2
from tests.conftest import Dsns
from tests.support.dispatching import Dispatching, alert, intent, receipt, send_now
from tests.support.suite import Suite, eventually, running_suite
from tests.support.webhooks import Receiver, receiving

DELIVERED = timeline_pb2.RECEIPT_KIND_DELIVERED
BOUNCED = timeline_pb2.RECEIPT_KIND_BOUNCED


async def posted(receiver: Receiver, count: int = 1) -> None:
    """Waits until so many webhooks are with the receiver."""

    async def probe() -> bool:
        return len(receiver.posts) >= count

    await eventually(probe)


async def test_a_receipt_before_the_answer_and_again_makes_it_delivered_once(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.open.clear()
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        await line.accept(item)
        await posted(receiver)
        early = receipt(await line.task(item), DELIVERED)
        assert await line.advance(early, early) == ["APPLIED", "IGNORED"]
        assert await line.advance(early, receipt(await line.task(item), DELIVERED)) == ["IGNORED", "IGNORED"]
        receiver.open.set()

        async def attempted() -> timeline_pb2.Task | None:
            task = await line.task(item)
            return task if task.attempts else None

        task = await eventually(attempted)
        assert task.state == message_pb2.STATE_DELIVERED
        assert [attempt.code for attempt in task.attempts] == ["http_200"]
        assert [known.changed_state for known in task.receipts] == [True, False]
        assert await line.told(item) == ["PENDING", "SENDING", "DELIVERED"]
        assert len(receiver.posts) == 1


async def test_an_attempt_is_kept_though_two_batches_of_receipts_overtook_it(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.open.clear()
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        await line.accept(item)
        await posted(receiver)
        task = await line.task(item)
        assert await line.advance(receipt(task, DELIVERED)) == ["APPLIED"]
        assert await line.advance(receipt(task, BOUNCED, code="5.1.1")) == ["APPLIED"]
        receiver.open.set()

        async def attempted() -> timeline_pb2.Task | None:
            task = await line.task(item)
            return task if task.attempts else None

        task = await eventually(attempted)
        assert (task.state, task.reason) == (message_pb2.STATE_FAILED, "bounced:5.1.1")
        assert [attempt.code for attempt in task.attempts] == ["http_200"]


async def test_what_was_delivered_while_it_waited_for_a_retry_is_never_sent_again(
    suite: Suite, migrated: Dsns
) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda _path, _before: web.Response(status=503, headers={"Retry-After": "1"})
        line, item = Dispatching(suite), alert(f"{receiver.url}/hook")
        await line.accept(item)
        waiting = await line.reaches(item, "SCHEDULED")
        assert await line.advance(receipt(waiting, DELIVERED)) == ["APPLIED"]
        async with await psycopg.AsyncConnection.connect(migrated.engine) as connection:
            row = await (
                await connection.execute("SELECT state, owner, finished_at IS NOT NULL FROM dispatcher.tasks")
            ).fetchone()
        assert row == ("DELIVERED", None, True), "nothing can claim it any more"
        assert len(receiver.posts) == 1


async def test_news_after_the_end_is_told(suite: Suite) -> None:
    async with receiving() as receiver, running_suite(suite, "policy", "dispatcher"):
        receiver.answer = lambda path, _before: 403 if path == "/closed" else 200
        line = Dispatching(suite)
        good, bad = alert(f"{receiver.url}/hook"), alert(f"{receiver.url}/closed")
        await line.accept(good, bad)
        sent, failed = await line.reaches(good, "SENT"), await line.reaches(bad, "FAILED")
        for news, answer in (
            (receipt(sent, DELIVERED), "APPLIED"),
            (receipt(sent, timeline_pb2.RECEIPT_KIND_REJECTED), "IGNORED"),
            (receipt(sent, BOUNCED), "APPLIED"),
            (receipt(failed, DELIVERED), "IGNORED"),
            (receipt(sent, timeline_pb2.RECEIPT_KIND_UNSPECIFIED), "IGNORED"),
        ):
            assert await line.advance(news) == [answer]
        assert await line.told(good) == ["PENDING", "SENDING", "SENT", "DELIVERED", "FAILED bounced"]
        assert await line.told(bad) == ["PENDING", "SENDING", "FAILED http_403", "FAILED delivered_late"]
        assert (await line.task(bad)).reason == "http_403", "the task keeps why it failed"


async def test_a_task_is_found_by_our_key_or_by_the_providers_id_and_a_stranger_is_said_to_be_unknown(
    suite: Suite,
) -> None:
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    async with running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        item = intent(send_now(message_pb2.CHANNEL_EMAIL, "zoe@example.com"))
        await line.accept(item)
        task = await line.reaches(item, "SENT")
        named = task.attempts[0].provider_message_id
        results = await line.advance(
            receipt(task, DELIVERED, idempotency_key="", provider="other", provider_message_id=named),
            receipt(task, DELIVERED, idempotency_key="", provider="null"),
            receipt(task, DELIVERED, idempotency_key="no such key"),
            receipt(task, DELIVERED, idempotency_key="", provider="null", provider_message_id=named),
        )
        assert results == ["TASK_UNKNOWN", "TASK_UNKNOWN", "TASK_UNKNOWN", "APPLIED"]


async def test_overlapping_batches_of_receipts_never_deadlock_and_apply_each_receipt_once(suite: Suite) -> None:
    suite.own["dispatcher"] = {"null_channels": ("email",)}
    async with running_suite(suite, "policy", "dispatcher"):
        line = Dispatching(suite)
        items = [
            intent(send_now(message_pb2.CHANNEL_EMAIL, f"u{number}@example.com"), user_id=f"u{number}")
            for number in range(40)
        ]
        await line.accept(*items)
        receipts = [
            receipt(await line.reaches(item, "SENT"), DELIVERED, receipt_id=str(uuid.uuid4())) for item in items
        ]

        async def one(seed: int) -> list[tuple[str, str]]:
            order: list[dispatcher_pb2.AdvanceItem] = random.Random(seed).sample(receipts, len(receipts))
            return list(zip([entry.receipt_id for entry in order], await line.advance(*order), strict=True))

        answers = [answer for batch in await asyncio.gather(*(one(seed) for seed in range(8))) for answer in batch]
        applied = [receipt_id for receipt_id, result in answers if result == "APPLIED"]
        assert sorted(applied) == sorted(entry.receipt_id for entry in receipts)
        assert len(answers) == 8 * 40
