"""A row is handed out when it is due, to one process at a time, until somebody settles it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from psycopg import AsyncConnection

from agent_reach.durable import Batch, Claim, Done, Engine, Handler, Notifier, QueueSettings, TableQueue
from agent_reach.durable.claims import Claimed

from .ground import TABLE, Ground, RowQueue, ids, until


def finish_into(seen: list[Claim]) -> Handler:
    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            seen.append(claim)
            batch.settle(claim, Done())

    return handle


async def claim(ground: Ground, limit: int, *, horizon_seconds: float = 0, suspects: bool = False) -> list[Claim]:
    owner = ground.instance()
    async with await AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        claimed = await RowQueue().claim(connection, owner, limit, horizon_seconds=horizon_seconds, suspects=suspects)
        return claimed.claims


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


async def test_every_row_is_handed_out_once_though_two_engines_share_the_queue(ground: Ground) -> None:
    rows = ground.insert(400)
    first: list[Claim] = []
    second: list[Claim] = []
    async with ground.engine(finish_into(first)), ground.engine(finish_into(second)):
        await ground.until_finished(400)
    assert sorted(claim.id for claim in first + second) == sorted(rows)
    assert ground.count("attempts = 1 AND claim_no = 1 AND owner IS NULL AND started_at IS NULL") == 400


async def test_an_engine_with_full_hands_leaves_the_rest_to_the_others(ground: Ground) -> None:
    ground.insert(100)
    never = asyncio.Event()
    taken: set[UUID] = set()

    async def hold(batch: Batch) -> None:
        taken.update(ids(await batch.start()))
        await never.wait()

    others: list[Claim] = []
    limits = QueueSettings(slots=20, concurrency=10, batch_size=10, scan_interval_seconds=0.2)
    async with ground.engine(hold, limits=limits) as engine:
        await until(lambda: engine.stats().queues[TABLE].free == 0)
        async with ground.engine(finish_into(others)):
            await ground.until_finished(80)
        assert len(taken) == 10
        assert ground.count("owner IS NOT NULL") == 20
        never.set()


async def test_the_next_rows_are_claimed_when_half_a_batch_of_those_at_hand_has_gone(ground: Ground) -> None:
    ground.insert(100)
    may_end = asyncio.Semaphore(0)

    async def handle(batch: Batch) -> None:
        async def work(claim: Claim) -> None:
            await may_end.acquire()
            batch.settle(claim, Done())

        async with asyncio.TaskGroup() as group:
            for claim in batch.claims:
                group.create_task(work(claim))

    limits = QueueSettings(slots=100, concurrency=40, batch_size=10, scan_interval_seconds=600)
    async with ground.engine(handle, limits=limits):
        await until(lambda: ground.count("owner IS NOT NULL") == 50)
        for _ in range(5):
            may_end.release()
        await until(lambda: ground.count("finished_at IS NOT NULL") == 5 and ground.count("owner IS NOT NULL") == 50)
        for _ in range(95):
            may_end.release()
        await ground.until_finished(100)


async def test_the_urgent_go_first_and_then_the_old(ground: Ground) -> None:
    usual = ground.insert(2, priority=5, run_at=ago(20))
    urgent = ground.insert(2, priority=9, run_at=ago(1))
    older = ground.insert(1, priority=5, run_at=ago(30))
    assert ids(await claim(ground, 2)) == set(urgent)
    assert ids(await claim(ground, 1)) == set(older)
    assert ids(await claim(ground, 9)) == set(usual)


async def test_no_row_starves_behind_more_urgent_ones(ground: Ground) -> None:
    ground.insert(5, priority=9, run_at=ago(1))
    old = ground.insert(1, priority=0, run_at=ago(9 * 60 + 2))
    assert set(old) <= ids(await claim(ground, 1))


async def test_only_what_is_due_inside_the_horizon_is_claimed(ground: Ground) -> None:
    soon = ground.insert(1, run_at=ago(-20))
    ground.insert(1, run_at=ago(-40))
    assert await claim(ground, 10) == []
    assert ids(await claim(ground, 10, horizon_seconds=30)) == set(soon)


async def test_who_has_no_lease_claims_nothing(ground: Ground) -> None:
    ground.insert(1)
    async with await AsyncConnection.connect(ground.dsn, autocommit=True) as connection:
        assert (await RowQueue().claim(connection, uuid4(), 10)).claims == []


async def test_a_row_that_others_are_claiming_is_not_waited_for(ground: Ground) -> None:
    locked, free = ground.insert(1, run_at=ago(9))[0], ground.insert(1, run_at=ago(1))[0]
    async with await AsyncConnection.connect(ground.dsn) as other:
        await other.execute(f"SELECT FROM {TABLE} WHERE id = %s FOR UPDATE", (locked,))
        assert ids(await claim(ground, 10)) == {free}


async def test_a_row_claimed_ahead_is_handed_out_when_it_is_due_and_not_before(ground: Ground) -> None:
    ground.insert(1, run_at=ago(-1.5))
    lateness: list[float] = []

    async def handle(batch: Batch) -> None:
        (row,) = batch.claims
        lateness.append(ground.query("SELECT extract(epoch FROM clock_timestamp() - %s)", row.run_at)[0][0])
        batch.settle(row, Done())

    async with ground.engine(handle) as engine:
        await until(lambda: engine.stats().queues[TABLE].heap == 1)
        await ground.until_finished(1)
    assert lateness[0] >= 0


async def test_rows_of_another_kind_are_left_for_who_can_do_them(ground: Ground) -> None:
    mine, other = ground.insert(3, label="mine"), ground.insert(3, label="other")
    seen: list[Claim] = []
    queue = TableQueue(TABLE, ("label",), condition="t.label = ANY(%(labels)s)", parameters={"labels": ["mine"]})
    async with ground.engine(finish_into(seen), queue=queue):
        await ground.until_finished(3)
    assert ids(seen) == set(mine)
    assert {claim.row["label"] for claim in seen} == {"mine"}
    assert {row[0] for row in ground.query(f"SELECT id FROM {TABLE} WHERE claim_no = 0")} == set(other)


async def test_ten_thousand_rows_due_at_once_stay_inside_the_limits(ground: Ground) -> None:
    ground.query(f"INSERT INTO {TABLE} (label) SELECT 'x' FROM generate_series(1, 10000)")
    limits = QueueSettings(slots=300, concurrency=120, batch_size=50, scan_interval_seconds=0.2)
    most, at_work = 0, 0

    async def handle(batch: Batch) -> None:
        nonlocal most, at_work
        at_work += len(batch.claims)
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= len(batch.claims)
        for row in batch.claims:
            batch.settle(row, Done())

    async with ground.engine(handle, limits=limits) as engine:
        while ground.count("finished_at IS NULL"):
            stats = engine.stats().queues[TABLE]
            assert stats.heap + stats.in_flight + stats.settling <= 300
            await asyncio.sleep(0.05)
    assert most <= 120


# Scans so rare that only a wake-up explains that a row is found.
RARELY = QueueSettings(scan_interval_seconds=3600, full_scan_seconds=3600)


async def first_scan_is_over(engine: Engine) -> None:
    """Returns once the row that lies ahead has been claimed, which a scan does last."""
    await until(lambda: engine.stats().queues[TABLE].heap == 1)


async def test_a_notification_wakes_the_queue_at_once(ground: Ground) -> None:
    ground.insert(1, run_at=ago(-1800))
    seen: list[Claim] = []
    async with ground.engine(finish_into(seen), limits=RARELY) as engine, ground.pool() as pool:
        await first_scan_is_over(engine)
        rows = ground.insert(3)
        async with Notifier(pool) as notifier:
            notifier.poke(TABLE)
        await until(lambda: ids(seen) == set(rows))


async def test_a_row_committed_long_after_its_time_is_found_when_it_is_announced(ground: Ground) -> None:
    ground.insert(1, run_at=ago(-1800))
    seen: list[Claim] = []
    async with ground.engine(finish_into(seen), limits=RARELY, listens=False) as engine:
        await first_scan_is_over(engine)
        moment = ago(60)
        late = ground.insert(1, run_at=moment)
        engine.wake(TABLE, moment)
        await until(lambda: ids(seen) == set(late))


async def test_what_nobody_announced_is_found_by_the_next_full_scan(ground: Ground) -> None:
    limits = QueueSettings(scan_interval_seconds=0.1, full_scan_seconds=0.5)
    first = ground.insert(1)
    seen: list[Claim] = []
    async with ground.engine(finish_into(seen), limits=limits, listens=False):
        await until(lambda: ids(seen) == set(first))
        late = ground.insert(1, run_at=ago(3600))
        await until(lambda: ids(seen) == {*first, *late})


async def test_pokes_are_sent_together(ground: Ground) -> None:
    got = 0
    async with (
        await AsyncConnection.connect(ground.dsn, autocommit=True) as listener,
        ground.pool() as pool,
    ):
        await listener.execute(f'LISTEN "{TABLE}"')
        async with Notifier(pool) as notifier:
            for _ in range(1000):
                notifier.poke(TABLE, ago(5))
                await asyncio.sleep(0)
        # A last one, so that we know when all have come.
        await listener.execute("SELECT pg_notify(%s, 'end')", (TABLE,))
        async for notification in listener.notifies(timeout=10):
            if notification.payload == "end":
                break
            got += 1
    assert 1 <= got <= 20


async def test_a_slow_row_does_not_hold_back_its_batch_mates(ground: Ground) -> None:
    ground.insert(10, run_at=ago(5))
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        slow, *others = await batch.start()
        for row in others:
            batch.settle(row, Done())
        await release.wait()
        batch.settle(slow, Done())

    limits = QueueSettings(slots=12, concurrency=10, batch_size=10, scan_interval_seconds=0.2)
    async with ground.engine(handle, limits=limits) as engine:
        await until(lambda: ground.count("finished_at IS NOT NULL") == 9)
        ground.insert(9)
        # The second batch gets the nine places that the first one has given back.
        await until(lambda: ground.count("finished_at IS NOT NULL") == 17)
        assert engine.stats().queues[TABLE].in_flight == 2
        release.set()
        await ground.until_finished(19)


async def test_rows_claimed_ahead_leave_room_for_those_that_are_due(ground: Ground) -> None:
    ground.insert(50, run_at=ago(-3600))
    limits = QueueSettings(slots=10, concurrency=4, batch_size=4, scan_interval_seconds=0.2, preload_multiplier=36_000)
    seen: list[Claim] = []
    async with ground.engine(finish_into(seen), limits=limits) as engine:
        await until(lambda: engine.stats().queues[TABLE].heap == 6)
        due = ground.insert(8)
        await until(lambda: ids(seen) == set(due))
        assert engine.stats().queues[TABLE].heap == 6


async def test_one_claim_takes_a_few_hundred_rows_at_most_however_much_room_there_is(ground: Ground) -> None:
    ground.query(f"INSERT INTO {TABLE} (label) SELECT 'x' FROM generate_series(1, 3000)")
    sizes: list[int] = []

    class NotingQueue(RowQueue):
        async def claim(self, *arguments: Any, **options: Any) -> Claimed:
            claimed = await super().claim(*arguments, **options)
            sizes.append(len(claimed.claims))
            return claimed

    limits = QueueSettings(slots=6000, concurrency=3000, batch_size=500)
    async with ground.engine(finish_into([]), queue=NotingQueue(), limits=limits):
        await ground.until_finished(3000)
    assert 100 <= max(sizes) <= 500
