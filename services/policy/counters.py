"""What users got and what channels spent, in Redis: exact under concurrency, rebuilt when Redis was emptied.

Keys, under ``reach:{deployment}:`` (literally the deployment's name; one script touches one key, so one slot):

- ``caps:{<length>:<tenant>:<user>}``: what one user got, see `caps.lua`;
- ``quota:{<channel>}``: what a channel spent on the running day, see `quota.lua`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import resources
from typing import Any, Protocol

import redis.asyncio
from redis import exceptions

from agent_reach.v1 import error_reason_pb2
from services.catalog.rules import Channel
from services.chassis.clock import Clock
from services.chassis.errors import UnavailableError

from .decision import Usage, UserKey

# How far back the caps look: as long as a local date lasts around the world.
KEPT = timedelta(hours=50)
# Only a Redis that loses its memory over and over makes a rebuild fail this often.
_MAX_ROUNDS = 3
# More at once than that only wait inside Redis, and each costs a connection.
_MAX_PIPELINES = 32
_NOT_LOADED, _RESERVED, _OWN = 0, 1, 2
_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a user's caps that a message wants.

    Attributes:
        user: whose caps.
        message: `intent:hop`.
        channel: where it would go.
        cap_date: local date (YYYY-MM-DD) on which it counts.
        user_cap: messages on that date; None for no limit.
        channel_cap: messages on that date and channel; None for no limit.
    """

    user: UserKey
    message: str
    channel: Channel
    cap_date: str
    user_cap: int | None
    channel_cap: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the wish for a place: whether it was reserved, and what the counter saw."""

    reserved: bool
    usage: Usage


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a reservation.

    Attributes:
        user: whose caps.
        message: `intent:hop`.
        channel: the channel of its quota.
        cap_date: the date on which it counts.
        confirmed: it leaves and counts for good; else it never left and its place is given back.
    """

    user: UserKey
    message: str
    channel: Channel
    cap_date: str
    confirmed: bool


@dataclass(frozen=True, slots=True)
class RecentSend:
    """A message that left, as the owner of the tasks remembers it."""

    user: UserKey
    message: str
    channel: Channel
    cap_date: str
    sent_at: datetime


class RecentSends(Protocol):
    """Remembers what left, so that the caps can be rebuilt."""

    async def recent_sends(self, users: Sequence[UserKey], since: datetime) -> list[RecentSend]:
        """Returns the messages that left for these users since a moment.

        Raises:
            UnavailableError: it cannot be asked at the moment.
        """
        ...


class Counters:
    """Caps and quotas.

    Args:
        client: Redis.
        deployment: prefix of the keys.
        memory: where the caps are rebuilt from.
        clock: tells how far back to ask `memory`; expiry inside Redis goes by Redis' own clock.

    Every method raises UnavailableError (REDIS_UNAVAILABLE) when Redis cannot be reached; what was reserved until
    then runs out by itself.
    """

    def __init__(self, client: redis.asyncio.Redis, *, deployment: str, memory: RecentSends, clock: Clock) -> None:
        self._redis = client
        self._prefix = f"reach:{deployment}:"
        self._memory = memory
        self._clock = clock
        self._caps = _Script("caps.lua")
        self._quota = _Script("quota.lua")
        self._pipelines = asyncio.Semaphore(_MAX_PIPELINES)

    async def reserve(self, places: Sequence[Place]) -> list[Answer]:
        """Judges and reserves places, each in one step; in the order given, all in one pipeline.

        Users that Redis knows nothing of are rebuilt first, all in one question.
        """
        answers: dict[int, Answer] = {}
        waiting = list(range(len(places)))
        for _ in range(_MAX_ROUNDS):
            calls = [self._reserve_call(places[index]) for index in waiting]
            rows = await self._run(self._caps, calls)
            strange: dict[int, UserKey] = {}
            for index, row in zip(waiting, rows, strict=True):
                if row[0] == _NOT_LOADED:
                    strange[index] = places[index].user
                else:
                    reserved = row[0] in {_RESERVED, _OWN}
                    answers[index] = Answer(reserved, Usage(user=row[1], channel=row[2], own=row[0] == _OWN))
            if not strange:
                return [answers[index] for index in range(len(places))]
            await self._rebuild(list(dict.fromkeys(strange.values())))
            waiting = list(strange)
        raise UnavailableError(
            "the users' counters are lost as fast as they are rebuilt",
            reason=error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE,
        )

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Confirms or gives back places; repeating it is harmless. A place given back is also off the quota."""
        counted = [settlement for settlement in settlements if settlement.cap_date]
        rows = await self._run(self._caps, [self._settle_call(settlement) for settlement in counted])
        returned: dict[Channel, int] = {}
        for settlement, row in zip(counted, rows, strict=True):
            if not settlement.confirmed and row:
                returned[settlement.channel] = returned.get(settlement.channel, 0) + 1
        await self._run(self._quota, [(self._quota_key(channel), [-count, -1]) for channel, count in returned.items()])

    async def give_back(self, messages: Sequence[tuple[UserKey, str]]) -> None:
        """Gives back places in the caps only, of messages that found no quota."""
        await self._run(self._caps, [(self._caps_key(user), ["release", message]) for user, message in messages])

    async def take_quota(self, wanted: Mapping[Channel, tuple[int, int]]) -> dict[Channel, tuple[int, int]]:
        """Takes places in the quotas of channels.

        Args:
            wanted: by channel, how many places and the quota.

        Returns:
            By channel, how many places were taken and how many were taken before.
        """
        calls: list[_Call] = [(self._quota_key(channel), [count, quota]) for channel, (count, quota) in wanted.items()]
        rows = await self._run(self._quota, calls)
        return {channel: (row[0], row[1]) for channel, row in zip(wanted, rows, strict=True)}

    async def _rebuild(self, users: Sequence[UserKey]) -> None:
        since = self._clock.now() - KEPT
        sends: dict[UserKey, list[str | int]] = {user: [] for user in users}
        for send in await self._memory.recent_sends(users, since):
            milliseconds = int(send.sent_at.timestamp() * 1_000)
            if send.user in sends:
                sends[send.user] += [send.message, send.channel.value, send.cap_date, milliseconds]
        await self._run(self._caps, [(self._caps_key(user), ["load", *values]) for user, values in sends.items()])

    def _reserve_call(self, place: Place) -> _Call:
        caps = [-1 if cap is None else cap for cap in (place.user_cap, place.channel_cap)]
        return self._caps_key(place.user), ["reserve", place.message, place.channel.value, place.cap_date, *caps]

    def _settle_call(self, settlement: Settlement) -> _Call:
        key = self._caps_key(settlement.user)
        if not settlement.confirmed:
            return key, ["release", settlement.message]
        return key, ["confirm", settlement.message, settlement.channel.value, settlement.cap_date]

    def _caps_key(self, user: UserKey) -> str:
        # The length keeps ("a:b", "c") and ("a", "b:c") apart.
        return f"{self._prefix}caps:{{{len(user.tenant)}:{user.tenant}:{user.user_id}}}"

    def _quota_key(self, channel: Channel) -> str:
        return f"{self._prefix}quota:{{{channel.value}}}"

    async def _run(self, script: _Script, calls: Sequence[_Call]) -> list[Any]:
        """Runs one script on many keys in one round trip; loads it where Redis does not know it (any more)."""
        if not calls:
            return []
        async with _redis_or_unavailable():
            rows = await self._pipeline(script, calls)
            unknown = [index for index, row in enumerate(rows) if isinstance(row, exceptions.NoScriptError)]
            if unknown:
                await self._redis.script_load(script.text)
                again = await self._pipeline(script, [calls[index] for index in unknown])
                for index, row in zip(unknown, again, strict=True):
                    rows[index] = row
            for row in rows:
                if isinstance(row, Exception):
                    raise row
        return rows

    async def _pipeline(self, script: _Script, calls: Sequence[_Call]) -> list[Any]:
        async with self._pipelines, self._redis.pipeline(transaction=False) as pipeline:
            for key, values in calls:
                pipeline.evalsha(script.digest, 1, key, *values)
            return list(await pipeline.execute(raise_on_error=False))


_Call = tuple[str, list[str | int]]


class _Script:
    """A Lua file of this room, and the name under which Redis keeps it."""

    def __init__(self, file_name: str) -> None:
        self.text = resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8")
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


@asynccontextmanager
async def _redis_or_unavailable() -> AsyncIterator[None]:
    try:
        yield
    except _AWAY as error:
        raise UnavailableError(
            "Redis cannot be reached; decisions wait for it",
            reason=error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE,
        ) from error
