"""Owns what surrounds every call: decoding, the request id, one log line, and faults turned into statuses.

Without it gRPC would send the text of any exception to the client, as UNKNOWN.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rescorer.errors import InputError
from rescorer.service.drain import Drain
from rescorer.service.faults import kind_of, retry_after_ms, status_of

REQUEST_ID = "x-request-id"
"""Metadata by which a client names its request."""
PUSHBACK = "grpc-retry-pushback-ms"
ACCEPTED_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
"""Others would be a way to write into our logs."""

log = structlog.get_logger()

current_request: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the call that this task answers."""


class FaultInterceptor(grpc.aio.ServerInterceptor):
    """Guards the methods of one service; health and reflection are left alone.

    Args:
        service: full name of the proto service.
        drain: counts the calls.
    """

    def __init__(self, service: str, drain: Drain) -> None:
        self._prefix = f"/{service}/"
        self._drain = drain

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(self._prefix):
            return handler
        method = method.removeprefix(self._prefix)
        # Messages arrive here as bytes: decoding is inside the guard, too.
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                guarded_stream(handler, method, self._drain), None, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            guarded_unary(handler, method, self._drain), None, handler.response_serializer
        )


def guarded_unary(handler: Any, method: str, drain: Drain) -> Callable[..., Awaitable[Any]]:
    async def call(data: bytes, context: grpc.aio.ServicerContext) -> Any:
        drain.opened(context)
        async with guard(context, method):
            return await handler.unary_unary(decoded(handler, data), context)

    return call


def guarded_stream(handler: Any, method: str, drain: Drain) -> Callable[..., AsyncIterator[Any]]:
    async def call(stream: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        drain.opened(context)
        async with guard(context, method):
            requests = (decoded(handler, data) async for data in stream)
            async for response in handler.stream_stream(requests, context):
                yield response

    return call


def decoded(handler: Any, data: bytes) -> Any:
    try:
        return handler.request_deserializer(data)
    except DecodeError:
        raise InputError(
            "the request cannot be decoded; expected a message of rescorer.v1, texts in UTF-8"
        ) from None


@asynccontextmanager
async def guard(context: grpc.aio.ServicerContext, method: str) -> AsyncIterator[None]:
    """Ends the call with the status of whatever fault is raised inside."""
    request_id = request_id_of(context)
    current_request.set(request_id)
    began = time.perf_counter()
    call_log = log.bind(request_id=request_id, method=method)

    def ms() -> float:
        return round((time.perf_counter() - began) * 1e3, 3)

    try:
        yield
    except asyncio.CancelledError:
        call_log.info("call is gone", ms=ms())
        raise
    except Exception as fault:
        kind = kind_of(fault)
        if kind.hidden:
            call_log.error("call failed", code=kind.code.name, ms=ms(), exc_info=fault)
        else:
            call_log.info("call refused", code=kind.code.name, ms=ms(), reason=kind.reason, fault=str(fault))
        await abort(context, fault, request_id)
    else:
        call_log.info("call answered", code="OK", ms=ms())


async def abort(context: grpc.aio.ServicerContext, fault: Exception, request_id: str) -> None:
    """Ends the call; gRPC's own retries obey the trailing metadata, other callers read the details."""
    status = rpc_status.to_status(status_of(fault, request_id))
    trailing = tuple(status.trailing_metadata)
    if retry_ms := retry_after_ms(fault):
        trailing += ((PUSHBACK, str(retry_ms)),)
    await context.abort(status.code, status.details, trailing)


def request_id_of(context: grpc.aio.ServicerContext) -> str:
    """The client's own id of the request, or a new one."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and ACCEPTED_ID.fullmatch(value):
            return value
    return uuid.uuid4().hex
