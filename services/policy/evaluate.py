"""The judgement: every gate in the order of `Gate`, until one holds the message. Pure.

`evaluate` is the whole of it. The service runs its two halves apart, because the counters are asked, and the places
reserved, between them: `before_counters` says what has to be reserved, `conclude` judges by what the counters saw.

Messages of one scene at one moment have most of their answers in common: the same hour in the same zone, the same
caps and counts. A `Bench` judges them together and works each of these answers out once. What it remembers changes
no decision; it is forgotten with its batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from datetime import datetime

from services.catalog.rules import Channel

from . import gates, reasons
from .decision import Action, Address, Decision, Facts, Gate, GateEntry, GateOutcome, Item, Rules, Usage
from .gates import Order
from .quiet_hours import LocalMoment, local_moment, resolve_zone, spread, zone_on_record
from .record import record

_NOTHING_SENT = Usage()
_NO_CAP_DATE = ""


@record(frozen=True, slots=True)
class Candidate:
    """A message that passed the gates without counters.

    Attributes:
        item: the message.
        bench: who judges it.
        address: where it would go.
        cap_date: local date on whose caps it counts; empty where it counts on none.
        trace: the gates it passed.
    """

    item: Item
    bench: Bench
    address: Address
    cap_date: str
    trace: tuple[GateEntry, ...]

    @property
    def rules(self) -> Rules:
        """What holds for it."""
        return self.bench.rules

    @property
    def now(self) -> datetime:
        """The moment of the judgement."""
        return self.bench.now


def evaluate(item: Item, facts: Facts, rules: Rules, now: datetime) -> Decision:
    """Judges one message. The same input gives the same decision; nothing else is looked at.

    Args:
        item: the message.
        facts: the recipient, their suppressions and choices, and what the counters saw.
        rules: the scene with its policy, and the channels.
        now: the moment, timezone-aware.
    """
    return Bench(rules, now).evaluate(item, facts)


def before_counters(item: Item, facts: Facts, rules: Rules, now: datetime) -> Decision | Candidate:
    """Asks the gates that need no counter: all until quiet hours."""
    return Bench(rules, now).before_counters(item, facts)


def conclude(candidate: Candidate, facts: Facts) -> Decision:
    """Asks the gates that count: frequency, channel quota."""
    return candidate.bench.conclude(candidate, facts)


def fallback_address(candidate: Candidate, facts: Facts) -> tuple[Address | None, str]:
    """Returns where a message could go when its channel's quota is spent, or None and why it cannot.

    One hop at most: a message that fell back already does not fall further.
    """
    rules, item = candidate.rules, candidate.item
    channel = rules.channels[candidate.address.channel].fallback
    if channel is None or item.hop:
        return None, "none_left" if item.hop else "none_configured"
    if not gates.can_use(channel, rules):
        return None, reasons.NO_CHANNEL
    value = gates.address_on(channel, item, facts.person)
    if value is None:
        return None, reasons.NO_ADDRESS
    way = Address(channel, value)
    entry, _ = gates.suppression_gate(item.user_id, (way,), facts.suppressions, facts.preferences, rules.scene)
    if entry.outcome is GateOutcome.DROPPED:
        return None, entry.reason
    return way, ""


class Bench:
    """Judges messages of one scene at one moment. Make one for each batch: it remembers as much as it has judged.

    Args:
        rules: the scene with its policy, and the channels.
        now: the moment, timezone-aware.

    Attributes:
        met_unknown_zone: whether a user had a zone on record that is none.
    """

    __slots__ = ("_entries", "_locals", "_orders", "met_unknown_zone", "now", "rules")

    def __init__(self, rules: Rules, now: datetime) -> None:
        self.rules = rules
        self.now = now
        self.met_unknown_zone = False
        self._orders: dict[tuple[tuple[Channel, ...], int], Order] = {}
        self._locals: dict[tuple[str, str, str], LocalMoment] = {}
        self._entries: dict[Hashable, GateEntry] = {}

    def evaluate(self, item: Item, facts: Facts) -> Decision:
        """Judges one message; see `evaluate`."""
        judged = self.before_counters(item, facts)
        return judged if isinstance(judged, Decision) else self.conclude(judged, facts)

    def local(self, facts: Facts) -> LocalMoment:
        """Returns the moment as the user's clock shows it."""
        name, source = zone_on_record(facts.person, self.now)
        key = (name, source, facts.kept_zone)
        local = self._locals.get(key)
        if local is None:
            choice = resolve_zone(name, source, self.rules.default_time_zone, facts.kept_zone)
            local = self._locals[key] = local_moment(choice, self.rules.scene.policy.quiet_hours, self.now)
            self.met_unknown_zone |= bool(choice.warning)
        return local

    def before_counters(self, item: Item, facts: Facts) -> Decision | Candidate:
        """Asks the gates that need no counter; see `before_counters`."""
        scene = self.rules.scene
        trace: list[GateEntry] = []
        if item.send_at is not None or item.send_at_local is not None:
            choice = None if item.send_at_local is None else self.local(facts).choice
            entry, until = gates.schedule_gate(item, choice, self.now)
            trace.append(entry)
            if entry.outcome is not GateOutcome.PASSED:
                return self._hold(trace, facts, None, until)
        if scene.share < 1:
            trace.append(gates.release_gate(item, scene))
            if trace[-1].outcome is GateOutcome.DROPPED:
                return self._hold(trace, facts, None)
        order = self._order(item)
        ways = _ways(order, item, facts)
        trace.append(self._channel(order, ways[0].channel if ways else None))
        if not ways:
            return self._hold(trace, facts, None)
        entry, address = self._suppression(item, ways, facts)
        trace.append(entry)
        if entry.outcome is GateOutcome.DROPPED:
            return self._hold(trace, facts, address)
        if scene.digest is not None:
            entry, until = gates.digest_gate(item, scene.digest, self.now)
            trace.append(entry)
            if until is not None:
                return self._hold(trace, facts, address, until)
        local = self.local(facts)
        entry = self._quiet(item, local)
        trace.append(entry)
        if entry.outcome is GateOutcome.DROPPED:
            return self._hold(trace, facts, address)
        if entry.outcome is GateOutcome.DEFERRED and local.quiet_end is not None:
            until = spread(f"{item.intent_id}:{item.hop}", local.quiet_end, local.open_for, item.expires_at)
            return self._hold(trace, facts, address, until)
        cap_date = local.day if gates.counts_on_caps(scene.category) else _NO_CAP_DATE
        return Candidate(item, self, address, cap_date, tuple(trace))

    def conclude(self, candidate: Candidate, facts: Facts) -> Decision:
        """Asks the gates that count; see `conclude`."""
        address = candidate.address
        channel = address.channel
        usage = facts.usage.get(channel, _NOTHING_SENT)
        frequency = self._frequency(channel, candidate.cap_date, usage, facts.tenant_used)
        if frequency.outcome is GateOutcome.DROPPED:
            return self._send(Action.DROP, candidate, facts, address, (frequency,))
        if usage.own:
            # Its place in the quota was taken together with its place in the caps.
            return self._send(Action.SEND_NOW, candidate, facts, address, (frequency, gates.quota_held(channel)))
        quota = self._quota(channel, facts.quota_used.get(channel, 0))
        if quota.outcome is GateOutcome.PASSED:
            return self._send(Action.SEND_NOW, candidate, facts, address, (frequency, quota))
        way, told = self._fall_back(candidate, facts)
        inputs = {**quota.inputs, **told}
        if way is None:
            quota = replace(quota, inputs=inputs)
            return self._send(Action.DROP, candidate, facts, address, (frequency, quota))
        quota = replace(quota, outcome=GateOutcome.FELL_BACK, inputs=inputs)
        return self._send(Action.FALL_BACK, candidate, facts, way, (frequency, quota))

    def _fall_back(self, candidate: Candidate, facts: Facts) -> tuple[Address | None, dict[str, str]]:
        """Returns the fallback address if the counters of its channel allow it, or None; and what the trace tells."""
        way, refusal = fallback_address(candidate, facts)
        if way is None:
            return None, {"fallback_refused": refusal}
        channel = way.channel
        usage = facts.usage.get(channel, _NOTHING_SENT)
        told: dict[str, str] = {"fallback": channel.value}
        for entry, names in (
            (
                self._frequency(channel, candidate.cap_date, usage, facts.tenant_used),
                ("channel_count", "channel_limit"),
            ),
            (self._quota(channel, facts.quota_used.get(channel, 0)), ("count", "limit")),
        ):
            told |= {f"fallback_{name}": entry.inputs[name] for name in names if name in entry.inputs}
            if entry.outcome is GateOutcome.DROPPED:
                return None, {**told, "fallback_refused": entry.reason}
        return way, told

    # Each of the following works an answer out once for all messages that have its inputs in common.

    def _order(self, item: Item) -> Order:
        key = (item.channels, item.hop)
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = gates.channel_order(item.channels, item.hop, self.rules)
        return order

    def _channel(self, order: Order, first: Channel | None) -> GateEntry:
        key = (Gate.CHANNEL, order.source, order.channels, first)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = gates.channel_gate(order, first)
        return entry

    def _suppression(self, item: Item, ways: Sequence[Address], facts: Facts) -> tuple[GateEntry, Address]:
        if facts.suppressions or facts.preferences:
            return gates.suppression_gate(item.user_id, ways, facts.suppressions, facts.preferences, self.rules.scene)
        # Where nothing stands, the answer is the same for everybody: the first way, or an opting in that is missing.
        key = (Gate.SUPPRESSION, *[way.channel for way in ways])
        entry = self._entries.get(key)
        if entry is None:
            entry, _ = gates.suppression_gate(item.user_id, ways, (), (), self.rules.scene)
            self._entries[key] = entry
        return entry, ways[0]

    def _quiet(self, item: Item, local: LocalMoment) -> GateEntry:
        end = local.quiet_end
        if end is not None and (item.deferrals or (item.expires_at is not None and item.expires_at <= end)):
            return gates.quiet_gate(item, self.rules.scene, local, self.now)
        key = (Gate.QUIET_HOURS, local.choice.source, local.choice.name, local.choice.warning)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = gates.quiet_gate(item, self.rules.scene, local, self.now)
        return entry

    def _frequency(self, channel: Channel, cap_date: str, usage: Usage, tenant_used: int) -> GateEntry:
        key = (Gate.FREQUENCY, channel, cap_date, usage, tenant_used)
        entry = self._entries.get(key)
        if entry is None:
            entry = gates.frequency_gate(channel, cap_date, usage, tenant_used, self.rules.scene)
            self._entries[key] = entry
        return entry

    def _quota(self, channel: Channel, used: int) -> GateEntry:
        key = (Gate.CHANNEL_QUOTA, channel, used)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = gates.quota_gate(self.rules.channels[channel], used)
        return entry

    def _hold(
        self, trace: list[GateEntry], facts: Facts, address: Address | None, until: datetime | None = None
    ) -> Decision:
        last = trace[-1]
        return Decision(
            Action.DROP if until is None else Action.DEFER,
            tuple(trace),
            self.rules.policy_version,
            self.now,
            reason=last.reason,
            until=until,
            channel=address.channel if address else None,
            address=address.value if address else "",
            locale=facts.person.locale,
            held_by=None if until is None else last.gate,
        )

    def _send(
        self, action: Action, candidate: Candidate, facts: Facts, address: Address, entries: tuple[GateEntry, ...]
    ) -> Decision:
        return Decision(
            action,
            candidate.trace + entries,
            self.rules.policy_version,
            self.now,
            reason="" if action is Action.SEND_NOW else entries[-1].reason,
            channel=address.channel,
            address=address.value,
            locale=facts.person.locale,
            cap_date=_NO_CAP_DATE if action is Action.DROP else candidate.cap_date,
        )


def _ways(order: Order, item: Item, facts: Facts) -> list[Address]:
    """Returns the recipient's addresses on the channels in question, in their order."""
    values = [(channel, gates.address_on(channel, item, facts.person)) for channel in order.channels]
    return [Address(channel, value) for channel, value in values if value is not None]
