"""A running receipts service, a small dispatcher at its other end, and a provider that signs its posts."""

from __future__ import annotations

import asyncio
import functools
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Protocol, cast

import aiohttp
import grpc
import psycopg
from standardwebhooks import Webhook

from agent_reach.v1 import (
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    message_pb2,
    receipt_pb2_grpc,
    suppression_pb2,
    suppression_pb2_grpc,
)
from services.chassis.batch_stream import serve_batches
from services.chassis.clock import Clock, SystemClock
from services.chassis.errors import InvalidFieldsError, Violation
from services.chassis.runtime import Runtime
from services.chassis.server import serving
from services.receipts.app import open_receipts
from services.receipts.settings import ReceiptsSettings

SECRET = f"whsec_{b64encode(b'the secret of the test..').decode()}"
OTHER_SECRET = f"whsec_{b64encode(b'the secret of a stranger').decode()}"
KEY = "of-the-test"


class Dsns(Protocol):
    """What the fixture `migrated` gives."""

    owner: str
    engine: str


class Dispatcher:
    """Knows some tasks by their key; keeps every item that it was asked about.

    Each was marketing for user ann of tenant acme, at the address KEY@example.com. The policy beside it keeps who wants silence, unless it is
    `deaf`.
    """

    def __init__(self) -> None:
        self.deaf = False
        self.suppressed: list[suppression_pb2.SuppressRequest] = []
        self.known: set[str] = set()
        self.poison: set[str] = set()
        self.asked: list[dispatcher_pb2.AdvanceItem] = []
        self.applied: list[str] = []

    async def Advance(  # noqa: N802 - the contract's name
        self, request_iterator: AsyncIterator[dispatcher_pb2.AdvanceRequest], context: Any
    ) -> None:
        await serve_batches(request_iterator, context, self._advance, dispatcher_pb2.AdvanceResponse, asyncio.Event())

    async def _advance(self, request: dispatcher_pb2.AdvanceRequest) -> dispatcher_pb2.AdvanceResponse:
        if self.poison & {item.idempotency_key for item in request.items}:
            raise InvalidFieldsError([Violation("items", "cannot be digested")])
        self.asked += request.items
        response = dispatcher_pb2.AdvanceResponse(results=[self._one(item) for item in request.items])
        for item in request.items:
            recipient = response.recipients.add()
            if item.idempotency_key in self.known:
                recipient.tenant, recipient.user_id = "acme", "ann"
                recipient.category = message_pb2.CATEGORY_MARKETING
                recipient.address.channel = message_pb2.CHANNEL_EMAIL
                recipient.address.value = f"{item.idempotency_key}@example.com"
        return response

    async def Suppress(  # noqa: N802 - the contract's name
        self, request: suppression_pb2.SuppressRequest, context: Any
    ) -> suppression_pb2.SuppressResponse:
        self.suppressed.append(request)
        if self.deaf:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        return suppression_pb2.SuppressResponse()

    def _one(self, item: dispatcher_pb2.AdvanceItem) -> dispatcher_pb2.AdvanceResult.ValueType:
        if item.idempotency_key not in self.known:
            return dispatcher_pb2.ADVANCE_RESULT_TASK_UNKNOWN
        if item.receipt_id in self.applied:
            return dispatcher_pb2.ADVANCE_RESULT_IGNORED
        self.applied.append(item.receipt_id)
        return dispatcher_pb2.ADVANCE_RESULT_APPLIED


class _WithTheRest:
    """Gives the generated registration the RPCs that nobody calls here."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.Advance = dispatcher.Advance
        self.Suppress = dispatcher.Suppress

    def __getattr__(self, name: str) -> object:
        async def unimplemented(_request: object, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, name)

        return unimplemented


@asynccontextmanager
async def dispatching(dispatcher: Dispatcher, port: int = 0) -> AsyncIterator[int]:
    """Serves the dispatcher, and the policy beside it; gives their port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    servicer = cast("Any", _WithTheRest(dispatcher))
    dispatcher_pb2_grpc.add_DispatcherServiceServicer_to_server(servicer, server)
    suppression_pb2_grpc.add_SuppressionServiceServicer_to_server(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the HTTP door said."""

    status: int
    document: Any
    retry_after: str | None


@dataclass(slots=True)
class Receipts:
    """The service under test, as a provider, a caller and an operator see it."""

    http_port: int
    stub: Any
    runtime: Runtime
    dsns: Dsns
    session: aiohttp.ClientSession = field(repr=False)

    async def post(
        self,
        document: object,
        *,
        provider: str = "demo",
        secret: str = SECRET,
        change: Callable[[bytes], bytes] = lambda body: body,
    ) -> Answer:
        """Posts a document, signed; `change` spoils the body after it was signed."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return await self.post_raw(change(body), signed(body, secret), provider=provider)

    async def post_raw(self, body: bytes, headers: dict[str, str], *, provider: str = "demo") -> Answer:
        url = f"http://127.0.0.1:{self.http_port}/v1/providers/{provider}/receipts"
        async with self.session.post(url, data=BytesIO(body), headers=headers) as response:
            return Answer(response.status, await response.json(), response.headers.get("Retry-After"))

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with await psycopg.AsyncConnection.connect(self.dsns.engine) as connection:
            return await (await connection.execute(query.encode())).fetchall()


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    now = datetime.now(UTC)
    return {
        "webhook-id": "m-1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("m-1", now, body.decode()),
    }


def event(number: int = 1, **changes: object) -> dict[str, object]:
    return {"event_id": f"e-{number}", "kind": "delivered", "idempotency_key": f"k-{number}", **changes}


@asynccontextmanager
async def receipts(
    dsns: Dsns, dispatcher_port: int, *, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Receipts]:
    settings = ReceiptsSettings(
        **{
            "service_key": KEY,
            "postgres_engine_dsn": dsns.engine,
            "postgres_direct_dsn": dsns.engine,
            "dispatcher_target": f"127.0.0.1:{dispatcher_port}",
            "policy_target": f"127.0.0.1:{dispatcher_port}",
            "receipt_secrets": {"demo": ["whsec_b2xkZXIgb2xkZXIgb2xkZXI=", SECRET]},
            "receipts_first_retry_seconds": 0.05,
            "receipts_max_retry_seconds": 0.2,
            "drain_seconds": 1.0,
            **options,
        }
    )
    runtime = Runtime(settings, clock or SystemClock())
    ports: list[int] = []
    opener = functools.partial(open_receipts, on_http_port=ports.append)
    async with (
        serving(settings, opener, runtime) as endpoints,
        grpc.aio.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel,
        aiohttp.ClientSession() as session,
    ):
        yield Receipts(ports[0], receipt_pb2_grpc.ReceiptServiceStub(channel), runtime, dsns, session)


def metadata() -> Sequence[tuple[str, str]]:
    return (("authorization", f"Bearer {KEY}"),)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what must come; the test's own timeout ends what never does."""
    while not await condition():  # noqa: ASYNC110 - tables set no asyncio.Event
        await asyncio.sleep(0.01)
