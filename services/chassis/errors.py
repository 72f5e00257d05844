"""Errors that cross gRPC, and their one translation into `google.rpc.Status`.

ServiceError                 INTERNAL
 ├── InvalidFieldsError      INVALID_ARGUMENT     names every field
 ├── NotFoundError           NOT_FOUND
 ├── ConflictError           ALREADY_EXISTS
 ├── TooLateError            FAILED_PRECONDITION
 ├── UnauthenticatedError    UNAUTHENTICATED
 ├── PermissionDeniedError   PERMISSION_DENIED
 ├── DeadlineError           DEADLINE_EXCEEDED
 ├── OverloadedError         RESOURCE_EXHAUSTED   with a retry delay
 └── UnavailableError        UNAVAILABLE          with a retry delay
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from agent_reach.v1 import error_reason_pb2

DOMAIN = "agent-reach"
# gRPC drops trailers above 8 KiB. The message stands in them percent-encoded (at most three times its bytes), the
# status, which holds the message again, in base64 (four thirds): 3 * 900 + 4 / 3 * 3_900 = 7_900 at the worst.
_MAX_MESSAGE_BYTES = 900
_MAX_STATUS_BYTES = 3_900
_MAX_METADATA_ENTRIES = 6
_MAX_VALUE_BYTES = 256
_REASON_PREFIX = "ERROR_REASON_"


@dataclass(frozen=True, slots=True)
class Violation:
    """One wrong field: its path as the caller wrote it, and what to do about it."""

    field: str
    description: str


class ServiceError(Exception):
    """A refusal that the caller is meant to understand.

    Attributes:
        reason: the stable reason (see the contract's `ErrorReason`).
        metadata: values that belong to the reason.
        violations: the fields at fault.
        retry_after_seconds: when it is worth trying again.
    """

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    default_reason: ClassVar[error_reason_pb2.ErrorReason.ValueType] = error_reason_pb2.ERROR_REASON_INTERNAL
    default_retry_seconds: ClassVar[float | None] = None

    def __init__(
        self,
        message: str,
        *,
        reason: error_reason_pb2.ErrorReason.ValueType | None = None,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = self.default_reason if reason is None else reason
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_seconds = self.default_retry_seconds if retry_after_seconds is None else retry_after_seconds


class InvalidFieldsError(ServiceError):
    """Some fields are wrong; each is named."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    default_reason = error_reason_pb2.ERROR_REASON_FIELD_INVALID

    def __init__(
        self,
        violations: Sequence[Violation],
        *,
        reason: error_reason_pb2.ErrorReason.ValueType | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        message = "; ".join(f"{violation.field}: {violation.description}" for violation in violations[:5])
        super().__init__(message, reason=reason, metadata=metadata, violations=violations)


class NotFoundError(ServiceError):
    """The caller's tenant has no such thing."""

    code = grpc.StatusCode.NOT_FOUND
    default_reason = error_reason_pb2.ERROR_REASON_NOT_FOUND


class ConflictError(ServiceError):
    """The name is taken by something else."""

    code = grpc.StatusCode.ALREADY_EXISTS
    default_reason = error_reason_pb2.ERROR_REASON_INTENT_KEY_REUSED


class TooLateError(ServiceError):
    """The thing has gone on; this can no longer be done to it."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    default_reason = error_reason_pb2.ERROR_REASON_TOO_LATE


class UnauthenticatedError(ServiceError):
    """The caller did not prove who it is."""

    code = grpc.StatusCode.UNAUTHENTICATED
    default_reason = error_reason_pb2.ERROR_REASON_CREDENTIALS_INVALID


class PermissionDeniedError(ServiceError):
    """The caller is known and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    default_reason = error_reason_pb2.ERROR_REASON_ROLE_NOT_ALLOWED


class DeadlineError(ServiceError):
    """The work did not end within the caller's deadline."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    default_reason = error_reason_pb2.ERROR_REASON_DEADLINE_EXCEEDED


class OverloadedError(ServiceError):
    """Too much is waiting already."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    default_reason = error_reason_pb2.ERROR_REASON_OVERLOADED
    default_retry_seconds = 1.0


class UnavailableError(ServiceError):
    """Something that is needed cannot be reached at the moment."""

    code = grpc.StatusCode.UNAVAILABLE
    default_reason = error_reason_pb2.ERROR_REASON_SERVICE_UNAVAILABLE
    default_retry_seconds = 1.0


_KINDS: Mapping[int, type[ServiceError]] = {
    kind.code.value[0]: kind
    for kind in (
        NotFoundError,
        ConflictError,
        TooLateError,
        UnauthenticatedError,
        PermissionDeniedError,
        DeadlineError,
        OverloadedError,
        UnavailableError,
    )
}


def reason_name(reason: error_reason_pb2.ErrorReason.ValueType) -> str:
    """Returns a reason as it stands on the wire, for example ``FIELD_INVALID``."""
    return error_reason_pb2.ErrorReason.Name(reason).removeprefix(_REASON_PREFIX)


def to_status(error: ServiceError) -> status_pb2.Status:
    """Translates an error into `google.rpc.Status` with ErrorInfo, RetryInfo and BadRequest.

    It fits into gRPC's trailers whatever the error holds: long texts are cut, and violations that find no room are
    counted in the ErrorInfo's metadata (``violations_left_out``). Text that is not valid Unicode is replaced.
    """
    code: int = error.code.value[0]
    status = status_pb2.Status(code=code, message=_fit(error.message, _MAX_MESSAGE_BYTES))
    info = error_details_pb2.ErrorInfo(
        reason=reason_name(error.reason),
        domain=DOMAIN,
        metadata={
            _fit(key, 64): _fit(value, _MAX_VALUE_BYTES)
            for key, value in itertools.islice(error.metadata.items(), _MAX_METADATA_ENTRIES)
        },
    )
    bad_request = error_details_pb2.BadRequest()
    # Room for what surrounds the violations: type URLs, the retry delay, the count of those left out.
    room = _MAX_STATUS_BYTES - status.ByteSize() - info.ByteSize() - 256
    for count, violation in enumerate(error.violations):
        entry = error_details_pb2.BadRequest.FieldViolation(
            field=_fit(violation.field, _MAX_VALUE_BYTES), description=_fit(violation.description, _MAX_VALUE_BYTES)
        )
        room -= entry.ByteSize() + 4
        if room < 0:
            info.metadata["violations_left_out"] = str(len(error.violations) - count)
            break
        bad_request.field_violations.append(entry)
    details: list[Message] = [info]
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_seconds * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if bad_request.field_violations:
        details.append(bad_request)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def from_status(status: status_pb2.Status) -> ServiceError:
    """Turns a status of another service back into the same error, so that it can be passed on."""
    info, retry, bad_request = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(),
    )
    for packed in status.details:
        for detail in (info, retry, bad_request):
            packed.Unpack(detail)
    violations = [Violation(item.field, item.description) for item in bad_request.field_violations]
    name = f"{_REASON_PREFIX}{info.reason}"
    known = error_reason_pb2.ErrorReason.keys()
    reason = error_reason_pb2.ErrorReason.Value(name) if name in known else None
    error: ServiceError
    if status.code == InvalidFieldsError.code.value[0]:
        error = InvalidFieldsError(violations, reason=reason, metadata=info.metadata)
        error.message = status.message
    else:
        error = _KINDS.get(status.code, ServiceError)(
            status.message,
            reason=reason,
            metadata=info.metadata,
            violations=violations,
            retry_after_seconds=retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
        )
    return error


def _fit(text: str, max_bytes: int) -> str:
    """Cuts a text to a number of bytes; a lone surrogate, which no protobuf can hold, becomes a question mark."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
