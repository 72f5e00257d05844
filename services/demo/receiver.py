"""A receiver of webhooks that answers as it is told."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from services.local.ports import LOOPBACK


@dataclass(frozen=True, slots=True)
class Post:
    """One webhook as it came.

    Attributes:
        name: the last part of the URL's path.
        idempotency_key: the sender's key of the message.
        body: the raw body.
        status: what it was answered.
    """

    name: str
    idempotency_key: str
    body: bytes
    status: int


class WebhookReceiver:
    """An HTTP server on the loopback interface.

    Attributes:
        posts: everything that came.
    """

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self._answers: dict[str, deque[int]] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    def url(self, name: str, *, first_answers: tuple[int, ...] = ()) -> str:
        """Returns the URL of a hook; it answers with `first_answers` one by one, then with 200."""
        self._answers[name] = deque(first_answers)
        return f"http://{LOOPBACK}:{self._port}/hooks/{name}"

    def taken(self, name: str) -> list[Post]:
        """Returns the posts of a hook that were answered with 200."""
        return [post for post in self.posts if post.name == name and post.status == web.HTTPOk.status_code]

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_post("/hooks/{name}", self._take)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        waiting = self._answers.get(name)
        status = waiting.popleft() if waiting else web.HTTPOk.status_code
        key = request.headers.get("Idempotency-Key", "")
        self.posts.append(Post(name, key, await request.read(), status))
        return web.Response(status=status)
