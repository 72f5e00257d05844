"""Judges batches: loads what is known, reserves places, and lets `evaluate` decide by what the counters saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import prometheus_client
import structlog

from services.catalog.addresses import AddressError, normalise
from services.catalog.catalog import Catalog
from services.catalog.holder import CatalogHolder
from services.catalog.rules import Channel
from services.chassis.clock import Clock

from . import reasons
from .counters import Counters, Place
from .decision import Address, Decision, Facts, Item, Person, Rules, Suppression, UserKey
from .evaluate import Candidate, before_counters, conclude, fallback_address
from .gates import address_on

_log = structlog.get_logger(__name__)
_NOBODY = Person()


class Directory(Protocol):
    """Knows people and their wishes for silence."""

    async def people(self, users: Sequence[UserKey]) -> dict[UserKey, Person]:
        """Returns what is known of these users; unknown ones are left out."""
        ...

    async def suppressions(
        self, users: Sequence[UserKey], addresses: Sequence[tuple[str, Address]]
    ) -> list[tuple[str, Suppression]]:
        """Returns the standing suppressions of these users and (tenant, address) pairs, each with its tenant."""
        ...


class Judge:
    """Evaluates batches of messages. Keeps no state.

    Args:
        catalog: the configuration in force.
        directory: people and suppressions.
        counters: caps and quotas.
        clock: the moment of the judgement.
        metrics: where decisions are counted.
    """

    def __init__(
        self,
        catalog: CatalogHolder,
        directory: Directory,
        counters: Counters,
        clock: Clock,
        metrics: prometheus_client.CollectorRegistry,
    ) -> None:
        self._catalog = catalog
        self._directory = directory
        self._counters = counters
        self._clock = clock
        self._decisions = prometheus_client.Counter(
            "reach_policy_decisions", "Decisions, by action and reason.", ["action", "reason"], registry=metrics
        )
        self._released = prometheus_client.Counter(
            "reach_policy_released_after_deferral",
            "Messages that left during quiet hours because they had been deferred once.",
            registry=metrics,
        )

    async def evaluate(self, items: Sequence[Item]) -> list[Decision]:
        """Judges a batch; every item by the same configuration and the same moment.

        Raises:
            UnavailableError: the database, Redis or the memory of sends cannot be reached; nothing is decided.
        """
        catalog = self._catalog.current
        now = self._clock.now()
        items = [_with_normal_address(item) for item in items]
        facts = await self._load(items, catalog.channels)
        kinds = [(item.scene, item.template) for item in items]
        rules = {kind: rules_for(catalog, *kind) for kind in set(kinds)}
        judged = [
            before_counters(item, fact, rules[kind], now) for item, fact, kind in zip(items, facts, kinds, strict=True)
        ]
        candidates = {index: entry for index, entry in enumerate(judged) if isinstance(entry, Candidate)}
        decided = await self._count(candidates, facts)
        decisions = [entry if isinstance(entry, Decision) else decided[index] for index, entry in enumerate(judged)]
        self._observe(decisions)
        return decisions

    async def _load(self, items: Sequence[Item], channels: Collection[Channel]) -> list[Facts]:
        """Looks everybody up: one question for people, one for suppressions."""
        users = list(dict.fromkeys(UserKey(item.tenant, item.user_id) for item in items))
        people = await self._directory.people(users)
        persons = [people.get(UserKey(item.tenant, item.user_id), _NOBODY) for item in items]
        addresses = [_addresses(item, person, channels) for item, person in zip(items, persons, strict=True)]
        asked = dict.fromkeys(
            (item.tenant, address) for item, own in zip(items, addresses, strict=True) for address in own
        )
        by_user: dict[UserKey, list[Suppression]] = {}
        by_address: dict[tuple[str, Address], list[Suppression]] = {}
        for tenant, suppression in await self._directory.suppressions(users, list(asked)):
            if suppression.address is not None:
                by_address.setdefault((tenant, suppression.address), []).append(suppression)
            else:
                by_user.setdefault(UserKey(tenant, suppression.user_id), []).append(suppression)
        facts = []
        for item, person, own in zip(items, persons, addresses, strict=True):
            standing = list(by_user.get(UserKey(item.tenant, item.user_id), ()))
            for address in own:
                standing += by_address.get((item.tenant, address), ())
            facts.append(Facts(person, tuple(standing)))
        return facts

    async def _count(self, candidates: Mapping[int, Candidate], facts: Sequence[Facts]) -> dict[int, Decision]:
        """Takes places for the candidates, on the fallback channel where the first is spent, and decides."""
        known = {index: facts[index] for index in candidates}
        spent = await self._take(candidates, known, {index: c.address.channel for index, c in candidates.items()})
        ways = {index: fallback_address(candidates[index], known[index])[0] for index in spent}
        await self._take(candidates, known, {index: way.channel for index, way in ways.items() if way is not None})
        decided = {index: conclude(candidate, known[index]) for index, candidate in candidates.items()}
        # What found no quota anywhere does not cost the user a place of the day.
        lost = [candidates[index].item for index in spent if not decided[index].sends]
        await self._counters.give_back([(UserKey(item.tenant, item.user_id), _message(item)) for item in lost])
        return decided

    async def _take(
        self, candidates: Mapping[int, Candidate], known: dict[int, Facts], wanted: Mapping[int, Channel]
    ) -> list[int]:
        """Takes places in the caps, then in the quotas; notes in `known` what the counters saw.

        Returns:
            Those that have a place in the caps (or need none) and found the channel's quota spent.
        """
        capped = [index for index in wanted if candidates[index].cap_date]
        answers = await self._counters.reserve([_place(candidates[index], wanted[index]) for index in capped])
        settled: set[int] = set()
        for index, answer in zip(capped, answers, strict=True):
            usage = {**known[index].usage, wanted[index]: answer.usage}
            known[index] = replace(known[index], usage=usage)
            if not answer.reserved or answer.usage.own:
                settled.add(index)
        queues: dict[Channel, list[int]] = {}
        for index, channel in wanted.items():
            if index not in settled and candidates[index].rules.channels[channel].daily_quota is not None:
                queues.setdefault(channel, []).append(index)
        quotas = {
            channel: candidates[queue[0]].rules.channels[channel].daily_quota for channel, queue in queues.items()
        }
        taken = await self._counters.take_quota(
            {channel: (len(queues[channel]), quota) for channel, quota in quotas.items() if quota is not None}
        )
        spent: list[int] = []
        for channel, (places, before) in taken.items():
            for number, index in enumerate(queues[channel]):
                used = {**known[index].quota_used, channel: before + min(number, places)}
                known[index] = replace(known[index], quota_used=used)
                if number >= places:
                    spent.append(index)
        return sorted(spent)

    def _observe(self, decisions: Sequence[Decision]) -> None:
        for (action, reason), count in Counter((d.action.value, d.reason) for d in decisions).items():
            self._decisions.labels(action, reason).inc(count)
        released = sum(
            entry.reason == reasons.RELEASED_AFTER_DEFERRAL for decision in decisions for entry in decision.trace
        )
        if released:
            self._released.inc(released)
            _log.warning("messages_released_in_quiet_hours", count=released)


def rules_for(catalog: Catalog, scene_name: str, template_name: str = "") -> Rules:
    """Returns what holds for one scene. Where the template is known, only the channels that it serves are used."""
    scene = catalog.scene(scene_name)
    template = catalog.template(template_name or scene.template)
    return Rules(
        scene=scene,
        channels=catalog.channels,
        default_time_zone=catalog.default_time_zone,
        policy_version=catalog.policy_version,
        served=template.channels if template is not None else None,
    )


def _addresses(item: Item, person: Person, channels: Collection[Channel]) -> list[Address]:
    """Returns every address at which a message could arrive."""
    values = ((channel, address_on(channel, item, person)) for channel in channels)
    return [Address(channel, value) for channel, value in values if value is not None]


def _with_normal_address(item: Item) -> Item:
    """Brings a bare address into the form in which suppressions know it; one that is none reaches nobody."""
    if item.address is None:
        return item
    try:
        value = normalise(item.address.channel, item.address.value)
    except AddressError:
        return replace(item, address=None)
    return replace(item, address=Address(item.address.channel, value))


def _place(candidate: Candidate, channel: Channel) -> Place:
    item, policy = candidate.item, candidate.rules.scene.policy
    return Place(
        user=UserKey(item.tenant, item.user_id),
        message=_message(item),
        channel=channel,
        cap_date=candidate.cap_date,
        user_cap=policy.user_daily_cap,
        channel_cap=policy.user_channel_daily_cap.get(channel),
    )


def _message(item: Item) -> str:
    return f"{item.intent_id}:{item.hop}"
