"""Judges batches: loads what is known, reserves places, and lets a bench decide by what the counters saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

import prometheus_client
import structlog

from services.catalog.addresses import AddressError, normalise
from services.catalog.catalog import Catalog
from services.catalog.holder import CatalogHolder
from services.catalog.rules import Channel
from services.chassis.clock import Clock

from . import reasons
from .cases import Case
from .counters import Counters, Place, ZoneWish
from .decision import Address, Decision, Facts, Item, Known, Person, Rules, UserKey
from .evaluate import Bench
from .quotas import Spender, Tenant

_log = structlog.get_logger(__name__)
_UNKNOWN = Known(Person())


class Directory(Protocol):
    """Knows people, their wishes for silence, and what they chose to hear about."""

    async def known(self, users: Sequence[UserKey], bare: Iterable[tuple[UserKey, Address]]) -> dict[UserKey, Known]:
        """Returns what is known of users; those of whom nothing is known are left out.

        Args:
            users: each once.
            bare: further addresses at which they would be written to.
        """
        ...


class Observer(Protocol):
    """Is told what was judged."""

    def observe(self, catalog: Catalog, judged: Iterable[tuple[Item, Facts, Decision]]) -> None:
        """Takes what was judged, with the configuration that was in force; must not wait."""
        ...


class Judge:
    """Evaluates batches of messages. Keeps no state.

    Args:
        catalog: the configuration in force.
        directory: people, suppressions and preferences.
        counters: caps and quotas.
        clock: the moment of the judgement.
        metrics: where decisions are counted.
        observer: is told what was judged.
    """

    def __init__(
        self,
        catalog: CatalogHolder,
        directory: Directory,
        counters: Counters,
        clock: Clock,
        metrics: prometheus_client.CollectorRegistry,
        observer: Observer | None = None,
    ) -> None:
        self._catalog = catalog
        self._directory = directory
        self._counters = counters
        self._clock = clock
        self._observer = observer
        self._decisions = prometheus_client.Counter(
            "reach_policy_decisions", "Decisions, by action and reason.", ["action", "reason"], registry=metrics
        )
        self._released = prometheus_client.Counter(
            "reach_policy_released_after_deferral",
            "Messages that left during quiet hours because they had been deferred once.",
            registry=metrics,
        )
        self._zone_unknown = prometheus_client.Counter(
            "reach_policy_zone_unknown",
            "Messages to users whose zone on record is none; they are judged by another one.",
            registry=metrics,
        )

    async def evaluate(self, items: Sequence[Item]) -> list[Decision]:
        """Judges a batch; every item by the same configuration and the same moment.

        Raises:
            UnavailableError: the database, Redis or the memory of sends cannot be reached; nothing is decided.
        """
        catalog = self._catalog.current
        cases = await self._open([_with_normal_address(item) for item in items], catalog, self._clock.now())
        await self._count(cases, catalog.policies.longest_window)
        decisions = [case.conclude() for case in cases]
        await self._tidy(cases, decisions, catalog)
        self._observe(cases, decisions)
        if self._observer is not None:
            judged = zip(cases, decisions, strict=True)
            self._observer.observe(catalog, ((case.item, case.facts, decision) for case, decision in judged))
        return decisions

    async def _open(self, items: Sequence[Item], catalog: Catalog, now: datetime) -> list[Case]:
        """Looks everybody up, and judges as far as no counter is needed."""
        users = [UserKey(item.tenant, item.user_id) for item in items]
        bare = [(user, item.address) for item, user in zip(items, users, strict=True) if item.address is not None]
        known = await self._directory.known(list(dict.fromkeys(users)), bare)
        benches: dict[tuple[str, str, str], Bench] = {}
        cases: list[Case] = []
        for item, user in zip(items, users, strict=True):
            kind = (item.scene, item.template, item.tenant)
            bench = benches.get(kind)
            if bench is None:
                bench = benches[kind] = Bench(rules_for(catalog, *kind), now)
            cases.append(Case(item, user, bench, known.get(user, _UNKNOWN)))
        return cases

    async def _count(self, cases: Sequence[Case], reach: timedelta) -> None:
        """Takes places for the candidates, on the fallback channel where the first is spent."""
        await self._reserve_first(cases, reach)
        await self._take_quotas(await self._take_tenant_quotas([case for case in cases if case.wants_quota]))
        turned = [case for case in cases if case.spent and case.turn()]
        if turned:
            await self._reserve([case for case in turned if case.capped], reach)
            await self._take_quotas([case for case in turned if case.wants_quota])

    async def _reserve_first(self, cases: Sequence[Case], reach: timedelta) -> None:
        """Reserves places by the zone that is kept for each user; judges anew where that is another one."""
        asked = [case for case in cases if case.capped or case.heeds_zone]
        wishes: list[Place | ZoneWish] = [
            case.place(case.zone_to_keep) if case.capped else ZoneWish(case.user, case.zone_to_keep) for case in asked
        ]
        moved: list[Case] = []
        for case, answer in zip(asked, await self._counters.reserve(wishes, reach), strict=True):
            if answer.kept_zone:
                case.move(answer.kept_zone)
                moved.append(case)
            elif case.capped:
                case.note_place(answer)
        await self._reserve([case for case in moved if case.capped], reach)

    async def _reserve(self, cases: Sequence[Case], reach: timedelta) -> None:
        """Reserves places in the caps of users whose zone is settled."""
        places = [case.place() for case in cases]
        for case, answer in zip(cases, await self._counters.reserve(places, reach), strict=True):
            case.note_place(answer)

    async def _take_tenant_quotas(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Takes places in the quotas of tenants; returns the messages that have one, or need none."""
        queues: dict[Tenant, list[Case]] = {}
        for case in cases:
            if case.capped and case.tenant_quota is not None:
                queues.setdefault(Tenant(case.user.tenant), []).append(case)
        if not queues:
            return cases
        wishes = {
            tenant: ([case.message for case in queue], queue[0].tenant_quota or 0) for tenant, queue in queues.items()
        }
        seats = await self._counters.quotas.take(wishes)
        for tenant, queue in queues.items():
            for case, seat in zip(queue, seats[tenant], strict=True):
                case.note_tenant_quota(seat)
        return [case for case in cases if not case.tenant_spent]

    async def _take_quotas(self, cases: Sequence[Case]) -> None:
        """Takes places in the quotas of channels."""
        queues: dict[Channel, list[Case]] = {}
        for case in cases:
            if case.channel_quota is not None:
                queues.setdefault(case.channel, []).append(case)
        wishes = {
            channel: ([case.message for case in queue], queue[0].channel_quota or 0)
            for channel, queue in queues.items()
        }
        seats = await self._counters.quotas.take(wishes)
        for channel, queue in queues.items():
            for case, seat in zip(queue, seats[channel], strict=True):
                case.note_quota(seat)

    async def _tidy(self, cases: Sequence[Case], decisions: Sequence[Decision], catalog: Catalog) -> None:
        """Leaves each message in the quotas of the way it goes, and in no other, whatever an earlier judgement took.

        What does not leave costs neither its user a place of the day, nor its tenant or a channel.
        """
        limited = [name for name, rules in catalog.channels.items() if rules.daily_quota is not None]
        strays: dict[Spender, list[str]] = {channel: [] for channel in limited}
        lost: list[tuple[UserKey, str]] = []
        for case, decision in zip(cases, decisions, strict=True):
            message, way = case.message, decision.channel if decision.sends else None
            for channel in limited:
                if channel is not way:
                    strays[channel].append(message)
            if way is None:
                if case.tenant_quota is not None:
                    strays.setdefault(Tenant(case.user.tenant), []).append(message)
                if case.reserved:
                    lost.append((case.user, message))
        await self._counters.quotas.give_back({spender: names for spender, names in strays.items() if names})
        await self._counters.release(lost)

    def _observe(self, cases: Iterable[Case], decisions: Sequence[Decision]) -> None:
        for (action, reason), count in Counter([(decision.action, decision.reason) for decision in decisions]).items():
            self._decisions.labels(action.value, reason).inc(count)
        released = unknown = 0
        for case, decision in zip(cases, decisions, strict=True):
            if case.item.deferrals:
                released += any(entry.reason == reasons.RELEASED_AFTER_DEFERRAL for entry in decision.trace)
            if case.zone_unknown:
                unknown += 1
        if released:
            self._released.inc(released)
            _log.warning("messages_released_in_quiet_hours", count=released)
        if unknown:
            self._zone_unknown.inc(unknown)
            _log.warning("messages_to_unknown_zones", count=unknown)


def rules_for(catalog: Catalog, scene_name: str, template_name: str = "", tenant: str = "") -> Rules:
    """Returns what holds for a tenant's scene. Where the template is known, only channels that it serves are used."""
    scene = catalog.scene(scene_name, tenant)
    template = catalog.template(template_name or scene.template)
    return Rules(
        scene=scene,
        channels=catalog.channels,
        default_time_zone=catalog.time_zone(tenant),
        policy_version=catalog.policy_version,
        served=template.channels if template is not None else None,
    )


def _with_normal_address(item: Item) -> Item:
    """Brings a bare address into the form in which suppressions know it; one that is none reaches nobody."""
    if item.address is None:
        return item
    try:
        value = normalise(item.address.channel, item.address.value)
    except AddressError:
        return replace(item, address=None)
    return replace(item, address=Address(item.address.channel, value))
