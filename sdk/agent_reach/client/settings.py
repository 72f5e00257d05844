"""Where the services are and how they are called: targets, key, deadline, gRPC options."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import InvalidArgumentError, Violation

DEFAULT_TARGET = "127.0.0.1:7401"
_SERVICE_CONFIG = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
_MAX_MESSAGE_BYTES = 8 * 1024 * 1024
CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.service_config", _SERVICE_CONFIG),
    # The servers allow a ping every 10 s; a peer that is gone is noticed within 30 s, also by an idle stream.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a client needs to know.

    Attributes:
        target: gRPC target of intake, for example ``127.0.0.1:7401`` or ``dns:///intake:7400``.
        policy_target: gRPC target of policy, for profiles and suppressions.
        sandbox_target: gRPC target of sandbox.
        api_key: the key that names tenant and agent.
        deadline_seconds: how long one call, or one batch of a stream, may take.
    """

    target: str
    policy_target: str
    sandbox_target: str
    api_key: str
    deadline_seconds: float

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.api_key}"),)


def read_settings(
    target: str | None,
    api_key: str | None,
    *,
    policy_target: str | None,
    sandbox_target: str | None,
    deadline_seconds: float,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Fills what the caller did not name from the environment.

    Raises:
        InvalidArgumentError: there is no API key.
    """
    key = api_key or environment.get("REACH_API_KEY", "")
    if not key:
        raise _invalid("api_key", "is missing; pass it or set REACH_API_KEY")
    if not (key.isascii() and key.isprintable()):
        raise _invalid("api_key", "is not an API key; a key is printable ASCII")
    main = target or environment.get("REACH_TARGET") or DEFAULT_TARGET
    return Settings(
        target=main,
        policy_target=policy_target or environment.get("REACH_POLICY_TARGET") or main,
        sandbox_target=sandbox_target or environment.get("REACH_SANDBOX_TARGET") or main,
        api_key=key,
        deadline_seconds=deadline_seconds,
    )


def _invalid(field: str, description: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{field}: {description}", reason="FIELD_INVALID", violations=[Violation(field, description)]
    )
