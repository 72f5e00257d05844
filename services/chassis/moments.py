"""Moments as the contract writes them, and back."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp


def moment(value: Timestamp) -> datetime:
    """Returns a timestamp as an aware datetime in UTC, without what is finer than a microsecond.

    Raises:
        ValueError, OverflowError: it lies outside the years 1 to 9999, or its nanoseconds outside a second.
    """
    return value.ToDatetime(UTC)


def timestamp(value: datetime) -> Timestamp:
    """Returns an aware datetime as a timestamp."""
    stamp = Timestamp()
    stamp.FromDatetime(value.astimezone(UTC))
    return stamp
