"""What `agent_reach` offers, and that nothing else is loaded by importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agent_reach

_OFFERED = {
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
}


def test_exactly_this_is_offered() -> None:
    assert set(agent_reach.__all__) == _OFFERED
    assert set(dir(agent_reach)) >= _OFFERED
    for name in _OFFERED:
        assert getattr(agent_reach, name).__name__ == name


def test_every_error_is_a_reach_error_with_a_code_of_its_own() -> None:
    errors = [getattr(agent_reach, name) for name in _OFFERED if name.endswith("Error") and name != "ReachError"]
    assert all(issubclass(error, agent_reach.ReachError) for error in errors)
    assert len({error.code for error in errors}) == len(errors)


def test_another_name_is_told_as_missing() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Retch'"):
        _ = agent_reach.Retch


def test_importing_it_loads_no_grpc() -> None:
    code = "import sys, agent_reach; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_sync_and_the_async_client_offer_the_same() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(agent_reach.Reach) == methods(agent_reach.AsyncReach)
