"""Puts the policy service together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from agent_reach.v1 import policy_pb2_grpc, profile_pb2_grpc, suppression_pb2_grpc
from services.catalog.running import running_catalog
from services.chassis.runtime import Registration, Runtime
from services.chassis.startup import StartupError

from .counters import Counters
from .judge import Judge
from .peers import Dispatcher
from .server import PolicyServicer, ProfileServicer, SuppressionServicer
from .settings import PolicySettings
from .silence import Silence
from .store import PolicyStore


@asynccontextmanager
async def open_policy(settings: PolicySettings, runtime: Runtime) -> AsyncIterator[list[Registration]]:
    """Opens pools, Redis and the configuration, yields what to serve, and closes all in order.

    Raises:
        StartupError: the configuration has a fault, or a part cannot be reached.
    """
    if not settings.dispatcher_target:
        raise StartupError("policy", "does not know where the dispatcher is", "set REACH_DISPATCHER_TARGET")
    async with AsyncExitStack() as stack:
        catalog = await stack.enter_async_context(running_catalog(runtime))
        engine = await stack.enter_async_context(runtime.engine_pool())
        api = await stack.enter_async_context(runtime.api_pool())
        redis = await stack.enter_async_context(runtime.redis())
        dispatcher = Dispatcher(runtime.channel(settings.dispatcher_target))
        store = PolicyStore(engine, api)
        counters = Counters(redis, deployment=settings.deployment, memory=dispatcher, clock=runtime.clock)
        judge = Judge(catalog, store, counters, runtime.clock, runtime.metrics)
        silence = Silence(store, dispatcher, settings.suppress_wait_seconds)
        policy = PolicyServicer(judge, counters, silence, runtime.stopping, settings.policy_batches_in_work)
        yield [
            Registration(policy_pb2_grpc.add_PolicyServiceServicer_to_server, policy, "agent_reach.v1.PolicyService"),
            Registration(
                profile_pb2_grpc.add_ProfileServiceServicer_to_server,
                ProfileServicer(store, runtime.clock),
                "agent_reach.v1.ProfileService",
            ),
            Registration(
                suppression_pb2_grpc.add_SuppressionServiceServicer_to_server,
                SuppressionServicer(silence, store),
                "agent_reach.v1.SuppressionService",
            ),
        ]
