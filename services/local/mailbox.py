"""A development mailbox: a real SMTP server on the loopback interface that keeps what it is given."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from types import TracebackType
from typing import Self

from aiosmtpd.smtp import SMTP, Envelope, Session

from services.chassis.startup import StartupError

from .ports import LOOPBACK

TAKEN = "250 2.0.0 taken"


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail, as it came over the wire.

    Attributes:
        recipients: the addresses of the envelope.
        content: the raw message.
    """

    recipients: tuple[str, ...]
    content: bytes

    @property
    def message(self) -> EmailMessage:
        """The parsed message."""
        message = message_from_bytes(self.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        return message

    @property
    def message_id(self) -> str:
        """Its Message-ID."""
        return str(self.message["Message-ID"])

    @property
    def text(self) -> str:
        """Its plain text, lines ended by a line feed as they were before SMTP."""
        part = self.message.get_body(("plain",))
        return str(part.get_content()).replace("\r\n", "\n") if part is not None else ""


# Takes a mail and returns the SMTP answer, for example "250 taken" or "451 later".
OnMail = Callable[[Mail], Awaitable[str]]


class Mailbox:
    """An SMTP server without encryption or login; a mail is taken when `on_mail` says so.

    Args:
        on_mail: is given every mail, before its sender is answered.
        port: 0 takes a free one.

    Attributes:
        port: where it listens.
    """

    def __init__(self, on_mail: OnMail, port: int = 0) -> None:
        self._on_mail = on_mail
        self.port = port
        self._server: asyncio.Server | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The dispatcher's settings for sending to it."""
        return {"REACH_SMTP_HOST": LOOPBACK, "REACH_SMTP_PORT": str(self.port), "REACH_SMTP_TLS": "none"}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: SMTP(self, hostname="localhost", ident="development mailbox", loop=loop), LOOPBACK, self.port
            )
        except OSError as error:
            raise StartupError(
                "development mailbox",
                f"cannot listen on {LOOPBACK}:{self.port}: {error.strerror}",
                "set REACH_SMTP_HOST to a mail server, or free the port",
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's name
        """Takes one mail; aiosmtpd calls it."""
        content = envelope.original_content or b""
        return await self._on_mail(Mail(tuple(envelope.rcpt_tos), content))


def keep_in(directory: Path) -> OnMail:
    """Returns what stores each mail as a file of its own (``.eml``, any mail program opens it)."""
    directory.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(1)

    async def keep(mail: Mail) -> str:
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{next(numbers):06d}.eml"
        await asyncio.to_thread((directory / name).write_bytes, mail.content)
        return TAKEN

    return keep
