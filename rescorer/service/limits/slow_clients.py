"""End calls whose clients do not send their request, or do not read the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rescorer.service.limits.arrivals import Arrivals


class SlowClientInterceptor(grpc.aio.ServerInterceptor):
    """Bound the time that calls wait for their clients; the first interceptor, because it reads the requests.

    gRPC waits for ever, and reads the request of a unary call before the method and its limits are reached.

    Args:
        max_request_s: longest time until the request of a call that is not a stream has arrived.
        max_idle_s: longest time for which a message of a stream may wait to be read.
        max_arriving: largest number of requests of calls that are not streams that arrive at the same time.
        silent_services: services whose streams end without an error after ``max_idle_s`` without a request.
    """

    def __init__(
        self, max_request_s: float, max_idle_s: float, max_arriving: int, silent_services: Collection[str]
    ) -> None:
        self._arrivals = Arrivals(max_arriving)
        self._max_request_s, self._max_idle_s = max_request_s, max_idle_s
        self._silent_services = frozenset(silent_services)
        self._ending: set[asyncio.Task[None]] = set()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        converters = handler.request_deserializer, handler.response_serializer
        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(self._read_one(handler.unary_unary), *converters)
        if not handler.request_streaming:
            behaviour = self._read_one_for_stream(handler.unary_stream)
        elif handler_call_details.method.split("/")[1] in self._silent_services:
            behaviour = self._read_until_idle(handler.stream_stream)
        else:
            behaviour = handler.stream_stream
        return grpc.stream_stream_rpc_method_handler(self._end_unread(behaviour), *converters)

    def _read_one(self, behaviour: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
            try:
                return await behaviour(await self._read_request(context), context)
            except grpc.aio.AbortError as error:
                raise without_frames(error)  # noqa: B904 (it is the same error)

        return answer

    def _read_one_for_stream(
        self, behaviour: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def answer(
            requests: AsyncIterator[Any], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[Any]:
            request = await self._read_request(context)
            async for response in behaviour(request, context):
                yield response

        return answer

    def _read_until_idle(
        self, behaviour: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        async def read(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            with suppress(TimeoutError, StopAsyncIteration):
                while True:
                    async with asyncio.timeout(self._max_idle_s):
                        request = await read_or_abort(anext(requests), context)
                    yield request

        return lambda requests, context: behaviour(read(requests, context), context)

    def _end_unread(self, behaviour: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def answer(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            begun = False
            try:
                async for response in behaviour(requests, context):
                    if not begun:  # a status cannot be sent while a message waits together with the headers
                        await context.send_initial_metadata(())
                        begun = True
                    with self._end_unless_read(context):
                        yield response
            except grpc.aio.AbortError as error:
                raise without_frames(error)  # noqa: B904 (it is the same error)

        return answer

    async def _read_request(self, context: grpc.aio.ServicerContext) -> Any:
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._max_request_s) as timeout, self._arrivals.hold(timeout):
                # gRPC's iterator of requests would be in a reference cycle with the call and its answer.
                request = await read_or_abort(context.read(), context)
        except TimeoutError:
            if time.monotonic() - began < self._max_request_s:
                reason = "the request arrives slowly, and others wait for its place; try again later"
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
            reason = f"the request did not arrive within {self._max_request_s:g} s (max_wait_s)"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
        if request is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no message; expected one")
        return request

    @contextmanager
    def _end_unless_read(self, context: grpc.aio.ServicerContext) -> Iterator[None]:
        """End the call of the current task if the block, in which gRPC writes a message, takes too long."""
        call, loop = asyncio.current_task(), asyncio.get_running_loop()

        def end() -> None:
            ending = loop.create_task(self._end(context, call))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

        timer = loop.call_later(self._max_idle_s, end)
        try:
            yield
        finally:
            timer.cancel()

    async def _end(self, context: grpc.aio.ServicerContext, call: asyncio.Task[Any] | None) -> None:
        """Send a status, which a client that reads later finds after the message, and stop the method."""
        if call is not None:
            call.cancel()
        reason = f"a message was not read for {self._max_idle_s:g} s (max_idle_s); open the stream again"
        with suppress(grpc.aio.AbortError):
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)


async def read_or_abort(read: Awaitable[Any], context: grpc.aio.ServicerContext) -> Any:
    """Return the next message; gRPC itself would send the exception of one that cannot be decoded."""
    try:
        return await read
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request cannot be decoded")


def without_frames(error: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Remove the frames of an aborted call from its error.

    gRPC keeps the error in a reference cycle. With its frames, the request would stay in memory until the
    next full garbage collection, which counts objects and not bytes: thousands of refused requests later.
    """
    error.__context__ = None
    return error.with_traceback(None)
