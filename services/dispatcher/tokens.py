"""Rate limits of channels: a token bucket each, in Redis, shared by every dispatcher."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import redis.asyncio

from services.catalog.rules import ChannelRules

_SCRIPT = (files(__package__) / "tokens.lua").read_text() if __package__ else ""


@dataclass(frozen=True, slots=True)
class Grant:
    """How many tokens were granted, and after how long it is worth asking for more."""

    granted: int
    wait_seconds: float


class TokenBuckets:
    """Takes tokens of a channel, in batches.

    Args:
        client: Redis; errors of it pass through.
        deployment: prefixes the keys.
    """

    def __init__(self, client: redis.asyncio.Redis, deployment: str) -> None:
        self._prefix = f"reach:{deployment}:tokens:"
        self._script = client.register_script(_SCRIPT)

    async def take(self, rules: ChannelRules, wanted: int) -> Grant:
        """Takes up to `wanted` tokens of a channel.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached; nothing was granted.
        """
        granted, wait_milliseconds = await self._script(
            keys=[self._prefix + rules.channel.value], args=[wanted, rules.burst, rules.rate_per_sec]
        )
        return Grant(int(granted), int(wait_milliseconds) / 1000)
