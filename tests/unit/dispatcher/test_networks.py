"""Where webhooks may go: what is not public is refused, in whatever form it is written."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dispatcher.channels.networks import (
    ForbiddenNetworkError,
    GuardedResolver,
    is_allowed,
    is_allowed_literal,
)

_PRIVATE_IPV4 = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "192.0.2.1",
    "224.0.0.1",
    "240.0.0.1",
]


def _inside_ipv6(address: str) -> dict[str, str]:
    number = int(ip_address(address))
    return {
        "mapped": f"::ffff:{address}",
        "compatible": f"::{address}",
        "translated": f"::ffff:0:{address}",
        "nat64": f"64:ff9b::{address}",
        "local nat64": f"64:ff9b:1::{address}",
        "6to4": str(ip_address((0x2002 << 112) | (number << 80))),
        "teredo": str(ip_address((0x20010000 << 96) | (number ^ 0xFFFF_FFFF))),
    }


@pytest.mark.parametrize("address", _PRIVATE_IPV4)
def test_a_network_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(ip_address(address), ())


@pytest.mark.parametrize("address", _PRIVATE_IPV4)
@pytest.mark.parametrize("form", list(_inside_ipv6("127.0.0.1")))
def test_it_is_refused_also_inside_of_an_ipv6_address(address: str, form: str) -> None:
    assert not is_allowed(ip_address(_inside_ipv6(address)[form]), ())


@pytest.mark.parametrize(
    "address",
    ["::", "::1", "fe80::1", "fe80::1%2", "fc00::1", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1", "100::1"],
)
def test_an_ipv6_network_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(ip_address(address), ())


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "64:ff9b::1.1.1.1", "::ffff:1.1.1.1"]
)
def test_the_public_internet_is_allowed(address: str) -> None:
    assert is_allowed(ip_address(address), ())


@given(st.ip_addresses(v=4))
def test_an_embedded_address_is_judged_like_the_address_itself(address: object) -> None:
    text = str(address)
    for form in ("mapped", "nat64", "6to4"):
        assert is_allowed(ip_address(_inside_ipv6(text)[form]), ()) is is_allowed(ip_address(text), ())


def test_an_operator_can_allow_a_network_and_only_that() -> None:
    allowed = (ip_network("127.0.0.0/8"),)
    assert is_allowed(ip_address("127.0.0.1"), allowed)
    assert is_allowed(ip_address("::ffff:127.0.0.1"), allowed)
    assert not is_allowed(ip_address("10.0.0.1"), allowed)
    assert not is_allowed(ip_address("::1"), allowed)


def test_a_name_is_judged_when_it_is_resolved() -> None:
    assert is_allowed_literal("example.com", ())
    assert not is_allowed_literal("127.0.0.1", ())
    assert not is_allowed_literal("[::1]", ())


@pytest.mark.parametrize("host", ["localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
async def test_a_name_that_leads_to_a_private_address_is_refused(host: str) -> None:
    resolver = GuardedResolver(())
    with pytest.raises(ForbiddenNetworkError):
        await resolver.resolve(host, 80, socket.AF_INET)
    await resolver.close()


async def test_a_name_that_leads_to_an_allowed_network_is_resolved() -> None:
    resolver = GuardedResolver((ip_network("127.0.0.0/8"),))
    results = await resolver.resolve("localhost", 80, socket.AF_INET)
    assert {result["host"] for result in results} == {"127.0.0.1"}
    await resolver.close()
