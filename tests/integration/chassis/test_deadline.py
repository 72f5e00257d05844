"""Unary work ends at its deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.integration.chassis.echo import call, echo, running


@pytest.mark.parametrize("kind", ["Unary", "Collect"])
async def test_work_without_a_deadline_of_its_caller_ends_at_the_servers(tmp_path: Path, kind: str) -> None:
    ended = asyncio.Event()

    async def handle(_text: str, _context: object) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with running(tmp_path, echo(handle), max_deadline_seconds=0.1) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(server.channel, kind)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert ended.is_set()
