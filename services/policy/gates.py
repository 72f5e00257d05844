"""The gates, one pure function each: what it saw, how it answered, why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from services.catalog.rules import Category, Channel, ChannelRules, Digest, Policy, QuietWindow, SceneRules
from services.catalog.shares import in_share

from . import reasons
from .decision import (
    Address,
    Gate,
    GateEntry,
    GateOutcome,
    Item,
    Person,
    Preference,
    Rules,
    Suppression,
    SuppressionSource,
    Usage,
)
from .quiet_hours import LocalMoment, ZoneChoice
from .wall_clock import next_instant

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
# How the suppression gate names what it tells of a refused channel: `refused_sms`, and the suppression's id in
# `refused_sms_suppression_id`.
REFUSED = "refused_"
REFUSED_BY = "_suppression_id"


@dataclass(frozen=True, slots=True)
class Order:
    """The channels in question, best first, and who ordered them: `fallback`, `scene`, `wish` or `channels`."""

    channels: tuple[Channel, ...]
    source: str


def schedule_gate(item: Item, choice: ZoneChoice | None, now: datetime) -> tuple[GateEntry, datetime | None]:
    """Asks whether the moment has come that the intent asks for; one that was held once is on time.

    Args:
        item: the message, with `send_at` or `send_at_local`.
        choice: the user's zone, for `send_at_local`.
        now: the moment.

    Returns:
        The entry, and for a deferral the moment until which it waits.
    """
    inputs: dict[str, str] = {}
    until = item.send_at
    if item.send_at_local is not None and choice is not None:
        inputs |= zone_inputs(choice) | {"send_at_local": item.send_at_local.at.strftime("%H:%M")}
        if item.send_at_local.weekday is not None:
            inputs["weekday"] = str(item.send_at_local.weekday + 1)
        if item.send_at_local.day is not None:
            inputs["date"] = item.send_at_local.day.isoformat()
        until = next_instant(item.send_at_local, choice.zone, item.submitted_at or now)
    if until is not None:
        inputs["send_at"] = until.isoformat(timespec="seconds")
    if until is None or until <= now or item.scheduled:
        return GateEntry(Gate.SCHEDULE, GateOutcome.PASSED, reasons.SEND_AT_REACHED, inputs), None
    if item.expires_at is not None and item.expires_at <= until:
        inputs["expires_at"] = item.expires_at.isoformat(timespec="seconds")
        return GateEntry(Gate.SCHEDULE, GateOutcome.DROPPED, reasons.EXPIRES_BEFORE_SEND_AT, inputs), None
    return GateEntry(Gate.SCHEDULE, GateOutcome.DEFERRED, reasons.SCHEDULED, inputs), until


def release_gate(item: Item, scene: SceneRules) -> GateEntry:
    """Asks whether the scene is switched on for this user."""
    inputs = {"share": f"{scene.share:g}"}
    if in_share(scene.share, f"scene:{scene.name}", item.tenant, item.user_id):
        return GateEntry(Gate.RELEASE, GateOutcome.PASSED, reasons.RELEASED_TO_USER, inputs)
    return GateEntry(Gate.RELEASE, GateOutcome.DROPPED, reasons.NOT_RELEASED, inputs)


def channel_order(wishes: Sequence[Channel], hop: int, rules: Rules) -> Order:
    """Returns the channels in question.

    The scene's order goes before the wish, except at a fallback hop: there the wish is the channel that is left.
    """
    order: Sequence[Channel]
    if hop and wishes:
        order, source = wishes, "fallback"
    elif rules.scene.channels is not None:
        order, source = rules.scene.channels, "scene"
    elif wishes:
        order, source = wishes, "wish"
    else:
        order, source = tuple(rules.channels), "channels"
    return Order(tuple(channel for channel in order if can_use(channel, rules)), source)


def can_use(channel: Channel, rules: Rules) -> bool:
    """Says whether a channel is configured, and served by the template."""
    return channel in rules.channels and (rules.served is None or channel in rules.served)


def address_on(channel: Channel, item: Item, person: Person) -> str | None:
    """Returns the recipient's address on a channel, or None. A user's inbox is always there."""
    if item.address is not None:
        return item.address.value if item.address.channel is channel else None
    if channel is Channel.INBOX:
        return person.addresses.get(channel, item.user_id)
    return person.addresses.get(channel)


def channel_gate(order: Order, first: Channel | None) -> GateEntry:
    """Tells the first channel in question on which the recipient has an address."""
    inputs = {"order": ",".join(order.channels), "order_source": order.source}
    if first is not None:
        inputs["channel"] = first.value
        return GateEntry(Gate.CHANNEL, GateOutcome.PASSED, reasons.ADDRESS_FOUND, inputs)
    reason = reasons.NO_ADDRESS if order.channels else reasons.NO_CHANNEL
    return GateEntry(Gate.CHANNEL, GateOutcome.DROPPED, reason, inputs)


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


def find_preference(preferences: Iterable[Preference], *, channel: Channel, category: Category) -> Preference | None:
    """Returns the choice that counts for a message; None where the user never made one that fits.

    The narrowest counts: category and channel, then category, then channel, then all. A verification heeds only a
    choice that names its category.
    """
    best: Preference | None = None
    for preference in preferences:
        fits = preference.channel in {None, channel} and (
            preference.category is category
            if preference.category is not None
            else category is not Category.VERIFICATION
        )
        if fits and (best is None or _narrowness(preference) > _narrowness(best)):
            best = preference
    return best


def suppression_gate(
    user_id: str,
    ways: Sequence[Address],
    suppressions: Sequence[Suppression],
    preferences: Sequence[Preference],
    scene: SceneRules,
) -> tuple[GateEntry, Address]:
    """Asks on which way neither the user nor the address wants silence; a suppression goes before what the user chose.

    A wish for silence on one channel leaves the next one open. One that is about the user on every channel ends the
    search: no other channel is asked.

    Args:
        user_id: the user.
        ways: the recipient's addresses, the most wanted channel first; at least one.
        suppressions: standing ones.
        preferences: what the user chose.
        scene: the scene.

    Returns:
        The entry of the first way that is open, which tells the refused ones too; where none is, the first refusal.
        And the way that the entry is about.
    """
    refusals: list[GateEntry] = []
    for way in ways:
        entry, everywhere = _silence_on(way, user_id, suppressions, preferences, scene)
        if entry.outcome is GateOutcome.PASSED:
            return _telling_refusals(entry, refusals), way
        refusals.append(entry)
        if everywhere:
            break
    return _telling_refusals(refusals[0], refusals[1:]), ways[0]


def _silence_on(
    way: Address,
    user_id: str,
    suppressions: Sequence[Suppression],
    preferences: Sequence[Preference],
    scene: SceneRules,
) -> tuple[GateEntry, bool]:
    """Asks about one way; says also whether a refusal is about the user on every channel."""
    category = scene.category
    inputs = {"category": category.value, "channel": way.channel.value}
    found = find_suppression(suppressions, user_id=user_id, address=way, category=category)
    if found is not None:
        suppression, reason = found
        inputs["suppression_id"] = suppression.suppression_id
        inputs["source"] = suppression.source.value
        everywhere = suppression.address is None and suppression.channel is None
        return GateEntry(Gate.SUPPRESSION, GateOutcome.DROPPED, reason, inputs), everywhere
    return _choice_on(way, preferences, scene, inputs), False


def _choice_on(
    way: Address, preferences: Sequence[Preference], scene: SceneRules, inputs: dict[str, str]
) -> GateEntry:
    preference = find_preference(preferences, channel=way.channel, category=scene.category)
    if preference is not None:
        inputs["preference"] = "opt_in" if preference.opt_in else "opt_out"
        inputs["preference_category"] = preference.category or "all"
        inputs["preference_channel"] = preference.channel or "all"
        if not preference.opt_in:
            return GateEntry(Gate.SUPPRESSION, GateOutcome.DROPPED, reasons.PREFERENCE_OPTED_OUT, inputs)
    elif scene.opt_in:
        return GateEntry(Gate.SUPPRESSION, GateOutcome.DROPPED, reasons.OPT_IN_MISSING, inputs)
    return GateEntry(Gate.SUPPRESSION, GateOutcome.PASSED, reasons.NOT_SUPPRESSED, inputs)


def _telling_refusals(entry: GateEntry, refusals: Sequence[GateEntry]) -> GateEntry:
    """Returns an entry that tells of each other way why it was refused, and by which suppression."""
    if not refusals:
        return entry
    inputs = {**entry.inputs}
    for refusal in refusals:
        name = REFUSED + refusal.inputs["channel"]
        inputs[name] = refusal.reason
        if "suppression_id" in refusal.inputs:
            inputs[name + REFUSED_BY] = refusal.inputs["suppression_id"]
    return replace(entry, inputs=inputs)


def digest_gate(item: Item, digest: Digest, now: datetime) -> tuple[GateEntry, datetime | None]:
    """Asks whether the message is gathered into a digest; if so, it waits at most for the digest's window.

    Returns:
        The entry, and for a deferral the moment until which it waits.
    """
    inputs = {"window_seconds": f"{digest.window.total_seconds():g}"}
    if item.gathered:
        return GateEntry(Gate.DIGEST, GateOutcome.PASSED, reasons.ALREADY_GATHERED, inputs), None
    until = now + digest.window
    if item.expires_at is not None and item.expires_at <= until:
        inputs["expires_at"] = item.expires_at.isoformat(timespec="seconds")
        return GateEntry(Gate.DIGEST, GateOutcome.PASSED, reasons.EXPIRES_BEFORE_DIGEST, inputs), None
    return GateEntry(Gate.DIGEST, GateOutcome.DEFERRED, reasons.GATHERED, inputs), until


def quiet_gate(item: Item, scene: SceneRules, local: LocalMoment, now: datetime) -> GateEntry:
    """Asks whether it is night where the user is: then it is for the morning, or dropped if it expires before."""
    inputs = zone_inputs(local.choice)
    if scene.quiet_exempt:
        inputs["category"] = scene.category.value
        return GateEntry(Gate.QUIET_HOURS, GateOutcome.EXEMPT, reasons.SCENE_EXEMPT, inputs)
    if not scene.policy.quiet_hours:
        return GateEntry(Gate.QUIET_HOURS, GateOutcome.PASSED, reasons.NO_QUIET_HOURS, inputs)
    inputs["window"] = ",".join(map(_window, scene.policy.quiet_hours))
    inputs["local_time"] = local.text
    end = local.quiet_end
    if end is None:
        return GateEntry(Gate.QUIET_HOURS, GateOutcome.PASSED, reasons.OUTSIDE_QUIET_HOURS, inputs)
    inputs["quiet_until"] = end.isoformat(timespec="seconds")
    if item.deferrals:
        inputs["deferrals"] = str(item.deferrals)
        if item.planned_at is not None and abs(now - item.planned_at) <= ON_TIME:
            return GateEntry(Gate.QUIET_HOURS, GateOutcome.PASSED, reasons.RELEASED_AFTER_DEFERRAL, inputs)
    if item.expires_at is not None and item.expires_at <= end:
        inputs["expires_at"] = item.expires_at.isoformat(timespec="seconds")
        return GateEntry(Gate.QUIET_HOURS, GateOutcome.DROPPED, reasons.EXPIRES_BEFORE_QUIET_END, inputs)
    return GateEntry(Gate.QUIET_HOURS, GateOutcome.DEFERRED, reasons.QUIET_HOURS, inputs)


def counts_on_caps(category: Category) -> bool:
    """Says whether messages of a category count on the caps: all but verification codes."""
    return category is not Category.VERIFICATION


def frequency_gate(channel: Channel, cap_date: str, usage: Usage, tenant_used: int, scene: SceneRules) -> GateEntry:
    """Asks whether the tenant, and the user, got enough. A message never stands in its own way."""
    if not counts_on_caps(scene.category):
        inputs = {"category": scene.category.value}
        return GateEntry(Gate.FREQUENCY, GateOutcome.EXEMPT, reasons.CATEGORY_EXEMPT, inputs)
    policy = scene.policy
    channel_cap = policy.user_channel_daily_cap.get(channel)
    inputs = {
        "cap_date": cap_date,
        "channel": channel.value,
        "count": str(usage.user),
        "limit": _limit(policy.user_daily_cap),
        "channel_count": str(usage.channel),
        "channel_limit": _limit(channel_cap),
    }
    if policy.user_window_caps:
        inputs["window_seconds"] = ",".join(f"{cap.window.total_seconds():g}" for cap in policy.user_window_caps)
        inputs["window_count"] = ",".join(map(str, _window_counts(usage, policy)))
        inputs["window_limit"] = ",".join(str(cap.messages) for cap in policy.user_window_caps)
    if usage.own:
        inputs["own_reservation"] = "true"
        return GateEntry(Gate.FREQUENCY, GateOutcome.PASSED, reasons.WITHIN_CAPS, inputs)
    if policy.tenant_daily_quota is not None:
        inputs["tenant_count"] = str(tenant_used)
        inputs["tenant_limit"] = str(policy.tenant_daily_quota)
    reason = _spent_cap(usage, tenant_used, policy, channel_cap)
    if reason:
        return GateEntry(Gate.FREQUENCY, GateOutcome.DROPPED, reason, inputs)
    return GateEntry(Gate.FREQUENCY, GateOutcome.PASSED, reasons.WITHIN_CAPS, inputs)


def _spent_cap(usage: Usage, tenant_used: int, policy: Policy, channel_cap: int | None) -> str:
    """Returns the reason of the first limit that is reached; empty where none is."""
    if policy.tenant_daily_quota is not None and tenant_used >= policy.tenant_daily_quota:
        return reasons.TENANT_DAILY_QUOTA
    if policy.user_daily_cap is not None and usage.user >= policy.user_daily_cap:
        return reasons.USER_DAILY_CAP
    if channel_cap is not None and usage.channel >= channel_cap:
        return reasons.USER_CHANNEL_DAILY_CAP
    for count, cap in zip(_window_counts(usage, policy), policy.user_window_caps, strict=True):
        if count >= cap.messages:
            return reasons.USER_WINDOW_CAP
    return ""


def _window_counts(usage: Usage, policy: Policy) -> tuple[int, ...]:
    """Returns the messages within each sliding window; none where no counter was asked."""
    return usage.windows or (0,) * len(policy.user_window_caps)


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


def zone_inputs(choice: ZoneChoice) -> dict[str, str]:
    """Returns what a trace tells about a user's zone."""
    inputs = {"zone": choice.name, "zone_source": choice.source}
    if choice.warning:
        inputs["warning"] = choice.warning
    return inputs


def _names(suppression: Suppression, user_id: str, address: Address | None) -> str | None:
    """Returns whether a suppression names this user or this address, or neither."""
    if suppression.address is not None:
        return "address" if suppression.address == address else None
    return "user" if suppression.user_id == user_id else None


def _narrowness(preference: Preference) -> int:
    return 2 * (preference.category is not None) + (preference.channel is not None)


def _window(window: QuietWindow) -> str:
    hours = f"{window.start:%H:%M}-{window.end:%H:%M}"
    return hours if len(window.days) == 7 else f"{hours} on {'/'.join(str(day + 1) for day in sorted(window.days))}"


def _limit(cap: int | None) -> str:
    return "none" if cap is None else str(cap)
