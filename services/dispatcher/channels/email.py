"""E-mail over SMTP: a few kept connections, a Message-ID that is the same for every send of one task."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import formatdate, parseaddr

import aiosmtplib
from email_validator import EmailNotValidError, validate_email

from services.catalog.rules import Channel
from services.chassis.startup import StartupError
from services.dispatcher.settings import DispatcherSettings

from .port import Message, SendOutcome, SendResult

# Every mail is written in 7 bit, so that no server's 8BITMIME is needed; only an address may force SMTPUTF8.
_POLICY = SMTP_POLICY.clone(cte_type="7bit")
_UTF8_POLICY = SMTP_POLICY.clone(utf8=True)
_UTF8_OPTIONS = ("SMTPUTF8", "BODY=8BITMIME")
_NOOP_SECONDS = 5.0
_BROKEN = (aiosmtplib.SMTPException, OSError, TimeoutError)


@dataclass(frozen=True, slots=True)
class _Mail:
    """One e-mail as it goes over the wire, and its envelope."""

    message_id: str
    to: str
    content: bytes
    utf8: bool


class EmailAdapter:
    """Sends through one mail server (RFC 5321), with STARTTLS or TLS and authentication where they are set.

    The dialogue is our own and not `aiosmtplib.send`, which does not tell a connection that broke before the message
    left from one that broke afterwards.

    Raises:
        StartupError: the file of authorities cannot be read.
    """

    name = "smtp"
    channel = Channel.EMAIL

    def __init__(self, settings: DispatcherSettings) -> None:
        self._settings = settings
        self.deduplicates = settings.mail_deduplicates
        self._sender = parseaddr(settings.mail_from)[1]
        self._tls = None if settings.smtp_tls == "none" else _tls_context(settings)
        self._places = asyncio.Semaphore(settings.smtp_connections)
        self._idle: list[aiosmtplib.SMTP] = []

    async def send(self, message: Message) -> SendOutcome:
        """Hands one e-mail to the mail server."""
        try:
            mail = self._compose(message)
        except (EmailNotValidError, MessageError, ValueError):
            return SendOutcome(SendResult.REJECTED, "invalid_message")
        async with self._places:
            try:
                client = await self._connection()
            except (aiosmtplib.SMTPAuthenticationError, aiosmtplib.SMTPNotSupported) as error:
                # Wrong credentials are ours to mend; the message itself is good and waits for that.
                return SendOutcome(SendResult.TRANSPORT_ERROR, _code(error, "login_failed"))
            except _BROKEN as error:
                return SendOutcome(SendResult.TRANSPORT_ERROR, _code(error, "connect_failed"))
            keep = False
            try:
                outcome = await self._hand_over(client, mail)
                # After a broken dialogue nobody knows which answer belongs to which command.
                keep = outcome.code.startswith("smtp_") and await _reusable(client, outcome)
            finally:
                if keep:
                    self._idle.append(client)
                else:
                    client.close()
        return outcome

    async def close(self) -> None:
        """Says goodbye on every kept connection."""
        while self._idle:
            client = self._idle.pop()
            with suppress(*_BROKEN):
                await client.quit(timeout=2)
            client.close()

    async def _hand_over(self, client: aiosmtplib.SMTP, mail: _Mail) -> SendOutcome:
        options, encoding = (_UTF8_OPTIONS, "utf-8") if mail.utf8 else ((), "ascii")
        # MAIL and RCPT ask nothing of the mail itself: until DATA the message has certainly not left.
        try:
            if mail.utf8:
                await client.ehlo()
                if not client.supports_extension("smtputf8"):
                    return SendOutcome(SendResult.REJECTED, "smtputf8_not_supported")
            await client.mail(self._sender, options=options, encoding=encoding)
            await client.rcpt(mail.to, encoding=encoding)
        except aiosmtplib.SMTPResponseException as error:
            return _refused(error, SendResult.TRANSPORT_ERROR)
        except _BROKEN:
            return SendOutcome(SendResult.TRANSPORT_ERROR, "connection_lost")
        try:
            response = await client.data(mail.content)
        except aiosmtplib.SMTPResponseException as error:
            return _refused(error, SendResult.UNKNOWN, mail.message_id)
        except _BROKEN:
            return SendOutcome(SendResult.UNKNOWN, "no_answer", provider_message_id=mail.message_id)
        return SendOutcome(SendResult.ACCEPTED, f"smtp_{response.code}", provider_message_id=mail.message_id)

    async def _connection(self) -> aiosmtplib.SMTP:
        while self._idle:
            client = self._idle.pop()
            try:
                # A mail server may have closed a connection that lay idle; NOOP tells before a mail is at stake.
                await client.noop(timeout=_NOOP_SECONDS)
            except _BROKEN:
                client.close()
            except BaseException:
                client.close()
                raise
            else:
                return client
        settings = self._settings
        client = aiosmtplib.SMTP(
            hostname=settings.smtp_host,
            port=settings.smtp_port,
            username=settings.smtp_username or None,
            password=settings.smtp_password.get_secret_value() or None,
            use_tls=settings.smtp_tls == "tls",
            start_tls=settings.smtp_tls == "starttls",
            tls_context=self._tls,
            timeout=settings.send_timeout_seconds,
        )
        try:
            await client.connect()
        except BaseException:
            client.close()
            raise
        return client

    def _compose(self, message: Message) -> _Mail:
        to, utf8 = _envelope(message.address)
        policy = _UTF8_POLICY if utf8 else _POLICY
        message_id = f"<{message.idempotency_key}@{self._settings.mail_domain}>"
        mail = EmailMessage(policy=policy)
        mail["From"] = self._settings.mail_from
        mail["To"] = to
        # The header parser refuses line breaks, so a subject cannot smuggle headers in.
        mail["Subject"] = " ".join(message.subject.split())
        mail["Date"] = formatdate(usegmt=True)
        mail["Message-ID"] = message_id
        # RFC 3834: no vacation notes in return.
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message.body)
        if message.html:
            mail.add_alternative(message.html, subtype="html")
        return _Mail(message_id, to, mail.as_bytes(), utf8)


def _tls_context(settings: DispatcherSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.smtp_ca_file)
    except OSError as error:
        raise StartupError(
            "mail server", f"its authorities cannot be read: {error}", "correct REACH_SMTP_CA_FILE"
        ) from error


def _envelope(address: str) -> tuple[str, bool]:
    """Returns an address as the envelope carries it, and whether that needs SMTPUTF8.

    A domain beyond ASCII has an ASCII form that every server takes; a local part has none.
    """
    if address.isascii():
        return address, False
    valid = validate_email(address, check_deliverability=False, test_environment=True)
    return (valid.normalized, True) if valid.ascii_email is None else (valid.ascii_email, False)


async def _reusable(client: aiosmtplib.SMTP, outcome: SendOutcome) -> bool:
    """Says whether a connection can carry the next mail; a refused transaction is reset first."""
    if not client.is_connected:
        return False
    if outcome.result is not SendResult.ACCEPTED:
        try:
            await client.rset(timeout=_NOOP_SECONDS)
        except _BROKEN:
            return False
    return client.is_connected


def _refused(error: aiosmtplib.SMTPResponseException, otherwise: SendResult, message_id: str = "") -> SendOutcome:
    # RFC 5321 section 4.2.1: 4yz may be tried again, 5yz may not; anything else is no answer to this command.
    if 400 <= error.code < 500:
        return SendOutcome(SendResult.TRANSPORT_ERROR, f"smtp_{error.code}")
    if 500 <= error.code < 600:
        return SendOutcome(SendResult.REJECTED, f"smtp_{error.code}")
    return SendOutcome(otherwise, "unreadable_answer", provider_message_id=message_id)


def _code(error: BaseException, otherwise: str) -> str:
    if isinstance(error, aiosmtplib.SMTPResponseException) and error.code >= 400:
        return f"smtp_{error.code}"
    return otherwise
