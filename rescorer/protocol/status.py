"""Convert errors to gRPC statuses and back, using a single table for both directions.

A status carries a ``google.rpc.ErrorInfo`` with the error's reason, so that a client raises an error of the
same class; a ``google.rpc.BadRequest`` if a field of the request is invalid; and a ``google.rpc.RetryInfo``
if trying again later may help.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from rescorer.errors import (
    ConfigError,
    DeadlineExceeded,
    InputError,
    InvalidList,
    LimitExceeded,
    ModelError,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RescorerError,
    ScoringError,
    ServiceError,
    Unauthenticated,
    Unavailable,
    shorten,
)

DOMAIN = "rescorer"
MAX_TEXT_CHARS = 500
"""Longest text in a list's status."""
MESSAGE_TOO_LARGE = re.compile(r"Received message larger than max \((\d+) vs\. (\d+)\)")
"""Status message of gRPC's own refusal of a request above ``max_message_bytes``."""


class ErrorKind(NamedTuple):
    """How one class of errors is represented in a status."""

    error_type: type[RescorerError]
    code: grpc.StatusCode
    reason: str
    hidden: bool = False
    """Whether the message is withheld from clients, because it may reveal internals."""


KINDS = (  # the first match counts, so subclasses come before their base classes
    ErrorKind(LimitExceeded, grpc.StatusCode.INVALID_ARGUMENT, "LIMIT_EXCEEDED"),
    ErrorKind(InvalidList, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_LIST"),
    ErrorKind(InputError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT"),
    ErrorKind(ConfigError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_CONFIG"),
    ErrorKind(ModelNotFound, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    ErrorKind(ModelError, grpc.StatusCode.INTERNAL, "MODEL_BROKEN", hidden=True),
    ErrorKind(Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    ErrorKind(Unavailable, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    ErrorKind(Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    ErrorKind(PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    ErrorKind(DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    ErrorKind(ScoringError, grpc.StatusCode.INTERNAL, "SCORING_FAILED", hidden=True),
    ErrorKind(ServiceError, grpc.StatusCode.UNKNOWN, "UNKNOWN", hidden=True),
)
BUG = ErrorKind(ScoringError, grpc.StatusCode.INTERNAL, "INTERNAL", hidden=True)
"""Kind of all exceptions that are not in the table."""

ERROR_BY_REASON = {kind.reason: kind.error_type for kind in (*KINDS, BUG)}
ERROR_BY_CODE = {kind.code.value[0]: kind.error_type for kind in reversed((*KINDS, BUG))} | {
    grpc.StatusCode.CANCELLED.value[
        0
    ]: Unavailable,  # the server stops; a client that cancels its call does not see this
    grpc.StatusCode.INVALID_ARGUMENT.value[0]: InputError,
    grpc.StatusCode.INTERNAL.value[0]: ScoringError,
}
"""Error class by status code, for a status without a known reason, such as one created by gRPC itself or by a
proxy."""


def error_kind(error: Exception) -> ErrorKind:
    """Return the kind of an error; ``BUG`` if it is not in the table."""
    return next((kind for kind in KINDS if isinstance(error, kind.error_type)), BUG)


def status_from_error(
    error: Exception, request_id: str = "", path: str = "", max_text_chars: int = MAX_TEXT_CHARS
) -> Status:
    """Return the status that reports an error to the client.

    Args:
        request_id: id under which the server's log has the details.
        path: path in the request of the list that caused the error, such as ``lists[2]``.
        max_text_chars: maximum length of each text in the status, since error messages may quote the request.
    """
    kind = error_kind(error)
    message = (
        f"internal error; look for request {request_id} in the server's log"
        if kind.hidden
        else shorten(str(error), max_text_chars)
    )
    info = ErrorInfo(reason=kind.reason, domain=DOMAIN)
    if request_id:
        info.metadata["request_id"] = request_id
    for name in ("message", "list_id", "hypothesis", "field"):
        value = getattr(error, name, None)
        if value not in (None, "") and not kind.hidden:
            info.metadata[name] = shorten(str(value), max_text_chars)
    status = Status(code=kind.code.value[0], message=message)
    status.details.add().Pack(info)
    if retry_ms := retry_after_ms(error):
        delay = RetryInfo()
        delay.retry_delay.FromMilliseconds(retry_ms)
        status.details.add().Pack(delay)
    if not kind.hidden and (field := field_path(error, path)):
        description = getattr(error, "message", message)
        violation = BadRequest.FieldViolation(
            field=shorten(field, max_text_chars), description=shorten(description, max_text_chars)
        )
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    return status


def retry_after_ms(error: Exception) -> int:
    """Milliseconds to wait before trying again; 0 if unknown."""
    return math.ceil(getattr(error, "retry_after_s", 0.0) * 1e3)


def field_path(error: Exception, path: str) -> str:
    """Return the path of the invalid field in the request; empty if there is none.

    >>> field_path(InvalidList("nan", hypothesis=3, field='streams["acoustic"]'), "lists[2]")
    'lists[2].streams["acoustic"].values[3]'
    """
    field = getattr(error, "field", "")
    hypothesis = getattr(error, "hypothesis", None)
    if hypothesis is not None:
        if re.fullmatch(r'streams\[".*"\]', field):
            field = f"{field}.values[{hypothesis}]"
        else:
            field = f"hypotheses[{hypothesis}].{field}".rstrip(".")
    return ".".join(part for part in (path, field) if part)


def error_from_status(status: Status) -> RescorerError:
    """Return the error that a status reports, as an instance of its class in ``rescorer.errors``."""
    if too_large := MESSAGE_TOO_LARGE.search(status.message):
        sent, limit = too_large.groups()
        return LimitExceeded(f"message of {sent} bytes; expected at most {limit} (max_message_bytes)")
    info = ErrorInfo()
    if not any(detail.Unpack(info) for detail in status.details if detail.Is(ErrorInfo.DESCRIPTOR)):
        info = ErrorInfo()
    is_known = info.domain == DOMAIN and info.reason in ERROR_BY_REASON
    error_type = ERROR_BY_REASON[info.reason] if is_known else ERROR_BY_CODE.get(status.code, ServiceError)
    metadata = info.metadata
    message = metadata.get("message", status.message)
    if error_type is InvalidList:
        hypothesis = int(metadata["hypothesis"]) if "hypothesis" in metadata else None
        list_id, field = metadata.get("list_id", ""), metadata.get("field", "")
        return InvalidList(message, list_id=list_id, hypothesis=hypothesis, field=field)
    if error_type is LimitExceeded:
        return LimitExceeded(message, field=metadata.get("field", ""))
    if error_type is Overloaded:
        delay = RetryInfo()
        any(detail.Unpack(delay) for detail in status.details if detail.Is(RetryInfo.DESCRIPTOR))
        return Overloaded(message, retry_after_s=delay.retry_delay.ToMilliseconds() / 1e3)
    return error_type(message)
