"""Webhooks against a real HTTP server: what is posted, and what each answer means."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from pydantic import SecretStr
from standardwebhooks import Webhook, WebhookVerificationError

from services.dispatcher.channels.port import Message, SendOutcome, SendResult
from services.dispatcher.channels.webhook import WebhookAdapter
from services.dispatcher.settings import DispatcherSettings
from services.local.ports import free_ports
from tests.support.webhooks import Receiver, receiving

_KEY = "k" * 64
_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def message(url: str, body: str = '{"title":"Zoë"}') -> Message:
    return Message(_KEY, url, "", body)


@asynccontextmanager
async def adapter(**settings: Any) -> AsyncIterator[WebhookAdapter]:
    values = {"webhook_allowed_networks": ("127.0.0.0/8",), "send_timeout_seconds": 5.0, **settings}
    webhook = WebhookAdapter(DispatcherSettings(**values))
    try:
        yield webhook
    finally:
        await webhook.close()


async def answered(answer: int | web.Response) -> tuple[SendOutcome, Receiver]:
    async with receiving() as receiver, adapter() as webhook:
        receiver.answer = lambda _path, _before: answer
        return await webhook.send(message(f"{receiver.url}/hook")), receiver


async def test_the_body_is_posted_as_it_is_with_its_keys() -> None:
    async with receiving() as receiver, adapter() as webhook:
        outcome = await webhook.send(message(f"{receiver.url}/hook?a=b%20c"))
        assert (outcome.result, outcome.code) == (SendResult.ACCEPTED, "http_200")
        (post,) = receiver.posts
        assert json.loads(post.body) == {"title": "Zoë"}
        assert post.headers["content-type"] == "application/json"
        assert post.headers["idempotency-key"] == post.headers["webhook-id"] == _KEY
        assert "webhook-signature" not in post.headers, "without a secret nothing is signed"


async def test_the_signature_is_one_that_standard_webhooks_verifies() -> None:
    async with receiving() as receiver, adapter(webhook_secret=SecretStr(_SECRET)) as webhook:
        await webhook.send(message(f"{receiver.url}/hook"))
        (post,) = receiver.posts
        assert Webhook(_SECRET).verify(post.body, post.headers) == {"title": "Zoë"}
        with pytest.raises(WebhookVerificationError):
            Webhook(_SECRET).verify(post.body + b" ", post.headers)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_2xx_means_accepted(status: int) -> None:
    outcome, _ = await answered(status)
    assert (outcome.result, outcome.code) == (SendResult.ACCEPTED, f"http_{status}")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
async def test_4xx_is_final(status: int) -> None:
    outcome, _ = await answered(status)
    assert (outcome.result, outcome.code) == (SendResult.REJECTED, f"http_{status}")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    outcome, _ = await answered(status)
    assert (outcome.result, outcome.code) == (SendResult.TRANSPORT_ERROR, f"http_{status}")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_never_followed(status: int) -> None:
    async with receiving() as receiver, adapter() as webhook:
        receiver.answer = lambda path, _before: (
            web.Response(status=status, headers={"Location": f"{receiver.url}/inside"}) if path == "/hook" else 200
        )
        outcome = await webhook.send(message(f"{receiver.url}/hook"))
        assert (outcome.result, outcome.code) == (SendResult.REJECTED, f"http_{status}")
        assert [post.path for post in receiver.posts] == ["/hook"]


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("Fri, 31 Dec 2100 23:59:59 GMT", 86_400, 86_400),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
        ("9" * 400, 86_400, 86_400),
    ],
    ids=["seconds", "at once", "far date", "past date", "many digits"],
)
async def test_a_server_says_when_to_try_again(header: str, least: float, most: float) -> None:
    outcome, _ = await answered(web.Response(status=429, headers={"Retry-After": header}))
    assert outcome.retry_after_seconds is not None
    assert least <= outcome.retry_after_seconds <= most


async def test_a_server_that_names_a_date_is_tried_again_then() -> None:
    header = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    outcome, _ = await answered(web.Response(status=429, headers={"Retry-After": header}))
    assert outcome.retry_after_seconds is not None
    assert 3_000 <= outcome.retry_after_seconds <= 3_600


@pytest.mark.parametrize("header", ["soon", "-5", "1.5", "", "Mon, 99 Foo 2026 00:00:00 GMT"])
async def test_a_moment_that_makes_no_sense_is_ignored(header: str) -> None:
    outcome, _ = await answered(web.Response(status=503, headers={"Retry-After": header}))
    assert outcome.result is SendResult.TRANSPORT_ERROR
    assert outcome.retry_after_seconds is None


async def test_an_answer_that_does_not_come_leaves_it_unknown() -> None:
    async with receiving() as receiver, adapter(send_timeout_seconds=0.3) as webhook:
        receiver.open.clear()
        outcome = await webhook.send(message(f"{receiver.url}/hook"))
        assert (outcome.result, outcome.code) == (SendResult.UNKNOWN, "no_answer")
        assert len(receiver.posts) == 1


async def test_a_connection_that_breaks_after_the_request_leaves_it_unknown() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server, adapter() as webhook:
        port = server.sockets[0].getsockname()[1]
        outcome = await webhook.send(message(f"http://127.0.0.1:{port}/"))
        assert (outcome.result, outcome.code) == (SendResult.UNKNOWN, "no_answer")


async def test_a_server_that_is_down_is_a_transport_error() -> None:
    async with adapter() as webhook:
        outcome = await webhook.send(message(f"http://127.0.0.1:{next(free_ports())}/"))
        assert (outcome.result, outcome.code) == (SendResult.TRANSPORT_ERROR, "connect_failed")


async def test_a_server_that_speaks_no_tls_is_a_transport_error() -> None:
    async with receiving() as receiver, adapter() as webhook:
        outcome = await webhook.send(message(receiver.url.replace("http:", "https:") + "/hook"))
        assert (outcome.result, outcome.code) == (SendResult.TRANSPORT_ERROR, "connect_failed")
        assert not receiver.posts


async def test_a_certificate_that_nobody_vouches_for_gets_no_post() -> None:
    async with receiving(tls=True) as receiver, adapter() as webhook:
        outcome = await webhook.send(message(f"{receiver.url}/hook"))
        assert (outcome.result, outcome.code) == (SendResult.TRANSPORT_ERROR, "connect_failed")
        assert not receiver.posts


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}\N{FULLWIDTH DIGIT SEVEN}.0.0.1",
        "①②⑦.0.0.1",
        "169.254.169.254",
    ],
)
async def test_nothing_reaches_this_machine_in_whatever_form_its_address_is_written(host: str) -> None:
    async with receiving() as receiver, adapter(webhook_allowed_networks=()) as webhook:
        port = receiver.url.rpartition(":")[2]
        outcome = await webhook.send(message(f"http://{host}:{port}/hook"))
        assert outcome.result is SendResult.REJECTED
        assert outcome.code in {"forbidden_network", "invalid_url"}
        assert not receiver.posts


@pytest.mark.parametrize(
    "url", ["", "no url", "ftp://example.com/", "file:///etc/passwd", "http://", "http://[::1", "http://a:99999/"]
)
async def test_what_is_no_web_address_is_refused(url: str) -> None:
    async with adapter() as webhook:
        assert (await webhook.send(message(url))).result is SendResult.REJECTED


async def test_an_answer_without_an_end_is_not_read() -> None:
    written = 0
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                await writer.drain()
                written += 65_536
        except ConnectionError:
            gone.set()
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    async with server, adapter() as webhook:
        outcome = await webhook.send(message(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
        assert outcome.result is SendResult.ACCEPTED
        async with asyncio.timeout(10):
            await gone.wait()
        assert written < 64 * 1024 * 1024


async def test_posts_share_connections() -> None:
    async with receiving() as receiver, adapter() as webhook:
        outcomes = await asyncio.gather(*(webhook.send(message(f"{receiver.url}/hook")) for _ in range(50)))
        assert {outcome.result for outcome in outcomes} == {SendResult.ACCEPTED}
        assert len(receiver.posts) == 50
