"""Where webhooks may go: the public Internet, and what the operator allows beside it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

Network = IPv4Network | IPv6Network


class ForbiddenNetworkError(OSError):
    """The name leads into a network that webhooks may not reach."""


def is_allowed(address: IPv4Address | IPv6Address, allowed: Sequence[Network]) -> bool:
    """Says whether a webhook may go to an address: a public one, or one in an allowed network."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    target = mapped or address
    if any(target in network for network in allowed if network.version == target.version):
        return True
    return target.is_global and not target.is_multicast


def is_allowed_literal(host: str, allowed: Sequence[Network]) -> bool:
    """Says whether a host is a name (judged when it is resolved) or an address that is allowed."""
    try:
        return is_allowed(ip_address(host.strip("[]")), allowed)
    except ValueError:
        return True


class GuardedResolver(AbstractResolver):
    """Resolves names and lets only allowed addresses through; what was judged is what is connected to."""

    def __init__(self, allowed: Sequence[Network]) -> None:
        self._allowed = allowed
        self._resolver = DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the allowed addresses of a host.

        Raises:
            ForbiddenNetworkError: it has none.
        """
        results = await self._resolver.resolve(host, port, family)
        allowed = [result for result in results if is_allowed(ip_address(result["host"]), self._allowed)]
        if not allowed:
            raise ForbiddenNetworkError("the host leads into a network that webhooks may not reach")
        return allowed

    async def close(self) -> None:
        """Closes the resolver."""
        await self._resolver.close()
