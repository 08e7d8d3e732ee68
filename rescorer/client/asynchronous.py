"""Asyncio client, with the same methods as the blocking one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.client.blocking import DEFAULT_OPEN_CALLS
from rescorer.client.calls import (
    Answer,
    BulkCall,
    Item,
    RequestBuilder,
    convert_rpc_errors_async,
    iterate_until_error,
    read_answers,
    read_text_scores,
)
from rescorer.client.connection import UNREADY_REASON_TIMEOUT_S, Connections, Retry, describe_unready
from rescorer.client.identity import Tls, Token
from rescorer.client.request_options import Fallback, RequestOptions
from rescorer.conversation import Phrase
from rescorer.errors import DeadlineExceeded, Overloaded, Unavailable
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.missing_models import decode_missing_models
from rescorer.protocol.v1 import models_pb2
from rescorer.types import DecisionRule, TextScore, Weights


class AsyncClient:
    """Asyncio version of ``Client``; create it inside a running event loop."""

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: Token = "",
        retry: Retry = Retry(),  # noqa: B008  # frozen
        connections: int = 1,
        in_flight: int = DEFAULT_OPEN_CALLS,
    ) -> None:
        self._requests = RequestBuilder(model, max_message_bytes)
        self._max_open_calls = max(1, in_flight)
        self._connections = Connections(
            grpc.aio,
            target,
            tls=tls,
            token=token,
            retry=retry,
            count=connections,
            max_message_bytes=max_message_bytes,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        for channel in self._connections.channels:
            await channel.close()

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Like ``Client.wait_ready``."""
        health: Any = HealthStub(self._connections.channels[0])
        try:
            async with convert_rpc_errors_async(self._connections.diagnosis):
                states = health.Watch(HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
                async for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = await asyncio.to_thread(self._connections.diagnosis.explain)
            reason = reason or await self._find_unready_reason(health)
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise Unavailable(f"{self._connections.target}: the server ended the health check")

    async def missing_models(self, timeout_s: float = 30.0) -> tuple[str, ...]:
        """Like ``Client.missing_models``."""
        health: Any = HealthStub(self._connections.channels[0])
        async with convert_rpc_errors_async(self._connections.diagnosis):
            call = health.Check(HealthCheckRequest(), timeout=timeout_s)
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
        lists: Sequence[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        drop_empty: bool = False,
        generate: bool = False,
        fallback: Fallback = "",
        model: str = "",
        decision: DecisionRule | None = None,
        phrases: Sequence[Phrase] = (),
        phrase_lists: Sequence[str] = (),
        timeout_s: float | None = 30.0,
    ) -> list[Answer]:
        """Like ``Client.rescore``."""
        items, request = self._requests.rescore(
            lists,
            RequestOptions(
                weights, merge, drop_empty, fallback, model, decision, phrases, phrase_lists, generate
            ),
        )
        async with convert_rpc_errors_async(self._connections.diagnosis):
            response = await self._connections.stub.Rescore(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return read_answers(response, items)

    async def rescore_stream(
        self,
        lists: Iterable[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        drop_empty: bool = False,
        generate: bool = False,
        fallback: Fallback = "",
        model: str = "",
        decision: DecisionRule | None = None,
        phrases: Sequence[Phrase] = (),
        phrase_lists: Sequence[str] = (),
        timeout_s: float | None = 60.0,
    ) -> AsyncIterator[Answer]:
        """Like ``Client.rescore_stream``; ``lists`` is read in the event loop."""
        options = RequestOptions(
            weights, merge, drop_empty, fallback, model, decision, phrases, phrase_lists, generate
        )
        open_calls: deque[BulkCall] = deque()
        errors: list[Exception] = []
        try:
            for bulk_call in iterate_until_error(self._requests.bulk(lists, options, timeout_s), errors):
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
        texts: Sequence[str],
        context: str = "",
        weights: Weights | str | None = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> list[TextScore]:
        """Like ``Client.score_text``."""
        request = self._requests.score_text(texts, context, weights)
        async with convert_rpc_errors_async(self._connections.diagnosis):
            response = await self._connections.stub.ScoreText(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return read_text_scores(response)

    async def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """Like ``Client.list_models``."""
        async with convert_rpc_errors_async(self._connections.diagnosis):
            response = await self._connections.models.ListModels(
                models_pb2.ListModelsRequest(), timeout=timeout_s, metadata=self._connections.metadata
            )
        return list(response.models)

    async def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """Like ``Client.get_model``."""
        async with convert_rpc_errors_async(self._connections.diagnosis):
            response = await self._connections.models.GetModel(
                models_pb2.GetModelRequest(model=model),
                timeout=timeout_s,
                metadata=self._connections.metadata,
            )
        return response.model
