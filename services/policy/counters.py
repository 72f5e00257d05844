"""What users got, in Redis: exact under concurrency, rebuilt when it was emptied.

Keys, under ``reach:{deployment}:`` (literally the deployment's name; one script touches one key, so one slot):
``caps:{<length>:<tenant>:<user>}``: what one user got, and the zone they were judged in, see `caps.lua`; beside them
those of `quotas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import redis.asyncio

from agent_reach.v1 import error_reason_pb2
from services.catalog.rules import Category, Channel, WindowCap
from services.chassis.clock import Clock
from services.chassis.errors import UnavailableError

from .decision import Usage, UserKey
from .quotas import Quotas, SendCounts, Spender, Tenant
from .record import record
from .scripts import Call, Script, Scripts

# How far back the caps look at least: as long as a local date lasts around the world.
KEPT = timedelta(hours=50)
# A date begins this long before it does in UTC, where it begins first.
_EARLIEST_ZONE = timedelta(hours=14)
# Only a Redis that loses its memory over and over makes a rebuild fail this often.
_MAX_ROUNDS = 3
_NOT_LOADED, _RESERVED, _OWN, _REFUSED, _OTHER_ZONE = 0, 1, 2, 3, 4
_ONLY_LOOK = "-"
_SHOWN = 6


@record(frozen=True, slots=True)
class ZoneWish:
    """The zone in which a user is judged, for a message that takes no place.

    Attributes:
        user: the user.
        zone: kept for two hours when none is kept; empty when it is only the default, which is not kept.
    """

    user: UserKey
    zone: str


@record(frozen=True, slots=True)
class Place:
    """A place in a user's caps that a message wants.

    Attributes:
        user: whose caps.
        message: `intent:hop`.
        channel: where it would go.
        cap_date: local date (YYYY-MM-DD) on which it counts.
        user_cap: messages on that date; None for no limit.
        channel_cap: messages on that date and channel; None for no limit.
        category: its category, on whose sliding windows it counts.
        window_caps: caps over sliding windows.
        zone: the zone of the date, see `ZoneWish`; None asks for none: then no other goes before.
    """

    user: UserKey
    message: str
    channel: Channel
    cap_date: str
    user_cap: int | None
    channel_cap: int | None
    category: Category = Category.NOTIFICATION
    window_caps: Sequence[WindowCap] = ()
    zone: str | None = None


@record(frozen=True, slots=True)
class Answer:
    """What became of a wish.

    Attributes:
        reserved: whether the place was reserved.
        usage: what the counter saw.
        kept_zone: the zone that was chosen within the last two hours, where it is another one: nothing was reserved.
    """

    reserved: bool
    usage: Usage
    kept_zone: str = ""


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a reservation.

    Attributes:
        user: whose caps.
        message: `intent:hop`.
        channel: the channel on which it counts.
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
    """A message that left, as the owner of the tasks remembers it.

    An uncertain one is being handed over, or was when its owner died: it counts, but cannot be confirmed by that.
    """

    user: UserKey
    message: str
    channel: Channel
    cap_date: str
    sent_at: datetime
    category: Category = Category.NOTIFICATION
    uncertain: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """A message that counts on a user's caps.

    Attributes:
        user: whose.
        message: `intent:hop`.
        channel: where it goes.
        cap_date: local date on which it counts.
        category: its category.
        counted_at: from when on it counts.
        pending: reserved, or being handed over: it may not have left yet.
    """

    user: UserKey
    message: str
    channel: Channel
    cap_date: str
    category: Category
    counted_at: datetime
    pending: bool


class RecentSends(SendCounts, Protocol):
    """Remembers what left, so that the caps and the quotas can be rebuilt."""

    async def recent_sends(self, users: Sequence[UserKey], since: datetime) -> list[RecentSend]:
        """Returns the messages that left for these users since a moment.

        Raises:
            UnavailableError: it cannot be asked at the moment.
        """
        ...


class Clearances(Protocol):
    """Remembers whose counters were cleared, so that a rebuild does not bring back what was forgotten."""

    async def cleared_since(self, users: Sequence[UserKey]) -> dict[UserKey, datetime]:
        """Returns, for those whose counters were ever cleared, up to when: what was sent until then does not count."""
        ...


class Counters:
    """Caps and the zones that are kept, and the quotas beside them.

    Args:
        client: Redis.
        deployment: prefix of the keys.
        memory: where caps and quotas are rebuilt from.
        clearances: whose counters were cleared.
        clock: tells how far back to ask `memory`, and since when a zone is kept; expiry inside Redis goes by Redis'
            own clock.

    Attributes:
        quotas: what channels and tenants spent.

    Every method raises UnavailableError (REDIS_UNAVAILABLE) when Redis cannot be reached; what was reserved until
    then runs out by itself.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        deployment: str,
        memory: RecentSends,
        clearances: Clearances,
        clock: Clock,
    ) -> None:
        self._prefix = f"reach:{deployment}:"
        self._memory = memory
        self._clearances = clearances
        self._clock = clock
        self._scripts = Scripts(client)
        self._caps = Script("caps.lua")
        self.quotas = Quotas(self._scripts, self._prefix, memory)

    async def reserve(self, wishes: Sequence[Place | ZoneWish], reach: timedelta = KEPT) -> list[Answer]:
        """Judges and reserves places, each in one step; in the order given, all in one pipeline.

        Users that Redis knows nothing of, or not as far back as is needed, are rebuilt first, all in one question.

        Args:
            wishes: the places; a `ZoneWish` among them is answered as not reserved.
            reach: how far back the longest window of any policy looks.
        """
        reach = max(reach, KEPT)
        reach_seconds = int(reach.total_seconds())
        now = self._milliseconds(self._clock.now())
        answers: list[Answer | None] = [None] * len(wishes)
        waiting: Sequence[int] = range(len(wishes))
        for _ in range(_MAX_ROUNDS):
            calls = [self._wish_call(wishes[index], reach_seconds, now) for index in waiting]
            strange: list[int] = []
            for index, row in zip(waiting, await self._scripts.run(self._caps, calls), strict=True):
                if row[0] == _NOT_LOADED:
                    strange.append(index)
                else:
                    answers[index] = _answer(row)
            if not strange:
                return [answer for answer in answers if answer is not None]
            await self._rebuild(list(dict.fromkeys(wishes[index].user for index in strange)), reach)
            waiting = strange
        raise _lost_again()

    async def settle(self, settlements: Sequence[Settlement]) -> list[int]:
        """Confirms or gives back places; repeating it is harmless. What is given back is also off the quotas.

        Returns:
            The positions of confirmations whose place is gone: it ran out, or Redis was emptied.
        """
        counted = [position for position, settlement in enumerate(settlements) if settlement.cap_date]
        calls = [self._settle_call(settlements[position]) for position in counted]
        rows = await self._scripts.run(self._caps, calls)
        # Wherever it stands: what counts on no caps, such as a code, has its place in a channel's quota all the same.
        returned: dict[Spender, list[str]] = {}
        for settlement in settlements:
            if not settlement.confirmed:
                for spender in (*Channel, Tenant(settlement.user.tenant)):
                    returned.setdefault(spender, []).append(settlement.message)
        await self.quotas.give_back(returned)
        return [
            position
            for position, row in zip(counted, rows, strict=True)
            if settlements[position].confirmed and not row
        ]

    async def release(self, messages: Sequence[tuple[UserKey, str]]) -> None:
        """Gives back the places in users' caps of messages that do not leave; their names are `intent:hop`."""
        releases: list[Call] = [(self._caps_key(user), ("release", message)) for user, message in messages]
        await self._scripts.run(self._caps, releases)

    async def kept_zone(self, user: UserKey, at: datetime) -> str:
        """Returns the zone that is kept for a user at a moment; empty where none is."""
        (zone,) = await self._scripts.run(self._caps, [(self._caps_key(user), ("kept", self._milliseconds(at)))])
        return str(zone.decode())

    async def show(self, users: Sequence[UserKey], reach: timedelta = KEPT) -> list[Counted]:
        """Returns what counts on the caps of users: by user, newest first. They are rebuilt first where needed."""
        users = list(dict.fromkeys(users))
        await self._ensure_loaded(users, max(reach, KEPT))
        rows = await self._scripts.run(self._caps, [(self._caps_key(user), ("show",)) for user in users])
        counted: list[Counted] = []
        for user, row in zip(users, rows, strict=True):
            words = [value.decode() for value in row]
            entries = [_counted(user, words[first : first + _SHOWN]) for first in range(0, len(words), _SHOWN)]
            counted += sorted(entries, key=lambda entry: entry.counted_at, reverse=True)
        return counted

    async def clear(self, user: UserKey, reach: timedelta = KEPT) -> int:
        """Forgets what counts on a user's caps; returns how many messages that were.

        That a rebuild does not bring them back is for `Clearances` to tell: write it there first.
        """
        await self._ensure_loaded([user], max(reach, KEPT))
        (cleared,) = await self._scripts.run(self._caps, [(self._caps_key(user), ("clear",))])
        return int(cleared)

    async def _ensure_loaded(self, users: Sequence[UserKey], reach: timedelta) -> None:
        reach_seconds = int(reach.total_seconds())
        strange: Sequence[UserKey] = users
        for _ in range(_MAX_ROUNDS):
            calls: list[Call] = [(self._caps_key(user), ("loaded", reach_seconds)) for user in strange]
            rows = await self._scripts.run(self._caps, calls)
            strange = [user for user, loaded in zip(strange, rows, strict=True) if not loaded]
            if not strange:
                return
            await self._rebuild(strange, reach)
        raise _lost_again()

    async def _rebuild(self, users: Sequence[UserKey], reach: timedelta) -> None:
        sends = await self._memory.recent_sends(users, self._clock.now() - reach)
        cleared = await self._clearances.cleared_since(users)
        loads: dict[UserKey, list[str | int]] = {user: ["load", int(reach.total_seconds())] for user in users}
        for send in sends:
            cleared_at = cleared.get(send.user)
            if send.user in loads and (cleared_at is None or send.sent_at > cleared_at):
                state, at = "u" if send.uncertain else "c", self._milliseconds(_counted_at(send))
                place = (send.message, send.channel.value, send.cap_date, send.category.value)
                loads[send.user] += [*place, state, at]
        await self._scripts.run(self._caps, [(self._caps_key(user), values) for user, values in loads.items()])

    def _wish_call(self, wish: Place | ZoneWish, reach_seconds: int, now: int) -> Call:
        key = self._caps_key(wish.user)
        if isinstance(wish, ZoneWish):
            return key, ("zone", wish.zone or _ONLY_LOOK, now)
        place = (wish.message, wish.channel, wish.cap_date, wish.category, reach_seconds)
        zone = "" if wish.zone is None else wish.zone or _ONLY_LOOK
        user_cap = -1 if wish.user_cap is None else wish.user_cap
        channel_cap = -1 if wish.channel_cap is None else wish.channel_cap
        call = ("reserve", *place, zone, now, user_cap, channel_cap)
        if not wish.window_caps:
            return key, call
        windows = [(int(cap.window.total_seconds() * 1_000), cap.messages) for cap in wish.window_caps]
        return key, (*call, *(number for window in windows for number in window))

    def _settle_call(self, settlement: Settlement) -> Call:
        key = self._caps_key(settlement.user)
        if not settlement.confirmed:
            return key, ("release", settlement.message)
        return key, ("confirm", settlement.message, settlement.channel.value, settlement.cap_date)

    def _caps_key(self, user: UserKey) -> str:
        # The length keeps ("a:b", "c") and ("a", "b:c") apart.
        tenant, user_id = user
        return f"{self._prefix}caps:{{{len(tenant)}:{tenant}:{user_id}}}"

    @staticmethod
    def _milliseconds(moment: datetime) -> int:
        return int(moment.timestamp() * 1_000)


def _lost_again() -> UnavailableError:
    return UnavailableError(
        "the users' counters are lost as fast as they are rebuilt",
        reason=error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE,
    )


def _counted_at(send: RecentSend) -> datetime:
    """Returns from when on a message counts: its task may have been made long before, and deferred."""
    date_begins = datetime.fromisoformat(send.cap_date).replace(tzinfo=UTC) - _EARLIEST_ZONE
    return max(send.sent_at, date_begins)


def _answer(row: list[Any]) -> Answer:
    status = row[0]
    if status == _OTHER_ZONE:
        return Answer(reserved=False, usage=Usage(), kept_zone=row[1].decode())
    if status not in {_RESERVED, _OWN, _REFUSED}:  # a zone only
        return Answer(reserved=False, usage=Usage())
    return Answer(status != _REFUSED, Usage(row[1], row[2], status == _OWN, tuple(row[3:])))


def _counted(user: UserKey, words: Sequence[str]) -> Counted:
    message, channel, cap_date, category, state, milliseconds = words
    return Counted(
        user=user,
        message=message,
        channel=Channel(channel),
        cap_date=cap_date,
        category=Category(category),
        counted_at=datetime.fromtimestamp(int(milliseconds) / 1_000, UTC),
        pending=state != "c",
    )
