"""A stream of batches looks like `await client.call(batch)`, whatever happens to the stream."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent_reach.v1 import policy_pb2, policy_pb2_grpc
from services.chassis import batch_stream
from services.chassis.batch_stream import BatchClient, serve_batches
from services.chassis.deadline import remaining_seconds
from services.chassis.errors import InvalidFieldsError, NotFoundError, ServiceError, UnavailableError, Violation
from services.chassis.runtime import Registration, Runtime
from tests.integration.chassis.echo import AGENT_KEY, SERVICE_KEY, Running, running, settings_for

# Its first batch and its last one stay in the frames of its reader and its writer.
HELD_BY_A_STREAM = 2
Handle = Callable[[policy_pb2.EvaluateRequest], Awaitable[policy_pb2.EvaluateResponse]]
Client = BatchClient[policy_pb2.EvaluateRequest, policy_pb2.EvaluateResponse]


def batch(name: str) -> policy_pb2.EvaluateRequest:
    return policy_pb2.EvaluateRequest(items=[policy_pb2.EvaluateItem(intent_id=name)])


def name_of(response: policy_pb2.EvaluateResponse) -> str:
    return response.decisions[0].reason


async def repeat(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
    response = policy_pb2.EvaluateResponse()
    response.decisions.add(reason=request.items[0].intent_id)
    return response


class PolicyServicer(policy_pb2_grpc.PolicyServiceServicer):
    """Answers batches by one function."""

    def __init__(self, handle: Handle, **options: Any) -> None:
        self._handle = handle
        self._options = options
        self.stopping = asyncio.Event()

    async def Evaluate(self, request_iterator: AsyncIterator[policy_pb2.EvaluateRequest], context: Any) -> None:  # type: ignore[override]  # noqa: N802
        await serve_batches(
            request_iterator, context, self._handle, policy_pb2.EvaluateResponse, self.stopping, **self._options
        )

    # The rest of the contract is not called here.
    Settle = CheckSuppressed = Evaluate  # type: ignore[assignment]


@asynccontextmanager
async def policy(directory: Path, handle: Handle, port: int = 0, **options: Any) -> AsyncIterator[Running]:
    """Runs a server whose one service answers batches."""
    values = {key: options.pop(key) for key in ("drain_seconds",) if key in options}
    servicer = PolicyServicer(handle, **options)
    registration = Registration(
        policy_pb2_grpc.add_PolicyServiceServicer_to_server, servicer, "agent_reach.v1.PolicyService"
    )
    async with running(directory, registration, grpc_address=f"127.0.0.1:{port}", **values) as server:
        servicer.stopping = server.runtime.stopping
        yield server


@asynccontextmanager
async def client_of(directory: Path, target: str, key: str = SERVICE_KEY, **options: Any) -> AsyncIterator[Client]:
    """Opens a client over the channel that the chassis gives to services."""
    runtime = Runtime(settings_for(directory, service_key=key))
    stub = policy_pb2_grpc.PolicyServiceStub(runtime.channel(target))
    client: Client = BatchClient(stub.Evaluate, service="policy", **options)
    try:
        async with client:
            yield client
    finally:
        await runtime.close()


async def test_every_batch_is_answered_once_and_with_its_own_answer(tmp_path: Path) -> None:
    async with policy(tmp_path, repeat) as server, client_of(tmp_path, server.target, streams=2) as client:
        answers = await asyncio.gather(*(client.call(batch(f"b{n}")) for n in range(200)))
    assert [name_of(answer) for answer in answers] == [f"b{n}" for n in range(200)]


async def test_answers_keep_the_order_of_the_batches_and_few_are_in_work(tmp_path: Path) -> None:
    release = {f"b{n}": asyncio.Event() for n in range(8)}
    started: asyncio.Queue[str] = asyncio.Queue()

    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        started.put_nowait(request.items[0].intent_id)
        await release[request.items[0].intent_id].wait()
        return await repeat(request)

    async with policy(tmp_path, handle, concurrency=3) as server:
        metadata = (("authorization", f"Bearer {SERVICE_KEY}"),)
        stream = policy_pb2_grpc.PolicyServiceStub(server.channel).Evaluate(metadata=metadata)
        for n in range(8):
            request = batch(f"b{n}")
            request.sequence = 10 + n
            await stream.write(request)
        assert [await started.get() for _ in range(3)] == ["b0", "b1", "b2"]
        # The third and second end before the first; a fourth does not start before the first was answered.
        release["b2"].set()
        release["b1"].set()
        assert started.empty()
        for event in release.values():
            event.set()
        await stream.done_writing()
        assert [response.sequence async for response in stream] == [10 + n for n in range(8)]
        assert await stream.code() is grpc.StatusCode.OK


async def test_the_error_of_one_batch_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        match request.items[0].intent_id:
            case "wrong":
                raise InvalidFieldsError([Violation("items[0]", "is wrong")], metadata={"template": "t"})
            case "gone":
                raise NotFoundError("gone")
            case "broken":
                raise RuntimeError("ada@example.com")
            case "cut":
                raise asyncio.CancelledError
        return await repeat(request)

    async with policy(tmp_path, handle) as server, client_of(tmp_path, server.target) as client:
        names = ["a", "wrong", "b", "gone", "c", "broken", "d", "cut", "e"]
        answers = await asyncio.gather(*(client.call(batch(name)) for name in names), return_exceptions=True)
    assert [name_of(answer) for answer in answers if not isinstance(answer, BaseException)] == list("abcde")
    wrong, gone, broken, cut = (answer for answer in answers if isinstance(answer, BaseException))
    assert isinstance(wrong, InvalidFieldsError)
    assert (wrong.violations, wrong.metadata) == ((Violation("items[0]", "is wrong"),), {"template": "t"})
    assert isinstance(gone, NotFoundError)
    assert isinstance(broken, ServiceError)
    assert "example.com" not in str(broken)
    assert isinstance(cut, UnavailableError)


async def test_a_server_that_dies_in_the_middle_answers_after_its_restart(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()
    all_asked = asyncio.Event()

    async def hang(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        asked[request.items[0].intent_id] += 1
        if request.items[0].intent_id == "first":
            return await repeat(request)
        if len(asked) == 5:
            all_asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with policy(tmp_path, hang, drain_seconds=0) as server:
        port = server.endpoints.grpc_port
        # Taken here, so that the client outlives the server.
        opened = client_of(tmp_path, server.target)
        client = await opened.__aenter__()
        assert name_of(await client.call(batch("first"))) == "first"
        calls = [asyncio.create_task(client.call(batch(f"b{n}"), deadline_seconds=60)) for n in range(4)]
        await all_asked.wait()
    assert not any(call.done() for call in calls)
    async with policy(tmp_path, repeat, port=port):
        answers = await asyncio.gather(*calls)
        assert [name_of(answer) for answer in answers] == [f"b{n}" for n in range(4)]
    await opened.__aexit__(None, None, None)


async def test_a_draining_server_sends_its_clients_to_the_next(tmp_path: Path) -> None:
    async def say(name: str, request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        request.items[0].intent_id = name
        return await repeat(request)

    async with policy(tmp_path, lambda request: say("second", request)) as second:
        async with policy(tmp_path, lambda request: say("first", request), drain_seconds=3_600) as first:
            targets = f"ipv4:{first.target},{second.target}"
            opened = client_of(tmp_path, targets, streams=2)
            client = await opened.__aenter__()
            assert name_of(await client.call(batch("x"))) in {"first", "second"}
        answers = await asyncio.gather(*(client.call(batch("x"), deadline_seconds=60) for _ in range(20)))
        assert {name_of(answer) for answer in answers} == {"second"}
        await opened.__aexit__(None, None, None)


async def test_what_a_draining_server_has_read_is_answered_before_the_stream_ends(tmp_path: Path) -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        started.set()
        await finish.wait()
        return await repeat(request)

    async with policy(tmp_path, handle, drain_seconds=3_600) as server:
        metadata = (("authorization", f"Bearer {SERVICE_KEY}"),)
        stream = policy_pb2_grpc.PolicyServiceStub(server.channel).Evaluate(metadata=metadata)
        await stream.write(batch("x"))
        await started.wait()
        server.runtime.stopping.set()
        finish.set()
        answer = await stream.read()
        assert isinstance(answer, policy_pb2.EvaluateResponse)
        assert name_of(answer) == "x"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_no_answer_within_the_deadline_is_unavailable_and_the_stream_goes_on(tmp_path: Path) -> None:
    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        if request.items[0].intent_id == "never":
            await asyncio.Event().wait()
        return await repeat(request)

    async with policy(tmp_path, handle, concurrency=1) as server, client_of(tmp_path, server.target) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.call(batch("never"), deadline_seconds=0.1)
        assert caught.value.metadata == {"service": "policy"}
        # The server answers in order, so that this one needs a new stream.
        assert name_of(await client.call(batch("next"), deadline_seconds=60)) == "next"


async def test_a_batch_that_hangs_in_the_server_ends_by_the_servers_own_deadline(tmp_path: Path) -> None:
    left: list[float] = []

    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        left.append(remaining_seconds(1_000))
        await asyncio.Event().wait()
        return await repeat(request)

    async with (
        policy(tmp_path, handle, deadline_seconds=0.1) as server,
        client_of(tmp_path, server.target) as client,
    ):
        with pytest.raises(ServiceError) as caught:
            await client.call(batch("never"), deadline_seconds=60)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert left[0] <= 0.1


async def test_where_nobody_listens_the_caller_is_told_at_its_deadline(tmp_path: Path) -> None:
    async with client_of(tmp_path, "127.0.0.1:1") as client:
        with pytest.raises(UnavailableError):
            await client.call(batch("x"), deadline_seconds=0.3)


@pytest.mark.parametrize("key", ["reach_wrong", AGENT_KEY])
async def test_a_client_that_may_not_call_is_told_at_once_and_blames_no_batch(tmp_path: Path, key: str) -> None:
    async with policy(tmp_path, repeat) as server, client_of(tmp_path, server.target, key) as client:
        with pytest.raises(UnavailableError, match="refused"):
            await client.call(batch("x"), deadline_seconds=3_600)


async def test_callers_that_gave_up_leave_nothing_behind(tmp_path: Path) -> None:
    hold = asyncio.Event()
    asked = asyncio.Event()

    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        asked.set()
        await hold.wait()
        return await repeat(request)

    async with policy(tmp_path, handle) as server, client_of(tmp_path, server.target, max_outstanding=4) as client:
        calls = [asyncio.create_task(client.call(batch(f"b{n}"))) for n in range(50)]
        await asked.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        del calls, call
        hold.set()
        # All four places are free again, and what is left of the old ones does not stop the new.
        answers = await asyncio.gather(*(client.call(batch(f"c{n}")) for n in range(8)))
        assert [name_of(answer) for answer in answers] == [f"c{n}" for n in range(8)]
        assert kept() <= HELD_BY_A_STREAM


async def test_ten_thousand_batches_are_answered_and_none_is_kept(tmp_path: Path) -> None:
    async with policy(tmp_path, repeat) as server, client_of(tmp_path, server.target) as client:

        async def caller(first: int) -> int:
            return sum([name_of(await client.call(batch(f"{first + n}"))) == f"{first + n}" for n in range(625)])

        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(caller(625 * n)) for n in range(16)]
        assert sum(task.result() for task in callers) == 10_000
        del callers
        assert kept() <= HELD_BY_A_STREAM


async def test_a_client_that_closes_tells_those_who_wait(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def handle(request: policy_pb2.EvaluateRequest) -> policy_pb2.EvaluateResponse:
        asked.set()
        await asyncio.Event().wait()
        return await repeat(request)

    async with policy(tmp_path, handle, drain_seconds=0) as server:
        async with client_of(tmp_path, server.target, max_outstanding=1) as client:
            calls = [asyncio.create_task(client.call(batch(f"b{n}"), deadline_seconds=3_600)) for n in range(3)]
            await asked.wait()
        for call in calls:
            with pytest.raises(UnavailableError, match="closed"):
                await call
        with pytest.raises(UnavailableError, match="closed"):
            await client.call(batch("late"))


def kept() -> int:
    """Counts the batches that something still holds."""
    gc.collect()
    return sum(isinstance(thing, batch_stream._Pending) for thing in gc.get_objects())
