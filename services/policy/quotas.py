"""What channels and tenants spent on the running UTC day, in Redis; counted anew when Redis does not know it.

That is so when Redis was emptied, when a day begins, and when a quota is new: one way for all three. One process
counts, the others wait for it; what is in flight at that moment may be missing, or stand there twice.

A message takes at most one place a day in a quota, however often it is judged: its name stands beside the count. That is
about 100 bytes of Redis for each message of the day and each quota it counts on, and they go with the day.

Keys, under the deployment's prefix: ``quota:{<channel>}``, ``tenant:{<tenant>}``, see `quota.lua`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol, TypeVar

from services.catalog.rules import Channel
from services.chassis.deadline import remaining_seconds
from services.chassis.errors import UnavailableError

from .scripts import Call, Script, Scripts

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN, _UNKNOWN_AND_ASKED = -1, -2
_NO_PLACE, _HAD_ITS_PLACE = 0, 2
_PATIENCE_SECONDS = 10.0
_LOOK_AGAIN_SECONDS = 0.02


class Tenant(NamedTuple):
    """A tenant; more than its name, which may be that of a channel."""

    name: str


Spender = Channel | Tenant
SpenderT = TypeVar("SpenderT", bound=Spender)


class Seat(NamedTuple):
    """What became of a message's wish for a place in a quota. A tuple: there is one for every message.

    Attributes:
        held: whether it has a place, now or since before.
        used: messages of the day when its batch came, itself left out; where it has no place, the whole quota at least.
    """

    held: bool
    used: int


class SendCounts(Protocol):
    """Counts what left."""

    async def count_sends(self, spenders: Sequence[Spender], since: datetime) -> dict[Spender, int]:
        """Returns how many messages left on channels, and how many that count on caps for tenants.

        Args:
            spenders: channels and tenants; those of which nothing left may be missing in the answer.
            since: those whose place was taken at this moment or later.

        Raises:
            UnavailableError: nobody can be asked at the moment.
        """
        ...


class Quotas:
    """Quotas of channels and of tenants.

    Args:
        scripts: Redis.
        prefix: of the keys.
        memory: where the quotas are counted from.

    Every method raises UnavailableError when Redis, or the memory where it is needed, cannot be reached.
    """

    def __init__(self, scripts: Scripts, prefix: str, memory: SendCounts) -> None:
        self._scripts = scripts
        self._prefix = prefix
        self._memory = memory
        self._script = Script("quota.lua")

    async def take(self, wishes: Mapping[SpenderT, tuple[Sequence[str], int]]) -> dict[SpenderT, list[Seat]]:
        """Takes places for messages, each quota's in one step; a message that has one keeps it.

        Args:
            wishes: by channel or tenant, the names of the messages (`intent:hop`) and the quota.

        Returns:
            By channel or tenant, what became of each message.
        """
        calls: dict[SpenderT, Sequence[str | int]] = {
            spender: ("take", quota, *messages) for spender, (messages, quota) in wishes.items()
        }
        answers = await self._ask(calls)
        return {
            spender: [_seat(answers[spender][0], quota, place) for place in answers[spender][1:]]
            for spender, (_, quota) in wishes.items()
        }

    async def look(self, spenders: Sequence[SpenderT]) -> dict[SpenderT, int]:
        """Returns how many places are taken, and takes none."""
        answers = await self._ask(dict.fromkeys(spenders, ("take", 0)))
        return {spender: answer[0] for spender, answer in answers.items()}

    async def give_back(self, messages: Mapping[Spender, Sequence[str]]) -> None:
        """Takes messages off quotas, where they have a place in them; repeating it is harmless."""
        calls: list[Call] = [(self._key(spender), ("give", *names)) for spender, names in messages.items()]
        await self._scripts.run(self._script, calls)

    async def _ask(self, wishes: Mapping[SpenderT, Sequence[str | int]]) -> dict[SpenderT, list[int]]:
        """Asks for places; has what is not known counted first."""
        answers: dict[SpenderT, list[int]] = {}
        try:
            async with asyncio.timeout(remaining_seconds(_PATIENCE_SECONDS)):
                while waiting := [spender for spender in wishes if spender not in answers]:
                    calls: list[Call] = [(self._key(spender), wishes[spender]) for spender in waiting]
                    unknown: dict[int, list[SpenderT]] = {}
                    for spender, answer in zip(waiting, await self._scripts.run(self._script, calls), strict=True):
                        if answer[0] >= 0:
                            answers[spender] = answer
                        elif answer[0] == _UNKNOWN:
                            unknown.setdefault(answer[1], []).append(spender)
                    for day, spenders in unknown.items():
                        await self._load(day, spenders)
                    if not unknown and len(answers) < len(wishes):
                        await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        except TimeoutError as error:
            raise UnavailableError("what channels or tenants spent today is still being counted") from error
        return answers

    async def _load(self, day: int, spenders: Sequence[Spender]) -> None:
        try:
            counts = await self._memory.count_sends(spenders, _EPOCH + timedelta(days=day))
        except UnavailableError:
            await self._scripts.run(self._script, [(self._key(spender), ("leave",)) for spender in spenders])
            raise
        calls: list[Call] = [(self._key(each), ("load", day, counts.get(each, 0))) for each in spenders]
        await self._scripts.run(self._script, calls)

    def _key(self, spender: Spender) -> str:
        kind, name = ("quota", spender.value) if isinstance(spender, Channel) else ("tenant", spender.name)
        return f"{self._prefix}{kind}:{{{name}}}"


def _seat(before: int, quota: int, place: int) -> Seat:
    if place == _NO_PLACE:
        return Seat(held=False, used=max(before, quota))
    return Seat(held=True, used=before - 1 if place == _HAD_ITS_PLACE else before)
