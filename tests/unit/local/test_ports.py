"""Every part has a port of its own."""

from __future__ import annotations

import itertools
import socket
from dataclasses import astuple

from services.local.ports import LOOPBACK, Ports, free_ports


def test_the_default_ports_are_the_documented_ones() -> None:
    ports = Ports.choose()
    assert [ports.grpc(role) for role in ("intake", "policy", "dispatcher", "sandbox", "receipts")] == [
        7401,
        7402,
        7403,
        7404,
        7405,
    ]
    assert ports.receipts_http == 7406
    assert [ports.admin(role) for role in ("intake", "policy", "dispatcher", "sandbox", "receipts")] == [
        7411,
        7412,
        7413,
        7414,
        7415,
    ]


def test_free_ports_are_free_and_each_given_once() -> None:
    chosen = astuple(Ports.choose(0))
    assert len(set(chosen)) == len(chosen)
    for port in chosen:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, port))


def test_a_port_in_use_is_not_given() -> None:
    port = next(free_ports())
    with socket.socket() as holder:
        holder.bind((LOOPBACK, port))
        holder.listen()
        assert port not in set(itertools.islice(free_ports(), 100))
