"""A real mail server on this machine that answers as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default as default_policy
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.certificates import server_context


@dataclass(frozen=True, slots=True)
class Mail:
    """One e-mail as it came.

    Attributes:
        content: the bytes of DATA, without the dots that SMTP doubles.
    """

    sender: str
    recipients: tuple[str, ...]
    content: bytes

    @property
    def message(self) -> EmailMessage:
        """The mail, parsed."""
        message = message_from_bytes(self.content, policy=default_policy)
        assert isinstance(message, EmailMessage)
        return message

    @property
    def text(self) -> str:
        """The plain text, its line ends as on this side of SMTP."""
        return self.part("plain")

    def part(self, subtype: str) -> str:
        """Returns the plain or the html text."""
        part = self.message.get_body((subtype,))
        assert part is not None
        return str(part.get_content()).replace("\r\n", "\n")


@dataclass
class MailServer:
    """What came in, and what is answered.

    Attributes:
        on_mail: the answer to MAIL; `on_rcpt` to RCPT, `on_data` to the end of DATA; "" drops the connection.
        connections: how often somebody connected.
        logins: the user names that logged in.
        open: while it is not set, the answer to DATA is held back.
    """

    port: int = 0
    mails: list[Mail] = field(default_factory=list)
    on_mail: Callable[[str], str] = lambda _sender: "250 OK"
    on_rcpt: Callable[[str], str] = lambda _recipient: "250 OK"
    on_data: Callable[[Mail], str] = lambda _mail: "250 OK"
    connections: int = 0
    logins: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    _live: list[SMTP] = field(default_factory=list)

    def hang_up(self) -> None:
        """Closes every connection, as a server does with those that lie idle."""
        for connection in self._live:
            if connection.transport is not None:
                connection.transport.close()
        self._live.clear()

    # -- what aiosmtpd calls ----------------------------------------------------------------------------------------

    async def handle_MAIL(  # noqa: N802 - the names are aiosmtpd's
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        envelope.mail_from = address
        return self._answer(server, self.on_mail(address))

    async def handle_RCPT(  # noqa: N802
        self, server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        envelope.rcpt_tos.append(address)
        return self._answer(server, self.on_rcpt(address))

    async def handle_DATA(self, server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.content
        assert isinstance(content, bytes)
        mail = Mail(envelope.mail_from or "", tuple(envelope.rcpt_tos), content)
        self.mails.append(mail)
        await self.open.wait()
        return self._answer(server, self.on_data(mail))

    def authenticate(self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, data: Any) -> Any:
        """Lets in who knows the password "right"."""
        assert isinstance(data, LoginPassword)
        self.logins.append(data.login.decode())
        return AuthResult(success=data.password == b"right", handled=False)

    def _answer(self, server: SMTP, answer: str) -> str:
        if not answer:
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.abort()
        return answer or "451 gone"


@asynccontextmanager
async def mail_server(
    *, tls: str = "none", auth: bool = False, smtputf8: bool = False, port: int = 0
) -> AsyncIterator[MailServer]:
    """Runs a mail server on this machine.

    Args:
        tls: "none", "starttls" or "tls"; with the certificate of `AUTHORITY_FILE`.
        auth: nobody gets in without the password "right"; goes with "starttls".
        smtputf8: whether addresses beyond ASCII are taken.
        port: 0 takes a free one.
    """
    mailbox = MailServer()
    mailbox.open.set()
    loop = asyncio.get_running_loop()
    context = None if tls == "none" else server_context()

    def connection() -> SMTP:
        mailbox.connections += 1
        server = SMTP(
            mailbox,
            loop=loop,
            hostname="localhost",
            enable_SMTPUTF8=smtputf8,
            tls_context=context if tls == "starttls" else None,
            require_starttls=tls == "starttls",
            authenticator=mailbox.authenticate if auth else None,
            auth_required=auth,
        )
        mailbox._live.append(server)
        return server

    server = await loop.create_server(connection, "127.0.0.1", port, ssl=context if tls == "tls" else None)
    mailbox.port = server.sockets[0].getsockname()[1]
    try:
        yield mailbox
    finally:
        mailbox.open.set()
        server.close()
        mailbox.hang_up()
        await server.wait_closed()
