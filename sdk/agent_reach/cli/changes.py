"""Messages about which two policies decide differently: summed by gate, the first ones in full, all as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from rich.console import Console

from agent_reach.v1 import message_pb2, policy_admin_pb2

from . import words
from .grid import print_grid

_DONE = {
    message_pb2.ACTION_SEND_NOW: "sent",
    message_pb2.ACTION_DEFER: "deferred",
    message_pb2.ACTION_FALL_BACK: "fell back",
    message_pb2.ACTION_DROP: "dropped",
}


class Changes:
    """Takes changed decisions as they come; keeps the sums and the first ones.

    Args:
        kept: how many are kept in full.

    Attributes:
        replayed: messages that were judged.
        changed: messages whose decision changes.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "intent_id", "hop", "user_id", "scene", "decided_at", "gate",
        "actual_action", "actual_reason", "actual_channel", "actual_until", "actual_policy",
        "other_action", "other_reason", "other_channel", "other_until", "other_policy",
    )  # fmt: skip

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._first: list[policy_admin_pb2.ChangedDecision] = []
        self._sums: Counter[tuple[str, str, str]] = Counter()
        self.replayed = 0
        self.changed = 0

    def add(self, changes: Iterable[policy_admin_pb2.ChangedDecision]) -> None:
        """Takes changed decisions."""
        for change in changes:
            gate = words.words(message_pb2.Gate.Name(change.gate), "GATE_")
            self._sums[gate, _kind(change.actual), _kind(change.other)] += 1
            if len(self._first) < self._kept:
                self._first.append(change)

    def row(self, change: policy_admin_pb2.ChangedDecision) -> dict[str, str]:
        """Returns the values of a change by column."""
        values = (
            change.intent_id,
            str(change.hop),
            change.user_id,
            change.scene,
            words.iso(change.decided_at),
            message_pb2.Gate.Name(change.gate).removeprefix("GATE_").lower(),
            *_values(change.actual),
            *_values(change.other),
        )
        return dict(zip(self.COLUMNS, values, strict=True))

    def print(self, console: Console) -> None:
        """Prints the sums by gate, then the first changes."""
        share = f" ({self.changed / self.replayed:.1%})" if self.changed else ""
        console.print(
            f"{self.replayed:,} messages replayed, {self.changed:,} would be decided otherwise{share}.",
            highlight=False,
        )
        if not self._sums:
            return
        ordered = sorted(self._sums.items(), key=lambda entry: (-entry[1], entry[0]))
        sums = [(gate, was, f"→ {would_be}", f"{count:,}") for (gate, was, would_be), count in ordered]
        console.print()
        print_grid(console, ("gate", "was", "would be", "messages"), sums, right=("messages",))
        if self._first:
            console.print()
            self.print_rows(console)

    def print_rows(self, console: Console) -> None:
        """Prints the first changes."""
        rows = [
            (
                f"{change.intent_id} (hop {change.hop})" if change.hop else change.intent_id,
                words.moment(change.decided_at),
                change.user_id,
                change.scene,
                words.words(message_pb2.Gate.Name(change.gate), "GATE_"),
                _told(change.actual),
                f"→ {_told(change.other)}",
            )
            for change in self._first
        ]
        print_grid(console, ("intent", "judged", "user", "scene", "gate", "was", "would be"), rows)


def _kind(decision: message_pb2.Decision) -> str:
    """Returns what was decided and why, so that it can be summed."""
    done = _DONE.get(decision.action, "?")
    return f"{done}: {decision.reason}" if decision.reason else done


def _told(decision: message_pb2.Decision) -> str:
    """Returns what was decided, on which channel, and until when."""
    told = _kind(decision)
    if decision.action in {message_pb2.ACTION_SEND_NOW, message_pb2.ACTION_FALL_BACK}:
        told += f" on {words.channel(decision.channel)}"
    if decision.HasField("until"):
        told += f" until {words.moment(decision.until)}"
    return told


def _values(decision: message_pb2.Decision) -> tuple[str, ...]:
    return (
        message_pb2.Action.Name(decision.action).removeprefix("ACTION_").lower(),
        decision.reason,
        words.channel(decision.channel),
        words.iso(decision.until),
        decision.policy_version,
    )
