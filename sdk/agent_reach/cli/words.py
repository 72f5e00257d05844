"""How the contract's values read on a terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
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

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def json_text(message: Message, indent: int | None = 2) -> str:
    """Returns a message as JSON, under the contract's own names; on one line where `indent` is None."""
    return MessageToJson(message, indent=indent, preserving_proto_field_name=True, ensure_ascii=False)


def moment(timestamp: Timestamp) -> str:
    """Returns a moment in UTC; empty for none."""
    if not timestamp.ListFields():
        return ""
    return timestamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(timestamp: Timestamp) -> str:
    """Returns a moment in UTC for programs (ISO 8601); empty for none."""
    return timestamp.ToDatetime(UTC).isoformat() if timestamp.ListFields() else ""


def local_time(local: message_pb2.LocalTime) -> str:
    """Returns a time by the recipient's clock."""
    day = local.date or (weekday(local.weekday) if local.weekday else "")
    return f"{day} {local.time} by the recipient's clock".strip()


def channel(number: message_pb2.Channel.ValueType) -> str:
    """Returns a channel's name; empty for none."""
    return message_pb2.Channel.Name(number).removeprefix("CHANNEL_").lower() if number else ""


def state(number: message_pb2.State.ValueType) -> str:
    """Returns a state's name."""
    return message_pb2.State.Name(number).removeprefix("STATE_")


def words(name: str, prefix: str) -> str:
    """Returns the name of an enum's value in words, for example ``fell back``."""
    return name.removeprefix(prefix).replace("_", " ").lower()


def address(given: message_pb2.Address) -> str:
    """Returns an address with its channel; empty for none."""
    return f"{channel(given.channel)}:{given.value}" if given.value else ""


def span(seconds: str) -> str:
    """Returns a length of time as `Duration` reads it: ``7d``, ``90m``."""
    number = float(seconds)
    unit = next((unit for unit, size in reversed(_SECONDS.items()) if number and number % size == 0), "s")
    return f"{number / _SECONDS[unit]:g}{unit}"


def weekday(number: int) -> str:
    """Returns a day of the week, 1 (Monday) to 7."""
    return words(message_pb2.Weekday.Name(number), "WEEKDAY_")  # type: ignore[arg-type]  # a number of the enum's


def recipient(user_id: str, to: message_pb2.Address) -> str:
    """Returns whom an intent is for."""
    return user_id or address(to)


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
        try:
            return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
        except OverflowError:
            self.fail(f"{value!r} is longer than any duration", param, ctx)


class Moment(click.ParamType[datetime]):
    """A moment such as ``2026-03-08T23:30`` or ``2026-03-08T23:30+01:00``; in UTC unless it says otherwise."""

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Reads it."""
        if isinstance(value, datetime):
            return value
        try:
            read = datetime.fromisoformat(str(value).strip())
        except ValueError:
            self.fail(
                f"{value!r} is no moment; write for example 2026-03-08T23:30 or 2026-03-08T23:30+01:00", param, ctx
            )
        return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
