"""Who may call what."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from services.chassis.api_keys import SERVICE_TENANT
from services.chassis.errors import from_status, reason_name
from services.chassis.principal import current_principal
from tests.integration.chassis.echo import AGENT_KEY, KINDS, OPERATOR_KEY, SERVICE_KEY, call, echo, running


async def whoami(_text: str, _context: object) -> str:
    return current_principal().tenant


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer reach_wrong"),),
        (("authorization", f"Basic {AGENT_KEY}"),),
        (("authorization", "Bearer "),),
        (("authorization", AGENT_KEY),),
    ],
)
async def test_without_a_valid_key_nothing_is_called(
    tmp_path: Path, kind: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    async def never(_text: str, _context: object) -> str:
        raise AssertionError

    async with running(tmp_path, echo(never)) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.channel, kind, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert reason_name(from_status(rpc_status.from_call(caught.value)).reason) == "CREDENTIALS_INVALID"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_role_that_the_contract_does_not_name_is_refused(tmp_path: Path, kind: str) -> None:
    async with running(tmp_path, echo(whoami)) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.channel, kind, metadata=(("authorization", f"Bearer {OPERATOR_KEY}"),))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    error = from_status(rpc_status.from_call(caught.value))
    assert (reason_name(error.reason), error.metadata) == ("ROLE_NOT_ALLOWED", {"role": "OPERATOR"})


async def test_an_rpc_that_declares_no_access_is_closed_to_all(tmp_path: Path) -> None:
    async with running(tmp_path, echo(whoami)) as server:
        for key in (AGENT_KEY, OPERATOR_KEY, SERVICE_KEY):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(server.channel, "Closed", metadata=(("authorization", f"Bearer {key}"),))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_the_key_tells_the_tenant(tmp_path: Path) -> None:
    async with running(tmp_path, echo(whoami)) as server:
        assert await call(server.channel, "Unary") == "acme"
        assert await call(server.channel, "Unary", metadata=(("x-api-key", AGENT_KEY),)) == "acme"
        service = (("authorization", f"bearer {SERVICE_KEY}"),)
        assert await call(server.channel, "Unary", metadata=service) == SERVICE_TENANT


async def test_a_server_without_a_service_key_takes_no_empty_one(tmp_path: Path) -> None:
    async with running(tmp_path, echo(whoami), service_key="", api_keys_file=None) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.channel, "Unary", metadata=(("authorization", "Bearer "),))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_needs_no_key(tmp_path: Path) -> None:
    async with running(tmp_path, echo(whoami)) as server:
        stub = health_pb2_grpc.HealthStub(server.channel)
        for name in ("", "reach_test.EchoService"):
            response = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert response.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_rpc_that_nobody_serves_is_unimplemented(tmp_path: Path) -> None:
    async with running(tmp_path, echo(whoami)) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.channel, "Unheard")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
