"""E-mail through a real mail server: what arrives, and what each way to fail is called."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from services.chassis.startup import StartupError
from services.dispatcher.channels.email import EmailAdapter
from services.dispatcher.channels.port import Message, SendOutcome, SendResult
from services.dispatcher.settings import DispatcherSettings
from services.local.ports import free_ports
from tests.support.certificates import AUTHORITY_FILE
from tests.support.mail import MailServer, mail_server

_KEY = "k" * 64
_STARTTLS = {"smtp_tls": "starttls", "smtp_ca_file": AUTHORITY_FILE}


def message(body: str = "Hello\n", *, to: str = "zoe@example.com", **fields: str) -> Message:
    return Message(**{"idempotency_key": _KEY, "address": to, "subject": "Subject", "body": body, **fields})


@asynccontextmanager
async def adapter(port: int, **settings: Any) -> AsyncIterator[EmailAdapter]:
    values = {"smtp_host": "127.0.0.1", "smtp_tls": "none", "mail_from": "Shop <shop@example.com>", **settings}
    email = EmailAdapter(DispatcherSettings(smtp_port=port, send_timeout_seconds=5.0, **values))
    try:
        yield email
    finally:
        await email.close()


@asynccontextmanager
async def pair(**settings: Any) -> AsyncIterator[tuple[MailServer, EmailAdapter]]:
    async with mail_server() as server, adapter(server.port, **settings) as email:
        yield server, email


def kind(outcome: SendOutcome) -> tuple[SendResult, str]:
    return outcome.result, outcome.code


# -- what arrives ---------------------------------------------------------------------------------------------------


async def test_a_mail_arrives_with_its_text_html_and_envelope() -> None:
    async with pair() as (server, email):
        outcome = await email.send(message("Hello\nyou\n", html="<p>Hello</p>", subject="A subject"))
        assert kind(outcome) == (SendResult.ACCEPTED, "smtp_250")
        (mail,) = server.mails
        assert (mail.sender, mail.recipients) == ("shop@example.com", ("zoe@example.com",))
        assert mail.text == "Hello\nyou\n"
        assert mail.message["Subject"] == "A subject"
        assert mail.message["From"] == "Shop <shop@example.com>"
        assert mail.message["To"] == "zoe@example.com"
        assert mail.message["Auto-Submitted"] == "auto-generated"
        assert mail.part("html") == "<p>Hello</p>\n"


async def test_every_send_of_one_task_carries_the_same_message_id() -> None:
    async with pair(mail_domain="mail.example.com") as (server, email):
        outcomes = [await email.send(message()), await email.send(message())]
        assert {mail.message["Message-ID"] for mail in server.mails} == {f"<{_KEY}@mail.example.com>"}
        assert {outcome.provider_message_id for outcome in outcomes} == {f"<{_KEY}@mail.example.com>"}


@pytest.mark.parametrize(
    "body",
    [
        "Grüezi Zoë, 価格は€20です 🎉\n",
        "a" * 3_000 + "\n" + "ü" * 3_000 + "\n",
        ".\n..\n.leading dots\n\n.\n",
        "From here on\n\ttabs and trailing spaces  \n",
        "first\n\n\nafter empty lines\n",
        "=3D is no escape, =\n",
    ],
)
async def test_the_text_arrives_exactly_and_no_server_needs_8bitmime(body: str) -> None:
    async with pair() as (server, email):
        assert (await email.send(message(body))).result is SendResult.ACCEPTED
        (mail,) = server.mails
        assert mail.text == body
        assert mail.content.isascii()
        assert max(len(line) for line in mail.content.split(b"\r\n")) <= 998
        assert not re.search(rb"(?<!\r)\n|\r(?!\n)", mail.content), "lines end as SMTP wants it"


async def test_a_subject_cannot_smuggle_headers_in() -> None:
    async with pair() as (server, email):
        await email.send(message(subject="Hi\r\nBcc: all@example.com\r\n\r\nbody\u2028x"))
        (mail,) = server.mails
        assert mail.recipients == ("zoe@example.com",)
        assert mail.message["Bcc"] is None
        assert mail.message["Subject"] == "Hi Bcc: all@example.com body x"


@pytest.mark.parametrize("subject", ["Grüße 🎉", "long " * 200, "ü" * 500, ""])
async def test_any_subject_arrives(subject: str) -> None:
    async with pair() as (server, email):
        await email.send(message(subject=subject))
        assert server.mails[0].message["Subject"] == subject.strip()


@pytest.mark.parametrize("to", ["zoe@example.com\r\nDATA", "zoe@example.com>\r\nRCPT TO:<all@example.com"])
async def test_an_address_cannot_smuggle_commands_in(to: str) -> None:
    async with pair() as (server, email):
        assert kind(await email.send(message(to=to))) == (SendResult.REJECTED, "invalid_message")
        assert not server.mails


async def test_a_domain_beyond_ascii_is_written_in_its_ascii_form() -> None:
    async with pair() as (server, email):
        assert (await email.send(message(to="zoe@müller.example"))).result is SendResult.ACCEPTED
        assert server.mails[0].recipients == ("zoe@xn--mller-kva.example",)


async def test_a_local_part_beyond_ascii_needs_a_server_that_takes_it() -> None:
    async with pair() as (server, email):
        outcome = await email.send(message(to="zoë@example.com"))
        assert kind(outcome) == (SendResult.REJECTED, "smtputf8_not_supported")
        assert not server.mails
    async with mail_server(smtputf8=True) as server, adapter(server.port) as email:
        assert (await email.send(message("Grüezi\n", to="zoë@example.com"))).result is SendResult.ACCEPTED
        assert server.mails[0].recipients == ("zoë@example.com",)
        assert server.mails[0].text == "Grüezi\n"


# -- connections ----------------------------------------------------------------------------------------------------


async def test_one_connection_carries_mail_after_mail() -> None:
    async with pair() as (server, email):
        for _ in range(5):
            await email.send(message())
        assert (len(server.mails), server.connections) == (5, 1)


async def test_a_connection_that_the_server_closed_while_idle_costs_nothing() -> None:
    async with pair() as (server, email):
        await email.send(message())
        server.hang_up()
        assert (await email.send(message())).result is SendResult.ACCEPTED
        assert (len(server.mails), server.connections) == (2, 2)


async def test_50_mails_at_once_share_the_allowed_connections() -> None:
    async with pair(smtp_connections=4) as (server, email):
        outcomes = await asyncio.gather(
            *(email.send(message(idempotency_key=f"{number:064}")) for number in range(50))
        )
        assert {outcome.result for outcome in outcomes} == {SendResult.ACCEPTED}
        assert len({mail.message["Message-ID"] for mail in server.mails}) == len(server.mails) == 50
        assert server.connections <= 4


async def test_a_refused_mail_does_not_spoil_the_connection_for_the_next() -> None:
    async with pair() as (server, email):
        server.on_rcpt = lambda to: "550 no such user" if to.startswith("nobody") else "250 OK"
        await email.send(message(to="nobody@example.com"))
        assert (await email.send(message())).result is SendResult.ACCEPTED
        assert server.mails[0].recipients == ("zoe@example.com",)
        assert server.connections == 1


async def test_a_send_that_is_cut_off_leaves_no_half_used_connection_behind() -> None:
    async with pair() as (server, email):
        server.open.clear()
        sending = asyncio.create_task(email.send(message()))
        async with asyncio.timeout(10):
            while not server.mails:  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        server.open.set()
        assert (await email.send(message("second\n"))).result is SendResult.ACCEPTED
        assert server.connections == 2
        assert server.mails[-1].text == "second\n"


# -- encryption and login -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", ["starttls", "tls"])
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_mail_is_encrypted_towards_a_server_whose_authority_is_known(tls: str, host: str) -> None:
    settings = {"smtp_tls": tls, "smtp_host": host, "smtp_ca_file": AUTHORITY_FILE}
    async with mail_server(tls=tls) as server, adapter(server.port, **settings) as email:
        assert (await email.send(message())).result is SendResult.ACCEPTED
        assert len(server.mails) == 1


@pytest.mark.parametrize("tls", ["starttls", "tls"])
async def test_a_server_that_nobody_vouches_for_gets_no_mail(tls: str) -> None:
    async with mail_server(tls=tls) as server, adapter(server.port, smtp_tls=tls) as email:
        assert kind(await email.send(message())) == (SendResult.TRANSPORT_ERROR, "connect_failed")
        assert not server.mails


async def test_mail_is_not_sent_in_the_clear_where_encryption_is_wanted() -> None:
    async with mail_server() as server, adapter(server.port, smtp_tls="starttls") as email:
        assert (await email.send(message())).result is SendResult.TRANSPORT_ERROR
        assert not server.mails


async def test_a_file_of_authorities_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="mail server"):
        EmailAdapter(DispatcherSettings(smtp_host="x", smtp_ca_file=tmp_path / "none.pem"))


async def test_the_right_password_lets_in() -> None:
    login = {"smtp_username": "shop", "smtp_password": SecretStr("right"), **_STARTTLS}
    async with mail_server(auth=True, tls="starttls") as server, adapter(server.port, **login) as email:
        assert (await email.send(message())).result is SendResult.ACCEPTED
        assert server.logins == ["shop"]


async def test_a_wrong_password_lets_the_mail_wait() -> None:
    login = {"smtp_username": "shop", "smtp_password": SecretStr("wrong"), **_STARTTLS}
    async with mail_server(auth=True, tls="starttls") as server, adapter(server.port, **login) as email:
        assert kind(await email.send(message())) == (SendResult.TRANSPORT_ERROR, "smtp_535")
        assert not server.mails


# -- ways to fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data"])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("451 try later", (SendResult.TRANSPORT_ERROR, "smtp_451")),
        ("421 closing", (SendResult.TRANSPORT_ERROR, "smtp_421")),
        ("550 no", (SendResult.REJECTED, "smtp_550")),
        ("554 spam", (SendResult.REJECTED, "smtp_554")),
    ],
)
async def test_4xx_may_be_tried_again_and_5xx_may_not_at_every_step(
    phase: str, answer: str, expected: tuple[SendResult, str]
) -> None:
    async with pair() as (server, email):
        setattr(server, f"on_{phase}", lambda _: answer)
        assert kind(await email.send(message())) == expected


@pytest.mark.parametrize("phase", ["mail", "rcpt"])
async def test_a_connection_that_breaks_before_the_mail_is_a_transport_error(phase: str) -> None:
    async with pair() as (server, email):
        setattr(server, f"on_{phase}", lambda _: "")
        assert kind(await email.send(message())) == (SendResult.TRANSPORT_ERROR, "connection_lost")


async def test_a_connection_that_breaks_after_the_mail_leaves_it_unknown() -> None:
    async with pair() as (server, email):
        server.on_data = lambda _: ""
        outcome = await email.send(message())
        assert kind(outcome) == (SendResult.UNKNOWN, "no_answer")
        assert outcome.provider_message_id.startswith(f"<{_KEY}@"), "a receipt may name it yet"


async def test_an_answer_that_never_comes_leaves_it_unknown() -> None:
    async with mail_server() as server:
        email = EmailAdapter(
            DispatcherSettings(smtp_host="127.0.0.1", smtp_port=server.port, smtp_tls="none", send_timeout_seconds=0.2)
        )
        server.open.clear()
        assert kind(await email.send(message())) == (SendResult.UNKNOWN, "no_answer")
        await email.close()


async def test_an_answer_that_makes_no_sense_leaves_it_unknown() -> None:
    async with pair() as (server, email):
        server.on_data = lambda _: "299 whatever"
        assert kind(await email.send(message())) == (SendResult.UNKNOWN, "unreadable_answer")


async def test_a_server_that_is_down_is_a_transport_error() -> None:
    async with adapter(next(free_ports())) as email:
        assert kind(await email.send(message())) == (SendResult.TRANSPORT_ERROR, "connect_failed")


async def test_a_server_that_comes_back_is_found_again() -> None:
    async with mail_server() as server:
        port = server.port
        async with adapter(port) as email:
            await email.send(message())
            server.hang_up()
            server.on_mail = lambda _: "421 going down"
            assert (await email.send(message())).result is SendResult.TRANSPORT_ERROR
            server.on_mail = lambda _: "250 OK"
            assert (await email.send(message())).result is SendResult.ACCEPTED
