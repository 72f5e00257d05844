"""A bidirectional stream of batches that looks like `await client.call(batch)`, and its other end.

Every request and response message has a field `sequence`; responses that can fail as a whole have `error`. Every
batch is idempotent, so one that was not answered when its stream broke is sent again on the next.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import grpc
import structlog
from google.rpc import status_pb2

from agent_reach.v1 import error_reason_pb2

from .deadline import remaining_seconds, set_deadline
from .errors import ServiceError, UnavailableError, from_status, to_status
from .faults import describe_fault
from .undecodable import refuse_undecodable

_log = structlog.get_logger(__name__)
_FIRST_BACKOFF_SECONDS = 0.05
_MAX_BACKOFF_SECONDS = 2.0
# The other side does not take us for who we are, or is not who we think: no batch is to blame, and none can pass until
# somebody mends the settings.
_MISCONFIGURED_CODES = frozenset(
    {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED}
)
# Answers that a second try on a new stream would only repeat.
_FINAL_CODES = _MISCONFIGURED_CODES | {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED}


class Sequenced(Protocol):
    """A request or response message with a batch number."""

    sequence: int


RequestT = TypeVar("RequestT", bound=Sequenced)
ResponseT = TypeVar("ResponseT", bound=Sequenced)
ItemT = TypeVar("ItemT")


class _Pending(Generic[RequestT, ResponseT]):
    """One batch that waits for its answer."""

    __slots__ = ("answer", "request", "stream")

    def __init__(self, request: RequestT) -> None:
        self.request = request
        self.stream: _Stream[RequestT, ResponseT] | None = None
        self.answer: asyncio.Future[ResponseT] = asyncio.get_running_loop().create_future()

    def fail(self, error: ServiceError) -> None:
        """Tells whoever still waits."""
        if not self.answer.done():
            self.answer.set_exception(error)


class _Stream(Generic[RequestT, ResponseT]):
    """One stream to the other service, and the batches that were given to it and are not answered."""

    __slots__ = ("answered", "call", "unanswered")

    def __init__(self, call: Any) -> None:
        self.call = call
        self.unanswered: dict[int, _Pending[RequestT, ResponseT]] = {}
        self.answered = False


class BatchClient(Generic[RequestT, ResponseT]):
    """Calls a batch-stream RPC: deadline per batch, reconnect, spread over replicas, safe resend.

    Args:
        method: the stub's method, for example ``PolicyServiceStub(channel).Evaluate``.
        service: the name of the other service, for errors.
        streams: how many streams are kept open; with several replicas, each goes to another one.
        max_outstanding: batches without an answer, in all; further calls wait.
    """

    def __init__(
        self, method: Callable[[], Any], *, service: str, streams: int = 1, max_outstanding: int = 16
    ) -> None:
        self._method = method
        self._service = service
        self._streams = streams
        self._places = asyncio.Semaphore(max_outstanding)
        self._numbers = itertools.count(1)
        self._waiting: asyncio.Queue[_Pending[RequestT, ResponseT]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        self._tasks = [
            asyncio.create_task(self._keep_stream(), name=f"{self._service}-stream-{n}") for n in range(self._streams)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait().fail(self._closed())

    async def call(self, request: RequestT, *, deadline_seconds: float = 15.0) -> ResponseT:
        """Sends one batch and returns its answer; inside of an RPC its deadline holds too.

        Raises:
            UnavailableError: no answer within the deadline, on any stream.
            ServiceError: the other side refused the batch as a whole.
        """
        seconds = remaining_seconds(deadline_seconds)
        pending: _Pending[RequestT, ResponseT] = _Pending(request)
        try:
            async with asyncio.timeout(seconds), self._places:
                if not self._open:
                    raise self._closed()
                request.sequence = next(self._numbers)
                self._waiting.put_nowait(pending)
                response = await pending.answer
        except TimeoutError:
            # A stream that owes an answer for so long may be held by a server that hangs: go to another one.
            if pending.stream is not None:
                pending.stream.call.cancel()
            raise UnavailableError(
                f"{self._service} did not answer within {seconds:.3g} s", metadata={"service": self._service}
            ) from None
        finally:
            # A batch that nobody waits for any more is not sent, or its late answer dropped.
            pending.answer.cancel()
        error: status_pb2.Status | None = getattr(response, "error", None)
        if error is not None and error.code:
            raise from_status(error)
        return response

    async def _keep_stream(self) -> None:
        """Holds one stream open for ever, and sends again what a broken one left unanswered."""
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while True:
            # The stream is opened for its first batch, so that an idle client needs no server.
            first = await self._next_pending()
            stream: _Stream[RequestT, ResponseT] = _Stream(None)
            stream.unanswered[first.request.sequence] = first
            try:
                stream.call = self._method()
                await self._exchange(stream, first)
            except grpc.aio.AioRpcError as error:
                _log.debug("batch_stream_ended", peer=self._service, status=error.code().name)
                if error.code() in _FINAL_CODES:
                    self._refuse(stream, error)
            except asyncio.CancelledError:
                # Either this client is closed, or `call` gave the stream up.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
            except Exception as error:  # noqa: BLE001 - told to those who wait, and the stream goes on
                fault = describe_fault(error)
                for pending in stream.unanswered.values():
                    pending.fail(fault)
            finally:
                if stream.call is not None:
                    stream.call.cancel()
                for pending in stream.unanswered.values():
                    pending.stream = None
                    if not pending.answer.done():
                        self._waiting.put_nowait(pending)
            backoff_seconds = (
                _FIRST_BACKOFF_SECONDS if stream.answered else min(backoff_seconds * 2, _MAX_BACKOFF_SECONDS)
            )
            await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects

    async def _exchange(self, stream: _Stream[RequestT, ResponseT], first: _Pending[RequestT, ResponseT]) -> None:
        """Writes batches and reads answers until the stream ends."""

        async def write() -> None:
            pending = first
            while True:
                pending.stream = stream
                stream.unanswered[pending.request.sequence] = pending
                await stream.call.write(pending.request)
                pending = await self._next_pending()

        writer = asyncio.create_task(write())
        try:
            async for response in stream.call:
                stream.answered = True
                answered = stream.unanswered.pop(response.sequence, None)
                if answered is not None and not answered.answer.done():
                    answered.answer.set_result(response)
        finally:
            writer.cancel()
            # What a write failed with is what the reader is told too.
            await asyncio.gather(writer, return_exceptions=True)

    async def _next_pending(self) -> _Pending[RequestT, ResponseT]:
        while True:
            pending = await self._waiting.get()
            if not pending.answer.done():
                return pending

    def _refuse(self, stream: _Stream[RequestT, ResponseT], error: grpc.aio.AioRpcError) -> None:
        """Tells everyone who waits on this stream that the other side will not have it."""
        _log.error("batch_stream_refused", peer=self._service, status=error.code().name, details=error.details())
        kind = UnavailableError if error.code() in _MISCONFIGURED_CODES else ServiceError
        fault = kind(f"{self._service} refused the stream: {error.code().name}", metadata={"service": self._service})
        for pending in stream.unanswered.values():
            pending.fail(fault)

    def _closed(self) -> UnavailableError:
        return UnavailableError(f"the client of {self._service} is closed", metadata={"service": self._service})


async def serve_batches(
    requests: AsyncIterator[RequestT],
    context: grpc.aio.ServicerContext[Any, Any],
    handle: Callable[[RequestT], Awaitable[ResponseT]],
    response_type: Callable[[], ResponseT],
    stopping: asyncio.Event,
    *,
    concurrency: int = 4,
    deadline_seconds: float = 60.0,
) -> None:
    """Answers every batch of a stream once, in order, with a bounded number of them in work.

    An exception of `handle` becomes the `error` of that batch's response, where the response has one, and ends the
    stream otherwise; so does a batch that takes longer than `deadline_seconds`, which the calls that it makes
    inherit. When the server drains, what was read is answered and the stream ends with UNAVAILABLE.
    """

    async def answer(request: RequestT) -> ResponseT:
        set_deadline(deadline_seconds)
        try:
            response = await _uncancelled(handle, request, deadline_seconds)
        except Exception as error:
            response = response_type()
            status: status_pb2.Status | None = getattr(response, "error", None)
            if status is None:
                raise
            status.CopyFrom(to_status(describe_fault(error)))
        response.sequence = request.sequence
        return response

    places = asyncio.Semaphore(concurrency)
    answers: asyncio.Queue[asyncio.Task[ResponseT] | None] = asyncio.Queue()

    async def write() -> None:
        while (task := await answers.get()) is not None:
            await context.write(await task)
            places.release()

    try:
        async with asyncio.TaskGroup() as group, aclosing(until_stopping(requests, stopping)) as read:
            group.create_task(write())
            async for request in read:
                refuse_undecodable(request)
                await places.acquire()
                answers.put_nowait(group.create_task(answer(request)))
            answers.put_nowait(None)
    except* Exception as errors:  # noqa: BLE001 - one of a group is passed on as itself
        raise _first(errors) from None
    if stopping.is_set():
        raise UnavailableError("this server is stopping", reason=error_reason_pb2.ERROR_REASON_DRAINING)


async def _uncancelled(
    handle: Callable[[RequestT], Awaitable[ResponseT]], request: RequestT, deadline_seconds: float
) -> ResponseT:
    """Handles one batch; that something inside was cancelled, and not we, is a fault like any other."""
    try:
        async with asyncio.timeout(deadline_seconds):
            return await handle(request)
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise UnavailableError("the work was cut short; try again") from error


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


async def until_stopping(requests: AsyncIterator[ItemT], stopping: asyncio.Event) -> AsyncGenerator[ItemT]:
    """Passes requests on until they end or the server begins to stop."""
    iterator = requests.__aiter__()
    stop = asyncio.ensure_future(stopping.wait())
    read: asyncio.Future[ItemT] | None = None
    try:
        while not stopping.is_set():
            read = asyncio.ensure_future(iterator.__anext__())
            await asyncio.wait({read, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not read.done():
                return
            try:
                request = read.result()
            except StopAsyncIteration:
                return
            yield request
    finally:
        open_tasks = [task for task in (stop, read) if task is not None]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
