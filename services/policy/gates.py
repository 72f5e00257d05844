"""The gates, one pure function each: what it saw, how it answered, why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from services.catalog.rules import Category, Channel, ChannelRules

from . import reasons
from .decision import Address, Gate, GateEntry, GateOutcome, Item, Person, Rules, Suppression, SuppressionSource, Usage
from .quiet_hours import ZoneChoice, quiet_until, spread

# A deferred message that is judged this close to its planned moment is not deferred a second time.
ON_TIME = timedelta(minutes=15)

# Reasons by whom a suppression names and where it comes from; sources in order of weight.
SUPPRESSED: Mapping[tuple[str, SuppressionSource], str] = MappingProxyType(
    {
        ("user", SuppressionSource.UNSUBSCRIBE): "user_unsubscribed",
        ("user", SuppressionSource.COMPLAINT): "user_complained",
        ("user", SuppressionSource.BOUNCE): "user_suppressed",
        ("user", SuppressionSource.OPERATOR): "user_suppressed",
        ("user", SuppressionSource.IMPORT): "user_suppressed",
        ("address", SuppressionSource.UNSUBSCRIBE): "address_unsubscribed",
        ("address", SuppressionSource.COMPLAINT): "address_complained",
        ("address", SuppressionSource.BOUNCE): "address_bounced",
        ("address", SuppressionSource.OPERATOR): "address_suppressed",
        ("address", SuppressionSource.IMPORT): "address_suppressed",
    }
)
_WEIGHT = {key: number for number, key in enumerate(SUPPRESSED)}


@dataclass(frozen=True, slots=True)
class QuietAnswer:
    """What the quiet-hours gate says: its entry, and for a deferral the moment to judge again."""

    entry: GateEntry
    until: datetime | None = None


def usable_channels(item: Item, rules: Rules) -> tuple[tuple[Channel, ...], str]:
    """Returns the channels in question, best first, and who ordered them: `fallback`, `scene`, `wish`, `channels`.

    The scene's order goes before the wish, except at a fallback hop: there the wish is the channel that is left.
    """
    if item.hop and item.channels:
        order, source = item.channels, "fallback"
    elif rules.scene.channels is not None:
        order, source = rules.scene.channels, "scene"
    elif item.channels:
        order, source = item.channels, "wish"
    else:
        order, source = tuple(rules.channels), "channels"
    served = rules.served
    return tuple(c for c in order if c in rules.channels and (served is None or c in served)), source


def address_on(channel: Channel, item: Item, person: Person) -> str | None:
    """Returns the recipient's address on a channel, or None. A user's inbox is always there."""
    if item.address is not None:
        return item.address.value if item.address.channel is channel else None
    if channel is Channel.INBOX:
        return person.addresses.get(channel, item.user_id)
    return person.addresses.get(channel)


def channel_gate(item: Item, person: Person, rules: Rules) -> tuple[GateEntry, Address | None]:
    """Chooses the first usable channel on which the recipient has an address."""
    order, source = usable_channels(item, rules)
    inputs = {"order": ",".join(order), "order_source": source}
    for channel in order:
        value = address_on(channel, item, person)
        if value is not None:
            inputs["channel"] = channel.value
            entry = GateEntry(Gate.CHANNEL, GateOutcome.PASSED, reasons.ADDRESS_FOUND, inputs)
            return entry, Address(channel, value)
    reason = reasons.NO_ADDRESS if order else reasons.NO_CHANNEL
    return GateEntry(Gate.CHANNEL, GateOutcome.DROPPED, reason, inputs), None


def find_suppression(
    suppressions: Iterable[Suppression], *, user_id: str, address: Address | None, category: Category
) -> tuple[Suppression, str] | None:
    """Returns the weightiest suppression that covers a message, and its reason; None lets the message pass.

    A suppression without a category covers every category but verification. A message of which no address is told
    is covered by its user's suppressions only, whatever their channel.
    """
    found: list[tuple[int, str, Suppression]] = []
    for suppression in suppressions:
        kind = _names(suppression, user_id, address)
        if (
            kind is not None
            and (address is None or suppression.channel in {None, address.channel})
            and (
                suppression.category is category
                if suppression.category is not None
                else category is not Category.VERIFICATION
            )
        ):
            found.append((_WEIGHT[kind, suppression.source], suppression.suppression_id, suppression))
    if not found:
        return None
    weight, _, suppression = min(found, key=lambda entry: entry[:2])
    return suppression, tuple(SUPPRESSED.values())[weight]


def suppression_gate(item: Item, chosen: Address, suppressions: Iterable[Suppression], rules: Rules) -> GateEntry:
    """Asks whether the user, or the address, wants silence."""
    category = rules.scene.category
    inputs = {"category": category.value, "channel": chosen.channel.value}
    found = find_suppression(suppressions, user_id=item.user_id, address=chosen, category=category)
    if found is None:
        return GateEntry(Gate.SUPPRESSION, GateOutcome.PASSED, reasons.NOT_SUPPRESSED, inputs)
    suppression, reason = found
    inputs["suppression_id"] = suppression.suppression_id
    inputs["source"] = suppression.source.value
    return GateEntry(Gate.SUPPRESSION, GateOutcome.DROPPED, reason, inputs)


def quiet_gate(item: Item, zone: ZoneChoice, rules: Rules, now: datetime) -> QuietAnswer:
    """Asks whether it is night where the user is; if so, defers to the morning, or drops what expires before."""
    scene = rules.scene
    window = scene.policy.quiet_hours
    inputs = {"zone": zone.name, "zone_source": zone.source}
    if zone.warning:
        inputs["warning"] = zone.warning

    def answer(outcome: GateOutcome, reason: str, until: datetime | None = None) -> QuietAnswer:
        return QuietAnswer(GateEntry(Gate.QUIET_HOURS, outcome, reason, inputs), until)

    if scene.quiet_exempt:
        inputs["category"] = scene.category.value
        return answer(GateOutcome.EXEMPT, reasons.SCENE_EXEMPT)
    if window is None:
        return answer(GateOutcome.PASSED, reasons.NO_QUIET_HOURS)
    inputs["window"] = f"{window.start:%H:%M}-{window.end:%H:%M}"
    inputs["local_time"] = now.astimezone(zone.zone).isoformat(timespec="seconds")
    end = quiet_until(window, zone.zone, now)
    if end is None:
        return answer(GateOutcome.PASSED, reasons.OUTSIDE_QUIET_HOURS)
    inputs["quiet_until"] = end.isoformat(timespec="seconds")
    if item.deferrals:
        inputs["deferrals"] = str(item.deferrals)
        if item.planned_at is not None and abs(now - item.planned_at) <= ON_TIME:
            return answer(GateOutcome.PASSED, reasons.RELEASED_AFTER_DEFERRAL)
    if item.expires_at is not None and item.expires_at <= end:
        inputs["expires_at"] = item.expires_at.isoformat(timespec="seconds")
        return answer(GateOutcome.DROPPED, reasons.EXPIRES_BEFORE_QUIET_END)
    until = spread(f"{item.intent_id}:{item.hop}", end, window, item.expires_at)
    return answer(GateOutcome.DEFERRED, reasons.QUIET_HOURS, until)


def counts_on_caps(category: Category) -> bool:
    """Says whether messages of a category count on the user's caps: all but verification codes."""
    return category is not Category.VERIFICATION


def frequency_gate(channel: Channel, cap_date: str, usage: Usage, rules: Rules) -> GateEntry:
    """Asks whether the user got enough today. A message never stands in its own way."""
    scene = rules.scene
    if not counts_on_caps(scene.category):
        inputs = {"category": scene.category.value}
        return GateEntry(Gate.FREQUENCY, GateOutcome.EXEMPT, reasons.CATEGORY_EXEMPT, inputs)
    user_cap = scene.policy.user_daily_cap
    channel_cap = scene.policy.user_channel_daily_cap.get(channel)
    inputs = {
        "cap_date": cap_date,
        "channel": channel.value,
        "count": str(usage.user),
        "limit": _limit(user_cap),
        "channel_count": str(usage.channel),
        "channel_limit": _limit(channel_cap),
    }
    if usage.own:
        inputs["own_reservation"] = "true"
    elif user_cap is not None and usage.user >= user_cap:
        return GateEntry(Gate.FREQUENCY, GateOutcome.DROPPED, reasons.USER_DAILY_CAP, inputs)
    elif channel_cap is not None and usage.channel >= channel_cap:
        return GateEntry(Gate.FREQUENCY, GateOutcome.DROPPED, reasons.USER_CHANNEL_DAILY_CAP, inputs)
    return GateEntry(Gate.FREQUENCY, GateOutcome.PASSED, reasons.WITHIN_CAPS, inputs)


def quota_gate(channel: ChannelRules, used: int) -> GateEntry:
    """Asks whether the channel has quota left; a spent one is DROPPED here, the caller may find another way."""
    inputs = {"channel": channel.channel.value}
    if channel.daily_quota is None:
        return GateEntry(Gate.CHANNEL_QUOTA, GateOutcome.PASSED, reasons.NO_QUOTA, inputs)
    inputs |= {"count": str(used), "limit": str(channel.daily_quota)}
    if used >= channel.daily_quota:
        return GateEntry(Gate.CHANNEL_QUOTA, GateOutcome.DROPPED, reasons.CHANNEL_QUOTA_SPENT, inputs)
    return GateEntry(Gate.CHANNEL_QUOTA, GateOutcome.PASSED, reasons.WITHIN_QUOTA, inputs)


def quota_held(channel: Channel) -> GateEntry:
    """Returns the entry of a message that has its place in the quota already."""
    inputs = {"channel": channel.value, "own_reservation": "true"}
    return GateEntry(Gate.CHANNEL_QUOTA, GateOutcome.PASSED, reasons.WITHIN_QUOTA, inputs)


def _names(suppression: Suppression, user_id: str, address: Address | None) -> str | None:
    """Returns whether a suppression names this user or this address, or neither."""
    if suppression.address is not None:
        return "address" if suppression.address == address else None
    return "user" if suppression.user_id == user_id else None


def _limit(cap: int | None) -> str:
    return "none" if cap is None else str(cap)
