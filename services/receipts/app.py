"""Puts the receipts service together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from random import Random

from pydantic import SecretStr

from agent_reach.durable import Consumer, Engine
from agent_reach.v1 import dispatcher_pb2, dispatcher_pb2_grpc, receipt_pb2_grpc
from services.chassis.batch_stream import BatchClient
from services.chassis.engine_metrics import register_engine
from services.chassis.runtime import Registration, Runtime
from services.chassis.server import check_targets
from services.chassis.startup import StartupError

from .apply import Applier, Patience
from .facts import is_provider_name
from .http_door import HttpDoor, open_door
from .reception import Reception
from .server import ReceiptServicer
from .settings import ReceiptsSettings
from .signatures import SecretError, Signatures
from .store import EVENTS, EventQueue, EventStore
from .wire import DispatcherClient, PolicyClient


@asynccontextmanager
async def open_receipts(
    settings: ReceiptsSettings, runtime: Runtime, *, on_http_port: Callable[[int], None] = lambda _port: None
) -> AsyncIterator[list[Registration]]:
    """Opens the service; at the end the HTTP door closes first and what was stored is still applied as far as it goes.

    Args:
        settings: of this service.
        runtime: the process.
        on_http_port: told the port of the HTTP door, which the settings may leave open; it is logged too.

    Raises:
        StartupError: a secret cannot be used, the address is taken, or PostgreSQL cannot be reached.
    """
    check_targets(settings, "dispatcher", "policy")
    signatures = _signatures(settings.receipt_secrets)
    stub = dispatcher_pb2_grpc.DispatcherServiceStub(runtime.channel(settings.dispatcher_target))
    client = BatchClient[dispatcher_pb2.AdvanceRequest, dispatcher_pb2.AdvanceResponse](
        stub.Advance, service="dispatcher"
    )
    patience = Patience(
        first_seconds=settings.receipts_first_retry_seconds,
        longest_seconds=settings.receipts_max_retry_seconds,
        give_up=timedelta(days=settings.receipts_give_up_days),
    )
    policy = PolicyClient(runtime.channel(settings.policy_target))
    async with runtime.engine_pool() as pool, client:
        random = Random()  # noqa: S311 - spreads load only
        applier = Applier(DispatcherClient(client), policy, runtime.clock, patience, random)
        engine = Engine(
            pool,
            "receipts",
            [Consumer(EventQueue(), applier.handle)],
            direct_dsn=settings.postgres_direct_dsn.get_secret_value() or None,
        )
        register_engine(runtime.metrics, engine)
        reception = Reception(signatures, EventStore(pool), lambda: engine.wake(EVENTS))
        door = HttpDoor(reception, runtime.stopping, settings.receipts_max_posts)
        async with engine, open_door(settings.receipts_http_address, door) as port:
            on_http_port(port)
            yield [
                Registration(
                    add=receipt_pb2_grpc.add_ReceiptServiceServicer_to_server,
                    servicer=ReceiptServicer(reception, runtime.stopping),
                    name="agent_reach.v1.ReceiptService",
                )
            ]


def _signatures(secrets: Mapping[str, list[SecretStr]]) -> dict[str, Signatures]:
    signatures: dict[str, Signatures] = {}
    for provider, values in secrets.items():
        if not is_provider_name(provider):
            raise StartupError("receipts", f"{provider!r} is no provider's name", "use a-z, 0-9, _, . and -")
        try:
            signatures[provider] = Signatures([value.get_secret_value() for value in values])
        except SecretError as error:
            raise StartupError("receipts", f"provider {provider}: {error}", "correct REACH_RECEIPT_SECRETS") from error
    return signatures
