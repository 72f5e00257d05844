"""A stream of ten thousand intents: each acknowledged once, in memory that does not grow with the stream."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter

import psycopg
import pytest

from agent_reach.v1 import reach_pb2
from tests.conftest import Dsns
from tests.support.agent import Agent, alert_spec
from tests.support.suite import Suite, running_suite

_BATCH = 250


async def _stream(agent: Agent, count: int, prefix: str) -> Counter[str]:
    """Streams intents as fast as they are taken, and counts the acknowledgements by id."""
    call = agent.reach.SubmitStream(metadata=agent.metadata)
    acknowledged: Counter[str] = Counter()

    async def write() -> None:
        for first in range(0, count, _BATCH):
            batch = [alert_spec("u1", intent_key=f"{prefix}{first + place}") for place in range(_BATCH)]
            await call.write(reach_pb2.SubmitStreamRequest(sequence=first, intents=batch))
        await call.done_writing()

    writing = asyncio.create_task(write())
    expected = 0
    async for answer in call:
        assert answer.sequence == expected
        assert len(answer.results) == _BATCH
        expected += _BATCH
        acknowledged.update(result.accepted.intent_id for result in answer.results)
    await writing
    return acknowledged


async def _peak_of(agent: Agent, count: int, prefix: str) -> int:
    tracemalloc.start()
    try:
        acknowledged = await _stream(agent, count, prefix)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(acknowledged) == count
    assert set(acknowledged.values()) == {1}
    # The ids that this test keeps grow with the stream, nothing else may.
    return peak - count * 200


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_ten_thousand_intents_are_acknowledged_once_in_bounded_memory(suite: Suite, migrated: Dsns) -> None:
    # Only intake runs: what is accepted waits, and the stream is all there is.
    async with running_suite(suite, "intake"):
        agent = Agent(suite)
        await _stream(agent, 1_000, "warm")
        small = await _peak_of(agent, 2_000, "small")
        large = await _peak_of(agent, 10_000, "large")
    assert large < 2 * small, f"peak {large} bytes for 10,000 intents, {small} for 2,000"
    with psycopg.connect(migrated.engine) as connection:
        assert connection.execute("SELECT count(*) FROM intake.intents").fetchone() == (13_000,)
