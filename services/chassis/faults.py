"""Turns whatever a handler raised into the one error that its caller is told."""

from __future__ import annotations

import uuid

import grpc
import psycopg
import psycopg_pool
import redis.exceptions
import structlog
from grpc_status import rpc_status

from agent_reach.v1 import error_reason_pb2

from .errors import DeadlineError, ServiceError, UnavailableError, from_status

_DATABASE_RETRY_SECONDS = 2.0
_log = structlog.get_logger(__name__)


# What another service refuses with these codes is our caller's matter, and told as it is. That our own key was
# refused is not.
_PASSED_ON = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
    }
)


def is_database_outage(error: BaseException) -> bool:
    """Says whether PostgreSQL cannot be reached or used at the moment, as against a fault of a statement."""
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.PoolClosed | psycopg.InterfaceError):
        return True
    # Read-only is how a demoted primary answers: it passes with the failover.
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return True
    return isinstance(error, psycopg.OperationalError) and not isinstance(
        error,
        psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure | psycopg.errors.ProgramLimitExceeded,
    )


def describe_fault(error: Exception) -> ServiceError:
    """Returns the error that the caller is told; an unexpected one is logged under an id and its text kept back."""
    while isinstance(error, ExceptionGroup):
        # A task group that failed: what failed first is the reason.
        error = error.exceptions[0]
    if isinstance(error, ServiceError):
        return error
    if is_database_outage(error):
        return UnavailableError(
            "PostgreSQL cannot be reached; try again, repeating the call is safe",
            reason=error_reason_pb2.ERROR_REASON_DATABASE_UNAVAILABLE,
            retry_after_seconds=_DATABASE_RETRY_SECONDS,
        )
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError):
        return UnavailableError(
            "Redis cannot be reached; try again", reason=error_reason_pb2.ERROR_REASON_REDIS_UNAVAILABLE
        )
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() in _PASSED_ON and (status := rpc_status.from_call(error)) is not None:
            return from_status(status)
        if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}:
            return UnavailableError("another service cannot be reached; try again")
    if isinstance(error, TimeoutError):
        return DeadlineError("the work did not end within the deadline")
    error_id = uuid.uuid4().hex
    _log.error("unexpected_fault", error_id=error_id, exc_info=error)
    return ServiceError(f"unexpected fault, see the log under {error_id}", metadata={"error_id": error_id})
