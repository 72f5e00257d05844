"""How a decision reads: what is done and why, then every gate in words, with what it saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from rich.console import Console
from rich.text import Text

from agent_reach.v1 import message_pb2

from . import words

VERSION_DIGITS = 12
_MARKS = {
    message_pb2.GATE_OUTCOME_PASSED: ("✓", "green"),
    message_pb2.GATE_OUTCOME_EXEMPT: ("-", "dim"),
    message_pb2.GATE_OUTCOME_DEFERRED: ("⏳", "cyan"),
    message_pb2.GATE_OUTCOME_FELL_BACK: ("↪", "yellow"),
    message_pb2.GATE_OUTCOME_DROPPED: ("✗", "bold red"),
}
# The stable reasons, as somebody says them who answers a user's question. One that is missing here stands for itself.
SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "scheduled": "its moment has not come yet",
        "send_at_reached": "its moment has come",
        "expires_before_send_at": "it would be worthless before its moment comes",
        "released_to_user": "the scene is switched on for this user",
        "not_released": "the scene is not switched on for this user yet",
        "address_found": "the user has an address on this channel",
        "no_address": "the user has no address on any channel that could be used",
        "no_channel": "none of the wanted channels is configured, or served by the template",
        "not_suppressed": "nobody asked for silence",
        "user_unsubscribed": "the user unsubscribed",
        "user_complained": "the user complained",
        "user_suppressed": "the user is blocked",
        "address_unsubscribed": "the address was unsubscribed",
        "address_complained": "somebody at the address complained",
        "address_bounced": "the address does not exist: a message bounced",
        "address_suppressed": "the address is blocked",
        "preference_opted_out": "the user chose not to hear about this",
        "opt_in_missing": "the scene needs the user's consent, and there is none",
        "already_gathered": "it is a digest, or was gathered before",
        "expires_before_digest": "it cannot wait for a digest, so it goes by itself",
        "gathered": "it waits to be sent together with others in a digest",
        "outside_quiet_hours": "it is not night where the user is",
        "scene_exempt": "such messages may come at night",
        "no_quiet_hours": "the policy has no quiet hours",
        "released_after_deferral": "it is night, but the message has waited once and waits no second time",
        "quiet_hours": "it is night where the user is",
        "expires_before_quiet_end": "it would be worthless before the night ends",
        "within_caps": "the user has not got too many messages",
        "category_exempt": "such messages are not counted",
        "user_daily_cap": "the user has got as many messages as one day allows",
        "user_channel_daily_cap": "the user has got as many messages on this channel as one day allows",
        "user_window_cap": "the user has got as many messages of this kind as the time before allows",
        "tenant_daily_quota": "all messages that may leave today have left",
        "within_quota": "the channel has quota left today",
        "no_quota": "the channel has no quota",
        # What is no gate's word: it comes after the decision, right before a message leaves.
        "duplicate_content": "the same text left for the user on this channel not long before",
        "cancelled": "somebody withdrew it",
        "expired": "its time had run out",
        "empty": "nothing was left to be gathered: all of it was withdrawn, or had expired",
        "channel_quota_spent": "the channel's quota of the day is spent",
    }
)


def print_decision(console: Console, decision: message_pb2.Decision) -> None:
    """Prints a decision with every gate."""
    for line in decision_lines(decision):
        # No wrapping and no markup: what is shown is shown as it is.
        console.print(line, soft_wrap=True, highlight=False)


def decision_lines(decision: message_pb2.Decision) -> Iterator[Text]:
    """Yields the lines that show a decision with every gate."""
    what = words.words(message_pb2.Action.Name(decision.action), "ACTION_")
    if decision.channel:
        what += f" on {words.channel(decision.channel)}"
    if decision.HasField("until"):
        what += f" until {words.moment(decision.until)}"
    if decision.reason:
        what += f", because {reason(decision.reason)}"
    yield Text.assemble(
        ("  Decision ", "bold"),
        words.printable(what),
        (f"  {words.moment(decision.decided_at)}, policy {decision.policy_version[:VERSION_DIGITS]}", "dim"),
    )
    if decision.cap_date:
        yield Text(f"    counts on {decision.cap_date}", "dim")
    for entry in decision.trace:
        mark, style = _MARKS.get(entry.outcome, ("?", "bold"))
        gate = words.words(message_pb2.Gate.Name(entry.gate), "GATE_")
        outcome = words.words(message_pb2.GateOutcome.Name(entry.outcome), "GATE_OUTCOME_")
        yield Text.assemble(
            (f"    {mark} ", style),
            f"{gate:<15}{outcome:<10}",
            (words.printable(reason(entry.reason)), style),
        )
        if entry.inputs:
            seen = "  ".join(_shown(name, value) for name, value in sorted(entry.inputs.items()))
            yield Text(f"{'':<21}{words.printable(seen)}", "dim")


def reason(name: str) -> str:
    """Returns a stable reason in words, with its name for those who search for it."""
    sentence = SENTENCES.get(name)
    return name if sentence is None else f"{sentence} ({name})"


def _shown(name: str, value: str) -> str:
    """Returns what a gate saw; lengths of time and days of the week as people say them."""
    if name.endswith("_seconds"):
        return f"{name.removesuffix('_seconds')}={','.join(map(words.span, value.split(',')))}"
    if name == "weekday":
        return f"{name}={words.weekday(int(value))}"
    return f"{name}={value}"
