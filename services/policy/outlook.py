"""What the counters would say, without taking a place: for judgements that are not acted on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.catalog.rules import Channel
from services.chassis.clock import Clock

from .counters import Counters
from .decision import Facts, UserKey
from .evaluate import Candidate
from .hindsight import Counts
from .places import Place, longest_window, message_name, told, usage, user_of, ways
from .quotas import Tenant


@dataclass(frozen=True, slots=True)
class Look:
    """A message that passed the gates without counters.

    Attributes:
        judged: the message.
        facts: what is known of its recipient.
        seen: what the counters said of it already.
    """

    judged: Candidate
    facts: Facts
    seen: Counts


class Outlook:
    """Looks at the counters. Nothing is reserved or counted.

    Args:
        counters: caps and quotas.
        clock: the present moment; quotas of another day are taken as unspent.
    """

    def __init__(self, counters: Counters, clock: Clock) -> None:
        self._counters = counters
        self._clock = clock

    async def add_counts(self, looks: Sequence[Look]) -> list[Facts]:
        """Returns the facts of each message with what the counters would say.

        Raises:
            UnavailableError: Redis, or the memory of sends, cannot be reached.
        """
        places = await self._places(looks)
        channels = await self._channels(looks)
        tenants = await self._tenants(looks)
        counted = []
        for look in looks:
            judged, seen = look.judged, look.seen
            own = message_name(judged.item)
            records = [place for name, place in places.get(user_of(judged.item), {}).items() if name != own]
            counted.append(
                replace(
                    look.facts,
                    usage={channel: usage(judged, channel, seen, records) for channel in ways(judged)},
                    quota_used={
                        channel: seen.quota.get(channel, channels.get(channel, 0) if self._today(judged) else 0)
                        for channel in ways(judged)
                    },
                    tenant_used=seen.tenant
                    if seen.tenant is not None
                    else (tenants.get(judged.item.tenant, 0) if self._today(judged) else 0),
                )
            )
        return counted

    async def _places(self, looks: Sequence[Look]) -> dict[UserKey, dict[str, Place]]:
        asking = [look for look in looks if not all(told(look.judged, way, look.seen) for way in ways(look.judged))]
        if not asking:
            return {}
        reach = max(longest_window(look.judged.rules.scene) for look in asking)
        places: dict[UserKey, dict[str, Place]] = {}
        for counted in await self._counters.show([user_of(look.judged.item) for look in asking], reach):
            place = Place(counted.counted_at, counted.cap_date, counted.channel, counted.category)
            places.setdefault(counted.user, {})[counted.message] = place
        return places

    async def _channels(self, looks: Sequence[Look]) -> dict[Channel, int]:
        wanted: set[Channel] = set()
        for look in looks:
            for channel in ways(look.judged):
                quota = look.judged.rules.channels[channel].daily_quota
                if quota is not None and channel not in look.seen.quota and self._today(look.judged):
                    wanted.add(channel)
        return await self._counters.quotas.look(sorted(wanted))

    async def _tenants(self, looks: Sequence[Look]) -> dict[str, int]:
        wanted: set[Tenant] = set()
        for look in looks:
            quota = look.judged.rules.scene.policy.tenant_daily_quota
            if quota is not None and look.seen.tenant is None and self._today(look.judged):
                wanted.add(Tenant(look.judged.item.tenant))
        looked = await self._counters.quotas.look(sorted(wanted))
        return {tenant.name: used for tenant, used in looked.items()}

    def _today(self, judged: Candidate) -> bool:
        return judged.now.date() == self._clock.now().date()
