"""Owns the one table between the tree of faults and gRPC's status codes, in both directions.

A status carries a ``google.rpc.ErrorInfo`` whose reason names the fault, so that a client raises the same
class again, a ``google.rpc.BadRequest`` where a field of the request is to blame, and a
``google.rpc.RetryInfo`` where trying again later may help.
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
)

DOMAIN = "rescorer"
TOO_LARGE = re.compile(r"Received message larger than max \((\d+) vs\. (\d+)\)")
"""What gRPC's server says, by itself, of a message above ``max_message_bytes``."""


class Kind(NamedTuple):
    """How one class of faults looks on the wire."""

    fault: type[RescorerError]
    code: grpc.StatusCode
    reason: str
    hidden: bool = False
    """The text stays on the server, as it may tell of its inside."""


KINDS = (  # the first that fits counts, so children come before their parents
    Kind(LimitExceeded, grpc.StatusCode.INVALID_ARGUMENT, "LIMIT_EXCEEDED"),
    Kind(InvalidList, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_LIST"),
    Kind(InputError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_INPUT"),
    Kind(ConfigError, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_CONFIG"),
    Kind(ModelNotFound, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
    Kind(ModelError, grpc.StatusCode.INTERNAL, "MODEL_BROKEN", hidden=True),
    Kind(Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    Kind(Unavailable, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    Kind(Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    Kind(PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    Kind(DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    Kind(ScoringError, grpc.StatusCode.INTERNAL, "SCORING_FAILED", hidden=True),
    Kind(ServiceError, grpc.StatusCode.UNKNOWN, "UNKNOWN", hidden=True),
)
BUG = Kind(ScoringError, grpc.StatusCode.INTERNAL, "INTERNAL", hidden=True)
"""Whatever nobody foresaw."""

FAULT_OF_REASON = {kind.reason: kind.fault for kind in (*KINDS, BUG)}
FAULT_OF_CODE = {kind.code.value[0]: kind.fault for kind in reversed((*KINDS, BUG))} | {
    grpc.StatusCode.CANCELLED.value[0]: Unavailable,  # gRPC's server stops; who cancels a call asks no more
    grpc.StatusCode.INVALID_ARGUMENT.value[0]: InputError,
    grpc.StatusCode.INTERNAL.value[0]: ScoringError,
}
"""For a status that does not say its reason, such as one that gRPC itself or a proxy made."""


def kind_of(fault: Exception) -> Kind:
    return next((kind for kind in KINDS if isinstance(fault, kind.fault)), BUG)


def status_from_error(
    fault: Exception, request_id: str = "", path: str = "", longest: int | None = None
) -> Status:
    """What the client is told of a fault.

    Args:
        request_id: the name under which the server's log has the rest.
        path: where in the request the offending list is, such as ``lists[2]``.
        longest: characters of each text in it, which may quote the request; None: all.
    """

    def cut(text: str) -> str:
        return text if longest is None or len(text) <= longest else text[: longest - 1] + "…"

    kind = kind_of(fault)
    message = (
        f"internal fault; the server's log has it as request {request_id}" if kind.hidden else cut(str(fault))
    )
    info = ErrorInfo(reason=kind.reason, domain=DOMAIN)
    if request_id:
        info.metadata["request_id"] = request_id
    for name in ("message", "list_id", "hypothesis", "field"):
        value = getattr(fault, name, None)
        if value not in (None, "") and not kind.hidden:
            info.metadata[name] = cut(str(value))
    status = Status(code=kind.code.value[0], message=message)
    status.details.add().Pack(info)
    if retry_ms := retry_after_ms(fault):
        delay = RetryInfo()
        delay.retry_delay.FromMilliseconds(retry_ms)
        status.details.add().Pack(delay)
    if place := field_path(fault, path):
        violation = BadRequest.FieldViolation(
            field=cut(place), description=cut(getattr(fault, "message", message))
        )
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    return status


def retry_after_ms(fault: Exception) -> int:
    """When to try again; 0 where the fault does not say."""
    return math.ceil(getattr(fault, "retry_after_s", 0.0) * 1e3)


def field_path(fault: Exception, path: str) -> str:
    """The offending field of the request; empty where no field is to blame.

    >>> field_path(InvalidList("nan", hypothesis=3, field='streams["acoustic"]'), "lists[2]")
    'lists[2].streams["acoustic"].values[3]'
    """
    field = getattr(fault, "field", "")
    hypothesis = getattr(fault, "hypothesis", None)
    if hypothesis is not None:
        if re.fullmatch(r'streams\[".*"\]', field):
            field = f"{field}.values[{hypothesis}]"
        else:
            field = f"hypotheses[{hypothesis}].{field}".rstrip(".")
    return ".".join(part for part in (path, field) if part)


def error_from_status(status: Status) -> RescorerError:
    """The fault that a status tells of, as an instance of the tree's own class."""
    if too_large := TOO_LARGE.search(status.message):
        sent, limit = too_large.groups()
        return LimitExceeded(f"a message of {sent} bytes; expected at most {limit} (max_message_bytes)")
    info = ErrorInfo()
    if not any(detail.Unpack(info) for detail in status.details if detail.Is(ErrorInfo.DESCRIPTOR)):
        info = ErrorInfo()
    known = info.domain == DOMAIN and info.reason in FAULT_OF_REASON
    kind = FAULT_OF_REASON[info.reason] if known else FAULT_OF_CODE.get(status.code, ServiceError)
    about = info.metadata
    message = about.get("message", status.message)
    if kind is InvalidList:
        hypothesis = int(about["hypothesis"]) if "hypothesis" in about else None
        list_id, field = about.get("list_id", ""), about.get("field", "")
        return InvalidList(message, list_id=list_id, hypothesis=hypothesis, field=field)
    if kind is LimitExceeded:
        return LimitExceeded(message, field=about.get("field", ""))
    if kind is Overloaded:
        delay = RetryInfo()
        any(detail.Unpack(delay) for detail in status.details if detail.Is(RetryInfo.DESCRIPTOR))
        return Overloaded(message, retry_after_s=delay.retry_delay.ToMilliseconds() / 1e3)
    return kind(message)
