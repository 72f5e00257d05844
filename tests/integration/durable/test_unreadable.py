"""A row that cannot be read is set aside, where somebody sees it; the others run."""

from __future__ import annotations

from uuid import UUID

import pytest
from psycopg import AsyncConnection
from structlog.testing import capture_logs

from agent_reach.durable import Batch, Claim, Done, Settlement
from agent_reach.retry import Retries, RetrySettings, State

from .ground import TABLE, Ground, RowQueue, ids, until


class DatedQueue(RowQueue):
    """A queue with a moment of the domain's, of which PostgreSQL knows more than Python."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = (*self.columns, "moment")


class FailingQueue(DatedQueue):
    """One that finishes what cannot be read, and says why."""

    def unreadable(self, claim: Claim, error: Exception) -> Settlement:
        return Settlement(claim, Done(), f"unreadable: {type(error).__name__}")


@pytest.fixture
def dated(ground: Ground) -> Ground:
    ground.query(f"ALTER TABLE {TABLE} ADD moment timestamptz NOT NULL DEFAULT now()")
    return ground


@pytest.fixture
def unreadable(dated: Ground) -> set[UUID]:
    """Five rows of twenty, among them the first and the last of a claim."""
    dated.insert(20)
    return {
        row_id
        for number, moment in (
            (0, "12000-01-01"),
            (7, "infinity"),
            (8, "0044-03-15 BC"),
            (9, "-infinity"),
            (19, "10000-01-01"),
        )
        for (row_id,) in dated.query(
            f"UPDATE {TABLE} SET moment = %s, label = 'bad' WHERE id ="
            f" (SELECT id FROM {TABLE} ORDER BY run_at OFFSET %s LIMIT 1) RETURNING id",
            moment,
            number,
        )
    }


async def test_rows_that_cannot_be_read_are_put_off_and_logged_and_the_others_run(
    dated: Ground, unreadable: set[UUID]
) -> None:
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            seen.append(claim)
            batch.settle(claim, Done())

    with capture_logs() as logs:
        async with dated.engine(handle, queue=DatedQueue()):
            await dated.until_finished(15)
            await until(lambda: dated.count("owner IS NULL AND run_at > now() + interval '50 minutes'") == 5)
    assert not ids(seen) & unreadable
    assert dated.count("label = 'bad' AND attempts = 0 AND NOT suspect AND finished_at IS NULL") == 5
    told = [log for log in logs if log["event"] == "durable.row_unreadable"]
    assert {UUID(log["id"]) for log in told} == unreadable
    assert {log["error"] for log in told} == {"DataError"}
    assert not any("12000" in str(log) for log in logs), "a value may be anybody's secret"


async def test_a_queue_may_fail_what_cannot_be_read(dated: Ground, unreadable: set[UUID]) -> None:
    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            batch.settle(claim, Done(), "sent")

    async with dated.engine(handle, queue=FailingQueue()):
        await dated.until_finished(20)
    failed = dated.query("SELECT id FROM work.outcomes WHERE result = 'unreadable: DataError' AND attempts = 0")
    assert {row_id for (row_id,) in failed} == unreadable


async def test_a_run_at_beyond_what_python_knows_is_in_nobodys_way(ground: Ground) -> None:
    early = [ground.insert(1)[0] for _ in range(2)]
    for row_id, moment in zip(early, ("-infinity", "0044-03-15 BC"), strict=True):
        ground.query(f"UPDATE {TABLE} SET run_at = %s WHERE id = %s", moment, row_id)
    never = [ground.insert(1)[0] for _ in range(2)]
    for row_id, moment in zip(never, ("infinity", "12000-01-01"), strict=True):
        ground.query(f"UPDATE {TABLE} SET run_at = %s WHERE id = %s", moment, row_id)
    others = ground.insert(5)
    seen: list[Claim] = []

    async def handle(batch: Batch) -> None:
        for claim in await batch.start():
            seen.append(claim)
            batch.settle(claim, Done())

    async with ground.engine(handle) as engine:
        # Held by us by mistake, and by a dead process: neither keeps the sweep from its work.
        ground.query(f"UPDATE {TABLE} SET owner = %s WHERE id = %s", engine.instance_id, never[0])
        ground.query(f"UPDATE {TABLE} SET owner = gen_random_uuid() WHERE id = %s", never[1])
        await ground.until_finished(7)
        await until(lambda: ground.count("owner IS NULL AND finished_at IS NULL") == 2)
    assert ids(seen) == {*early, *others}


async def test_the_first_of_a_claim_reads_as_well_as_the_last(dated: Ground, unreadable: set[UUID]) -> None:
    owner = UUID(int=1)
    dated.query("INSERT INTO work.instance (id, name, expires_at) VALUES (%s, 'test', 'infinity')", owner)
    async with await AsyncConnection.connect(dated.dsn, autocommit=True) as connection:
        claimed = await DatedQueue().claim(connection, owner, 50)
    assert len(claimed.claims) == 15
    assert {claim.id for claim, _ in claimed.unreadable} == unreadable
    assert all(claim.claim_no == 1 and claim.owner == owner for claim, _ in claimed.unreadable)


async def test_a_retry_task_that_cannot_be_read_ends_as_such(database: str) -> None:
    retry = Retries(database, settings=RetrySettings(first_delay_seconds=0))
    retry.install()
    done: list[int] = []

    @retry.listener("count")
    async def count(number: int) -> None:
        done.append(number)

    tasks = [retry.register(None, "count", number).task_id for number in range(5)]
    Ground(database).query("UPDATE reach_retry.tasks SET expires_at = '12000-01-01' WHERE id = %s", tasks[2])
    async with retry.running():
        await until(lambda: sorted(done) == [0, 1, 3, 4])
        state = "SELECT state FROM reach_retry.tasks WHERE id = %s"
        await until(lambda: Ground(database).query(state, tasks[2]) == [(State.UNREADABLE.value,)])
