"""Who posted this? Standard Webhooks: HMAC-SHA256 over id, timestamp and the raw body, five minutes of tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook, WebhookVerificationError


class SecretError(ValueError):
    """A secret cannot be used; the text does not show it."""


class Signatures:
    """The secrets of one provider, any of which may have signed.

    Args:
        secrets: ``whsec_`` and base64; several while an old one is replaced.

    Raises:
        SecretError: there is none, or one is not base64.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        if not secrets:
            raise SecretError("no secret is given")
        try:
            self._webhooks = [Webhook(secret) for secret in secrets]
        except (ValueError, EmptyWebhookSecretError) as error:
            raise SecretError("a secret is empty, or not whsec_ and base64") from error

    def fit(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Says whether one of the secrets signed exactly these bytes, within the last five minutes."""
        return any(_fits(webhook, headers, body) for webhook in self._webhooks)


def _fits(webhook: Webhook, headers: Mapping[str, str], body: bytes) -> bool:
    try:
        webhook.verify(body, dict(headers), json_parse=False)
    except (WebhookVerificationError, ValueError):
        # Beside its own error the package lets through what base64, UTF-8 and unpacking say of a malformed header.
        return False
    return True
