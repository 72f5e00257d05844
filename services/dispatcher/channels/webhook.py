"""Webhooks: HTTP POST of a JSON document, signed after the Standard Webhooks specification, never redirected."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
import structlog
from standardwebhooks import Webhook
from yarl import URL

from services.catalog.rules import Channel
from services.dispatcher.settings import DispatcherSettings

from .networks import ForbiddenNetworkError, GuardedResolver, is_allowed_literal
from .port import Message, SendOutcome, SendResult

# Answers that say "not now": RFC 9110 and RFC 6585. All others of the 4xx class are final.
_TRANSIENT_STATUS = frozenset({408, 425, 429})
_log = structlog.get_logger(__name__)


class WebhookAdapter:
    """Posts to the recipient's URL. A receiver recognises a second send by `Idempotency-Key` and `webhook-id`."""

    name = "webhook"
    channel = Channel.WEBHOOK
    deduplicates = True

    def __init__(self, settings: DispatcherSettings) -> None:
        self._allowed = settings.webhook_allowed_networks
        secret = settings.webhook_secret.get_secret_value()
        self._signer = Webhook(secret) if secret else None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=GuardedResolver(self._allowed), limit=200, limit_per_host=50),
            timeout=aiohttp.ClientTimeout(total=settings.send_timeout_seconds, connect=10.0),
            # Proxies and cookies of the machine have no business with the recipients' servers.
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def send(self, message: Message) -> SendOutcome:
        """Posts one message."""
        try:
            url = URL(message.address)
        except ValueError:
            return SendOutcome(SendResult.REJECTED, "invalid_url")
        if not is_allowed_literal(url.host or "", self._allowed):
            return SendOutcome(SendResult.REJECTED, "forbidden_network")
        try:
            async with self._session.post(
                url, data=message.body.encode(), headers=self._headers(message), allow_redirects=False
            ) as response:
                return _outcome(response)
        except ForbiddenNetworkError:
            return SendOutcome(SendResult.REJECTED, "forbidden_network")
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ForbiddenNetworkError):
                return SendOutcome(SendResult.REJECTED, "forbidden_network")
            return SendOutcome(SendResult.TRANSPORT_ERROR, "connect_failed")
        except aiohttp.ConnectionTimeoutError:
            return SendOutcome(SendResult.TRANSPORT_ERROR, "connect_timeout")
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            return SendOutcome(SendResult.REJECTED, "invalid_url")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.debug("webhook_unanswered", error=type(error).__name__)
            return SendOutcome(SendResult.UNKNOWN, "no_answer")

    async def close(self) -> None:
        """Closes the connections."""
        await self._session.close()

    def _headers(self, message: Message) -> dict[str, str]:
        now = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": message.idempotency_key,
            "webhook-id": message.idempotency_key,
            "webhook-timestamp": str(int(now.timestamp())),
        }
        if self._signer is not None:
            headers["webhook-signature"] = self._signer.sign(message.idempotency_key, now, message.body)
        return headers


def _outcome(response: aiohttp.ClientResponse) -> SendOutcome:
    code = f"http_{response.status}"
    if 200 <= response.status < 300:
        return SendOutcome(SendResult.ACCEPTED, code)
    if response.status in _TRANSIENT_STATUS or response.status >= 500:
        return SendOutcome(
            SendResult.TRANSPORT_ERROR, code, retry_after_seconds=_retry_after(response.headers.get("Retry-After"))
        )
    return SendOutcome(SendResult.REJECTED, code)


def _retry_after(value: str | None) -> float | None:
    """Reads a Retry-After header (RFC 9110 §10.2.3): seconds, or a date."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return min(float(value), 86_400.0)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return min(max(0.0, (moment - datetime.now(UTC)).total_seconds()), 86_400.0)
