"""Builds the contract's requests from plain Python; the one place that knows both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Required, TypedDict, TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agent_reach.v1 import message_pb2, reach_pb2, sandbox_pb2

from .errors import InvalidArgumentError, Violation

MessageT = TypeVar("MessageT", bound=Message)
Moment = datetime | timedelta


class IntentFields(TypedDict, total=False):
    """What an agent wants to say, and to whom. Limits and defaults: `IntentSpec` in the contract.

    Attributes:
        scene: why we write, for example ``order_shipped``.
        user_id: the user, as the tenant knows them; either this or `address`.
        address: a bare address, as text (see :func:`address`) or as the contract's message.
        template: the template; the one with the scene's name when left out.
        variables: the template's variables; anything that JSON can hold.
        intent_key: makes the call repeatable: one key, one intent.
        priority: 0 to 9, larger first; 5 when left out.
        expires_at: the moment after which the message is worthless, or how long it is good for.
        channels: wishes for channels, best first, for example ``["email", "sms"]``.
        send_at: the earliest moment at which it may leave, or how long from now; every gate is judged then.
        send_at_local: that moment by the recipient's own clock, ``"08:00"``, ``"monday 09:00"`` or
            ``"2030-03-08 08:00"`` (see :func:`local_time`), or as the contract's message. Not together with `send_at`.
    """

    scene: Required[str]
    user_id: str
    address: str | message_pb2.Address
    template: str
    variables: Mapping[str, Any]
    intent_key: str
    priority: int
    expires_at: Moment
    channels: Sequence[str]
    send_at: Moment
    send_at_local: str | message_pb2.LocalTime


_TEXT_FIELDS = ("scene", "user_id", "template", "intent_key")
_FIELDS = frozenset(IntentFields.__annotations__)


def intent(fields: IntentFields) -> reach_pb2.IntentSpec:
    """Builds an intent.

    Raises:
        InvalidArgumentError: a field has a value that no message can carry; the field is named. Whether the values
            make sense is the service's business.
    """
    if unknown := sorted(set(fields) - _FIELDS):
        raise invalid(f"intent.{unknown[0]}", f"is not a field of an intent; there are {', '.join(sorted(_FIELDS))}")
    spec = reach_pb2.IntentSpec()
    for name in _TEXT_FIELDS:
        if value := fields.get(name):
            _set(spec, name, value, "intent.")
    if to := fields.get("address"):
        spec.address.CopyFrom(address(to, "intent.address") if isinstance(to, str) else to)
    if variables := fields.get("variables"):
        spec.variables_json = variables_json(variables)
    if (priority := fields.get("priority")) is not None:
        _set(spec, "priority", priority, "intent.")
    if (expires_at := fields.get("expires_at")) is not None:
        spec.expires_at.CopyFrom(timestamp(expires_at, "intent.expires_at"))
    if (send_at := fields.get("send_at")) is not None:
        spec.send_at.CopyFrom(timestamp(send_at, "intent.send_at"))
    if local := fields.get("send_at_local"):
        spec.send_at_local.CopyFrom(local_time(local, "intent.send_at_local") if isinstance(local, str) else local)
    spec.channels.extend(channel(name, "intent.channels") for name in fields.get("channels", ()))
    return spec


def variables_json(variables: Mapping[str, Any]) -> str:
    """Encodes variables as JSON, in ASCII: a lone surrogate stays an escape, for the service to judge.

    Raises:
        InvalidArgumentError: a variable is not JSON; it is named.
    """
    try:
        return json.dumps(dict(variables), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        for name, value in variables.items():
            _check_json(name, value)
        raise


def _check_json(name: str, value: object) -> None:
    try:
        json.dumps({name: value}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"intent.variables.{name}", f"is not JSON: {error}") from error


_PREFIXES = {name.removeprefix("CHANNEL_").lower(): number for name, number in message_pb2.Channel.items() if number}


def address(text: str, field: str = "address") -> message_pb2.Address:
    """Reads an address from text: ``ada@example.com``, ``+4179…``, ``https://…``, or ``CHANNEL:VALUE``.

    Raises:
        InvalidArgumentError: the channel cannot be told.
    """
    prefix, colon, value = text.partition(":")
    if colon and prefix.lower() in _PREFIXES:
        kind = _PREFIXES[prefix.lower()]
    elif text.lower().startswith(("https://", "http://")):
        kind, value = message_pb2.CHANNEL_WEBHOOK, text
    elif text.startswith("+"):
        kind, value = message_pb2.CHANNEL_SMS, text
    elif "@" in text:
        kind, value = message_pb2.CHANNEL_EMAIL, text
    else:
        raise invalid(field, f"has no channel; write it as CHANNEL:VALUE with one of {', '.join(_PREFIXES)}")
    result = message_pb2.Address(channel=kind)
    _set(result, "value", value, f"{field}.")
    return result


def channel(name: str, field: str = "channel") -> message_pb2.Channel.ValueType:
    """Returns the contract's channel for a name such as ``email``."""
    try:
        return _PREFIXES[name.lower()]
    except (KeyError, AttributeError):
        raise invalid(field, f"{name!r} is no channel; there are {', '.join(_PREFIXES)}") from None


def state(name: str) -> message_pb2.State.ValueType:
    """Returns the contract's state for a name such as ``SENT``; any for an empty one."""
    if not name:
        return message_pb2.STATE_UNSPECIFIED
    try:
        return message_pb2.State.Value(f"STATE_{name.upper()}")
    except ValueError:
        names = ", ".join(key.removeprefix("STATE_") for key, number in message_pb2.State.items() if number)
        raise invalid("state", f"{name!r} is no state; there are {names}") from None


def timestamp(moment: Moment, field: str) -> Timestamp:
    """Returns a moment, or the one that a length of time from now leads to.

    Raises:
        InvalidArgumentError: the moment names no time zone or lies outside the years 1 to 9999.
    """
    result = Timestamp()
    try:
        if isinstance(moment, timedelta):
            moment = datetime.now(UTC) + moment
        if moment.tzinfo is None:
            raise invalid(field, "has no time zone; use for example datetime.now(UTC)")
        result.FromDatetime(moment)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise invalid(field, f"is not a moment: {error}") from error
    return result


_WEEKDAYS = {name.removeprefix("WEEKDAY_").lower(): number for name, number in message_pb2.Weekday.items() if number}


def local_time(text: str, field: str = "send_at_local") -> message_pb2.LocalTime:
    """Reads a time by the recipient's clock: ``08:00``, ``monday 09:00`` or ``2030-03-08 08:00``.

    Raises:
        InvalidArgumentError: it is not one of these. Whether date and time exist is the service's business.
    """
    match text.split():
        case [time]:
            fields: dict[str, Any] = {"time": time}
        case [day, time] if day.lower() in _WEEKDAYS:
            fields = {"time": time, "weekday": _WEEKDAYS[day.lower()]}
        case [day, time] if day[:1].isdecimal():
            fields = {"time": time, "date": day}
        case _:
            raise invalid(field, f"{text!r} is no time; write for example '08:00', 'monday 09:00', '2030-03-08 08:00'")
    result = message_pb2.LocalTime()
    for name, value in fields.items():
        _set(result, name, value, f"{field}.")
    return result


def list_intents(
    *,
    user_id: str,
    agent: str,
    scene: str,
    state_name: str,
    created_from: datetime | None,
    created_before: datetime | None,
    page_size: int,
) -> reach_pb2.ListIntentsRequest:
    """Builds the request of the first page; the following ones add their token."""
    request = build(
        reach_pb2.ListIntentsRequest,
        user_id=user_id,
        agent=agent,
        scene=scene,
        state=state(state_name),
        page_size=page_size,
    )
    if created_from is not None:
        request.created_from.CopyFrom(timestamp(created_from, "created_from"))
    if created_before is not None:
        request.created_before.CopyFrom(timestamp(created_before, "created_before"))
    return request


def execute(
    code: str,
    language: str,
    stdin: bytes,
    environment: Mapping[str, str],
    timeout_seconds: float,
    max_output_bytes: int,
) -> sandbox_pb2.ExecuteRequest:
    """Builds the request that runs code."""
    return build(
        sandbox_pb2.ExecuteRequest,
        language=named(sandbox_pb2.Language, "LANGUAGE_", language, "language"),
        code=code,
        stdin=stdin,
        environment=dict(environment),
        timeout_seconds=timeout_seconds,
        max_output_bytes=max_output_bytes,
    )


def build(kind: type[MessageT], **fields: Any) -> MessageT:
    """Builds a message.

    Raises:
        InvalidArgumentError: a field has a value that the message cannot carry; it is named.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (TypeError, ValueError) as error:
                raise invalid(name, _words(error)) from error
        raise


def invalid(field: str, description: str) -> InvalidArgumentError:
    """Returns the error that names one field at fault, as the service would."""
    return InvalidArgumentError(
        f"{field}: {description}", reason="FIELD_INVALID", violations=[Violation(field, description)]
    )


def named(enum: Any, prefix: str, name: str, field: str) -> Any:
    """Returns the number of an enum's value by its name in lower case; 0 for an empty one."""
    if not name:
        return 0
    try:
        return enum.Value(prefix + name.upper())
    except (ValueError, AttributeError):
        names = ", ".join(key.removeprefix(prefix).lower() for key, number in enum.items() if number)
        raise invalid(field, f"{name!r} is not one of {names}") from None


def _set(message: Message, name: str, value: object, path: str) -> None:
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise invalid(path + name, _words(error)) from error


def _words(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"contains a lone surrogate at character {error.start}; it is not valid Unicode"
    return f"has a value that does not fit: {error}"


def named_list(names: Iterable[str], field: str) -> list[str]:
    """Returns names as a list; one text alone, which would be taken for its letters, is a mistake."""
    if isinstance(names, str):
        raise invalid(field, "is one text, a list is needed")
    return list(names)
