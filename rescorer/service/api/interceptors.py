"""Decode the requests of each call, record its telemetry, and turn errors into gRPC statuses.

Without the interceptor gRPC would send the text of any exception to the client, with the code UNKNOWN.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from rescorer.errors import InputError
from rescorer.protocol.status import error_kind, retry_after_ms, status_from_error
from rescorer.runtime.profiling import Phase
from rescorer.service.api.call_telemetry import Call, Telemetry
from rescorer.service.api.caller import client_of
from rescorer.service.api.drain import Drain
from rescorer.service.limits.call_memory import CallMemory, current_memory
from rescorer.service.limits.refusal_pacing import RefusalPacer
from rescorer.service.observability.request_id import REQUEST_ID, bind_request_id
from rescorer.service.observability.timings import PhaseTiming, label

PUSHBACK = "grpc-retry-pushback-ms"
MAX_STATUS_TEXT_CHARS = 200
"""Longest text in a call's status. A status is sent in headers, which contain each text up to five times and
encoded, and gRPC's clients accept 8 KiB of headers; they would report a longer status as RESOURCE_EXHAUSTED
or CANCELLED."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Guard the methods of one service; other services, such as health and reflection, are not affected.

    Args:
        service: full name of the proto service.
        drain: counts the open calls.
        telemetry: records the calls.
        memory: bounds the bytes of requests and answers.
        pacer: spaces out the refusals of a client; shared by all services.
        max_response_bytes: size of an answer to reserve before its request is decoded.
    """

    def __init__(
        self,
        service: str,
        drain: Drain,
        telemetry: Telemetry,
        memory: CallMemory,
        pacer: RefusalPacer,
        max_response_bytes: int = 0,
    ) -> None:
        self._prefix = f"/{service}/"
        self._drain, self._telemetry = drain, telemetry
        self._memory, self._max_response_bytes = memory, max_response_bytes
        self._pacer = pacer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None or not path.startswith(self._prefix):
            return handler
        # gRPC passes requests and answers as bytes: decoding errors are caught here, and sizes are known.
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(self._guard_stream(handler, path))
        return grpc.unary_unary_rpc_method_handler(self._guard_unary(handler, path))

    def _guard_unary(self, handler: Any, path: str) -> Callable[..., Any]:
        async def answer(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            call = self._begin_call(path, context)
            async with guard(context, call, self._pacer):
                memory = await self._memory.open(client_of(context))
                await memory.hold(len(data) + self._max_response_bytes)
                response = await handler.unary_unary(decode(handler, data, call), context)
                answer: bytes = handler.response_serializer(response)
                memory.post(len(answer), len(data))
                return answer

        return answer

    def _guard_stream(self, handler: Any, path: str) -> Callable[..., AsyncIterator[bytes]]:
        async def answer(
            stream: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[bytes]:
            call = self._begin_call(path, context)
            async with guard(context, call, self._pacer):
                memory = await self._memory.open(client_of(context))

                async def read_requests() -> AsyncIterator[Any]:
                    async for data in stream:
                        await memory.hold(len(data) + self._max_response_bytes, wait=True)
                        yield decode(handler, data, call)

                async for response in handler.stream_stream(read_requests(), context):
                    answer: bytes = handler.response_serializer(response)
                    call.finish_message()
                    memory.post(len(answer))
                    yield answer  # returns when the client's flow control has let the answer through
                    memory.mark_read()

        return answer

    def _begin_call(self, path: str, context: grpc.aio.ServicerContext) -> Call:
        self._drain.add_call()
        return self._telemetry.begin(path, context)


def decode(handler: Any, data: bytes, call: Call) -> Any:
    """Decode a request message.

    Raises:
        InputError: If the bytes are not a valid message.
    """
    began_at = time.perf_counter()
    call.request_bytes = len(data)
    try:
        return handler.request_deserializer(data)
    except DecodeError:
        raise InputError(
            "the request cannot be decoded; expected a message of rescorer.v1 with texts in UTF-8"
        ) from None
    finally:
        call.record_timings([PhaseTiming(label(Phase.PARSE), began_at, time.perf_counter() - began_at)])


@asynccontextmanager
async def guard(context: grpc.aio.ServicerContext, call: Call, pacer: RefusalPacer) -> AsyncIterator[None]:
    """Finish the call, with the status of the error that is raised inside, if any."""
    try:
        yield
    except (asyncio.CancelledError, GeneratorExit):
        call.finish("call cancelled", grpc.StatusCode.CANCELLED.name)
        raise
    except Exception as error:
        kind = error_kind(error)
        call.finish("call failed" if kind.hidden else "call refused", kind.code.name, error)
        if (memory := current_memory.get(None)) is not None:
            memory.shrink(call.request_bytes)  # no answer will be made
        if delay_s := pacer.delay_s(client_of(context)):
            await asyncio.sleep(min(delay_s, (context.time_remaining() or math.inf) / 2))
        # Without the error's frames: they hold the request, and on Python 3.13 are in a cycle with the error.
        await abort(context, error.with_traceback(None))
    else:
        call.finish("call answered", grpc.StatusCode.OK.name)


async def abort(context: grpc.aio.ServicerContext, error: Exception) -> None:
    """Abort the call with the status of an error.

    The retry delay is sent in the trailing metadata, for gRPC's own retries, and in the status details.
    """
    request_id = bind_request_id(context)
    status = rpc_status.to_status(status_from_error(error, request_id, max_text_chars=MAX_STATUS_TEXT_CHARS))
    trailing = (*status.trailing_metadata, (REQUEST_ID, request_id))
    if retry_ms := retry_after_ms(error):
        trailing += ((PUSHBACK, str(retry_ms)),)
    await context.abort(status.code, status.details, trailing)
