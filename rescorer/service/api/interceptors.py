"""Owns what surrounds every call: decoding, watching it to its end, and faults turned into statuses.

Without it gRPC would send the text of any exception to the client, as UNKNOWN.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rescorer.errors import InputError
from rescorer.profiling import Phase
from rescorer.protocol.status import kind_of, retry_after_ms, status_from_error
from rescorer.service.api.call_telemetry import Call, Telemetry
from rescorer.service.api.drain import Drain
from rescorer.service.observability.request_id import REQUEST_ID, bind_request_id
from rescorer.service.observability.timings import PhaseTiming, label

PUSHBACK = "grpc-retry-pushback-ms"
LONGEST_TEXT = 200
"""Characters of each text in a call's status. It travels in headers, each text up to five times and encoded,
of which gRPC's clients take 8 KiB: a longer one would reach them as RESOURCE_EXHAUSTED or CANCELLED."""


class FaultInterceptor(grpc.aio.ServerInterceptor):
    """Guards the methods of one service; health and reflection are left alone.

    Args:
        service: full name of the proto service.
        drain: counts the calls.
        telemetry: watches them.
    """

    def __init__(self, service: str, drain: Drain, telemetry: Telemetry) -> None:
        self._prefix = f"/{service}/"
        self._drain, self._telemetry = drain, telemetry

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(self._prefix):
            return handler
        # Messages arrive here as bytes: decoding is inside the guard, too.
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._guarded_stream(handler, path), None, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._guarded_unary(handler, path), None, handler.response_serializer
        )

    def _guarded_unary(self, handler: Any, path: str) -> Callable[..., Awaitable[Any]]:
        async def answer(data: bytes, context: grpc.aio.ServicerContext) -> Any:
            call = self._opened(path, context)
            async with guard(context, call):
                return await handler.unary_unary(decoded(handler, data, call), context)

        return answer

    def _guarded_stream(self, handler: Any, path: str) -> Callable[..., AsyncIterator[Any]]:
        async def answer(
            stream: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[Any]:
            call = self._opened(path, context)
            async with guard(context, call):
                requests = (decoded(handler, data, call) async for data in stream)
                async for response in handler.stream_stream(requests, context):
                    call.message_ended()
                    yield response

        return answer

    def _opened(self, path: str, context: grpc.aio.ServicerContext) -> Call:
        self._drain.opened(context)
        return self._telemetry.began(path, context)


def decoded(handler: Any, data: bytes, call: Call) -> Any:
    began = time.perf_counter()
    try:
        return handler.request_deserializer(data)
    except DecodeError:
        raise InputError(
            "the request cannot be decoded; expected a message of rescorer.v1, texts in UTF-8"
        ) from None
    finally:
        call.did([PhaseTiming(label(Phase.PARSE), began, time.perf_counter() - began)])


@asynccontextmanager
async def guard(context: grpc.aio.ServicerContext, call: Call) -> AsyncIterator[None]:
    """Ends the call with the status of whatever fault is raised inside."""
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        call.ended("call is gone", grpc.StatusCode.CANCELLED.name)
        raise
    except Exception as fault:
        kind = kind_of(fault)
        call.ended("call failed" if kind.hidden else "call refused", kind.code.name, fault)
        await abort(context, fault)
    else:
        call.ended("call answered", grpc.StatusCode.OK.name)


async def abort(context: grpc.aio.ServicerContext, fault: Exception) -> None:
    """Ends the call; gRPC's own retries obey the trailing metadata, other callers read the details."""
    request_id = bind_request_id(context)
    status = rpc_status.to_status(status_from_error(fault, request_id, longest=LONGEST_TEXT))
    trailing = (*status.trailing_metadata, (REQUEST_ID, request_id))
    if retry_ms := retry_after_ms(fault):
        trailing += ((PUSHBACK, str(retry_ms)),)
    await context.abort(status.code, status.details, trailing)
