"""What can go wrong when an agent asks, one class per canonical code.

ReachError
 ├── InvalidArgumentError      a field is wrong; each is named in `violations`
 ├── AlreadyExistsError        the key was used for other content; the first intent stands
 ├── NotFoundError             the tenant has no such thing
 ├── FailedPreconditionError   the message has left or ended
 ├── UnauthenticatedError      no API key, or one that is not known
 ├── PermissionDeniedError     the key's role may not do this
 ├── ResourceExhaustedError    too much is waiting; `retry_after_seconds` says when to try again
 ├── UnavailableError          something cannot be reached at the moment; try again
 ├── DeadlineExceededError     no answer within the deadline
 └── InternalError             everything else: a fault on the other side
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong field: its path, and what to do about it."""

    field: str
    description: str


class ReachError(Exception):
    """An answer that is not the one that was asked for.

    Attributes:
        message: what happened, in words.
        reason: the stable reason, for example ``INTENT_KEY_REUSED`` (the contract's `ErrorReason`); empty when the
            other side named none.
        metadata: values that belong to the reason.
        violations: the fields at fault.
        retry_after_seconds: when it is worth trying again; None when the other side did not say.
    """

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_seconds = retry_after_seconds


class InvalidArgumentError(ReachError):
    """A field is wrong; each is named in `violations`."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class AlreadyExistsError(ReachError):
    """The key was used for other content; the first intent stands, `metadata["intent_id"]` names it."""

    code = grpc.StatusCode.ALREADY_EXISTS


class NotFoundError(ReachError):
    """The tenant has no such thing."""

    code = grpc.StatusCode.NOT_FOUND


class FailedPreconditionError(ReachError):
    """The message has left or ended; this can no longer be done to it."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class UnauthenticatedError(ReachError):
    """No API key, or one that is not known."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDeniedError(ReachError):
    """The key's role may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED


class ResourceExhaustedError(ReachError):
    """Too much is waiting already, or the message is too large."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(ReachError):
    """Something that is needed cannot be reached at the moment."""

    code = grpc.StatusCode.UNAVAILABLE


class DeadlineExceededError(ReachError):
    """There was no answer within the deadline. Repeating a submit is safe."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class InternalError(ReachError):
    """A fault on the other side; `metadata["error_id"]` finds it in the server's log."""

    code = grpc.StatusCode.INTERNAL


_BY_CODE: Mapping[int, type[ReachError]] = {
    kind.code.value[0]: kind
    for kind in (
        InvalidArgumentError,
        AlreadyExistsError,
        NotFoundError,
        FailedPreconditionError,
        UnauthenticatedError,
        PermissionDeniedError,
        ResourceExhaustedError,
        UnavailableError,
        DeadlineExceededError,
    )
}


@runtime_checkable
class FailedCall(Protocol):
    """What a failed call of either gRPC API, sync or async, tells."""

    def code(self) -> grpc.StatusCode: ...  # noqa: D102 - gRPC's own

    def details(self) -> str | None: ...  # noqa: D102 - gRPC's own


def from_status(status: status_pb2.Status) -> ReachError:
    """Turns a `google.rpc.Status` with its details into the error of its code."""
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    found: set[type[Message]] = set()
    for detail in status.details:
        for message in (info, bad_request, retry):
            if detail.Unpack(message):
                found.add(type(message))
    return _BY_CODE.get(status.code, InternalError)(
        status.message,
        reason=info.reason,
        metadata=info.metadata,
        violations=[Violation(each.field, each.description) for each in bad_request.field_violations],
        retry_after_seconds=(retry.retry_delay.ToTimedelta().total_seconds() if type(retry) in found else None),
    )


# Which setting says where a service is, by the contract's file; all others are served where intake is.
_TARGETS: Mapping[str, str] = {
    **dict.fromkeys(("profile", "preference", "suppression", "policy_admin"), "policy_target"),
    "sandbox": "sandbox_target",
}


def from_call(error: FailedCall, request: Message | None = None) -> ReachError:
    """Turns a failed call into the error of its code; one without details keeps its words.

    Args:
        error: the call.
        request: what was asked. With it, a server that does not know the question is told by the setting to mend.
    """
    if request is not None and error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return _wrong_server(request)
    status = rpc_status.from_call(error)
    if status is None:
        status = status_pb2.Status(code=error.code().value[0], message=error.details() or error.code().name)
    return from_status(status)


def _wrong_server(request: Message) -> InvalidArgumentError:
    """Returns the error of a question to a server that answers other ones: it is the address that is wrong."""
    room = request.DESCRIPTOR.file.name.rpartition("/")[2].removesuffix(".proto")
    setting = _TARGETS.get(room, "target")
    asked = request.DESCRIPTOR.name.removesuffix("Request")
    description = f"no service there answers {asked}; pass {setting} or set REACH_{setting.upper()}"
    return InvalidArgumentError(
        f"{setting}: {description}", reason="FIELD_INVALID", violations=[Violation(setting, description)]
    )
