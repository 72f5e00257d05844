"""What counts on a user's caps, counted without the counters: for judgements that must not touch them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from services.catalog.rules import Category, Channel, SceneRules

from .decision import Item, Usage, UserKey
from .evaluate import Candidate
from .gates import counts_on_caps
from .hindsight import Counts

# As far as the counters look back at least: a local date lasts that long around the world.
_LEAST_REACH = timedelta(hours=50)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message counts: from which moment, on which local date, channel and category."""

    at: datetime
    cap_date: str
    channel: Channel
    category: Category

    def same(self, other: Place) -> bool:
        """Says whether it is the same place, from whichever moment on."""
        return (self.cap_date, self.channel) == (other.cap_date, other.channel)


def ways(judged: Candidate) -> list[Channel]:
    """Returns the channels on which a message could leave: the chosen one, and the one it may fall back to."""
    first, channels = judged.address.channel, judged.rules.channels
    fallback = channels[first].fallback
    return [first] if fallback is None or fallback not in channels else [first, fallback]


def longest_window(scene: SceneRules) -> timedelta:
    """Returns how far back the caps of a scene look."""
    return max((cap.window for cap in scene.policy.user_window_caps), default=_LEAST_REACH)


def message_name(item: Item) -> str:
    """Returns a message's name in the counters."""
    return f"{item.intent_id}:{item.hop}"


def user_of(item: Item) -> UserKey:
    """Returns whom a message is for."""
    return UserKey(item.tenant, item.user_id)


def told(judged: Candidate, channel: Channel, seen: Counts) -> bool:
    """Says whether the counters told all that `usage` returns, so that no records are needed."""
    scene = judged.rules.scene
    if not counts_on_caps(scene.category):
        return True
    windows = {cap.window for cap in scene.policy.user_window_caps}
    return (channel in seen.on_channel and seen.cap_date == judged.cap_date) and (
        not windows or (seen.category is scene.category and windows <= seen.windows.keys())
    )


def usage(
    judged: Candidate,
    channel: Channel,
    seen: Counts,
    records: Sequence[Place],
    *,
    own: bool = False,
    gained: Sequence[Place] = (),
    lost: Sequence[Place] = (),
) -> Usage:
    """Returns what the counters would say of a message's user.

    Args:
        judged: the message.
        channel: the channel in question.
        seen: what the counters said of the same message at the same moment; where they did, they are right.
        records: what counts by the records, for all that they were not asked; without the message itself.
        own: whether the message has its own place already.
        gained: what counts beside.
        lost: what the counters counted, and does not count; it is not among the records.
    """
    scene, now, cap_date = judged.rules.scene, judged.now, judged.cap_date
    same_day = seen.channel is not None and seen.cap_date == cap_date

    def count(told: int | None, counts: Callable[[Place], bool]) -> int:
        # Whatever was gained was judged before, though replicas may have stamped it a little later.
        more = sum(map(counts, gained))
        return _count(records, counts, now) + more if told is None else max(0, told + more - _count(lost, counts, now))

    def within(window: timedelta) -> int:
        return count(
            seen.windows.get(window) if seen.category is scene.category else None,
            lambda place: place.category is scene.category and place.at > now - window,
        )

    return Usage(
        user=count(seen.user if same_day else None, lambda place: place.cap_date == cap_date),
        channel=count(
            seen.on_channel.get(channel) if same_day else None,
            lambda place: place.cap_date == cap_date and place.channel is channel,
        ),
        own=own or (same_day and seen.own and seen.channel is channel),
        windows=tuple(within(cap.window) for cap in scene.policy.user_window_caps),
    )


def _count(places: Iterable[Place], counts: Callable[[Place], bool], now: datetime) -> int:
    return sum(place.at <= now and counts(place) for place in places)
