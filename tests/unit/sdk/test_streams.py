"""Streams that break go on by themselves: each intent is answered once, no outcome is left out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from agent_reach import (
    AsyncReach,
    IntentFields,
    InvalidArgumentError,
    NotFoundError,
    Reach,
    Refused,
    Submitted,
    UnavailableError,
)
from agent_reach.client.submission import Result

from .broken_server import BrokenServer, serving

# The same promises hold for both clients: each test gets a function that submits, or watches, with one of them.
SubmitMany = Callable[[str, Iterable[IntentFields], int], Any]


async def _submit_async(target: str, intents: Iterable[IntentFields], batch_size: int) -> list[Result]:
    async with AsyncReach(target, api_key="k") as reach:
        return [result async for result in reach.submit_many(intents, batch_size=batch_size)]


async def _submit_sync(target: str, intents: Iterable[IntentFields], batch_size: int) -> list[Result]:
    def submit() -> list[Result]:
        with Reach(target, api_key="k") as reach:
            return list(reach.submit_many(intents, batch_size=batch_size))

    return await asyncio.to_thread(submit)


both = pytest.mark.parametrize("submit_many", [_submit_async, _submit_sync])


def _intents(users: Iterable[str]) -> Iterator[IntentFields]:
    for user in users:
        yield {"scene": "alert", "user_id": user}


@both
async def test_every_intent_is_answered_once_in_order_though_streams_break(submit_many: SubmitMany) -> None:
    server = BrokenServer(break_after=[0, 2, 1])
    users = [f"u{number}" for number in range(95)]
    async with serving(server) as target:
        results = await submit_many(target, _intents(users), 10)
    assert [result.intent_id for result in results] == [f"id-{user}" for user in users]
    assert server.streams == 4


@both
async def test_an_intent_that_no_message_can_carry_is_refused_in_its_place(submit_many: SubmitMany) -> None:
    users = ["a", "half\ud800", "refuse me", "b", "\udc00", "\udc01", "c"]
    async with serving(BrokenServer()) as target:
        results = await submit_many(target, _intents(users), 2)
    assert [isinstance(result, Submitted) for result in results] == [True, False, False, True, False, False, True]
    assert "lone surrogate" in results[1].error.message


@both
async def test_a_batch_of_nothing_but_refusals_needs_no_server(submit_many: SubmitMany) -> None:
    results = await submit_many("127.0.0.1:1", _intents(["\ud800"] * 5), 2)
    assert [type(result) for result in results] == [Refused] * 5


@both
async def test_no_intents_give_no_results(submit_many: SubmitMany) -> None:
    assert await submit_many("127.0.0.1:1", [], 2) == []


@both
async def test_large_intents_travel_in_small_batches(submit_many: SubmitMany) -> None:
    server = BrokenServer()
    large: list[IntentFields] = [
        {"scene": "s", "user_id": f"u{number}", "variables": {"text": "x" * 60_000}} for number in range(100)
    ]
    async with serving(server) as target:
        results = await submit_many(target, large, 1_000)
    assert len(results) == 100
    assert max(server.batch_sizes) < 20


async def test_no_more_is_read_than_a_few_batches_ahead_of_the_answers() -> None:
    read = itertools.count()
    position = 0

    def intents() -> Iterator[IntentFields]:
        nonlocal position
        for number in range(1_000):
            position = next(read)
            yield {"scene": "s", "user_id": f"u{number}"}

    async with serving(BrokenServer()) as target, AsyncReach(target, api_key="k") as reach:
        answered = 0
        async for _result in reach.submit_many(intents(), batch_size=10):
            answered += 1
            assert position - answered <= 50
    assert answered == 1_000


async def test_a_source_that_is_asynchronous_is_taken_too() -> None:
    async def source() -> AsyncIterator[IntentFields]:
        for fields in _intents(["a", "b"]):
            yield fields

    async with serving(BrokenServer()) as target, AsyncReach(target, api_key="k") as reach:
        assert len([result async for result in reach.submit_many(source())]) == 2


async def test_a_server_that_stays_away_is_told_in_the_end() -> None:
    async with AsyncReach("127.0.0.1:1", api_key="k", patience_seconds=0.2) as reach:
        with pytest.raises(UnavailableError):
            _ = [result async for result in reach.submit_many(_intents(["a"]))]


async def test_watching_goes_on_after_the_last_outcome_that_was_seen() -> None:
    server = BrokenServer(break_after=[3, 0, 2], outcomes=8)
    async with serving(server) as target, AsyncReach(target, api_key="k") as reach:
        seen = []
        async for watched in reach.watch_outcomes():
            seen.append((watched.outcome.intent_id, watched.cursor))
            if len(seen) == 8:
                break
    assert seen == [(str(number), str(number)) for number in range(1, 9)]
    assert server.cursors == ["", "3", "3", "5"]


async def test_the_sync_client_watches_likewise() -> None:
    server = BrokenServer(break_after=[3], outcomes=5)

    def watch(target: str) -> list[str]:
        with Reach(target, api_key="k") as reach:
            return [watched.outcome.intent_id for watched in itertools.islice(reach.watch_outcomes(), 5)]

    async with serving(server) as target:
        assert await asyncio.to_thread(watch, target) == ["1", "2", "3", "4", "5"]


async def test_lists_are_read_page_by_page() -> None:
    expected = [f"{page}-{place}" for page in range(3) for place in range(2)]

    def listed(target: str) -> list[str]:
        with Reach(target, api_key="k") as reach:
            return [intent.intent_id for intent in reach.list_intents()]

    async with serving(BrokenServer()) as target:
        async with AsyncReach(target, api_key="k") as reach:
            assert [intent.intent_id async for intent in reach.list_intents()] == expected
        assert await asyncio.to_thread(listed, target) == expected


async def test_a_refusal_is_raised_as_the_error_of_its_code() -> None:
    def get(target: str) -> None:
        with Reach(target, api_key="k") as reach:
            reach.get_intent("x")

    async with serving(BrokenServer()) as target:
        async with AsyncReach(target, api_key="k") as reach:
            with pytest.raises(NotFoundError, match="no such intent"):
                await reach.get_intent("x")
        with pytest.raises(NotFoundError, match="no such intent"):
            await asyncio.to_thread(get, target)


async def test_a_field_that_no_message_can_carry_is_named_before_anything_is_sent() -> None:
    async with AsyncReach("127.0.0.1:1", api_key="k") as reach:
        with pytest.raises(InvalidArgumentError, match="intent_id"):
            await reach.get_intent("\ud800")
        with pytest.raises(InvalidArgumentError, match="user_id"):
            await reach.submit(scene="s", user_id="\ud800")
