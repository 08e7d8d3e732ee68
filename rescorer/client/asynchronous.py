"""Asyncio client, with the same methods as the blocking one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.client.calls import (
    Answer,
    convert_rpc_errors_async,
    raise_first_error,
    read_answers,
    read_text_scores,
)
from rescorer.client.connection import (
    UNREADY_REASON_TIMEOUT_S,
    ConnectionOptions,
    Connections,
    describe_unready,
)
from rescorer.client.requests import BulkCall, Item, RequestBuilder, check_timeout, iterate_until_error
from rescorer.errors import DeadlineExceeded, Overloaded, Unavailable
from rescorer.options import Fallback, RescoreOptions, Weighting
from rescorer.protocol.missing_models import decode_missing_models
from rescorer.protocol.v1 import models_pb2
from rescorer.types import RescoredList, TextScore


class AsyncClient:
    """Asyncio version of ``Client``; create it inside a running event loop."""

    def __init__(self, target: str, *, model: str = "", **connection: Any) -> None:
        options = ConnectionOptions.make(**connection)
        self._requests = RequestBuilder(model, options.max_message_bytes)
        self._max_open_calls = max(1, options.in_flight)
        self._connections = Connections(grpc.aio, target, options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        for channel in self._connections.channels:
            await channel.close()

    async def wait_ready(self, timeout_s: float | None = 30.0) -> None:
        """Like ``Client.wait_ready``."""
        timeout_s = check_timeout(timeout_s)
        health: Any = HealthStub(self._connections.channels[0])
        try:
            async with convert_rpc_errors_async(self._connections.diagnosis):
                states = health.Watch(
                    HealthCheckRequest(), timeout=check_timeout(timeout_s), wait_for_ready=True
                )
                async for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = await asyncio.to_thread(self._connections.diagnosis.explain)
            reason = reason or await self._find_unready_reason(health)
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise Unavailable(f"{self._connections.target}: the server ended the health check")

    async def missing_models(self, timeout_s: float | None = 30.0) -> tuple[str, ...]:
        """Like ``Client.missing_models``."""
        health: Any = HealthStub(self._connections.channels[0])
        async with convert_rpc_errors_async(self._connections.diagnosis):
            call = health.Check(HealthCheckRequest(), timeout=check_timeout(timeout_s))
            await call
            return decode_missing_models(await call.trailing_metadata())

    async def _find_unready_reason(self, health: Any) -> str:
        """Find the reason with a call that does not wait; gRPC reports none to calls that wait."""
        try:
            state = await health.Check(HealthCheckRequest(), timeout=UNREADY_REASON_TIMEOUT_S)
        except grpc.RpcError as error:
            return describe_unready(error)
        return HealthCheckResponse.ServingStatus.Name(state.status)

    async def rescore(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 30.0,
        fallback: Fallback = "",
        **changes: Any,
    ) -> list[RescoredList]:
        """Like ``Client.rescore``."""
        return raise_first_error(
            await self.rescore_each(lists, options, timeout_s=timeout_s, fallback=fallback, **changes)
        )

    async def rescore_each(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 30.0,
        fallback: Fallback = "",
        **changes: Any,
    ) -> list[Answer]:
        """Like ``Client.rescore_each``."""
        items, request = self._requests.rescore(lists, RescoreOptions.make(options, **changes), fallback)
        return read_answers(await self._call(self._connections.stub.Rescore, request, timeout_s), items)

    def rescore_stream(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 60.0,
        fallback: Fallback = "",
        **changes: Any,
    ) -> AsyncGenerator[Answer, None]:
        """Like ``Client.rescore_stream``; ``lists`` is read in the event loop."""
        options = RescoreOptions.make(options, **changes)
        return self._stream(self._requests.bulk(lists, options, fallback, timeout_s))

    async def _stream(self, calls: Iterator[BulkCall]) -> AsyncGenerator[Answer, None]:
        open_calls: deque[BulkCall] = deque()
        errors: list[Exception] = []
        try:
            for bulk_call in iterate_until_error(calls, errors):
                self._send(bulk_call)
                open_calls.append(bulk_call)
                while open_calls and (len(open_calls) == self._max_open_calls or open_calls[0].call.done()):
                    for answer in await self._wait_for_answers(open_calls[0]):
                        yield answer
                    open_calls.popleft()
                await asyncio.sleep(0)  # let other tasks run while lists are read
            while open_calls:
                for answer in await self._wait_for_answers(open_calls[0]):
                    yield answer
                open_calls.popleft()
        finally:
            for bulk_call in open_calls:
                bulk_call.call.cancel()
        if errors:
            raise errors[0]

    def _send(self, bulk_call: BulkCall) -> None:
        bulk_call.call = self._connections.stub.Rescore(
            bulk_call.request, timeout=bulk_call.timeout_s, metadata=self._connections.metadata
        )

    async def _wait_for_answers(self, bulk_call: BulkCall) -> list[Answer]:
        while True:
            try:
                async with convert_rpc_errors_async(self._connections.diagnosis):
                    return read_answers(await bulk_call.call, bulk_call.items)
            except Overloaded as error:
                await asyncio.sleep(bulk_call.retry_delay_s(error))
                self._send(bulk_call)

    async def score_text(
        self,
        texts: str | Sequence[str],
        context: str = "",
        weights: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> list[TextScore]:
        """Like ``Client.score_text``."""
        request = self._requests.score_text(texts, context, RescoreOptions.make(weights))
        return read_text_scores(await self._call(self._connections.stub.ScoreText, request, timeout_s))

    async def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """Like ``Client.list_models``."""
        request = models_pb2.ListModelsRequest()
        return list((await self._call(self._connections.models.ListModels, request, timeout_s)).models)

    async def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """Like ``Client.get_model``."""
        request = models_pb2.GetModelRequest(model=model)
        return (await self._call(self._connections.models.GetModel, request, timeout_s)).model

    async def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        timeout_s = check_timeout(timeout_s)
        async with convert_rpc_errors_async(self._connections.diagnosis):
            return await method(request, timeout=timeout_s, metadata=self._connections.metadata)
