"""All SQL of the dispatcher. Every statement works on a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from services.catalog.rules import Channel
from services.chassis.postgres import Connection
from services.chassis.recordset import Recordset

from .model import Judgement, NewTask, Recipient
from .states import BEYOND_SENDING, WITHDRAWABLE, ReceiptKind, State, Transition

_NEW = Recordset(
    {
        "id": "uuid",
        "intent_id": "uuid",
        "hop": "smallint",
        "tenant": "text",
        "user_id": "text",
        "bare_channel": "text",
        "bare_address": "text",
        "scene": "text",
        "category": "text",
        "template": "text",
        "wishes": "text[]",
        "priority": "smallint",
        "expires_at": "timestamptz",
        "traceparent": "text",
        "state": "text",
        "reason": "text",
        "channel": "text",
        "address": "text",
        "locale": "text",
        "subject": "text",
        "body": "text",
        "html": "text",
        "template_version": "text",
        "fingerprint": "bytea",
        "idempotency_key": "text",
        "decisions": "bytea[]",
        "cap_date": "date",
        "deferrals": "smallint",
        "evaluate": "boolean",
        "owner": "uuid",
        # These become columns of the table by a calculation.
        "variables_json": "text",
        "due_at": "timestamptz",
        "finished": "boolean",
    }
)
_NEW_COLUMNS = ", ".join(_NEW.names[:-3])


@dataclass(frozen=True, slots=True)
class Inserted:
    """The task that stands for an intent and a hop, when it is due, and whether it was there before."""

    task_id: UUID
    run_at: datetime
    existed: bool


async def insert_tasks(
    connection: Connection, tasks: Sequence[NewTask], owners: Mapping[UUID, UUID] | None = None
) -> list[Inserted]:
    """Inserts tasks with their first outcome, sorted by key so that overlapping batches cannot deadlock.

    Whatever stands for an intent and a hop already stays as it is.

    Args:
        connection: in a transaction.
        tasks: at most one for each intent and hop.
        owners: by task id, the instance that holds a place for it and owns it from the start.
    """
    owned = owners or {}
    ordered = sorted(tasks, key=lambda task: (task.intent_id, task.hop))
    cursor = connection.cursor()
    await cursor.execute(
        f"""
        WITH new AS (
            INSERT INTO dispatcher.tasks ({_NEW_COLUMNS}, variables, run_at, finished_at, claim_no)
            SELECT {_NEW_COLUMNS}, variables_json::jsonb, coalesce(due_at, clock_timestamp()), CASE WHEN finished THEN clock_timestamp() END,
                (owner IS NOT NULL)::integer
            FROM {_NEW.source("rows")}
            ON CONFLICT (intent_id, hop) DO NOTHING
            RETURNING id, run_at, tenant, intent_id, hop, user_id, scene, state, reason, channel
        ), told AS (
            INSERT INTO dispatcher.outcomes
                (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts)
            SELECT tenant, intent_id, id, hop, user_id, scene, state, reason, channel, 0 FROM new
        )
        SELECT id, run_at FROM new
        """,  # noqa: S608 - the names are this module's own
        {"rows": _NEW.encode(_row(task, owned.get(task.id)) for task in ordered)},
    )
    new: dict[UUID, datetime] = dict(await cursor.fetchall())
    standing: dict[tuple[UUID, int], tuple[UUID, datetime]] = {}
    if len(new) < len(tasks):
        # A statement of its own: only it sees what a concurrent transaction inserted first.
        await cursor.execute(
            """
            SELECT t.intent_id, t.hop, t.id, t.run_at FROM dispatcher.tasks AS t
            JOIN unnest(%s::uuid[], %s::smallint[]) AS wanted(intent_id, hop) USING (intent_id, hop)
            """,
            ([task.intent_id for task in tasks], [task.hop for task in tasks]),
        )
        standing = {(row[0], row[1]): (row[2], row[3]) for row in await cursor.fetchall()}
    return [
        Inserted(task.id, new[task.id], existed=False)
        if task.id in new
        else Inserted(*standing[task.intent_id, task.hop], existed=True)
        for task in tasks
    ]


async def record_judgements(
    connection: Connection, owner: UUID, judgements: Mapping[tuple[UUID, int], Judgement]
) -> None:
    """Writes new decisions on tasks that are about to leave, by ``(id, claim_no)`` and fenced."""
    values = [
        (
            task_id, claim_no, judged.channel, judged.address, judged.locale, judged.content.subject,
            judged.content.body, judged.content.html, judged.content.template_version, judged.content.fingerprint,
            judged.idempotency_key, judged.decision, judged.cap_date,
        )
        for (task_id, claim_no), judged in sorted(judgements.items())
    ]  # fmt: skip
    if not values:
        return
    await connection.execute(
        """
        UPDATE dispatcher.tasks AS t
        SET channel = n.channel, address = n.address, locale = n.locale, subject = n.subject, body = n.body,
            html = n.html, template_version = n.template_version, fingerprint = n.fingerprint,
            idempotency_key = n.idempotency_key, decisions = t.decisions || n.decision, cap_date = n.cap_date,
            evaluate = false
        FROM unnest(
            %s::uuid[], %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
            %s::text[], %s::bytea[], %s::text[], %s::bytea[], %s::date[]
        ) AS n(id, claim_no, channel, address, locale, subject, body, html, template_version, fingerprint,
            idempotency_key, decision, cap_date)
        WHERE t.id = n.id AND t.claim_no = n.claim_no AND t.owner = %s
        """,
        [*(list(column) for column in zip(*values, strict=True)), owner],
    )


@dataclass(frozen=True, slots=True)
class ReceiptTarget:
    """The task that a receipt speaks of, locked for the transaction."""

    id: UUID
    state: State
    reason: str


async def lock_receipt_targets(
    connection: Connection, keys: Sequence[str], messages: Sequence[tuple[str, str]]
) -> tuple[dict[str, UUID], dict[tuple[str, str], UUID], dict[UUID, ReceiptTarget]]:
    """Finds and locks the tasks that receipts name, by our key or by the provider's id of the message.

    Returns:
        Task ids by our key, task ids by (provider, message id), and the locked tasks by id.
    """
    cursor = connection.cursor()
    await cursor.execute(
        "SELECT idempotency_key, id FROM dispatcher.tasks WHERE idempotency_key = ANY(%s) AND idempotency_key <> ''",
        (list(keys),),
    )
    by_key: dict[str, UUID] = dict(await cursor.fetchall())
    await cursor.execute(
        """
        SELECT DISTINCT ON (a.provider, a.provider_message_id) a.provider, a.provider_message_id, a.task_id
        FROM dispatcher.attempts AS a
        JOIN unnest(%s::text[], %s::text[]) AS m(provider, provider_message_id) USING (provider, provider_message_id)
        WHERE a.provider_message_id <> ''
        ORDER BY a.provider, a.provider_message_id, a.number DESC
        """,
        ([provider for provider, _ in messages], [message for _, message in messages]),
    )
    by_message = {(row[0], row[1]): row[2] for row in await cursor.fetchall()}
    ids = sorted({*by_key.values(), *by_message.values()})
    await cursor.execute(
        "SELECT id, state, reason FROM dispatcher.tasks WHERE id = ANY(%s) ORDER BY id FOR UPDATE", (ids,)
    )
    targets = {row[0]: ReceiptTarget(row[0], State(row[1]), row[2]) for row in await cursor.fetchall()}
    return by_key, by_message, targets


async def known_receipts(connection: Connection, receipt_ids: Sequence[UUID]) -> set[UUID]:
    """Returns which receipts have been applied before. To be asked under the tasks' locks."""
    cursor = await connection.execute(
        "SELECT receipt_id FROM dispatcher.task_receipts WHERE receipt_id = ANY(%s)", (list(receipt_ids),)
    )
    return {row[0] for row in await cursor.fetchall()}


@dataclass(frozen=True, slots=True)
class ReceiptApplied:
    """One receipt to keep on its task."""

    receipt_id: UUID
    task_id: UUID
    kind: ReceiptKind
    code: str
    occurred_at: datetime
    transition: Transition


async def write_receipts(connection: Connection, applied: Sequence[ReceiptApplied]) -> None:
    """Keeps receipts, moves the tasks' states, and tells it, in the order of the receipts.

    A task that is not being handed over at this moment (`started_at`) is taken from whoever holds it and finished: it
    must not be sent after the provider told of it. One that is stays with its owner, whose attempt is still to come.
    """
    cursor = connection.cursor()
    await cursor.execute(
        """
        INSERT INTO dispatcher.task_receipts (receipt_id, task_id, tenant, kind, code, occurred_at, changed_state)
        SELECT n.receipt_id, n.task_id, t.tenant, n.kind, n.code, n.occurred_at, n.changed
        FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::timestamptz[], %s::boolean[])
            AS n(receipt_id, task_id, kind, code, occurred_at, changed)
        JOIN dispatcher.tasks AS t ON t.id = n.task_id
        """,
        (
            [item.receipt_id for item in applied],
            [item.task_id for item in applied],
            [item.kind for item in applied],
            [item.code for item in applied],
            [item.occurred_at for item in applied],
            [item.transition.changed for item in applied],
        ),
    )
    last = {item.task_id: item.transition for item in applied if item.transition.changed}
    if last:
        await cursor.execute(
            """
            UPDATE dispatcher.tasks AS t
            SET state = n.state, reason = n.reason, state_at = clock_timestamp(),
                owner = CASE WHEN t.started_at IS NOT NULL THEN t.owner END,
                finished_at = CASE WHEN t.started_at IS NOT NULL THEN t.finished_at
                    ELSE coalesce(t.finished_at, clock_timestamp()) END
            FROM unnest(%s::uuid[], %s::text[], %s::text[]) AS n(id, state, reason)
            WHERE t.id = n.id
            """,
            (list(last), [change.state for change in last.values()], [change.reason for change in last.values()]),
        )
    told = [item for item in applied if item.transition.announced]
    if told:
        await cursor.execute(
            """
            INSERT INTO dispatcher.outcomes
                (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts)
            SELECT t.tenant, t.intent_id, t.id, t.hop, t.user_id, t.scene, n.state, n.reason, t.channel, t.attempts
            FROM unnest(%s::uuid[], %s::text[], %s::text[]) WITH ORDINALITY AS n(id, state, reason, place)
            JOIN dispatcher.tasks AS t ON t.id = n.id
            ORDER BY n.place
            """,
            (
                [item.task_id for item in told],
                [item.transition.state for item in told],
                [item.transition.reason for item in told],
            ),
        )


async def cancel_tasks(connection: Connection, intent_id: UUID) -> tuple[State, list[dict[str, Any]]]:
    """Withdraws an intent's tasks that have not left; whoever holds one loses it.

    Returns:
        The state of the intent's last hop afterwards, and the tasks that were withdrawn.
    """
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        """
        WITH withdrawn AS (
            UPDATE dispatcher.tasks
            SET state = 'SUPPRESSED', reason = 'cancelled', state_at = clock_timestamp(), owner = NULL,
                finished_at = clock_timestamp()
            WHERE intent_id = %(intent)s AND state = ANY(%(withdrawable)s) AND finished_at IS NULL
            RETURNING *
        ), told AS (
            INSERT INTO dispatcher.outcomes
                (tenant, intent_id, task_id, hop, user_id, scene, state, reason, channel, attempts)
            SELECT tenant, intent_id, id, hop, user_id, scene, state, reason, channel, attempts FROM withdrawn
        )
        SELECT intent_id, hop, tenant, user_id, channel, cap_date FROM withdrawn
        """,
        {"intent": intent_id, "withdrawable": list(WITHDRAWABLE)},
    )
    withdrawn = await cursor.fetchall()
    await cursor.execute(
        "SELECT state FROM dispatcher.tasks WHERE intent_id = %s ORDER BY hop DESC LIMIT 1", (intent_id,)
    )
    row = await cursor.fetchone()
    assert row is not None, "the caller has made sure of one"
    return State(row["state"]), withdrawn


async def sending_to(
    connection: Connection, tenant: str, user_ids: Sequence[str], addresses: Sequence[tuple[Channel | None, str]]
) -> set[UUID]:
    """Returns the tasks that are being handed over to these users or addresses, those of dead owners too.

    An address without a channel is meant on every channel.
    """
    cursor = await connection.execute(
        """
        SELECT id FROM dispatcher.tasks
        WHERE state = 'SENDING' AND tenant = %(tenant)s AND user_id = ANY(%(users)s)
        UNION
        SELECT t.id FROM dispatcher.tasks AS t
        JOIN unnest(%(channels)s::text[], %(addresses)s::text[]) AS a(channel, address) USING (address)
        WHERE t.state = 'SENDING' AND t.tenant = %(tenant)s AND (a.channel IS NULL OR a.channel = t.channel)
        """,
        {
            "tenant": tenant,
            "users": list(user_ids),
            "channels": [channel for channel, _ in addresses],
            "addresses": [address for _, address in addresses],
        },
    )
    return {row[0] for row in await cursor.fetchall()}


async def still_sending(connection: Connection, task_ids: Sequence[UUID]) -> set[UUID]:
    """Returns which of these tasks are still being handed over."""
    cursor = await connection.execute(
        "SELECT id FROM dispatcher.tasks WHERE id = ANY(%s) AND state = 'SENDING'", (list(task_ids),)
    )
    return {row[0] for row in await cursor.fetchall()}


async def recent_sends(connection: Connection, users: Sequence[Recipient], since: datetime) -> list[dict[str, Any]]:
    """Returns what counts on the caps of these users: what may have left, or is on its way.

    A deferred task is judged afresh and does not count yet; a failed one counts if it may have left all the same.

    Returns:
        Rows of tenant, user_id, intent_id, hop, channel, cap_date, sent_at.
    """
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(
        """
        SELECT t.tenant, t.user_id, t.intent_id, t.hop, t.channel, t.cap_date, t.created_at AS sent_at
        FROM dispatcher.tasks AS t
        JOIN unnest(%s::text[], %s::text[]) AS u(tenant, user_id) USING (tenant, user_id)
        WHERE t.state_at >= %s AND t.cap_date IS NOT NULL AND NOT t.evaluate AND (
            t.state IN ('PENDING', 'SCHEDULED', 'SENDING', 'SENT', 'DELIVERED')
            OR t.state = 'FAILED' AND (t.reason = 'unknown' OR EXISTS (
                SELECT FROM dispatcher.attempts AS a WHERE a.task_id = t.id AND a.result IN ('accepted', 'unknown')
            ))
        )
        """,
        ([user.tenant for user in users], [user.user_id for user in users], since),
    )
    return await cursor.fetchall()


async def timeline(connection: Connection, tenant: str, intent_id: UUID) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows about an intent: `tasks`, `attempts`, `receipts` and `outcomes`, each in order."""
    found: dict[str, list[dict[str, Any]]] = {}
    cursor = connection.cursor(row_factory=dict_row)
    for name, query in (
        ("tasks", "SELECT * FROM dispatcher.tasks WHERE tenant = %(t)s AND intent_id = %(i)s ORDER BY hop"),
        (
            "attempts",
            """
            SELECT a.* FROM dispatcher.attempts AS a JOIN dispatcher.tasks AS t ON t.id = a.task_id
            WHERE t.tenant = %(t)s AND t.intent_id = %(i)s ORDER BY a.started_at, a.number
            """,
        ),
        (
            "receipts",
            """
            SELECT r.* FROM dispatcher.task_receipts AS r JOIN dispatcher.tasks AS t ON t.id = r.task_id
            WHERE t.tenant = %(t)s AND t.intent_id = %(i)s ORDER BY r.applied_at, r.receipt_id
            """,
        ),
        (
            "outcomes",
            "SELECT * FROM dispatcher.outcomes WHERE tenant = %(t)s AND intent_id = %(i)s ORDER BY xid, seq",
        ),
    ):
        await cursor.execute(query, {"t": tenant, "i": intent_id})
        found[name] = await cursor.fetchall()
    return found


def beyond_sending(column: str) -> str:
    """Returns SQL that says whether a state was moved on by somebody outside."""
    names = ", ".join(f"'{state.value}'" for state in sorted(BEYOND_SENDING))
    return f"{column} IN ({names})"


def _row(task: NewTask, owner: UUID | None) -> tuple[object, ...]:
    content = task.content
    return (
        task.id, task.intent_id, task.hop, task.recipient.tenant, task.recipient.user_id, task.recipient.bare_channel,
        task.recipient.bare_address, task.scene, task.category, task.template, task.wishes,
        task.priority, task.expires_at, task.traceparent, task.state, task.reason, task.channel, task.address,
        task.locale, content.subject if content else "", content.body if content else "",
        content.html if content else "", content.template_version if content else "",
        content.fingerprint if content else None, task.idempotency_key, [task.decision], task.cap_date,
        task.deferrals, task.evaluate, owner, json.dumps(task.variables), task.run_at, task.finished,
    )  # fmt: skip
