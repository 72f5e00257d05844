"""Requests that are no message of their type: told to the caller as such, after it proved who it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from .errors import InvalidFieldsError, Violation


class Undecodable(bytes):
    """The raw bytes of a request that could not be read."""

    __slots__ = ()


def lenient(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Returns a deserializer that hands bytes it cannot read on, as `Undecodable`.

    gRPC would answer them itself: before authentication, and with the text of the exception.
    """

    def read(raw: bytes) -> Any:
        try:
            return deserialize(raw)
        except DecodeError:
            return Undecodable(raw)

    return read


def refuse_undecodable(request: object) -> None:
    """Refuses a request that could not be read.

    Raises:
        InvalidFieldsError: it could not.
    """
    if isinstance(request, Undecodable):
        raise InvalidFieldsError(
            [Violation("request", "is no message of this RPC, or one of its texts is not valid UTF-8")]
        )
