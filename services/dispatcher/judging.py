"""Judging tasks again: those that were held, second hops, and those whose decision has grown old while they waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

import structlog

from agent_reach.durable import Batch, Claim, Done, Later
from agent_reach.v1 import message_pb2, policy_pb2
from services.catalog.holder import CatalogHolder
from services.catalog.wire import channel_from_wire
from services.chassis.batch_stream import BatchClient
from services.chassis.clock import Clock
from services.chassis.errors import ServiceError
from services.chassis.moments import moment
from services.chassis.postgres import Pool, past_deadlocks

from .compose import Composed, compose
from .digests import GATHERED, flush, gathering_of
from .model import Content, Hold, Judgement, TaskChange
from .render import RenderError
from .reservations import Reservations
from .states import State
from .store import record_judgements
from .wire import evaluate_item, hold_of

# A decision that is older than that says nothing about this hour any more: what an outage held up in the morning must
# not wake anybody at night.
_LATE = timedelta(minutes=15)
# A place in the caps that was not confirmed runs out after 2 minutes; what leaves without one would be one too many.
_PLACE_HOLDS = timedelta(seconds=100)
# How long a task waits for something of ours that is away; no attempt is spent by it.
_AWAY_SECONDS = 2.0
# Longest wait for an answer of the policy: the tasks it is asked about are in our hands so long.
ASK_SECONDS = 5.0

EvaluateClient = BatchClient[policy_pb2.EvaluateRequest, policy_pb2.EvaluateResponse]

_log = structlog.get_logger(__name__)


class Judging:
    """Asks the policy about tasks that are due.

    Args:
        pool: role engine.
        catalog: templates and scenes are taken from what is in force.
        clock: tells how old a decision is.
        evaluate: asks the policy.
        reservations: gets the places back of messages that do not leave.
        max_rendered_bytes: size of a message that is rendered again, at most.
    """

    def __init__(
        self,
        pool: Pool,
        catalog: CatalogHolder,
        clock: Clock,
        evaluate: EvaluateClient,
        reservations: Reservations,
        max_rendered_bytes: int,
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._clock = clock
        self._evaluate = evaluate
        self._reservations = reservations
        self._max_rendered_bytes = max_rendered_bytes

    def needed(self, claim: Claim) -> bool:
        """Says whether a task must be judged before it leaves."""
        row = claim.row
        age = self._clock.now() - row["decided_at"]
        unplaced = row["cap_date"] is not None and claim.attempts == 0 and age > _PLACE_HOLDS
        return bool(row["evaluate"]) or age > _LATE or unplaced

    async def judge(self, batch: Batch, claims: Sequence[Claim]) -> list[Claim]:
        """Judges tasks; returns those that leave now, as they are now. The others are settled."""
        claims, items = await self._flush(batch, claims)
        if not claims:
            return []
        request = policy_pb2.EvaluateRequest(items=[evaluate_item(claim.row) for claim in claims])
        try:
            decisions = (await self._evaluate.call(request, deadline_seconds=ASK_SECONDS)).decisions
        except ServiceError as error:
            put_off(batch, claims, error)
            return []
        judgements: dict[tuple[UUID, int], Judgement] = {}
        leaving: list[Claim] = []
        staying: list[Mapping[str, Any]] = []
        for claim, decision in zip(claims, decisions, strict=True):
            if decision.action in {message_pb2.ACTION_DROP, message_pb2.ACTION_DEFER}:
                self._keep_back(batch, claim, decision)
                # It may have had a place since an earlier decision, on another day perhaps.
                staying.append(claim.row)
                continue
            try:
                judged = self._judgement(claim, decision, items.get(claim.row["intent_id"]))
            except RenderError as error:
                change = TaskChange(State.FAILED, error.reason, decision=decision.SerializeToString())
                batch.settle(claim, Done(), change)
                place = {"channel": channel_from_wire(decision.channel), "cap_date": _cap_date(decision)}
                staying.append({**claim.row, **place})
                continue
            judgements[claim.id, claim.claim_no] = judged
            leaving.append(_with(claim, judged))
        if leaving:
            owner = leaving[0].owner
            await past_deadlocks(lambda: self._record(owner, judgements))
        await self._reservations.release(staying)
        return leaving

    async def _flush(
        self, batch: Batch, claims: Sequence[Claim]
    ) -> tuple[list[Claim], dict[UUID, list[Mapping[str, Any]]]]:
        """Closes the digests among some tasks; ends the empty ones.

        Returns:
            The tasks that are left, and the variables of the digests' parts by their intent.
        """
        digests = [claim for claim in claims if claim.row["gathered"]]
        if not digests:
            return list(claims), {}
        now = self._clock.now()

        async def work() -> dict[UUID, list[dict[str, Any]]]:
            async with self._pool.connection() as connection, connection.transaction():
                return await flush(connection, digests, now)

        parts = await past_deadlocks(work)
        left: list[Claim] = []
        for claim in claims:
            own = parts.get(claim.row["intent_id"])
            if own:
                expires_at = max(part["expires_at"] for part in own)
                left.append(claim._replace(row={**claim.row, "expires_at": expires_at}))
            elif claim.row["gathered"]:
                # Every part was cancelled, or has expired, and was told so; or the digest is not ours any more.
                if await batch.settle(claim, Done(), TaskChange(State.SUPPRESSED, "empty"), urgent=True):
                    await self._reservations.release([claim.row])
            else:
                left.append(claim)
        return left, {intent: [part["variables"] for part in own] for intent, own in parts.items()}

    def _keep_back(self, batch: Batch, claim: Claim, decision: message_pb2.Decision) -> None:
        """Settles a task that does not leave now."""
        text, hold = decision.SerializeToString(), hold_of(decision)
        if hold is None:
            # What a dead owner was sending may have left: that it was withheld would be a lie.
            state, reason = (State.FAILED, "unknown") if claim.suspect else (State.SUPPRESSED, decision.reason)
            batch.settle(claim, Done(), TaskChange(state, reason, decision=text))
            return
        until = moment(decision.until)
        if hold is Hold.DIGEST:
            scene = self._catalog.current.scene(claim.row["scene"], claim.row["tenant"])
            change = TaskChange(
                State.SCHEDULED, GATHERED, decision=text, hold=hold, gathering=gathering_of(scene, until), told=False
            )
            batch.settle(claim, Done(), change)
            return
        change = TaskChange(State.SCHEDULED, decision.reason, decision=text, hold=hold, planned_at=until)
        batch.settle(claim, Later(run_at=until), change)

    async def _record(self, owner: UUID, judgements: Mapping[tuple[UUID, int], Judgement]) -> None:
        async with self._pool.connection() as connection, connection.transaction():
            await record_judgements(connection, owner, judgements)

    def _judgement(
        self, claim: Claim, decision: message_pb2.Decision, parts: Sequence[Mapping[str, Any]] | None
    ) -> Judgement:
        row = claim.row
        channel = channel_from_wire(decision.channel)
        if claim.attempts and row["channel"] == channel and row["idempotency_key"]:
            # Perhaps it has left before: the same text, under the same key, is the only one that does no harm.
            content = Content(
                row["subject"], row["body"], row["html"], row["template_version"], bytes(row["fingerprint"])
            )
            composed = Composed(content, row["idempotency_key"])
        else:
            catalog = self._catalog.current
            if parts is None and catalog.scene(row["scene"], row["tenant"]).digest is not None:
                parts = [row["variables"]]
            composed = compose(
                catalog,
                row["template"],
                channel,
                row["variables"],
                parts=parts,
                intent_id=str(row["intent_id"]),
                user_id=row["user_id"],
                max_bytes=self._max_rendered_bytes,
            )
        assert channel is not None
        return Judgement(
            channel=channel,
            address=decision.address,
            locale=decision.locale,
            content=composed.content,
            idempotency_key=composed.key,
            decision=decision.SerializeToString(),
            decided_at=_decided_at(decision, self._clock.now()),
            cap_date=_cap_date(decision),
        )


def put_off(batch: Batch, claims: Sequence[Claim], error: Exception, *, told: bool = False) -> None:
    """Lets tasks wait for something of ours that is away; it costs them no attempt."""
    _log.warning("sending_waits", count=len(claims), error=f"{type(error).__name__}: {error}")
    for claim in claims:
        change = TaskChange(State(claim.row["state"]), "waiting", told=told)
        batch.settle(claim, Later(after_seconds=_AWAY_SECONDS, counted=False), change)


def _cap_date(decision: message_pb2.Decision) -> date | None:
    return date.fromisoformat(decision.cap_date) if decision.cap_date else None


def _decided_at(decision: message_pb2.Decision, now: datetime) -> datetime:
    return moment(decision.decided_at) if decision.HasField("decided_at") else now


def _with(claim: Claim, judged: Judgement) -> Claim:
    """Returns a claim whose row is as the new decision left it."""
    content = judged.content
    row = {
        **claim.row,
        "state": State.PENDING,
        "channel": judged.channel,
        "address": judged.address,
        "locale": judged.locale,
        "subject": content.subject,
        "body": content.body,
        "html": content.html,
        "template_version": content.template_version,
        "fingerprint": content.fingerprint,
        "idempotency_key": judged.idempotency_key,
        "decided_at": judged.decided_at,
        "cap_date": judged.cap_date,
        "evaluate": False,
    }
    return claim._replace(row=row)
