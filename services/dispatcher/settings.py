"""The dispatcher's settings."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from services.chassis.settings import ChassisSettings


class DispatcherSettings(ChassisSettings):
    """What the dispatcher needs to know beside the chassis."""

    smtp_host: str = Field("", description="Mail server; without one, e-mail cannot be sent.")
    smtp_port: int = Field(587, ge=1, le=65_535, description="Port of the mail server.")
    smtp_username: str = Field("", description="User name at the mail server; empty logs in to none.")
    smtp_password: SecretStr = Field(SecretStr(""), description="Password at the mail server.")
    smtp_tls: Literal["none", "starttls", "tls"] = Field(
        "starttls", description="Encryption of the connection to the mail server; none for a server on this machine."
    )
    smtp_ca_file: Path | None = Field(
        None,
        description="PEM file of the authorities that may vouch for the mail server; without it, those of this system.",
    )
    smtp_connections: int = Field(8, ge=1, le=200, description="Connections kept to the mail server, at most.")
    mail_from: str = Field("Agent-Reach <no-reply@localhost>", description="Sender of e-mails.")
    mail_domain: str = Field("agent-reach.localhost", description="Domain of the Message-IDs; should be the sender's.")
    mail_deduplicates: bool = Field(
        default=True,
        description="Whether a second e-mail with the same Message-ID may be sent when nobody knows of the first.",
    )
    webhook_secret: SecretStr = Field(
        SecretStr(""), description="Standard Webhooks secret (whsec_…) that signs outgoing webhooks; empty signs none."
    )
    webhook_allowed_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (), description='Networks, beside the public ones, to which webhooks may go; for development ["127.0.0.0/8"].'
    )
    null_channels: tuple[Literal["email", "sms", "webhook", "inbox", "chat"], ...] = Field(
        (), description="Channels whose messages are taken and thrown away; for load tests."
    )
    send_timeout_seconds: float = Field(
        30.0, gt=0, le=300, description="Time that a provider may take for one message."
    )
    max_rendered_bytes: int = Field(262_144, ge=1_024, description="Size of one rendered message, at most.")
    scan_interval_seconds: float = Field(2.0, gt=0, description="Pause between two looks for due tasks.")
    lease_seconds: float = Field(30.0, ge=5, description="Silence after which this process counts as dead.")
    sending_slots: int = Field(1_000, ge=10, le=10_000, description="Tasks held in memory at once.")
    sending_concurrency: int = Field(400, ge=1, le=10_000, description="Tasks in work at once.")
