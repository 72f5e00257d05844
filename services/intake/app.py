"""Builds intake from its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from agent_reach.durable import Consumer, Engine, EngineSettings, QueueSettings
from agent_reach.v1 import dispatcher_pb2_grpc, policy_pb2_grpc, reach_pb2_grpc
from services.catalog.running import running_catalog
from services.chassis.background import background
from services.chassis.batch_stream import BatchClient
from services.chassis.engine_metrics import register_engine
from services.chassis.runtime import Registration, Runtime
from services.chassis.server import check_targets

from .intent_queue import intent_queue
from .outcomes import OutcomeFollower
from .pump import AcceptClient, EvaluateClient, Pump
from .server import ReachServer
from .settings import IntakeSettings
from .submit import GroupCommit, Submitter


@asynccontextmanager
async def open_intake(settings: IntakeSettings, runtime: Runtime) -> AsyncIterator[list[Registration]]:
    """Opens intake; yields what to serve.

    Raises:
        StartupError: a part is not configured or cannot be reached.
    """
    check_targets(settings, "policy", "dispatcher")
    async with AsyncExitStack() as stack:
        catalog = await stack.enter_async_context(running_catalog(runtime, "intake"))
        pool = await stack.enter_async_context(runtime.engine_pool())
        api_pool = await stack.enter_async_context(runtime.api_pool())
        policy = policy_pb2_grpc.PolicyServiceStub(runtime.channel(settings.policy_target))
        dispatcher: Any = dispatcher_pb2_grpc.DispatcherServiceStub(runtime.channel(settings.dispatcher_target))
        evaluate: EvaluateClient = BatchClient(policy.Evaluate, service="policy")
        accept: AcceptClient = BatchClient(dispatcher.Accept, service="dispatcher")
        for client in (evaluate, accept):
            await stack.enter_async_context(client)
        engine = Engine(
            pool,
            "intake",
            [
                Consumer(
                    intent_queue(),
                    Pump(evaluate, accept),
                    QueueSettings(
                        slots=settings.pump_slots,
                        concurrency=min(1_000, settings.pump_slots),
                        batch_size=250,
                        scan_interval_seconds=settings.scan_interval_seconds,
                    ),
                )
            ],
            direct_dsn=settings.postgres_direct_dsn.get_secret_value() or None,
            settings=EngineSettings(
                lease_seconds=settings.lease_seconds,
                heartbeat_seconds=settings.lease_seconds / 10,
                drain_seconds=settings.drain_seconds,
            ),
        )
        register_engine(runtime.metrics, engine)
        await stack.enter_async_context(engine)
        submitter = Submitter(pool, catalog, runtime.clock, engine)
        group_commit = GroupCommit(submitter, queue=settings.submit_queue, batch=settings.submit_batch)
        follower = OutcomeFollower(pool, dispatcher)
        await stack.enter_async_context(background(group_commit.run(), follower.run()))
        server = ReachServer(
            api_pool=api_pool,
            submitter=submitter,
            group_commit=group_commit,
            dispatcher=dispatcher,
            stopping=runtime.stopping,
        )
        yield [Registration(reach_pb2_grpc.add_ReachServiceServicer_to_server, server, "agent_reach.v1.ReachService")]
