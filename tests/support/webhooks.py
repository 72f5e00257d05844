"""A real HTTP server that receives webhooks and answers as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.certificates import server_context


@dataclass(frozen=True, slots=True)
class Post:
    """One webhook as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What was received, and what is answered.

    Attributes:
        answer: gives the HTTP status, or the whole response, by the path and how often it was posted to before.
        open: while it is not set, answers are held back.
    """

    url: str = ""
    posts: list[Post] = field(default_factory=list)
    answer: Callable[[str, int], int | web.Response] = lambda _path, _before: 200
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def at(self, path: str) -> list[Post]:
        """Returns the posts to a path."""
        return [post for post in self.posts if post.path == path]

    async def _receive(self, request: web.Request) -> web.Response:
        before = len(self.at(request.path))
        self.posts.append(
            Post(request.path, {name.lower(): value for name, value in request.headers.items()}, await request.read())
        )
        await self.open.wait()
        answer = self.answer(request.path, before)
        return web.Response(status=answer) if isinstance(answer, int) else answer


@asynccontextmanager
async def receiving(*, tls: bool = False) -> AsyncIterator[Receiver]:
    """Runs a receiver on a free port of this machine; with TLS it shows a certificate that nobody vouches for."""
    receiver = Receiver()
    receiver.open.set()
    application = web.Application()
    application.router.add_post("/{path:.*}", receiver._receive)
    runner = web.AppRunner(application)
    await runner.setup()
    context = server_context() if tls else None
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    server: Any = site._server
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        receiver.open.set()
        await runner.cleanup()
