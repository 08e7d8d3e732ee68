"""The id of a request, sent by the client or generated: in its log lines and in its answer."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

import grpc
import structlog

REQUEST_ID = "x-request-id"
"""Metadata key of the request id, in the client's metadata and in the server's trailing metadata."""
ACCEPTED_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
"""Ids that are accepted; others could forge log lines."""

current_request: ContextVar[str] = ContextVar("request_id", default="")
"""The request id of the call that this task answers."""


def bind_request_id(context: grpc.aio.ServicerContext) -> str:
    """Return the request id of the current call; the first use binds it to the log and sends it back."""
    request_id = current_request.get()
    if not request_id:
        request_id = read_request_id(context) or uuid.uuid4().hex
        current_request.set(request_id)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return request_id


def read_request_id(context: grpc.aio.ServicerContext) -> str:
    """Return the client's request id; empty if it sent none, or none that is accepted."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and ACCEPTED_ID.fullmatch(value):
            return value
    return ""
