"""The policy in shadow: decides beside the one in force, off the way of requests; what differs is kept and counted."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import prometheus_client
import psycopg
import psycopg_pool
import structlog

from services.catalog.catalog import Catalog
from services.catalog.policies import Shadow
from services.catalog.shares import in_share
from services.chassis.clock import Clock
from services.chassis.errors import UnavailableError

from .decision import Decision, Facts, Gate, Item
from .evaluate import before_counters, conclude
from .hindsight import counts_seen, parting_gate
from .judge import rules_for
from .operator_store import OperatorStore, ShadowRecord
from .outlook import Look, Outlook
from .translate import decision_to_wire

# Messages that wait to be judged by the policy in shadow; more are not judged.
_MAX_WAITING = 20_000
_BATCH = 200
_AGAIN_SECONDS = 2.0
_CLEAN_SECONDS = 3_600.0
_BITE = 1_000
_AWAY = (UnavailableError, psycopg.Error, psycopg_pool.PoolTimeout, OSError)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Judged:
    """A message that was judged by the policy in force.

    Attributes:
        catalog: the configuration that was in force.
        item: the message.
        facts: what was known of its recipient.
        decision: what was decided.
    """

    catalog: Catalog
    item: Item
    facts: Facts
    decision: Decision


class ShadowJudge:
    """Judges messages by the policy in shadow and keeps where it differs.

    Args:
        store: keeps decisions that differ.
        outlook: looks at the counters.
        clock: the present moment.
        kept: how long decisions are kept.
        metrics: counts the decisions.
    """

    def __init__(
        self,
        store: OperatorStore,
        outlook: Outlook,
        clock: Clock,
        kept: timedelta,
        metrics: prometheus_client.CollectorRegistry,
    ) -> None:
        self._store = store
        self._outlook = outlook
        self._clock = clock
        self._kept = kept
        self._waiting: deque[Judged] = deque()
        self._arrived = asyncio.Event()
        self._decisions = prometheus_client.Counter(
            "reach_policy_shadow_decisions",
            "Decisions of the policy in shadow: same or different, and the gate at which it parts.",
            ["outcome", "gate"],
            registry=metrics,
        )
        self._dropped = prometheus_client.Counter(
            "reach_policy_shadow_dropped",
            "Messages that the policy in shadow did not judge, because too many waited.",
            registry=metrics,
        )

    def observe(self, catalog: Catalog, judged: Iterable[tuple[Item, Facts, Decision]]) -> None:
        """Takes messages that were just judged, as far as they are for the policy in shadow. Never waits."""
        shadow = catalog.shadow
        if shadow is None:
            return
        for item, facts, decision in judged:
            if not _is_for(shadow, item):
                continue
            if len(self._waiting) >= _MAX_WAITING:
                self._dropped.inc()
                continue
            self._waiting.append(Judged(catalog, item, facts, decision))
        self._arrived.set()

    async def run(self) -> None:
        """Judges what was observed. Has no end; while Redis or the database is away, it waits for them."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
                await self._judge_until_done(batch)

    async def clean(self) -> None:
        """Deletes decisions that are older than they are kept, again and again. Has no end."""
        while True:
            try:
                while await self._store.forget_shadow(self._clock.now() - self._kept, _BITE) == _BITE:
                    pass
            except _AWAY as error:
                _log.info("shadow_decisions_not_cleaned", error=type(error).__name__)
            await asyncio.sleep(_CLEAN_SECONDS)

    async def _judge_until_done(self, batch: Sequence[Judged]) -> None:
        told = False
        while True:
            try:
                await self._judge(batch)
            except _AWAY as error:
                if not told:
                    _log.warning("shadow_waits", count=len(batch), error=type(error).__name__)
                told = True
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                return

    async def _judge(self, batch: Sequence[Judged]) -> None:
        parted = [
            (judged, other, parting_gate(judged.decision, other))
            for judged, other in zip(batch, await self._decide(batch), strict=True)
        ]
        records = [_record(judged, other, gate) for judged, other, gate in parted if gate is not None]
        if records:
            await self._store.record_shadow(records)
        for gate, count in Counter(gate for _, _, gate in parted).items():
            outcome = ("same", "") if gate is None else ("different", gate.value)
            self._decisions.labels(*outcome).inc(count)

    async def _decide(self, batch: Sequence[Judged]) -> list[Decision]:
        """Decides by the policy in shadow: by the facts, and what the counters said, of the first judgement."""
        decided: list[Decision | None] = []
        looks: list[Look] = []
        other: Catalog | None = None
        for judged in batch:
            shadow = judged.catalog.shadow
            assert shadow is not None, "only what is for it is observed"
            item = judged.item
            # Made once for a configuration: its version is a hash over all templates.
            if other is None or other.policies is not shadow.policies:
                other = Catalog(shadow.policies, judged.catalog.templates)
            rules = rules_for(other, item.scene, item.template, item.tenant)
            facts = replace(judged.facts, usage={}, quota_used={}, tenant_used=0)
            so_far = before_counters(item, facts, rules, judged.decision.decided_at)
            if isinstance(so_far, Decision):
                decided.append(so_far)
            else:
                decided.append(None)
                looks.append(Look(so_far, facts, counts_seen(judged.decision)))
        counted = await self._outlook.add_counts(looks)
        concluded = (conclude(look.judged, facts) for look, facts in zip(looks, counted, strict=True))
        return [decision if decision is not None else next(concluded) for decision in decided]


def _is_for(shadow: Shadow, item: Item) -> bool:
    return (shadow.scenes is None or item.scene in shadow.scenes) and in_share(
        shadow.share, "shadow", item.tenant, item.user_id
    )


def _record(judged: Judged, other: Decision, gate: Gate) -> ShadowRecord:
    item = judged.item
    return ShadowRecord(
        tenant=item.tenant,
        intent_id=item.intent_id,
        hop=item.hop,
        user_id=item.user_id,
        scene=item.scene,
        decided_at=judged.decision.decided_at,
        gate=gate.value,
        actual=decision_to_wire(judged.decision).SerializeToString(),
        other=decision_to_wire(other).SerializeToString(),
    )
