"""Settings of the receipts service."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from services.chassis.settings import ChassisSettings


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | SecretStr) else value


class ReceiptsSettings(ChassisSettings):
    """What the receipts service needs to know beside the chassis."""

    # What is wrong with a secret must not be told by showing it.
    model_config = SettingsConfigDict(hide_input_in_errors=True)

    receipts_http_address: str = Field(
        "127.0.0.1:0", description="Address of the HTTP door for providers; port 0 takes a free one."
    )
    receipt_secrets: dict[str, Annotated[list[SecretStr], BeforeValidator(_as_list)]] = Field(
        default_factory=dict,
        description='JSON object of Standard Webhooks secrets by provider: {"demo": "whsec_…"}. A list of them allows'
        " the old and the new one while they are changed.",
    )
    receipts_max_posts: int = Field(
        64, ge=1, description="Posts in work at once, each up to 1 MiB; one more is asked to come again."
    )
    receipts_first_retry_seconds: float = Field(
        1.0, gt=0, description="Wait before a receipt of a task that is not known yet is tried again; it doubles."
    )
    receipts_max_retry_seconds: float = Field(600.0, gt=0, description="Longest wait between two such tries.")
    receipts_give_up_days: float = Field(
        3.0, gt=0, description="How long a receipt may speak of a task that nobody knows before it is laid aside."
    )
