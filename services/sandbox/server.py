"""The gRPC surface of the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from agent_reach.v1 import error_reason_pb2, sandbox_pb2, sandbox_pb2_grpc
from services.chassis.errors import InvalidFieldsError, OverloadedError, UnavailableError, Violation

from .runner import End, EndKind, NoPlaceError, Output, OutputLostError, Run, Sandbox, Stream
from .spec import DEFAULT_OUTPUT_BYTES, DEFAULT_TIMEOUT_SECONDS, Language, RunSpec, check_spec

_LANGUAGES = {
    sandbox_pb2.LANGUAGE_PYTHON: Language.PYTHON,
    sandbox_pb2.LANGUAGE_SHELL: Language.SHELL,
}
_ENDS = {
    EndKind.EXITED: sandbox_pb2.EXECUTE_END_EXITED,
    EndKind.SIGNALLED: sandbox_pb2.EXECUTE_END_SIGNALLED,
    EndKind.TIMED_OUT: sandbox_pb2.EXECUTE_END_TIMED_OUT,
    EndKind.OUTPUT_LIMIT: sandbox_pb2.EXECUTE_END_OUTPUT_LIMIT,
}


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Runs code for whoever may call it."""

    def __init__(self, sandbox: Sandbox, stopping: asyncio.Event) -> None:
        self._sandbox = sandbox
        self._stopping = stopping

    async def Execute(
        self,
        request: sandbox_pb2.ExecuteRequest,
        context: grpc.aio.ServicerContext[sandbox_pb2.ExecuteRequest, sandbox_pb2.ExecuteResponse],
    ) -> AsyncIterator[sandbox_pb2.ExecuteResponse]:
        """Runs code and streams what it prints; the last message says how it ended."""
        if self._stopping.is_set():
            raise _draining()
        spec = _read_request(request)
        try:
            run = await self._sandbox.start(spec)
        except NoPlaceError as error:
            raise OverloadedError(str(error)) from error
        # A handler that waits for a caller to take output is not told that the caller has gone; this is.
        context.add_done_callback(lambda _: run.stop())  # type: ignore[arg-type]  # the stubs name a class
        try:
            async for response in _responses(run):
                yield response
        finally:
            run.stop()


async def _responses(run: Run) -> AsyncIterator[sandbox_pb2.ExecuteResponse]:
    try:
        async for event in run.events():
            yield _to_response(event)
    except OutputLostError as error:
        raise OverloadedError(str(error)) from error


def _read_request(request: sandbox_pb2.ExecuteRequest) -> RunSpec:
    language = _LANGUAGES.get(request.language)
    spec = RunSpec(
        language=language or Language.PYTHON,
        code=request.code,
        stdin=request.stdin,
        environment=dict(request.environment),
        timeout_seconds=request.timeout_seconds or DEFAULT_TIMEOUT_SECONDS,
        max_output_bytes=request.max_output_bytes or DEFAULT_OUTPUT_BYTES,
    )
    violations = check_spec(spec)
    if language is None:
        violations.insert(0, Violation("language", "must be LANGUAGE_PYTHON or LANGUAGE_SHELL"))
    if violations:
        raise InvalidFieldsError(violations)
    return spec


def _to_response(event: Output | End) -> sandbox_pb2.ExecuteResponse:
    if isinstance(event, Output):
        if event.stream is Stream.STDOUT:
            return sandbox_pb2.ExecuteResponse(stdout=event.data)
        return sandbox_pb2.ExecuteResponse(stderr=event.data)
    if event.kind is EndKind.STOPPED:
        raise _draining()
    return sandbox_pb2.ExecuteResponse(
        result=sandbox_pb2.ExecuteResult(
            end=_ENDS[event.kind],
            exit_code=event.exit_code,
            duration_seconds=event.duration_seconds,
            stdout_bytes=event.stdout_bytes,
            stderr_bytes=event.stderr_bytes,
        )
    )


def _draining() -> UnavailableError:
    return UnavailableError("the sandbox is stopping; run it again", reason=error_reason_pb2.ERROR_REASON_DRAINING)
