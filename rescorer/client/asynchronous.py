"""Owns the asyncio client: the blocking one's methods as coroutines."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.client.blocking import IN_FLIGHT
from rescorer.client.calls import (
    Answer,
    Fallback,
    Item,
    Options,
    Requests,
    Sent,
    answers_of,
    raising_faults,
    text_scores_of,
    until_fault,
)
from rescorer.client.connection import REASON_S, Connections, Retry, why_unready
from rescorer.client.identity import Tls, Token
from rescorer.errors import DeadlineExceeded, Overloaded, Unavailable
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.v1 import models_pb2
from rescorer.types import TextScore, Weights


class AsyncClient:
    """``Client`` for asyncio; made inside a running event loop."""

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
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._requests = Requests(model, max_message_bytes)
        self._in_flight = max(1, in_flight)
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
        for each in self._connections.channels:
            await each.close()

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """As ``Client.wait_ready``."""
        health: Any = HealthStub(self._connections.channels[0])
        try:
            with raising_faults():
                states = health.Watch(HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
                async for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = await self._why_unready(health)
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise Unavailable(f"{self._connections.target}: the server ended the health watch")

    async def _why_unready(self, health: Any) -> str:
        """A call that does not wait is told what one that waits is not."""
        try:
            state = await health.Check(HealthCheckRequest(), timeout=REASON_S)
        except grpc.RpcError as error:
            return why_unready(error)
        return HealthCheckResponse.ServingStatus.Name(state.status)

    async def rescore(
        self,
        lists: Sequence[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        fallback: Fallback = "",
        timeout_s: float | None = 30.0,
    ) -> list[Answer]:
        """As ``Client.rescore``."""
        items, request = self._requests.rescore(lists, Options(weights, merge, fallback))
        with raising_faults():
            response = await self._connections.stub.Rescore(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return answers_of(response, items)

    async def rescore_stream(
        self,
        lists: Iterable[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        fallback: Fallback = "",
        timeout_s: float | None = 60.0,
    ) -> AsyncIterator[Answer]:
        """As ``Client.rescore_stream``; ``lists`` is read in the event loop."""
        options = Options(weights, merge, fallback)
        under_way: deque[Sent] = deque()
        faults: list[Exception] = []
        try:
            for sent in until_fault(self._requests.bulk(lists, options, timeout_s), faults):
                self._send(sent)
                under_way.append(sent)
                while under_way and (len(under_way) == self._in_flight or under_way[0].call.done()):
                    for answer in await self._answers(under_way[0]):
                        yield answer
                    under_way.popleft()
                await asyncio.sleep(0)  # whatever else the loop has to do, between the readings of lists
            while under_way:
                for answer in await self._answers(under_way[0]):
                    yield answer
                under_way.popleft()
        finally:
            for sent in under_way:
                sent.call.cancel()
        if faults:
            raise faults[0]

    def _send(self, sent: Sent) -> None:
        sent.call = self._connections.stub.Rescore(
            sent.request, timeout=sent.timeout_s, metadata=self._connections.metadata
        )

    async def _answers(self, sent: Sent) -> list[Answer]:
        while True:
            try:
                with raising_faults():
                    return answers_of(await sent.call, sent.items)
            except Overloaded as fault:
                await asyncio.sleep(sent.pause_s(fault))
                self._send(sent)

    async def score_text(
        self,
        texts: Sequence[str],
        context: str = "",
        weights: Weights | str | None = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> list[TextScore]:
        """As ``Client.score_text``."""
        request = self._requests.score_text(texts, context, weights)
        with raising_faults():
            response = await self._connections.stub.ScoreText(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return text_scores_of(response)

    async def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """As ``Client.list_models``."""
        with raising_faults():
            response = await self._connections.models.ListModels(
                models_pb2.ListModelsRequest(), timeout=timeout_s, metadata=self._connections.metadata
            )
        return list(response.models)

    async def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """As ``Client.get_model``."""
        with raising_faults():
            response = await self._connections.models.GetModel(
                models_pb2.GetModelRequest(model=model),
                timeout=timeout_s,
                metadata=self._connections.metadata,
            )
        return response.model
