"""Who is calling: the principal that the auth interceptor found, for the length of one RPC."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from agent_reach.v1 import access_pb2


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller.

    Attributes:
        tenant: whose data it may touch.
        subject: its name, for the audit.
        role: what it may call.
    """

    tenant: str
    subject: str
    role: access_pb2.Role.ValueType


_current: ContextVar[Principal] = ContextVar("reach_principal")


def current_principal() -> Principal:
    """Returns the caller of the running RPC.

    Raises:
        LookupError: outside of an authenticated RPC.
    """
    return _current.get()


def set_principal(principal: Principal) -> None:
    """Sets the caller for the running RPC; for the auth interceptor and for tests that call servicers directly."""
    _current.set(principal)
