"""The development mailbox is a real mail server that keeps what it is given."""

from __future__ import annotations

import asyncio
from email.message import EmailMessage
from pathlib import Path

import aiosmtplib
import pytest

from services.chassis.startup import StartupError
from services.local.mailbox import TAKEN, Mail, Mailbox, keep_in


def _mail(text: str) -> EmailMessage:
    message = EmailMessage()
    message["From"] = "no-reply@example.com"
    message["To"] = "ada@example.com"
    message["Subject"] = "Grüße"
    message["Message-ID"] = "<1@example.com>"
    message.set_content(text)
    message.add_alternative("<p>html</p>", subtype="html")
    return message


async def test_a_mail_arrives_as_it_was_sent() -> None:
    mails: list[Mail] = []

    async def take(mail: Mail) -> str:
        mails.append(mail)
        return TAKEN

    async with Mailbox(take) as mailbox:
        await aiosmtplib.send(_mail("Zwei\nZeilen\n"), hostname="127.0.0.1", port=mailbox.port, start_tls=False)
    (mail,) = mails
    assert mail.recipients == ("ada@example.com",)
    assert (mail.message["Subject"], mail.message_id, mail.text) == ("Grüße", "<1@example.com>", "Zwei\nZeilen\n")


async def test_each_mail_is_kept_in_a_file_of_its_own(tmp_path: Path) -> None:
    async with Mailbox(keep_in(tmp_path / "mail")) as mailbox:
        sends = [
            aiosmtplib.send(_mail(f"mail {n}"), hostname="127.0.0.1", port=mailbox.port, start_tls=False)
            for n in range(3)
        ]
        await asyncio.gather(*sends)
    assert len(list((tmp_path / "mail").glob("*.eml"))) == 3


async def test_a_sender_hears_what_the_owner_says() -> None:
    async def refuse(_mail: Mail) -> str:
        return "451 4.3.0 later"

    async with Mailbox(refuse) as mailbox:
        with pytest.raises(aiosmtplib.SMTPDataError, match="later"):
            await aiosmtplib.send(_mail("x"), hostname="127.0.0.1", port=mailbox.port, start_tls=False)


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with Mailbox(keep_in(tmp_path)) as mailbox:
        with pytest.raises(StartupError, match="cannot listen"):
            await Mailbox(keep_in(tmp_path), mailbox.port).__aenter__()
