"""Where webhooks may go: the public Internet, and what the operator allows beside it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

Network = IPv4Network | IPv6Network

_GLOBAL_UNICAST = IPv6Network("2000::/3")
# NAT64 (RFC 6052), and "IPv4-translated" (RFC 2765). IPv4-compatible ::/96 is not public anyway.
_IPV4_IN_LAST_BITS = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0:0/96"))


class ForbiddenNetworkError(OSError):
    """The name leads into a network that webhooks may not reach."""


def is_allowed(address: IPv4Address | IPv6Address, allowed: Sequence[Network]) -> bool:
    """Says whether a webhook may go to an address: a public one, or one in an allowed network."""
    if isinstance(address, IPv6Address) and (inner := _embedded(address)) is not None:
        address = inner
    if any(address in network for network in allowed if network.version == address.version):
        return True
    if address.is_multicast or not address.is_global:
        return False
    # Beside 2000::/3 nothing of IPv6 is public, whatever the tables of this Python say.
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Returns the IPv4 address to which a translator or a tunnel would carry an IPv6 address."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in prefix for prefix in _IPV4_IN_LAST_BITS):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return None


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
