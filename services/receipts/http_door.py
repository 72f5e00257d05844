"""The HTTP door: `POST /v1/providers/{provider}/receipts`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import grpc
import structlog
from aiohttp import web

from services.chassis.errors import OverloadedError, ServiceError, UnavailableError, Violation, reason_name
from services.chassis.faults import describe_fault
from services.chassis.startup import StartupError

from .facts import MAX_BODY_BYTES
from .reception import Reception

_log = structlog.get_logger(__name__)

_READ_SECONDS = 30.0
# Beyond this an answer would be longer than what it speaks of.
_MAX_FIELDS = 50
_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 503,
}
_RETRY_SECONDS = 2.0
_DRAIN_SECONDS = 10.0


class HttpDoor:
    """Answers posts of providers.

    ======  ==========================================================================
    status  meaning
    ======  ==========================================================================
    202     stored, or stored before
    400     cannot be read; the fields at fault are named, the other events are stored
    401     the signature does not fit
    404     no such provider
    408     the body did not come
    413     longer than 1 MiB
    503     come again after `Retry-After` seconds
    ======  ==========================================================================

    Args:
        reception: where posts go.
        stopping: set when no more posts are taken.
        max_posts: posts in work at once.
    """

    def __init__(self, reception: Reception, stopping: asyncio.Event, max_posts: int) -> None:
        self._reception = reception
        self._stopping = stopping
        self._free = max_posts

    async def post(self, request: web.Request) -> web.Response:
        """Answers one post."""
        provider = request.match_info["provider"]
        try:
            ids = await self._take(provider, request)
        except web.HTTPRequestEntityTooLarge:
            return _answer(413, "BODY_TOO_LARGE", f"the body is longer than {MAX_BODY_BYTES} bytes")
        except web.HTTPRequestTimeout:
            return _answer(408, "BODY_TOO_SLOW", f"the body did not come within {_READ_SECONDS:g} s")
        except Exception as error:  # noqa: BLE001 - every one gets an answer; the unexpected are logged as they are described
            return _refuse(provider, describe_fault(error))
        return web.json_response({"stored": len(ids), "receipt_ids": [str(event_id) for event_id in ids]}, status=202)

    async def _take(self, provider: str, request: web.Request) -> list[UUID]:
        if self._stopping.is_set():
            raise UnavailableError("this server is stopping", retry_after_seconds=_RETRY_SECONDS)
        if not self._free:
            raise OverloadedError("too many posts at once")
        self._free -= 1
        try:
            return await self._reception.take_post(provider, request.headers, await _read_body(request))
        finally:
            self._free += 1


async def _read_body(request: web.Request) -> bytes:
    length = request.content_length or 0
    if length > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, length)
    try:
        async with asyncio.timeout(_READ_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None


def _refuse(provider: str, error: ServiceError) -> web.Response:
    status = _STATUSES.get(error.code, 500)
    reason = reason_name(error.reason)
    # The name of a provider that nobody knows is whatever somebody wrote into a URL.
    _log.info("post_refused", provider=None if status == 404 else provider, status=status, reason=reason)
    response = _answer(status, reason, error.message, error.violations)
    if status == 503:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_seconds or _RETRY_SECONDS))
    return response


def _answer(status: int, reason: str, message: str, violations: Sequence[Violation] = ()) -> web.Response:
    fields = [{"field": one.field, "description": one.description} for one in violations[:_MAX_FIELDS]]
    return web.json_response({"error": {"reason": reason, "message": message, "fields": fields}}, status=status)


@asynccontextmanager
async def open_door(address: str, door: HttpDoor) -> AsyncIterator[int]:
    """Listens while the body runs; gives the port, which is a free one where the address says 0.

    At the end no connection is taken any more, and posts in work get their answers.

    Raises:
        StartupError: the address cannot be had.
    """
    host, _, port = address.rpartition(":")
    application = web.Application(client_max_size=MAX_BODY_BYTES)
    application.router.add_post("/v1/providers/{provider}/receipts", door.post)
    # Bodies and signatures stand in no log; what was refused and why is logged above.
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_DRAIN_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host.strip("[]") or "127.0.0.1", int(port)).start()
        except (OSError, ValueError) as error:
            raise StartupError(
                "receipts' HTTP door", f"cannot listen on {address}: {error}", "set REACH_RECEIPTS_HTTP_ADDRESS"
            ) from error
        bound: int = runner.addresses[0][1]
        _log.info("receipts_http_open", port=bound)
        yield bound
    finally:
        await runner.cleanup()
