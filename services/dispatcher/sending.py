"""Sends the tasks that are due: judged anew where needed, a token each, committed as SENDING, checked, handed over.

The order is the promise: SENDING is committed before the suppressions are looked at, so a `Suppress` that has
committed is either seen here, or sees the SENDING row and waits for it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import redis.exceptions
import structlog

from agent_reach.durable import Batch, Claim, Done, Later, exponential_jitter
from agent_reach.v1 import policy_pb2
from services.catalog.holder import CatalogHolder
from services.catalog.rules import Category, Channel, UnknownSend
from services.catalog.wire import category_to_wire, channel_to_wire
from services.chassis.batch_stream import BatchClient
from services.chassis.clock import Clock
from services.chassis.errors import ServiceError
from services.chassis.postgres import Pool, past_deadlocks
from services.chassis.telemetry import continued_span

from .channels.port import Adapter, Message, SendOutcome, SendResult
from .fingerprints import Twin, take
from .judging import ASK_SECONDS, Judging, put_off
from .metrics import SendingMetrics
from .model import AttemptRecord, Hold, TaskChange
from .reservations import Reservations
from .states import BEYOND_SENDING, State
from .tokens import TokenBuckets

# How long a task waits at least, and at most, before it looks again what has become of the one with the same text.
_TWIN_SECONDS, _MAX_TWIN_SECONDS = 0.5, 10.0
# Longest wait for tokens with the tasks in hand; after that they go back, so that other replicas can take them.
_MAX_TOKEN_WAIT_SECONDS = 10.0
# Shortest pause between two questions for tokens: what they grant is sent as a batch, not one by one.
_TOKEN_PAUSE_SECONDS = 0.05

_INTERRUPTED = SendOutcome(SendResult.UNKNOWN, "interrupted")

CheckClient = BatchClient[policy_pb2.CheckSuppressedRequest, policy_pb2.CheckSuppressedResponse]

_log = structlog.get_logger(__name__)


class Sender:
    """Handles batches of due tasks.

    Args:
        pool: role engine.
        catalog: retries, fallbacks and rates are taken from what is in force.
        clock: the one clock, for expiry.
        adapters: by channel; one that is missing cannot be sent to.
        judging: asks the policy again.
        check: asks for suppressions right before the send.
        reservations: confirmed and given back.
        tokens: rates of the channels.
        metrics: counts what becomes of attempts.
        wake: has the engine look for tasks that were just inserted.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        catalog: CatalogHolder,
        clock: Clock,
        adapters: Mapping[Channel, Adapter],
        judging: Judging,
        check: CheckClient,
        reservations: Reservations,
        tokens: TokenBuckets,
        metrics: SendingMetrics,
        wake: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._catalog = catalog
        self._clock = clock
        self._adapters = adapters
        self._judging = judging
        self._check = check
        self._reservations = reservations
        self._tokens = tokens
        self._metrics = metrics
        self._wake = wake
        self._policy_away = False
        self._random = random.Random()  # noqa: S311 - spreads load, guards nothing

    async def __call__(self, batch: Batch) -> None:
        """Handles one batch; every claim of it is settled, or released by the engine."""
        claims = await self._still_wanted(batch)
        again = {claim.id for claim in claims if self._judging.needed(claim)}
        ready = [claim for claim in claims if claim.id not in again]
        if again:
            ready += await self._judging.judge(batch, [claim for claim in claims if claim.id in again])
        async with asyncio.TaskGroup() as group:
            for channel in {claim.row["channel"] for claim in ready}:
                mates = [claim for claim in ready if claim.row["channel"] == channel]
                group.create_task(self._send_on(batch, Channel(channel), mates))

    async def _still_wanted(self, batch: Batch) -> list[Claim]:
        """Settles what needs no sending: what the provider has told of already, what came too late or is unknown."""
        now = self._clock.now()
        wanted: list[Claim] = []
        expired: list[Claim] = []
        unknown: list[Claim] = []
        for claim in batch.claims:
            if State(claim.row["state"]) in BEYOND_SENDING:
                batch.settle(claim, Done())
            elif self._risky(claim):
                unknown.append(claim)
            elif claim.row["gathered"] and claim.row["evaluate"]:
                # Its parts expire each by itself, and one may have come since it was claimed.
                wanted.append(claim)
            elif claim.row["expires_at"] <= now:
                # What a dead owner was sending may have left: that it expired would be a lie.
                (unknown if claim.suspect else expired).append(claim)
            else:
                wanted.append(claim)
        await self._withhold(batch, expired, State.EXPIRED, ["expired"] * len(expired))
        await self._give_up(batch, unknown, "unknown")
        return wanted

    # -- sent --------------------------------------------------------------------------------------------------------

    async def _send_on(self, batch: Batch, channel: Channel, claims: Sequence[Claim]) -> None:
        adapter = self._adapters.get(channel)
        if adapter is None:
            await self._give_up(batch, claims, "no_provider")
            return
        waiting = await self._without_twins(batch, claims)
        rules = self._catalog.current.channels.get(channel)
        deadline = time.monotonic() + _MAX_TOKEN_WAIT_SECONDS
        async with asyncio.TaskGroup() as group:
            while waiting:
                try:
                    # A channel that was taken out of the configuration meanwhile has no rate any more.
                    grant = await self._tokens.take(rules, len(waiting)) if rules else None
                except redis.exceptions.RedisError as error:
                    put_off(batch, waiting, error)
                    return
                granted = len(waiting) if grant is None else grant.granted
                if granted:
                    group.create_task(self._send_granted(batch, adapter, waiting[:granted]))
                    del waiting[:granted]
                if waiting and grant is not None:
                    if time.monotonic() + grant.wait_seconds > deadline:
                        for claim in waiting:
                            batch.settle(claim, Later(after_seconds=grant.wait_seconds, counted=False))
                        return
                    await asyncio.sleep(max(grant.wait_seconds, _TOKEN_PAUSE_SECONDS))

    def _risky(self, claim: Claim) -> bool:
        """Says whether a former owner died while sending it, and a second send might be one too many."""
        if not claim.suspect or claim.row["channel"] is None:
            return False
        adapter = self._adapters.get(Channel(claim.row["channel"]))
        return adapter is not None and not adapter.deduplicates and not self._sends_again(claim)

    async def _without_twins(self, batch: Batch, claims: Sequence[Claim]) -> list[Claim]:
        """Settles tasks whose text has gone out already, or is about to; returns the others."""
        wanted = [
            (claim, window)
            for claim in claims
            if (window := self._catalog.current.scene(claim.row["scene"], claim.row["tenant"]).dedupe_window)
        ]
        if not wanted:
            return list(claims)

        async def work() -> dict[UUID, Twin]:
            async with self._pool.connection() as connection, connection.transaction():
                return await take(connection, wanted)

        twins = await past_deadlocks(work)
        duplicates: list[Claim] = []
        unknown: list[Claim] = []
        for claim in claims:
            twin = twins.get(claim.id)
            if twin is None:
                continue
            if twin.left:
                # What a dead owner was sending may have left as well.
                (unknown if claim.suspect else duplicates).append(claim)
            else:
                # It takes the place of its twin, should that fail.
                wait = min(max(twin.due_seconds, _TWIN_SECONDS), _MAX_TWIN_SECONDS)
                change = TaskChange(State(claim.row["state"]), "duplicate_waits", told=False)
                batch.settle(claim, Later(after_seconds=wait), change)
        await self._withhold(batch, duplicates, State.SUPPRESSED, ["duplicate_content"] * len(duplicates))
        await self._give_up(batch, unknown, "unknown")
        return [claim for claim in claims if claim.id not in twins]

    async def _send_granted(self, batch: Batch, adapter: Adapter, claims: Sequence[Claim]) -> None:
        if self._policy_away and not await self._policy_is_back(batch, claims):
            return
        # The engine knows the rows as they were claimed; a new decision may have changed them since.
        rows = {claim.id: claim.row for claim in claims}
        started = [claim._replace(row=rows[claim.id]) for claim in await batch.start(claims)]
        if not started:
            return
        try:
            response = await self._check.call(_check_request(started), deadline_seconds=ASK_SECONDS)
            silent = [(c, reason) for c, reason in zip(started, response.reasons, strict=True) if reason]
            leaving = [c for c, reason in zip(started, response.reasons, strict=True) if not reason]
            lost = await self._reservations.confirm([claim.row for claim in leaving])
        except ServiceError as error:
            self._policy_away = True
            put_off(batch, started, error, told=True)
            return
        for position in lost:
            # Others may have the place by now: while nobody counts it, it is judged like a new one.
            change = TaskChange(State.PENDING, "waiting", hold=Hold.CAPS)
            batch.settle(leaving[position], Later(after_seconds=0.0, counted=False), change)
        leaving = [claim for position, claim in enumerate(leaving) if position not in lost]
        async with asyncio.TaskGroup() as group:
            sends = [group.create_task(self._send(batch, adapter, claim)) for claim in leaving]
            await self._withhold(
                batch, [claim for claim, _ in silent], State.SUPPRESSED, [reason for _, reason in silent]
            )
        never_left = [send.result() for send in sends]
        await self._reservations.release([claim.row for claim in never_left if claim is not None])

    async def _policy_is_back(self, batch: Batch, claims: Sequence[Claim]) -> bool:
        """Asks once before anything is started: agents need not be told SENDING, over and over, by an outage."""
        try:
            await self._check.call(_check_request(claims), deadline_seconds=ASK_SECONDS)
        except ServiceError as error:
            put_off(batch, claims, error)
            return False
        self._policy_away = False
        return True

    async def _send(self, batch: Batch, adapter: Adapter, claim: Claim) -> Claim | None:
        """Makes one attempt; returns the claim if its message certainly never left and never will."""
        row = claim.row
        message = Message(row["idempotency_key"], row["address"], row["subject"], row["body"], row["html"])
        started_at, start = self._clock.now(), time.perf_counter()
        attributes: dict[str, str | int] = {"reach.channel": row["channel"], "reach.attempt": claim.attempts}
        with continued_span("reach.send", row["traceparent"], attributes) as span:
            try:
                outcome = await adapter.send(message)
            except asyncio.CancelledError:
                # Cut off at the end of a drain: nobody knows, and the row must say so to whoever gets it next.
                self._conclude(batch, adapter, claim, _attempt(adapter, started_at, start, _INTERRUPTED))
                raise
            except Exception as error:  # noqa: BLE001 - an adapter's defect must not take its batch mates along
                _log.error("adapter_failed", provider=adapter.name, task_id=str(claim.id), exc_info=error)
                outcome = SendOutcome(SendResult.UNKNOWN, "adapter_failed")
            span.set_attribute("reach.result", outcome.result)
        attempt = _attempt(adapter, started_at, start, outcome)
        self._metrics.attempted(row["channel"], outcome.result, attempt.duration_seconds)
        return self._conclude(batch, adapter, claim, attempt)

    def _conclude(self, batch: Batch, adapter: Adapter, claim: Claim, attempt: AttemptRecord) -> Claim | None:
        """Settles one attempt: sent, tried again, or failed for good, when it returns what never left."""
        outcome = attempt.outcome
        # A lost answer of a provider that does not deduplicate would become a second message.
        urgent = not adapter.deduplicates
        if outcome.result is SendResult.ACCEPTED:
            batch.settle(claim, Done(), TaskChange(State.SENT, "", attempt), urgent=urgent)
            return None
        retry = self._catalog.current.scene(claim.row["scene"], claim.row["tenant"]).policy.retry
        again = outcome.result is SendResult.TRANSPORT_ERROR or (
            outcome.result is SendResult.UNKNOWN and (adapter.deduplicates or self._sends_again(claim))
        )
        if again and claim.attempts < retry.max_attempts:
            wait = exponential_jitter(
                claim.attempts, retry.base_seconds, retry.cap_seconds, retry.jitter_ratio, self._random
            )
            wait = max(wait, outcome.retry_after_seconds or 0.0)
            change = TaskChange(State.SCHEDULED, outcome.code, attempt)
            batch.settle(claim, Later(after_seconds=wait), change, urgent=urgent)
            return None
        if outcome.result is SendResult.UNKNOWN:
            batch.settle(claim, Done(), TaskChange(State.FAILED, "unknown", attempt), urgent=urgent)
            return None
        change = TaskChange(State.FAILED, outcome.code, attempt, fallback=self._fallback(claim))
        self._fail(batch, claim, change, urgent=urgent)
        return claim

    # -- ends --------------------------------------------------------------------------------------------------------

    async def _withhold(self, batch: Batch, claims: Sequence[Claim], state: State, reasons: Sequence[str]) -> None:
        """Ends tasks that must not leave, and gives their places in the caps back."""
        for claim, reason in zip(claims, reasons, strict=True):
            batch.settle(claim, Done(counted=False), TaskChange(state, reason))
        if claims:
            await self._reservations.release([claim.row for claim in claims])

    def _fail(self, batch: Batch, claim: Claim, change: TaskChange, *, urgent: bool = False) -> None:
        """Fails a task for good; its second hop, where there is one, is looked for as soon as it is committed."""
        stored = batch.settle(claim, Done(), change, urgent=urgent)
        if change.fallback is not None:
            stored.then(lambda _: self._wake())

    async def _give_up(self, batch: Batch, claims: Sequence[Claim], reason: str) -> None:
        """Fails tasks that were not tried now; those that certainly never left fall back."""
        unknown = reason == "unknown"
        for claim in claims:
            change = TaskChange(State.FAILED, reason, fallback=None if unknown else self._fallback(claim))
            self._fail(batch, claim, change)
        if claims and not unknown:
            await self._reservations.release([claim.row for claim in claims])

    def _fallback(self, claim: Claim) -> Channel | None:
        rules = self._catalog.current.channels.get(Channel(claim.row["channel"]))
        return rules.fallback if rules is not None and claim.row["hop"] == 0 else None

    def _sends_again(self, claim: Claim) -> bool:
        return self._catalog.current.scene(claim.row["scene"], claim.row["tenant"]).unknown_send is UnknownSend.AGAIN


def _attempt(adapter: Adapter, started_at: datetime, start: float, outcome: SendOutcome) -> AttemptRecord:
    return AttemptRecord(adapter.name, started_at, time.perf_counter() - start, outcome)


def _check_request(claims: Sequence[Claim]) -> policy_pb2.CheckSuppressedRequest:
    return policy_pb2.CheckSuppressedRequest(items=[_check_item(claim) for claim in claims])


def _check_item(claim: Claim) -> policy_pb2.CheckSuppressedItem:
    row = claim.row
    item = policy_pb2.CheckSuppressedItem(
        tenant=row["tenant"],
        user_id=row["user_id"],
        category=category_to_wire(Category(row["category"])),
        scene=row["scene"],
    )
    item.address.channel = channel_to_wire(Channel(row["channel"]))
    item.address.value = row["address"]
    return item
