"""API keys: the file that knows them only by their SHA-256, and the principal behind each."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agent_reach.v1 import access_pb2

from .errors import UnauthenticatedError
from .principal import Principal
from .startup import StartupError
from .tenants import TENANT_PATTERN

# The tenant of the services themselves; no agent can have it (names start with a letter or digit).
SERVICE_TENANT = "*"
_ROLES: Mapping[str, access_pb2.Role.ValueType] = {
    "agent": access_pb2.ROLE_AGENT,
    "operator": access_pb2.ROLE_OPERATOR,
}


class ApiKey(BaseModel):
    """One line of the API key file."""

    # Who puts a key itself where its hash belongs must not find it in an error message.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    tenant: str = Field(pattern=TENANT_PATTERN)
    subject: str = Field(min_length=1, max_length=128)
    role: Literal["agent", "operator"]


_FILE = TypeAdapter(list[ApiKey], config=ConfigDict(hide_input_in_errors=True))


def new_api_key() -> str:
    """Returns a fresh random key of 192 bits; it is recognisable, so that scanners find leaked ones."""
    return f"reach_{secrets.token_urlsafe(24)}"


def hash_api_key(key: str) -> str:
    """Returns the SHA-256 by which a key is stored. A random key of this length needs no slow hash."""
    return hashlib.sha256(key.encode()).hexdigest()


def write_api_keys(path: Path, keys: Iterable[ApiKey]) -> None:
    """Writes an API key file."""
    path.write_bytes(_FILE.dump_json(list(keys), indent=2))


class KeyRing:
    """The keys that a server accepts.

    Args:
        keys: keys of agents and operators.
        service_key: the key of the other services; empty accepts none.
    """

    def __init__(self, keys: Iterable[ApiKey], service_key: str = "") -> None:
        self._principals = {key.sha256: Principal(key.tenant, key.subject, _ROLES[key.role]) for key in keys}
        if service_key:
            self._principals[hash_api_key(service_key)] = Principal(SERVICE_TENANT, "service", access_pb2.ROLE_SERVICE)

    @classmethod
    def load(cls, path: Path | None, service_key: str) -> KeyRing:
        """Reads the API key file.

        Raises:
            StartupError: the file cannot be read or is not valid.
        """
        if path is None:
            return cls((), service_key)
        try:
            return cls(_FILE.validate_json(path.read_bytes()), service_key)
        except (OSError, ValidationError) as error:
            raise StartupError(
                "API keys", f"{path} cannot be used: {error}", "set REACH_API_KEYS_FILE to a JSON list of keys"
            ) from error

    def authenticate(self, key: str) -> Principal:
        """Returns the principal behind a key.

        Raises:
            UnauthenticatedError: nobody has this key.
        """
        principal = self._principals.get(hash_api_key(key)) if key else None
        if principal is None:
            raise UnauthenticatedError("send a valid API key as `authorization: Bearer KEY`")
        return principal
