"""A provider that tells what became of messages, by signed posts."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import aiohttp
from standardwebhooks import Webhook


class Provider:
    """Posts receipts, signed after the Standard Webhooks specification.

    Args:
        url: the HTTP door of the receipts service.
        secret: ``whsec_…``.
    """

    def __init__(self, url: str, secret: str) -> None:
        self._url = url
        self._webhook = Webhook(secret)
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def report(self, kind: str, idempotency_key: str, *, times: int = 1) -> None:
        """Tells a fact about a message, as often as it is told to; returns when every post was stored.

        Raises:
            aiohttp.ClientResponseError: a post was refused.
        """
        now = datetime.now(UTC)
        event_id = str(uuid.uuid4())
        event = {
            "event_id": event_id,
            "kind": kind,
            "idempotency_key": idempotency_key,
            "occurred_at": now.isoformat(),
        }
        body = json.dumps(event)
        headers = {
            "content-type": "application/json",
            "webhook-id": event_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._webhook.sign(event_id, now, body),
        }
        for _ in range(times):
            async with self._session.post(self._url, data=body.encode(), headers=headers) as response:
                response.raise_for_status()
