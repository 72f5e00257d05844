"""Builds the dispatcher from its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from agent_reach.durable import Consumer, Engine, EngineSettings, QueueSettings
from agent_reach.v1 import dispatcher_pb2_grpc, policy_pb2_grpc
from services.catalog.rules import Channel
from services.catalog.running import running_catalog
from services.chassis.background import background
from services.chassis.batch_stream import BatchClient
from services.chassis.engine_metrics import register_engine
from services.chassis.runtime import Registration, Runtime
from services.chassis.server import check_targets

from .accept import Acceptor
from .advance import Advancer
from .cancel import Canceller
from .channels.email import EmailAdapter
from .channels.null import NullAdapter
from .channels.port import Adapter
from .channels.webhook import WebhookAdapter
from .decisions import DecisionReader
from .fingerprints import sweep
from .judging import EvaluateClient, Judging
from .metrics import SendingMetrics
from .outcomes import OutcomeReader
from .reservations import Reservations, SettleClient
from .sending import CheckClient, Sender
from .server import DispatcherServer
from .settings import DispatcherSettings
from .task_queue import TASKS, TaskQueue
from .tokens import TokenBuckets

# Tasks judged, checked and written together. Each of them leaves, and is settled, by itself.
_BATCH = 200


@asynccontextmanager
async def open_dispatcher(settings: DispatcherSettings, runtime: Runtime) -> AsyncIterator[list[Registration]]:
    """Opens the dispatcher; yields what to serve.

    Raises:
        StartupError: a part is not configured or cannot be reached.
    """
    check_targets(settings, "policy")
    async with AsyncExitStack() as stack:
        catalog = await stack.enter_async_context(running_catalog(runtime, "dispatcher"))
        pool = await stack.enter_async_context(runtime.engine_pool())
        redis = await stack.enter_async_context(runtime.redis())
        policy = policy_pb2_grpc.PolicyServiceStub(runtime.channel(settings.policy_target))
        evaluate: EvaluateClient = BatchClient(policy.Evaluate, service="policy")
        check: CheckClient = BatchClient(policy.CheckSuppressed, service="policy")
        settle: SettleClient = BatchClient(policy.Settle, service="policy")
        for client in (evaluate, check, settle):
            await stack.enter_async_context(client)
        adapters = _adapters(settings)
        for adapter in adapters.values():
            stack.push_async_callback(adapter.close)
        reservations = Reservations(settle)
        sender = Sender(
            pool=pool,
            catalog=catalog,
            clock=runtime.clock,
            adapters=adapters,
            judging=Judging(pool, catalog, runtime.clock, evaluate, reservations, settings.max_rendered_bytes),
            check=check,
            reservations=reservations,
            tokens=TokenBuckets(redis, settings.deployment),
            metrics=SendingMetrics(runtime.metrics),
            wake=lambda: engine.wake(TASKS),
        )
        engine = Engine(
            pool,
            "dispatcher",
            [Consumer(TaskQueue(), sender, _queue_settings(settings))],
            direct_dsn=settings.postgres_direct_dsn.get_secret_value() or None,
            settings=EngineSettings(
                lease_seconds=settings.lease_seconds,
                heartbeat_seconds=settings.lease_seconds / 10,
                drain_seconds=settings.drain_seconds,
            ),
        )
        register_engine(runtime.metrics, engine)
        await stack.enter_async_context(engine)
        await stack.enter_async_context(background(sweep(pool)))
        server = DispatcherServer(
            pool=pool,
            acceptor=Acceptor(pool, catalog, runtime.clock, engine, reservations, settings.max_rendered_bytes),
            advancer=Advancer(pool, runtime.clock),
            canceller=Canceller(pool, catalog, runtime.clock, reservations),
            outcomes=OutcomeReader(pool),
            decisions=DecisionReader(pool),
            stopping=runtime.stopping,
        )
        yield [
            Registration(
                dispatcher_pb2_grpc.add_DispatcherServiceServicer_to_server,
                server,
                "agent_reach.v1.DispatcherService",
            )
        ]


def _adapters(settings: DispatcherSettings) -> Mapping[Channel, Adapter]:
    adapters: dict[Channel, Adapter] = {Channel.WEBHOOK: WebhookAdapter(settings)}
    if settings.smtp_host:
        adapters[Channel.EMAIL] = EmailAdapter(settings)
    for name in settings.null_channels:
        adapters[Channel(name)] = NullAdapter(Channel(name))
    return adapters


def _queue_settings(settings: DispatcherSettings) -> QueueSettings:
    return QueueSettings(
        slots=settings.sending_slots,
        concurrency=settings.sending_concurrency,
        batch_size=_BATCH,
        scan_interval_seconds=settings.scan_interval_seconds,
    )
