"""The catalog's words as the contract writes them, and back."""

from __future__ import annotations

from agent_reach.v1 import message_pb2

from .rules import Category, Channel

_CHANNELS: dict[Channel, message_pb2.Channel.ValueType] = {
    channel: message_pb2.Channel.Value(f"CHANNEL_{channel.name}") for channel in Channel
}
_CATEGORIES: dict[Category, message_pb2.Category.ValueType] = {
    category: message_pb2.Category.Value(f"CATEGORY_{category.name}") for category in Category
}
_CHANNELS_BACK = {number: channel for channel, number in _CHANNELS.items()}
_CATEGORIES_BACK = {number: category for category, number in _CATEGORIES.items()}


def channel_to_wire(channel: Channel | None) -> message_pb2.Channel.ValueType:
    """Returns the contract's number of a channel; None is CHANNEL_UNSPECIFIED."""
    return message_pb2.CHANNEL_UNSPECIFIED if channel is None else _CHANNELS[channel]


def channel_from_wire(number: message_pb2.Channel.ValueType) -> Channel | None:
    """Returns the channel; None for CHANNEL_UNSPECIFIED and for a number that this version does not know."""
    return _CHANNELS_BACK.get(number)


def category_to_wire(category: Category | None) -> message_pb2.Category.ValueType:
    """Returns the contract's number of a category; None is CATEGORY_UNSPECIFIED."""
    return message_pb2.CATEGORY_UNSPECIFIED if category is None else _CATEGORIES[category]


def category_from_wire(number: message_pb2.Category.ValueType) -> Category | None:
    """Returns the category; None for CATEGORY_UNSPECIFIED and for a number that this version does not know."""
    return _CATEGORIES_BACK.get(number)
