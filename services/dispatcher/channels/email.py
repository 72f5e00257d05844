"""E-mail over SMTP: a few kept connections, a Message-ID that is the same for every send of one task."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import formatdate

import aiosmtplib

from services.catalog.rules import Channel
from services.dispatcher.settings import DispatcherSettings

from .port import Message, SendOutcome, SendResult


class EmailAdapter:
    """Sends through one mail server (RFC 5321), with STARTTLS or TLS and authentication where they are set."""

    name = "smtp"
    channel = Channel.EMAIL

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self.deduplicates = settings.mail_deduplicates
        self._places = asyncio.Semaphore(settings.smtp_connections)
        self._idle: list[aiosmtplib.SMTP] = []

    async def send(self, message: Message) -> SendOutcome:
        """Hands one e-mail to the mail server."""
        mail = self._compose(message)
        async with self._places:
            try:
                client = await self._connection()
            except (aiosmtplib.SMTPAuthenticationError, aiosmtplib.SMTPNotSupported) as error:
                # Wrong credentials are ours to mend; the message itself is good and waits for that.
                return SendOutcome(SendResult.TRANSPORT_ERROR, _code(error, "login_failed"))
            except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
                return SendOutcome(SendResult.TRANSPORT_ERROR, _code(error, "connect_failed"))
            outcome, keep = await self._hand_over(client, mail, message.address)
            if keep:
                self._idle.append(client)
            else:
                client.close()
        return outcome

    async def close(self) -> None:
        """Says goodbye on every kept connection."""
        while self._idle:
            client = self._idle.pop()
            with suppress(aiosmtplib.SMTPException, OSError, TimeoutError):
                await client.quit(timeout=2)

    async def _hand_over(self, client: aiosmtplib.SMTP, mail: EmailMessage, to: str) -> tuple[SendOutcome, bool]:
        """Returns the outcome, and whether the connection can be used again."""
        message_id = str(mail["Message-ID"])
        timeout = self._settings.send_timeout_seconds
        # MAIL and RCPT ask nothing of the mail itself: until DATA the message has certainly not left.
        try:
            await client.mail(aiosmtplib.email.extract_sender(mail) or "", timeout=timeout)
            await client.rcpt(to, timeout=timeout)
        except aiosmtplib.SMTPResponseException as error:
            with suppress(aiosmtplib.SMTPException, OSError, TimeoutError):
                await client.rset(timeout=timeout)
            return _refused(error), client.is_connected
        except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
            return SendOutcome(SendResult.TRANSPORT_ERROR, _code(error, "connection_lost")), False
        try:
            response = await client.data(mail.as_bytes(policy=SMTP_POLICY), timeout=timeout)
        except aiosmtplib.SMTPResponseException as error:
            return _refused(error), client.is_connected
        except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
            return SendOutcome(SendResult.UNKNOWN, _code(error, "no_answer"), provider_message_id=message_id), False
        return SendOutcome(SendResult.ACCEPTED, f"smtp_{response.code}", provider_message_id=message_id), True

    async def _connection(self) -> aiosmtplib.SMTP:
        while self._idle:
            client = self._idle.pop()
            # A mail server may have closed a connection that lay idle; NOOP tells before a mail is at stake.
            with suppress(aiosmtplib.SMTPException, OSError, TimeoutError):
                await client.noop(timeout=5)
                return client
            client.close()
        settings = self._settings
        client = aiosmtplib.SMTP(
            hostname=settings.smtp_host,
            port=settings.smtp_port,
            username=settings.smtp_username or None,
            password=settings.smtp_password.get_secret_value() or None,
            use_tls=settings.smtp_tls == "tls",
            start_tls=settings.smtp_tls == "starttls",
            timeout=settings.send_timeout_seconds,
        )
        await client.connect()
        return client

    def _compose(self, message: Message) -> EmailMessage:
        mail = EmailMessage(policy=SMTP_POLICY)
        mail["From"] = self._settings.mail_from
        mail["To"] = message.address
        # The header parser refuses line breaks, so a subject cannot smuggle headers in.
        mail["Subject"] = " ".join(message.subject.split())
        mail["Date"] = formatdate(usegmt=True)
        mail["Message-ID"] = f"<{message.idempotency_key}@{self._settings.mail_domain}>"
        # RFC 3834: no vacation notes in return.
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.body)
        if message.html:
            mail.add_alternative(message.html, subtype="html")
        return mail


def _refused(error: aiosmtplib.SMTPResponseException) -> SendOutcome:
    # RFC 5321 §4.2.1: 4yz may be tried again, 5yz may not.
    transient = 400 <= error.code < 500
    return SendOutcome(SendResult.TRANSPORT_ERROR if transient else SendResult.REJECTED, f"smtp_{error.code}")


def _code(error: BaseException, otherwise: str) -> str:
    return f"smtp_{error.code}" if isinstance(error, aiosmtplib.SMTPResponseException) else otherwise
