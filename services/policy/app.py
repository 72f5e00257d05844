"""Puts the policy service together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from agent_reach.v1 import (
    policy_admin_pb2_grpc,
    policy_pb2_grpc,
    preference_pb2_grpc,
    profile_pb2_grpc,
    suppression_pb2_grpc,
)
from services.catalog.running import running_catalog
from services.chassis.background import background
from services.chassis.runtime import Registration, Runtime
from services.chassis.startup import StartupError

from .admin_server import PolicyAdminServicer
from .ask import Asker
from .clearing import Clearing
from .counters import Counters
from .dossiers import Dossiers
from .history import History
from .judge import Judge
from .lookup import Lookup
from .operator_store import OperatorStore
from .outlook import Outlook
from .peers import Dispatcher
from .people_server import PreferenceServicer, ProfileServicer, SuppressionServicer
from .preference_store import PreferenceStore
from .server import PolicyServicer
from .settings import PolicySettings
from .shadow import ShadowJudge
from .silence import Silence
from .simulate import Simulator
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
        catalog = await stack.enter_async_context(running_catalog(runtime, "policy"))
        engine = await stack.enter_async_context(runtime.engine_pool())
        api = await stack.enter_async_context(runtime.api_pool())
        redis = await stack.enter_async_context(runtime.redis())
        to_dispatcher = runtime.channel(settings.dispatcher_target)
        dispatcher = Dispatcher(to_dispatcher)
        store = PolicyStore(engine, api)
        operators = OperatorStore(engine, api)
        counters = Counters(
            redis, deployment=settings.deployment, memory=dispatcher, clearances=operators, clock=runtime.clock
        )
        outlook = Outlook(counters, runtime.clock)
        kept = timedelta(days=settings.shadow_kept_days)
        shadow = ShadowJudge(operators, outlook, runtime.clock, kept, runtime.metrics)
        await stack.enter_async_context(background(shadow.run(), shadow.clean()))
        lookup = Lookup(engine)
        judge = Judge(catalog, lookup, counters, runtime.clock, runtime.metrics, shadow)
        preferences = PreferenceStore(api)
        silence = Silence(
            lookup,
            store,
            preferences,
            dispatcher,
            lambda scene, tenant: catalog.current.scene(scene, tenant).opt_in,
            settings.suppress_wait_seconds,
        )
        dossiers = Dossiers(store, operators)
        admin = PolicyAdminServicer(
            client=redis,
            deployment=settings.deployment,
            asker=Asker(catalog, dossiers, counters, outlook, runtime.clock),
            simulator=Simulator(catalog, History(to_dispatcher), dossiers, dispatcher),
            clearing=Clearing(catalog, counters, operators),
            store=operators,
            clock=runtime.clock,
        )
        policy = PolicyServicer(judge, counters, silence, runtime.stopping, settings.policy_batches_in_work)
        yield [
            Registration(policy_pb2_grpc.add_PolicyServiceServicer_to_server, policy, "agent_reach.v1.PolicyService"),
            Registration(
                policy_admin_pb2_grpc.add_PolicyAdminServiceServicer_to_server,
                admin,
                "agent_reach.v1.PolicyAdminService",
            ),
            Registration(
                profile_pb2_grpc.add_ProfileServiceServicer_to_server,
                ProfileServicer(store, runtime.clock),
                "agent_reach.v1.ProfileService",
            ),
            Registration(
                preference_pb2_grpc.add_PreferenceServiceServicer_to_server,
                PreferenceServicer(silence, preferences),
                "agent_reach.v1.PreferenceService",
            ),
            Registration(
                suppression_pb2_grpc.add_SuppressionServiceServicer_to_server,
                SuppressionServicer(silence, store),
                "agent_reach.v1.SuppressionService",
            ),
        ]
