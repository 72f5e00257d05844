"""What a provider is answered, and what is stored then."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import psycopg
import pytest

from agent_reach.local import LocalPostgres
from services.chassis.startup import StartupError
from services.receipts.facts import MAX_BODY_BYTES

from .support import OTHER_SECRET, Dispatcher, Dsns, Receipts, dispatching, event, receipts, signed


async def test_a_signed_post_is_stored_with_its_raw_bytes(service: Receipts) -> None:
    body = json.dumps([event(1, occurred_at="2026-03-07T17:00:00Z", code="2.0.0"), event(2)], indent=1).encode()

    answer = await service.post(body)

    assert (answer.status, answer.document["stored"]) == (202, 2)
    assert await service.rows("SELECT provider, body FROM receipts.posts") == [("demo", body)]
    rows = await service.rows(
        "SELECT e.id, provider_event_id, kind, idempotency_key, code, occurred_at IS NULL, p.id IS NULL"
        " FROM receipts.events e LEFT JOIN receipts.posts p ON p.id = e.post_id ORDER BY provider_event_id"
    )
    assert [str(row[0]) for row in rows] == answer.document["receipt_ids"]
    assert [row[1:] for row in rows] == [
        ("e-1", "delivered", "k-1", "2.0.0", False, False),
        ("e-2", "delivered", "k-2", "", True, False),
    ]


async def test_white_space_added_after_signing_is_refused_and_nothing_is_stored(service: Receipts) -> None:
    answer = await service.post(event(), change=lambda body: body.replace(b": ", b":"))

    assert (answer.status, answer.document["error"]["reason"]) == (401, "SIGNATURE_INVALID")
    assert await service.rows("SELECT FROM receipts.posts UNION ALL SELECT FROM receipts.events") == []


async def test_a_stranger_and_an_unknown_provider_are_turned_away(service: Receipts) -> None:
    assert (await service.post(event(), secret=OTHER_SECRET)).status == 401
    assert (await service.post_raw(b"{}", {})).status == 401
    assert (await service.post(event(), provider="nobody")).status == 404


async def test_the_same_post_again_is_stored_once_and_gets_the_same_ids(service: Receipts) -> None:
    answers = [await service.post([event(1), event(2)]) for _ in range(3)]

    assert [answer.status for answer in answers] == [202, 202, 202]
    assert len({tuple(answer.document["receipt_ids"]) for answer in answers}) == 1
    assert await service.rows("SELECT count(*) FROM receipts.events") == [(2,)]
    assert await service.rows("SELECT count(*) FROM receipts.posts") == [(1,)]


async def test_overlapping_posts_at_the_same_instant_agree_and_nobody_deadlocks(service: Receipts) -> None:
    numbers = list(range(60))

    answers = await asyncio.gather(
        *(service.post([event(n) for n in (numbers if turn % 2 else reversed(numbers[turn:]))]) for turn in range(16))
    )

    assert {answer.status for answer in answers} == {202}
    assert await service.rows("SELECT count(*) FROM receipts.events") == [(60,)]
    assert len({receipt_id for answer in answers for receipt_id in answer.document["receipt_ids"]}) == 60


async def test_an_event_twice_in_one_post_is_one_event(service: Receipts) -> None:
    answer = await service.post([event(1), event(1, kind="bounced")])

    assert len(answer.document["receipt_ids"]) == 2
    assert len(set(answer.document["receipt_ids"])) == 1
    assert await service.rows("SELECT kind FROM receipts.events") == [("delivered",)]


async def test_what_cannot_be_read_is_named_and_the_rest_is_kept(service: Receipts) -> None:
    answer = await service.post([event(1), event(2, kind="teleported"), event(3, event_id="a\x00b")])

    assert answer.status == 400
    assert [field["field"] for field in answer.document["error"]["fields"]] == ["[1].kind", "[2].event_id"]
    assert await service.rows("SELECT provider_event_id FROM receipts.events") == [("e-1",)]


async def test_a_body_that_is_no_json_is_refused(service: Receipts) -> None:
    answer = await service.post(b"not json")

    assert answer.status == 400
    assert answer.document["error"]["fields"][0]["field"] == "body"


async def test_a_body_up_to_the_limit_is_read_and_one_byte_more_is_not(service: Receipts) -> None:
    body = json.dumps(event()).encode().ljust(MAX_BODY_BYTES)

    assert (await service.post(body)).status == 202
    assert (await service.post(body + b" ")).status == 413


async def test_a_body_that_hides_its_length_meets_the_same_limit(service: Receipts) -> None:
    async def pieces() -> object:
        for _ in range(20):
            yield b" " * 64 * 1024

    url = f"http://127.0.0.1:{service.http_port}/v1/providers/demo/receipts"
    async with service.session.post(url, data=pieces(), headers=signed(b"")) as response:
        assert response.status == 413


async def test_postgres_away_means_come_again_and_then_all_is_well(service: Receipts, postgres: LocalPostgres) -> None:
    assert (await service.post(event(1))).status == 202
    await asyncio.to_thread(postgres.pause)
    try:
        answer = await service.post(event(2))
    finally:
        await asyncio.to_thread(postgres.resume)

    assert (answer.status, answer.document["error"]["reason"]) == (503, "DATABASE_UNAVAILABLE")
    assert int(answer.retry_after or "0") > 0
    while (answer := await service.post(event(2))).status == 503:
        pass
    assert answer.status == 202
    assert await service.rows("SELECT count(*) FROM receipts.events") == [(2,)]


async def test_a_server_that_drains_takes_no_new_post(service: Receipts) -> None:
    service.runtime.stopping.set()

    answer = await service.post(event())

    assert answer.status == 503
    assert answer.retry_after is not None
    assert await service.rows("SELECT FROM receipts.events") == []


async def test_more_posts_than_may_be_in_work_are_asked_to_come_again(migrated: Dsns, dispatcher: Dispatcher) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slow() -> object:
        yield b"{"
        started.set()
        await release.wait()
        yield b"}"

    async with dispatching(dispatcher) as port, receipts(migrated, port, receipts_max_posts=1) as service:
        url = f"http://127.0.0.1:{service.http_port}/v1/providers/demo/receipts"
        first = asyncio.ensure_future(_status(service, url, slow()))
        await started.wait()
        while (answer := await service.post(event())).status != 503:
            pass
        assert answer.retry_after == "1"
        release.set()
        assert await first == 401
        assert (await service.post(event())).status == 202


async def _status(service: Receipts, url: str, data: object) -> int:
    async with service.session.post(url, data=data, headers=signed(b"{}", OTHER_SECRET)) as response:
        return response.status


async def test_what_was_said_can_be_changed_by_nobody_but_the_owner(service: Receipts) -> None:
    await service.post(event())

    for statement in (
        "UPDATE receipts.events SET kind = 'bounced'",
        "DELETE FROM receipts.events",
        "UPDATE receipts.posts SET body = ''",
        "DELETE FROM receipts.posts",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await service.rows(statement)


async def test_a_secret_or_address_that_is_none_stops_the_start_and_is_not_shown(migrated: Dsns) -> None:
    for options in (
        {"receipt_secrets": {"demo": ["whsec_"]}},
        {"receipt_secrets": {"De mo": ["whsec_hidden"]}},
        {"receipts_http_address": "127.0.0.1:1x"},
    ):
        with pytest.raises(StartupError) as caught:
            async with receipts(migrated, 1, **options):
                raise AssertionError("it must not start")
        assert "hidden" not in str(caught.value)
        assert caught.value.advice


async def test_ids_are_uuids(service: Receipts) -> None:
    answer = await service.post(event())

    assert UUID(answer.document["receipt_ids"][0]).version == 7
