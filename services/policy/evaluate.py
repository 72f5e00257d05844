"""The judgement: channel, suppression, quiet hours, frequency, channel quota, in this order. Pure.

`evaluate` is the whole of it. The service runs its two halves apart, because the counters are asked, and the places
reserved, between them: `before_counters` says what has to be reserved, `conclude` judges by what the counters saw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from services.catalog.rules import Channel

from . import gates, reasons
from .decision import Action, Address, Decision, Facts, GateEntry, GateOutcome, Item, Rules, Usage
from .quiet_hours import choose_zone

_NOTHING_SENT = Usage()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message that passed the gates without counters.

    Attributes:
        item: the message.
        rules: what holds for it.
        now: the moment of the judgement.
        address: where it would go.
        cap_date: local date on whose caps it counts; empty where it counts on none.
        trace: the gates it passed.
    """

    item: Item
    rules: Rules
    now: datetime
    address: Address
    cap_date: str
    trace: tuple[GateEntry, ...]


def evaluate(item: Item, facts: Facts, rules: Rules, now: datetime) -> Decision:
    """Judges one message. The same input gives the same decision; nothing else is looked at.

    Args:
        item: the message.
        facts: the recipient, their suppressions, and what the counters saw.
        rules: the scene with its policy, and the channels.
        now: the moment, timezone-aware.
    """
    judged = before_counters(item, facts, rules, now)
    return judged if isinstance(judged, Decision) else conclude(judged, facts)


def before_counters(item: Item, facts: Facts, rules: Rules, now: datetime) -> Decision | Candidate:
    """Asks the gates that need no counter: channel, suppression, quiet hours."""

    def decide(action: Action, chosen: Address | None, until: datetime | None = None) -> Decision:
        return Decision(
            action,
            tuple(trace),
            rules.policy_version,
            now,
            reason=trace[-1].reason,
            until=until,
            channel=chosen.channel if chosen else None,
            address=chosen.value if chosen else "",
            locale=facts.person.locale,
        )

    entry, chosen = gates.channel_gate(item, facts.person, rules)
    trace = [entry]
    if chosen is None:
        return decide(Action.DROP, None)
    trace.append(gates.suppression_gate(item, chosen, facts.suppressions, rules))
    if trace[-1].outcome is GateOutcome.DROPPED:
        return decide(Action.DROP, chosen)
    zone = choose_zone(facts.person, rules.default_time_zone, now)
    quiet = gates.quiet_gate(item, zone, rules, now)
    trace.append(quiet.entry)
    if quiet.entry.outcome is GateOutcome.DROPPED:
        return decide(Action.DROP, chosen)
    if quiet.entry.outcome is GateOutcome.DEFERRED:
        return decide(Action.DEFER, chosen, quiet.until)
    counts = gates.counts_on_caps(rules.scene.category)
    cap_date = now.astimezone(zone.zone).date().isoformat() if counts else ""
    return Candidate(item, rules, now, chosen, cap_date, tuple(trace))


def conclude(candidate: Candidate, facts: Facts) -> Decision:
    """Asks the gates that count: frequency, channel quota."""
    rules, chosen = candidate.rules, candidate.address
    usage = facts.usage.get(chosen.channel, _NOTHING_SENT)
    frequency = gates.frequency_gate(chosen.channel, candidate.cap_date, usage, rules)
    if frequency.outcome is GateOutcome.DROPPED:
        return _decide(Action.DROP, candidate, facts, chosen, frequency)
    if usage.own:
        # Its place in the quota was taken together with its place in the caps.
        return _decide(Action.SEND_NOW, candidate, facts, chosen, frequency, gates.quota_held(chosen.channel))
    quota = gates.quota_gate(rules.channels[chosen.channel], facts.quota_used.get(chosen.channel, 0))
    if quota.outcome is GateOutcome.PASSED:
        return _decide(Action.SEND_NOW, candidate, facts, chosen, frequency, quota)
    way, refusal = _fall_back(candidate, facts)
    if way is None:
        quota = replace(quota, inputs={**quota.inputs, "fallback_refused": refusal})
        return _decide(Action.DROP, candidate, facts, chosen, frequency, quota)
    inputs = {**quota.inputs, "fallback": way.channel.value}
    quota = replace(quota, outcome=GateOutcome.FELL_BACK, inputs=inputs)
    return _decide(Action.FALL_BACK, candidate, facts, way, frequency, quota)


def fallback_address(candidate: Candidate, facts: Facts) -> tuple[Address | None, str]:
    """Returns where a message could go when its channel's quota is spent, or None and why it cannot.

    One hop at most: a message that fell back already does not fall further.
    """
    rules, item = candidate.rules, candidate.item
    channel = rules.channels[candidate.address.channel].fallback
    if channel is None or item.hop:
        return None, "none_left" if item.hop else "none_configured"
    if not _can_use(channel, rules):
        return None, reasons.NO_CHANNEL
    value = gates.address_on(channel, item, facts.person)
    if value is None:
        return None, reasons.NO_ADDRESS
    way = Address(channel, value)
    suppression = gates.suppression_gate(item, way, facts.suppressions, rules)
    if suppression.outcome is GateOutcome.DROPPED:
        return None, suppression.reason
    return way, ""


def _fall_back(candidate: Candidate, facts: Facts) -> tuple[Address | None, str]:
    """Returns the fallback address if the counters of its channel allow it, or None and why they do not."""
    way, refusal = fallback_address(candidate, facts)
    if way is None:
        return None, refusal
    rules = candidate.rules
    usage = facts.usage.get(way.channel, _NOTHING_SENT)
    for entry in (
        gates.frequency_gate(way.channel, candidate.cap_date, usage, rules),
        gates.quota_gate(rules.channels[way.channel], facts.quota_used.get(way.channel, 0)),
    ):
        if entry.outcome is GateOutcome.DROPPED:
            return None, entry.reason
    return way, ""


def _can_use(channel: Channel, rules: Rules) -> bool:
    return channel in rules.channels and (rules.served is None or channel in rules.served)


def _decide(action: Action, candidate: Candidate, facts: Facts, address: Address, *entries: GateEntry) -> Decision:
    return Decision(
        action,
        (*candidate.trace, *entries),
        candidate.rules.policy_version,
        candidate.now,
        reason="" if action is Action.SEND_NOW else entries[-1].reason,
        channel=address.channel,
        address=address.value,
        locale=facts.person.locale,
        cap_date="" if action is Action.DROP else candidate.cap_date,
    )
