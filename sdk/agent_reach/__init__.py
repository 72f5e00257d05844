"""Agent-Reach for agents: say what to tell whom; how it is sent is decided elsewhere.

    from agent_reach import Reach

    with Reach("127.0.0.1:7401", api_key="reach_…") as reach:
        intent = reach.submit(scene="order_shipped", user_id="ada", variables={"order_id": "A-1"})
        print(reach.explain(intent.intent_id))

Requests are plain Python; answers are the messages of the contract (`agent_reach.v1`), which is where every field is
described. `Reach` waits, `AsyncReach` is for asyncio; both raise the errors listed in `agent_reach.client.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client.aio import AsyncReach
    from .client.errors import (
        AlreadyExistsError,
        DeadlineExceededError,
        FailedPreconditionError,
        InternalError,
        InvalidArgumentError,
        NotFoundError,
        PermissionDeniedError,
        ReachError,
        ResourceExhaustedError,
        UnauthenticatedError,
        UnavailableError,
        Violation,
    )
    from .client.people import preference, profile, suppression, suppression_query
    from .client.requests import IntentFields, address
    from .client.submission import Refused, Submitted
    from .client.sync import Reach
    from .client.watching import Watched

__all__ = [
    "AlreadyExistsError",
    "AsyncReach",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "IntentFields",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "Reach",
    "ReachError",
    "Refused",
    "ResourceExhaustedError",
    "Submitted",
    "UnauthenticatedError",
    "UnavailableError",
    "Violation",
    "Watched",
    "address",
    "preference",
    "profile",
    "suppression",
    "suppression_query",
]

# The durable engine needs only PostgreSQL: whoever imports `agent_reach.durable` does not load gRPC by it.
_MODULES = {
    "AsyncReach": "aio",
    "Reach": "sync",
    "Refused": "submission",
    "Submitted": "submission",
    "Watched": "watching",
    "IntentFields": "requests",
    "address": "requests",
    "preference": "people",
    "profile": "people",
    "suppression": "people",
    "suppression_query": "people",
}


def __getattr__(name: str) -> Any:
    """Loads what is exported when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".client.{_MODULES.get(name, 'errors')}", __name__)
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
