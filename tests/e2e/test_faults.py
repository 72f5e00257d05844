"""What is lost when a process, Redis or PostgreSQL goes at the worst moment: nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import redis.asyncio

from agent_reach import AsyncReach, IntentFields, Submitted, UnavailableError
from agent_reach.cli.words import state
from services.demo.world import World
from services.local.mailbox import Mail

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# Exempt from quiet hours, so that these tests hold at any time of day.
_SCENE = "alert"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def system() -> AsyncIterator[World]:
    """One system for all of them: each leaves it as it should be, whole."""
    directory = Path(tempfile.mkdtemp(prefix="reach-e2e-"))
    async with World(directory, environment={"REACH_SMTP_CONNECTIONS": "100", "REACH_LEASE_SECONDS": "5"}) as running:
        yield running
    shutil.rmtree(directory)


@pytest.fixture
def world(system: World) -> World:
    """The system with an empty mailbox, and a mail server that takes mails at once."""
    system.mails.clear()
    system.before_taking = _at_once
    return system


async def _at_once(_mail: Mail) -> None:
    """Has nothing to wait for."""


def _alerts(addresses: Iterable[str]) -> Iterator[IntentFields]:
    for address in addresses:
        yield {"scene": _SCENE, "address": address, "variables": {"title": f"To {address}", "detail": "It burns."}}


async def _submitted(reach: AsyncReach, intents: Iterable[IntentFields]) -> set[str]:
    results = [result async for result in reach.submit_many(intents, batch_size=50)]
    accepted = {result.intent_id for result in results if isinstance(result, Submitted)}
    assert len(accepted) == len(results)
    return accepted


async def _await_states(reach: AsyncReach, intent_ids: Iterable[str], *states: str) -> Counter[str]:
    """Waits until every intent reached one of the states; returns how many reached which."""
    missing, reached = set(intent_ids), Counter[str]()
    async for watched in reach.watch_outcomes():
        name = state(watched.outcome.state)
        if watched.outcome.intent_id in missing and name in states:
            missing.discard(watched.outcome.intent_id)
            reached[name] += 1
            if not missing:
                break
    return reached


async def test_a_dispatcher_killed_with_100_tasks_in_hand_loses_none_and_repeats_under_the_same_message_id(
    world: World,
) -> None:
    addresses = [f"held{number}@example.com" for number in range(100)]
    arrived: list[Mail] = []
    all_arrived, released = asyncio.Event(), asyncio.Event()

    async def hold(mail: Mail) -> None:
        arrived.append(mail)
        if len(arrived) == len(addresses):
            all_arrived.set()
        await released.wait()

    world.before_taking = hold
    intent_ids = await _submitted(world.reach, _alerts(addresses))
    await all_arrived.wait()

    await world.stack.roles["dispatcher"].kill()
    released.set()
    await world.stack.roles["dispatcher"].start()

    assert await _await_states(world.reach, intent_ids, "SENT", "FAILED") == {"SENT": 100}
    message_ids = {address: set[str]() for address in addresses}
    for mail in arrived:
        message_ids[mail.recipients[0]].add(mail.message_id)
    assert {address for address, ids in message_ids.items() if len(ids) != 1} == set()


async def test_redis_emptied_with_200_intents_in_flight_loses_nothing_and_wakes_no_suppressed_user(
    world: World,
) -> None:
    wanted = [f"user{number}@example.com" for number in range(180)]
    unwanted = [f"gone{number}@example.com" for number in range(20)]
    mixed = [address for pair in zip(wanted[:20], unwanted, strict=True) for address in pair] + wanted[20:]
    async with redis.asyncio.from_url(world.stack.redis.url) as client:

        async def empty_redis_again_and_again(_mail: Mail) -> None:
            if len(world.mails) % 20 == 0:
                await client.flushall()

        for address in unwanted:
            await world.reach.suppress(address=address, source="complaint")
        world.before_taking = empty_redis_again_and_again
        intent_ids = await _submitted(world.reach, _alerts(mixed))
        await client.flushall()

        reached = await _await_states(world.reach, intent_ids, "SENT", "SUPPRESSED", "FAILED", "EXPIRED")
        assert reached == {"SENT": 180, "SUPPRESSED": 20}
        assert sorted(mail.recipients[0] for mail in world.mails) == sorted(wanted)


@pytest.mark.slow
async def test_postgres_away_for_10_seconds_is_told_with_a_retry_delay_and_then_everything_goes_on(
    world: World,
) -> None:
    before = [f"before{number}@example.com" for number in range(50)]
    during = [f"during{number}@example.com" for number in range(50)]
    intent_ids = await _submitted(world.reach, _alerts(before))
    processes = {name: role.pid for name, role in world.stack.roles.items()}
    await asyncio.to_thread(world.stack.postgres.pause)
    # A client that has patience: its stream waits for the end of the outage.
    patient = asyncio.create_task(_submitted(world.reach, _alerts(during)))
    outage = asyncio.create_task(asyncio.sleep(10))
    with pytest.raises(UnavailableError) as caught:
        await world.reach.submit(**next(_alerts(["told@example.com"])))
    assert caught.value.reason == "DATABASE_UNAVAILABLE"
    assert caught.value.retry_after_seconds is not None
    await outage
    await asyncio.to_thread(world.stack.postgres.resume)

    intent_ids |= await patient
    assert await _await_states(world.reach, intent_ids, "SENT", "FAILED", "EXPIRED") == {"SENT": 100}
    assert {name: role.pid for name, role in world.stack.roles.items()} == processes
    assert sorted({mail.recipients[0] for mail in world.mails}) == sorted(before + during)


async def test_10_000_intents_in_batches_are_each_answered_once_and_bad_ones_spoil_nothing(
    world: World,
) -> None:
    bad = {7: "nul\0user", 4_321: "half\ud800user", 9_999: "long" * 100}

    def intents() -> Iterator[IntentFields]:
        for number in range(10_000):
            user = bad.get(number, f"user{number}")
            yield {"scene": _SCENE, "user_id": user, "variables": {"title": "t", "detail": str(number)}}

    results = [result async for result in world.reach.submit_many(intents())]
    refused = [number for number, result in enumerate(results) if not isinstance(result, Submitted)]
    accepted = {result.intent_id for result in results if isinstance(result, Submitted)}
    assert refused == sorted(bad)
    assert (len(results), len(accepted)) == (10_000, 9_997)


async def test_50_identical_submits_at_the_same_instant_are_one_intent_and_one_mail(world: World) -> None:
    alert = next(_alerts(["ada@example.com"]))
    answers = await asyncio.gather(*(world.reach.submit(**alert) for _ in range(50)))
    (intent_id,) = {answer.intent_id for answer in answers}
    assert [answer.duplicate for answer in answers].count(False) == 1
    await _await_states(world.reach, [intent_id], "SENT")
    assert len((await world.reach.explain(intent_id)).tasks) == 1
    assert len(world.mails) == 1


async def test_code_runs_in_the_sandbox_and_its_output_comes_back(world: World) -> None:
    events = [event async for event in world.reach.execute("print(6 * 7)")]
    assert b"".join(event.stdout for event in events) == b"42\n"
    assert events[-1].result.exit_code == 0
