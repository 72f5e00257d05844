"""What happens to a post or a batch at the door: verify, read, store, wake those who apply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from agent_reach.v1 import error_reason_pb2
from services.chassis.errors import InvalidFieldsError, NotFoundError, UnauthenticatedError, Violation

from .facts import MAX_BODY_BYTES, Fact, Read, is_provider_name
from .providers import format_of
from .signatures import Signatures

# A store that does not answer must not hold posts for ever: the provider comes again.
_STORE_SECONDS = 10.0

Stored = UUID | Sequence[Violation]


class Store(Protocol):
    """Where facts are kept."""

    async def add(self, provider: str, facts: Sequence[Fact], body: bytes | None = None) -> list[UUID]:
        """Stores facts with the post that they came in; returns the ids under which they are stored now."""
        ...


class Reception:
    """The one way in, whichever door was taken.

    Args:
        signatures: the secrets, by provider.
        store: where facts are kept.
        wake: called after something was stored.
    """

    def __init__(self, signatures: Mapping[str, Signatures], store: Store, wake: Callable[[], None]) -> None:
        self._signatures = signatures
        self._store = store
        self._wake = wake

    async def take_post(self, provider: str, headers: Mapping[str, str], body: bytes) -> list[UUID]:
        """Takes one raw post.

        Facts that can be read are stored also when others of the same post cannot: the provider learns what is wrong,
        and nothing it said is lost.

        Args:
            provider: who it claims to come from.
            headers: as they came; the signature stands in them.
            body: the bytes as they came.

        Returns:
            The ids of all its facts, repetitions included.

        Raises:
            NotFoundError: nobody of that name has a secret here.
            UnauthenticatedError: the signature is missing, old, or not of these bytes.
            InvalidFieldsError: the body, or a part of it, cannot be read.
        """
        signatures = self._signatures.get(provider)
        if signatures is None:
            raise NotFoundError("no such provider", metadata={"resource": "provider", "id": provider})
        if len(body) > MAX_BODY_BYTES:
            raise InvalidFieldsError([Violation("body", f"is longer than {MAX_BODY_BYTES} bytes")])
        if not signatures.fit(headers, body):
            raise UnauthenticatedError(
                "the signature does not fit the raw body, or its timestamp is not of the last five minutes",
                reason=error_reason_pb2.ERROR_REASON_SIGNATURE_INVALID,
                metadata={"provider": provider},
            )
        items = format_of(provider)(body)
        stored = await self._add(provider, items, body)
        violations = [violation for item in stored if not isinstance(item, UUID) for violation in item]
        if violations:
            count = sum(isinstance(item, UUID) for item in stored)
            raise InvalidFieldsError(violations, metadata={"stored": str(count)})
        return [item for item in stored if isinstance(item, UUID)]

    async def take_facts(self, provider: str, items: Sequence[Read]) -> list[Stored]:
        """Takes facts that were verified elsewhere.

        Returns:
            For each, in order, its id or what is wrong with it.

        Raises:
            InvalidFieldsError: this cannot be a provider's name.
        """
        if not is_provider_name(provider):
            raise InvalidFieldsError([Violation("provider", "must be 1 to 64 of a-z, 0-9, _, . and -")])
        return await self._add(provider, items, None)

    async def _add(self, provider: str, items: Sequence[Read], body: bytes | None) -> list[Stored]:
        facts = [item for item in items if isinstance(item, Fact)]
        async with asyncio.timeout(_STORE_SECONDS):
            ids = iter(await self._store.add(provider, facts, body))
        if facts:
            self._wake()
        return [next(ids) if isinstance(item, Fact) else item for item in items]
