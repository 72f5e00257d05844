"""Past messages judged once more by another policy, each at its own moment. Pure; keeps only what parted.

As long as the other policy decides about a message as the one in force did, the message counts the same in both
worlds. So the counts that a past decision saw (they stand in its trace) are right for the other policy too, but for
the messages about which the two parted before: these are kept, with where they count in either world.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from services.catalog.rules import Channel

from .decision import Action, Decision, Facts, Gate, Item, Rules, Usage, UserKey
from .evaluate import Candidate, before_counters, conclude
from .hindsight import Counts, Dossier, counts_seen, parting_gate
from .places import Place, message_name, usage, user_of, ways

RulesOf = Callable[[str, str, str], Rules]
"""Returns what holds by the other policy; arguments: scene, template, tenant."""

_NO_COUNTS = Counts()


@dataclass(frozen=True, slots=True)
class Judgement:
    """One past judgement: the message as it was judged, and the decision."""

    item: Item
    decision: Decision


@dataclass(slots=True)
class Course:
    """A past message.

    Attributes:
        judgements: every time that it was judged, in order; at least one.
        dossier: what is known of its recipient.
        places: what its recipient got, by message, as far as windows reach back.
        parted: whether the two policies decided differently about it.
        sent: whether it was let through by the policy in force.
    """

    judgements: Sequence[Judgement]
    dossier: Dossier
    places: Mapping[str, Place]
    parted: bool = False
    sent: bool = False

    @property
    def item(self) -> Item:
        """The message, as it was judged first."""
        return self.judgements[0].item

    @property
    def began_at(self) -> datetime:
        """The moment of its first judgement."""
        return self.judgements[0].decision.decided_at

    @property
    def message(self) -> str:
        """Its name in the counters."""
        return message_name(self.item)

    @property
    def user(self) -> UserKey:
        """Whom it is for."""
        return user_of(self.item)


@dataclass(frozen=True, slots=True)
class Change:
    """A message about which the two policies decide differently, and the gate at which they part."""

    item: Item
    actual: Decision
    other: Decision
    gate: Gate


@dataclass(slots=True)
class _Worlds:
    """Where one message counts by the policy in force, and by the other; None where it does not count."""

    actual: Place | None = None
    other: Place | None = None


class TooManyError(Exception):
    """More messages part, or wait, than may be kept in memory."""


class Replay:
    """Judges past messages by another policy.

    Args:
        rules_of: the other policy.
        most: messages that are kept at the same time: those that parted, and those that wait to be judged again.

    Messages are given oldest first by `run`; `finish` judges what waits at the end.
    """

    def __init__(self, rules_of: RulesOf, most: int) -> None:
        self._rules_of = rules_of
        self._most = most
        self._numbers = itertools.count()
        # What happens later: a message is judged again, in the world of the one policy or the other.
        self._later: list[tuple[datetime, int, Course, int | Item]] = []
        self._parted: dict[UserKey, dict[str, _Worlds]] = {}
        self._parted_count = 0
        self._spent = _Spent()
        self._digests: dict[tuple[UserKey, str, str], datetime] = {}

    def count(self, course: Course) -> None:
        """Takes a message from before the replay: it is not judged, and counts on the quotas of its day."""
        for judgement in course.judgements:
            self._note_sent(course, judgement.decision)

    def run(self, course: Course) -> Iterator[Change]:
        """Judges one message, and before it what waited for an earlier moment."""
        if _is_digest(course.item):
            # It was made when its first part came, long before it was judged.
            self._put(course.began_at, course, 0)
            return
        yield from self._until(course.began_at)
        yield from self._judge(course, 0)

    def finish(self, end: datetime) -> Iterator[Change]:
        """Judges what waits for a moment before the end."""
        yield from self._until(end)

    def _until(self, moment: datetime) -> Iterator[Change]:
        while self._later and self._later[0][0] <= moment:
            at, _, course, what = heapq.heappop(self._later)
            if isinstance(what, Item):
                self._go_on(course, what, at)
            else:
                yield from self._judge(course, what)

    def _judge(self, course: Course, number: int) -> Iterator[Change]:
        """Judges a message at the moment of one of its past judgements."""
        judgement = course.judgements[number]
        item, actual = judgement.item, judgement.decision
        if number + 1 < len(course.judgements):
            self._put(course.judgements[number + 1].decision.decided_at, course, number + 1)
        rules = self._rules_of(item.scene, item.template, item.tenant)
        if course.parted:
            self._place(course, actual, rules, other=False)
        elif not number and _is_digest(item) and (rules.scene.digest is None or _kind(item) in self._digests):
            # By the other policy its parts leave one by one, or in a digest of their own.
            self._part(course)
            self._place(course, actual, rules, other=False)
        else:
            other = self._decide(course, item, actual.decided_at, rules, actual)
            gate = parting_gate(actual, other)
            if gate is not None:
                self._part(course)
                self._place(course, actual, rules, other=False)
                self._follow(course, item, other, rules)
                yield Change(item, actual, other, gate)
        self._note_sent(course, actual)

    def _go_on(self, course: Course, item: Item, now: datetime) -> None:
        """Judges a message again at a moment at which only the other policy would."""
        rules = self._rules_of(item.scene, item.template, item.tenant)
        self._follow(course, item, self._decide(course, item, now, rules, None), rules)

    def _follow(self, course: Course, item: Item, other: Decision, rules: Rules) -> None:
        """Notes where a message counts by the other policy, or when that judges it again."""
        self._place(course, other, rules, other=True)
        if other.action is not Action.DEFER or other.until is None:
            return
        if other.held_by is Gate.DIGEST:
            key = _kind(item)
            open_until = self._digests.get(key)
            if open_until is not None and other.decided_at < open_until:
                return  # it leaves as a part of the digest that is open
            self._digests[key] = other.until
        again = replace(
            item,
            planned_at=other.until,
            deferrals=item.deferrals + (other.held_by is Gate.QUIET_HOURS),
            scheduled=item.scheduled or other.held_by is Gate.SCHEDULE,
            gathered=item.gathered or other.held_by is Gate.DIGEST,
        )
        self._put(other.until, course, again)

    def _decide(self, course: Course, item: Item, now: datetime, rules: Rules, actual: Decision | None) -> Decision:
        """Decides by the other policy.

        Args:
            course: the message.
            item: the message as it is judged now.
            now: the moment.
            rules: what holds by the other policy.
            actual: what the policy in force decided at this moment about this very item; None where it was not asked.
        """
        dossier = course.dossier
        facts = dossier.at(now) if actual is None else dossier.as_seen(item.user_id, actual)
        judged = before_counters(item, facts, rules, now)
        if isinstance(judged, Decision):
            return judged
        seen = _NO_COUNTS if actual is None else counts_seen(actual)
        return conclude(judged, self._counted(course, facts, judged, seen))

    def _counted(self, course: Course, facts: Facts, judged: Candidate, seen: Counts) -> Facts:
        """Adds what the counters would have said in the world of the other policy."""
        channels = ways(judged)
        day = judged.now.date().isoformat()
        return replace(
            facts,
            usage={channel: self._usage(course, channel, judged, seen) for channel in channels},
            quota_used={channel: self._spent.on_channel(day, channel, seen) for channel in channels},
            tenant_used=self._spent.by_tenant(day, seen),
        )

    def _usage(self, course: Course, channel: Channel, judged: Candidate, seen: Counts) -> Usage:
        worlds = self._parted.get(course.user, {})
        others = [pair for name, pair in worlds.items() if name != course.message]
        place = worlds[course.message].other if course.message in worlds else None
        return usage(
            judged,
            channel,
            seen,
            [place for name, place in course.places.items() if name != course.message and name not in worlds],
            own=place is not None and (place.cap_date, place.channel) == (judged.cap_date, channel),
            gained=[pair.other for pair in others if pair.other is not None],
            lost=[pair.actual for pair in others if pair.actual is not None],
        )

    def _part(self, course: Course) -> None:
        course.parted = True
        self._parted.setdefault(course.user, {})[course.message] = _Worlds()
        self._parted_count += 1
        self._check_room()

    def _place(self, course: Course, decision: Decision, rules: Rules, *, other: bool) -> None:
        """Notes where a message that parted counts in one of the worlds after a decision."""
        worlds = self._parted[course.user][course.message]
        before = worlds.other if other else worlds.actual
        after = None
        if decision.sends and decision.channel is not None:
            after = Place(decision.decided_at, decision.cap_date, decision.channel, rules.scene.category)
        if before is not None and after is not None and before.same(after):
            return  # judged again before it left: it has its place
        self._spent.shift(before, -1 if other else 1)
        self._spent.shift(after, 1 if other else -1)
        if other:
            worlds.other = after
        else:
            worlds.actual = after

    def _note_sent(self, course: Course, decision: Decision) -> None:
        self._spent.see(decision, first=decision.sends and not course.sent)
        course.sent |= decision.sends

    def _put(self, at: datetime, course: Course, what: int | Item) -> None:
        heapq.heappush(self._later, (at, next(self._numbers), course, what))
        self._check_room()

    def _check_room(self) -> None:
        if self._parted_count + len(self._later) > self._most:
            raise TooManyError


@dataclass(slots=True)
class _Spent:
    """What channels and the tenant spent on UTC days, by the newest that a decision was told; else as counted here."""

    channels: dict[tuple[str, Channel], int] = field(default_factory=dict)
    tenant: dict[str, int] = field(default_factory=dict)
    channel_shift: dict[tuple[str, Channel], int] = field(default_factory=dict)
    tenant_shift: dict[str, int] = field(default_factory=dict)

    def see(self, decision: Decision, *, first: bool) -> None:
        """Takes what a past decision was told, and what it took itself when it let a message through first."""
        day = decision.decided_at.date().isoformat()
        seen = counts_seen(decision)
        for channel, used in seen.quota.items():
            self.channels[day, channel] = used
        if seen.tenant is not None:
            self.tenant[day] = seen.tenant
        if first and decision.channel is not None:
            self.channels[day, decision.channel] = self.channels.get((day, decision.channel), 0) + 1
            if decision.cap_date:
                self.tenant[day] = self.tenant.get(day, 0) + 1

    def shift(self, place: Place | None, step: int) -> None:
        """Takes that the other policy spends more, or less, than was spent: at a place, by a step of 1 or -1."""
        if place is None:
            return
        key = (place.at.date().isoformat(), place.channel)
        self.channel_shift[key] = self.channel_shift.get(key, 0) + step
        if place.cap_date:
            self.tenant_shift[key[0]] = self.tenant_shift.get(key[0], 0) + step

    def on_channel(self, day: str, channel: Channel, seen: Counts) -> int:
        """Returns what is spent of a channel's quota in the world of the other policy."""
        used = seen.quota.get(channel, self.channels.get((day, channel), 0))
        return max(0, used + self.channel_shift.get((day, channel), 0))

    def by_tenant(self, day: str, seen: Counts) -> int:
        """Returns what is spent of the tenant's quota in the world of the other policy."""
        used = self.tenant.get(day, 0) if seen.tenant is None else seen.tenant
        return max(0, used + self.tenant_shift.get(day, 0))


def _is_digest(item: Item) -> bool:
    """Says whether a message, as it was judged first, is a digest of others."""
    return item.gathered and not item.hop


def _kind(item: Item) -> tuple[UserKey, str, str]:
    """Returns what messages have in common that are gathered into one digest."""
    return user_of(item), item.scene, item.template
