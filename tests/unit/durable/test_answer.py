"""What becomes of a settlement is told once, to everybody who asked and to everybody who asks later."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from agent_reach.durable import Answer, Claim, Done, Settlement


@pytest.fixture
def answer() -> Answer:
    return Answer(Settlement(Claim(uuid4(), uuid4(), 1, 0, datetime(2000, 1, 1, tzinfo=UTC)), Done()))


@pytest.mark.parametrize("stored", [True, False])
async def test_it_is_told_once_to_all_whenever_they_ask(answer: Answer, *, stored: bool) -> None:
    told: list[bool] = []
    answer.then(told.append)
    waiting = [asyncio.ensure_future(answer), asyncio.ensure_future(answer)]
    await asyncio.sleep(0)
    assert told == []
    answer.resolve(stored=stored)
    answer.resolve(stored=not stored)
    answer.then(told.append)
    assert told == [stored, stored]
    assert await asyncio.gather(*waiting, answer) == [stored] * 3


async def test_who_gave_up_waiting_keeps_nobody_from_being_told(answer: Answer) -> None:
    impatient, patient = asyncio.ensure_future(answer), asyncio.ensure_future(answer)
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait({impatient})
    answer.resolve(stored=True)
    assert await patient


async def test_a_callback_that_raises_is_reported_and_the_others_are_called(answer: Answer) -> None:
    told: list[bool] = []
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def broken(_: object) -> None:
        raise OSError("broken")

    answer.then(broken)
    answer.then(told.append)
    answer.resolve(stored=True)
    assert told == [True]
    assert [str(error) for error in reported] == ["broken"]
