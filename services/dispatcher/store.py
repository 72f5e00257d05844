"""The dispatcher's SQL that writes tasks, beside their queue. Every statement works on a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row

from agent_reach.durable import Recordset
from services.chassis.postgres import Connection

from . import digests, fingerprints
from .model import Hold, Judgement, NewTask
from .states import BEYOND_SENDING, WITHDRAWABLE, ReceiptKind, State, Transition
from .telling import tell

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
        "scheduled": "boolean",
        "submitted_at": "timestamptz",
        "send_at": "timestamptz",
        "send_at_local": "bytea",
        "decided_at": "timestamptz",
        "planned_at": "timestamptz",
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
    """The task that stands for an intent and a hop, when it is due, and whether it was there before.

    Of an intent that was gathered before, that is the digest.
    """

    task_id: UUID
    run_at: datetime
    existed: bool


async def insert_tasks(
    connection: Connection, tasks: Sequence[NewTask], owners: Mapping[UUID, UUID] | None = None
) -> list[Inserted]:
    """Inserts tasks with their first outcome, sorted by key so that overlapping batches cannot deadlock.

    Whatever stands for an intent and a hop already stays as it is. Nothing is due in the past: that is where the engine
    looks last.

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
            SELECT {_NEW_COLUMNS}, variables_json::jsonb, greatest(due_at, clock_timestamp()), CASE WHEN finished THEN clock_timestamp() END,
                (owner IS NOT NULL)::integer
            FROM {_NEW.source("rows")}
            ON CONFLICT (intent_id, hop) DO NOTHING
            RETURNING *
        ), told AS (
            -- What is gathered is told with its digest.
            {tell("new AS t", where="NOT (t.state = 'SCHEDULED' AND t.finished_at IS NOT NULL)")}
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
            SELECT t.intent_id, t.hop, coalesce(t.gathered_into, t.id), t.run_at FROM dispatcher.tasks AS t
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
    """Writes new decisions on tasks that are about to leave, by ``(id, claim_no)`` and fenced; in a transaction."""
    values = [
        (
            task_id, claim_no, judged.channel, judged.address, judged.locale, judged.content.subject,
            judged.content.body, judged.content.html, judged.content.template_version, judged.content.fingerprint,
            judged.idempotency_key, judged.decision, judged.decided_at, judged.cap_date,
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
            idempotency_key = n.idempotency_key, decisions = t.decisions || n.decision, decided_at = n.decided_at,
            cap_date = n.cap_date, evaluate = false
        FROM unnest(
            %s::uuid[], %s::integer[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
            %s::text[], %s::bytea[], %s::text[], %s::bytea[], %s::timestamptz[], %s::date[]
        ) AS n(id, claim_no, channel, address, locale, subject, body, html, template_version, fingerprint,
            idempotency_key, decision, decided_at, cap_date)
        WHERE t.id = n.id AND t.claim_no = n.claim_no AND t.owner = %s
        """,
        [*(list(column) for column in zip(*values, strict=True)), owner],
    )
    # It may be another text by now.
    await fingerprints.let_go(connection, [task_id for task_id, _ in judgements])


@dataclass(frozen=True, slots=True)
class ReceiptTarget:
    """The task that a receipt speaks of, locked for the transaction; channel and address are empty where unknown."""

    id: UUID
    state: State
    reason: str
    tenant: str
    user_id: str
    channel: str
    address: str
    category: str


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
        """
        SELECT id, state, reason, tenant, user_id, coalesce(channel, ''), coalesce(address, ''), category
        FROM dispatcher.tasks
        WHERE id = ANY(%s) ORDER BY id FOR UPDATE
        """,
        (ids,),
    )
    targets = {row[0]: ReceiptTarget(row[0], State(row[1]), *row[2:]) for row in await cursor.fetchall()}
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
            tell(
                "unnest(%s::uuid[], %s::text[], %s::text[]) WITH ORDINALITY AS n(id, state, reason, place)"
                " JOIN dispatcher.tasks AS t ON t.id = n.id",
                state="n.state",
                reason="n.reason",
                order="n.place",
            ),
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
        f"""
        WITH withdrawn AS (
            UPDATE dispatcher.tasks
            SET state = 'SUPPRESSED', reason = 'cancelled', state_at = clock_timestamp(), owner = NULL,
                finished_at = clock_timestamp()
            WHERE intent_id = %(intent)s AND state = ANY(%(withdrawable)s) AND finished_at IS NULL
            RETURNING *
        ), told AS ({tell("withdrawn AS t")})
        SELECT id, intent_id, hop, tenant, user_id, channel, cap_date FROM withdrawn
        """,  # noqa: S608 - the fragment is our own
        {"intent": intent_id, "withdrawable": list(WITHDRAWABLE)},
    )
    withdrawn = await cursor.fetchall()
    await fingerprints.let_go_unsent(connection, [row["id"] for row in withdrawn])
    state = await digests.withdraw(connection, intent_id)
    if state is not None:
        return state, withdrawn
    await cursor.execute(
        "SELECT state FROM dispatcher.tasks WHERE intent_id = %s ORDER BY hop DESC LIMIT 1", (intent_id,)
    )
    row = await cursor.fetchone()
    assert row is not None, "the caller has made sure of one"
    return State(row["state"]), withdrawn


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
        content.fingerprint if content else None, task.idempotency_key, [task.decision] if task.decision else [],
        task.cap_date, int(task.hold is Hold.QUIET_HOURS), task.hold is not None, task.hold is Hold.SCHEDULE,
        task.submitted_at, task.send_at, task.send_at_local, task.decided_at, task.run_at, owner,
        json.dumps(task.variables), task.run_at, task.finished,
    )  # fmt: skip
