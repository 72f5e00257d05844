"""The tables: who may see what, what counts on a cap, and that no hot query walks through all of them."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from agent_reach.durable import Claim
from agent_reach.durable.queue import TableQueue
from services.catalog.rules import Channel
from services.chassis.postgres import open_pool, tenant_transaction
from services.dispatcher import digests, fingerprints, reading, store
from services.dispatcher.model import Gathering, Recipient
from services.dispatcher.outcomes import Cursor
from services.dispatcher.task_queue import TaskQueue
from tests.conftest import Dsns

_FILL = """
    INSERT INTO dispatcher.tasks (id, intent_id, hop, tenant, user_id, scene, category, template, variables, wishes,
        priority, expires_at, state, channel, address, idempotency_key, cap_date, run_at, finished_at)
    SELECT gen_random_uuid(), gen_random_uuid(), 0, 't' || n %% 7, 'u' || n %% 5000, 's', 'alert', 'alert', '{}', '{}',
        5, now() + interval '1 h', CASE WHEN n %% 50 = 0 THEN 'PENDING' ELSE 'SENT' END, 'email',
        'a' || n || '@example.com', md5(n::text), current_date, now() - n * interval '1 ms',
        CASE WHEN n %% 50 <> 0 THEN now() END
    FROM generate_series(1, %s) AS n
"""


_TEXT = {"tenant": "t1", "user_id": "u1", "channel": "email"}


async def test_the_role_api_sees_its_tenants_rows_only(migrated: Dsns) -> None:
    async with await AsyncConnection.connect(migrated.engine) as connection:
        await connection.execute(_FILL, (70,))
        for table, columns in (
            (
                "attempts",
                "(task_id, number, tenant, provider, started_at, duration_seconds, result, code) SELECT id, 1, tenant, 'p', now(), 0, 'accepted', ''",
            ),
            (
                "task_receipts",
                "(receipt_id, task_id, tenant, kind, occurred_at, changed_state) SELECT gen_random_uuid(), id, tenant, 'delivered', now(), true",
            ),
            (
                "outcomes",
                "(tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts) SELECT tenant, intent_id, id, 0, user_id, scene, state, '', channel, 0",
            ),
        ):
            await connection.execute(f"INSERT INTO dispatcher.{table} {columns} FROM dispatcher.tasks")
    async with open_pool("api", migrated.api, 1) as pool:
        for table in ("tasks", "attempts", "task_receipts", "outcomes"):
            query: Any = f"SELECT array_agg(DISTINCT tenant), count(*) FROM dispatcher.{table}"
            async with tenant_transaction(pool, "t3") as connection:
                assert await (await connection.execute(query)).fetchone() == (["t3"], 10)
            async with pool.connection() as connection:
                assert await (await connection.execute(query)).fetchone() == (None, 0), "no tenant, no rows"


async def test_what_may_have_left_counts_on_a_users_cap_and_nothing_else(migrated: Dsns) -> None:
    counted = {
        "PENDING suspect",
        "SCHEDULED tried",
        "SENDING",
        "SENT",
        "DELIVERED",
        "FAILED unknown",
        "FAILED bounced",
    }
    uncounted = ["PENDING", "SCHEDULED", "SCHEDULED deferred", "FAILED http_503", "SUPPRESSED", "EXPIRED"]
    states = [*sorted(counted), *uncounted]
    async with open_pool("engine", migrated.engine, 1) as pool, pool.connection() as connection:
        await connection.execute(_FILL, (len(states),))
        ids = [row[0] for row in await (await connection.execute("SELECT id FROM dispatcher.tasks")).fetchall()]
        for task_id, name in zip(ids, states, strict=True):
            state, _, reason = name.partition(" ")
            await connection.execute(
                "UPDATE dispatcher.tasks SET tenant = 't', user_id = 'u', scene = %s, state = %s, reason = %s,"
                " evaluate = %s, attempts = %s, suspect = %s, intent_id = id WHERE id = %s",
                (name, state, reason, reason == "deferred", int(reason == "tried"), reason == "suspect", task_id),
            )
            for number, result in enumerate(["transport_error"] + ["accepted"] * (reason == "bounced"), 1):
                await connection.execute(
                    "INSERT INTO dispatcher.attempts (task_id, number, tenant, provider, started_at, duration_seconds,"
                    " result, code) VALUES (%s, %s, 't', 'p', now(), 0, %s, '')",
                    (task_id, number, result),
                )
        sends = await reading.recent_sends(connection, [Recipient("t", "u")], datetime.now(UTC) - timedelta(hours=1))
        names = dict(zip(ids, states, strict=True))
        assert {names[send["intent_id"]] for send in sends} == counted
        assert len(sends) == len(counted)
        since, later = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
        assert await reading.count_tenant_sends(connection, ["t", "t1"], since) == {"t": len(counted)}
        assert await reading.count_channel_sends(connection, list(Channel), since) == {Channel.EMAIL: len(counted)}
        assert await reading.count_tenant_sends(connection, ["t"], later) == {}
        assert await reading.count_channel_sends(connection, list(Channel), later) == {}
        # What is exempt from caps counts on the channel all the same.
        await connection.execute("UPDATE dispatcher.tasks SET cap_date = NULL WHERE scene = 'SENT'")
        assert await reading.count_tenant_sends(connection, ["t"], since) == {"t": len(counted) - 1}
        assert await reading.count_channel_sends(connection, list(Channel), since) == {Channel.EMAIL: len(counted)}
        old = await reading.recent_sends(connection, [Recipient("t", "u")], datetime.now(UTC) + timedelta(hours=1))
        assert old == []


async def test_what_counts_is_told_with_its_category_as_far_back_as_was_asked(migrated: Dsns) -> None:
    now = datetime.now(UTC)
    async with open_pool("engine", migrated.engine, 1) as pool, pool.connection() as connection:
        await connection.execute(_FILL, (3,))
        await connection.execute(
            "UPDATE dispatcher.tasks SET tenant = 't', user_id = 'u', category = 'marketing',"
            " decided_at = decided_at - (row_number * interval '40 days'), created_at = now() - interval '1 year'"
            " FROM (SELECT id AS row_id, row_number() OVER () FROM dispatcher.tasks) AS n WHERE id = row_id"
        )
        ages = []
        for days in (1, 45, 85, 365):
            sends = await reading.recent_sends(connection, [Recipient("t", "u")], now - timedelta(days=days))
            assert {send["category"] for send in sends} <= {"marketing"}
            ages.append(sorted((now - send["sent_at"]).days for send in sends))
        assert ages == [[], [39], [39, 79], [39, 79]]


async def test_an_address_without_a_channel_is_meant_on_every_channel(migrated: Dsns) -> None:
    async with open_pool("engine", migrated.engine, 1) as pool, pool.connection() as connection:
        await connection.execute(_FILL, (2,))
        await connection.execute("UPDATE dispatcher.tasks SET state = 'SENDING', tenant = 't', address = 'a'")
        assert len(await reading.sending_to(connection, "t", [], [(None, "a")])) == 2
        assert len(await reading.sending_to(connection, "t", [], [(Channel.EMAIL, "a")])) == 2
        assert not await reading.sending_to(connection, "t", [], [(Channel.SMS, "a")])
        assert not await reading.sending_to(connection, "other", [], [(None, "a")])


class Explaining:
    """Stands where the store wants a connection, and keeps the plan of every statement it is given."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self.plans: list[str] = []

    def cursor(self, **_: Any) -> Explaining:
        return self

    async def execute(self, query: Any, parameters: Any = None) -> Any:
        rows = await (await self._connection.execute(f"EXPLAIN {query}", parameters)).fetchall()
        self.plans.append("\n".join(row[0] for row in rows))
        return await self._connection.execute(query, parameters)

    async def fetchall(self) -> list[Any]:
        return []

    async def fetchone(self) -> None:
        return None


@pytest.mark.slow
async def test_no_hot_query_walks_through_a_table_of_100_000_tasks(migrated: Dsns) -> None:
    async with await AsyncConnection.connect(migrated.engine) as connection:
        await connection.execute(_FILL, (100_000,))
        await connection.execute(
            "INSERT INTO dispatcher.outcomes (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel,"
            " attempts) SELECT tenant, intent_id, id, 0, user_id, scene, state, '', channel, 0 FROM dispatcher.tasks"
        )
        await connection.execute(
            "INSERT INTO dispatcher.attempts (task_id, number, tenant, provider, started_at, duration_seconds, result,"
            " code, provider_message_id) SELECT id, 1, tenant, 'smtp', now(), 0, 'accepted', '', idempotency_key"
            " FROM dispatcher.tasks"
        )
        await connection.execute(
            "INSERT INTO dispatcher.fingerprints (tenant, user_id, channel, fingerprint, task_id, until)"
            " SELECT tenant, user_id, 'email', uuid_send(id), id, now() + interval '1 h' FROM dispatcher.tasks"
        )
    with psycopg.connect(migrated.owner, autocommit=True) as owner:
        owner.execute("ANALYZE dispatcher.tasks, dispatcher.outcomes, dispatcher.attempts, dispatcher.fingerprints")
    async with await AsyncConnection.connect(migrated.engine) as connection:
        sample = await (
            await connection.execute("SELECT id, intent_id, idempotency_key FROM dispatcher.tasks LIMIT 100")
        ).fetchall()
        ids, keys = [row[0] for row in sample], [row[2] for row in sample]
        explaining: Any = Explaining(connection)
        now = datetime.now(UTC)
        claims = [Claim(task_id, uuid.uuid4(), 1, 0, now) for task_id in ids]
        await store.lock_receipt_targets(explaining, keys, [("smtp", key) for key in keys])
        await store.known_receipts(explaining, ids)
        await reading.still_sending(explaining, ids)
        await reading.sending_to(explaining, "t1", ["u1", "u2"], [(Channel.EMAIL, "a1@example.com")])
        await reading.recent_sends(explaining, [Recipient("t1", f"u{n}") for n in range(50)], now)
        await reading.count_tenant_sends(explaining, ["t1"], now)
        await reading.count_channel_sends(explaining, [Channel.EMAIL], now)
        await reading.timeline(explaining, "t1", sample[0][1])
        await TableQueue.start(TaskQueue(), explaining, claims)
        texts = [claim._replace(row={**_TEXT, "fingerprint": claim.id.bytes}) for claim in claims]
        await fingerprints.take(explaining, [(claim, timedelta(hours=1)) for claim in texts])
        await fingerprints.let_go(explaining, ids)
        await fingerprints.let_go_unsent(explaining, ids)
        await digests.gather(explaining, dict.fromkeys(ids, Gathering(now, 10)))
        await digests._filled(explaining, ids)
        await digests.flush(explaining, claims, now)
        await digests.withdraw(explaining, sample[0][1])
        page = "SELECT * FROM dispatcher.outcomes WHERE (xid, seq) > (%s::text::xid8, %s) AND xid < '999999999'{} ORDER BY xid, seq LIMIT 500"
        cursor = Cursor(1, 1, 1)
        await explaining.execute(page.format(""), (str(cursor.xid), cursor.seq))
        await explaining.execute(page.format(" AND tenant = 't1'"), (str(cursor.xid), cursor.seq))
    tables = r"Seq Scan on (tasks|outcomes|attempts|fingerprints)\b"
    walked = [plan for plan in explaining.plans if re.search(tables, plan)]
    assert not walked, "\n\n".join(walked)
    assert len(explaining.plans) >= 24
