"""How the contract's values read on a terminal."""

from __future__ import annotations

import re
from datetime import UTC, timedelta

import click
from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
STATE_STYLES = {
    "SENT": "green",
    "DELIVERED": "bold green",
    "FAILED": "bold red",
    "EXPIRED": "red",
    "SUPPRESSED": "yellow",
    "SCHEDULED": "cyan",
}


def moment(timestamp: Timestamp) -> str:
    """Returns a moment in UTC; empty for none."""
    if not timestamp.ListFields():
        return ""
    return timestamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def channel(number: message_pb2.Channel.ValueType) -> str:
    """Returns a channel's name; empty for none."""
    return message_pb2.Channel.Name(number).removeprefix("CHANNEL_").lower() if number else ""


def state(number: message_pb2.State.ValueType) -> str:
    """Returns a state's name."""
    return message_pb2.State.Name(number).removeprefix("STATE_")


def words(name: str, prefix: str) -> str:
    """Returns the name of an enum's value in words, for example ``fell back``."""
    return name.removeprefix(prefix).replace("_", " ").lower()


def recipient(user_id: str, address: message_pb2.Address) -> str:
    """Returns whom an intent is for."""
    return user_id or f"{channel(address.channel)}:{address.value}"


def printable(text: str) -> str:
    """Makes control characters visible: a message must not steer the terminal that shows it."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class Duration(click.ParamType[timedelta]):
    """A length of time such as ``90s``, ``10m``, ``2h``, ``1d``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Reads it."""
        if isinstance(value, timedelta):
            return value
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration; write for example 90s, 10m, 2h or 1d", param, ctx)
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
