"""Owns the id of a request, the client's own or a new one: in its lines of the log and in its answer."""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar

import grpc
import structlog

REQUEST_ID = "x-request-id"
"""Metadata by which a client names its request, and the server in its trailing metadata, too."""
ACCEPTED_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
"""Others would be a way to write into our logs."""

current_request: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the call that this task answers."""


def name_request(context: grpc.aio.ServicerContext) -> str:
    """The id of the call that this task answers; once asked for, it is logged and sent back."""
    request_id = current_request.get()
    if not request_id:
        request_id = given_id(context) or uuid.uuid4().hex
        current_request.set(request_id)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        context.set_trailing_metadata(((REQUEST_ID, request_id),))
    return request_id


def given_id(context: grpc.aio.ServicerContext) -> str:
    """The client's own id of the request; empty where it sent none that we take."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and ACCEPTED_ID.fullmatch(value):
            return value
    return ""
