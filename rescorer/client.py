"""Owns the Python client, blocking and asyncio: the library's own types in and out, its own faults raised.

    with Client("127.0.0.1:50051") as client:
        client.wait_ready(timeout_s=30)
        for answer in client.rescore_stream(lists):
            ...

Needs neither torch nor kenlm. A list that cannot be scored is answered by its fault, in its place; what
concerns a whole call is raised: ``Overloaded``, ``Unavailable``, ``DeadlineExceeded``, ``ConfigError``…
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.errors import Unavailable
from rescorer.service import MAX_MESSAGE_BYTES
from rescorer.service.calls import (
    Answer,
    Item,
    Requests,
    answers_of,
    raising_faults,
    text_scores_of,
)
from rescorer.service.channel import Tls, Token, check_token, metadata
from rescorer.service.v1 import rescorer_pb2 as pb
from rescorer.service.v1.rescorer_pb2_grpc import RescorerServiceStub
from rescorer.types import TextScore, Weights

LOOK_AHEAD = 4
"""Messages of a stream sent and not yet answered: the server's worker never waits for the client, and memory
stays bounded."""
OPTIONS = (
    # Answers are longer than questions, and the server is trusted.
    ("grpc.max_receive_message_length", -1),
    # A server that is just starting is found soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


class Client:
    """Blocking client of one server; safe to share between threads.

    Args:
        target: ``host:port``.
        model: ask for this model, ``name`` or ``name/version``; empty: whichever is served.
        max_message_bytes: the server's limit; a larger request is refused before it is sent.
        tls: how to encrypt; None: plain text.
        token: tells a server that asks for it who calls; not sent in plain text beyond this machine.

    Raises:
        ConfigError: certificates cannot be read, or the token would be sent in plain text.
    """

    def __init__(
        self,
        target: str,
        *,
        model: str = "",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
        token: Token = "",
    ) -> None:
        check_token(target, tls, token)
        self._token = token
        self._requests = Requests(model, max_message_bytes)
        if tls is None:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, tls.credentials(), options=(*OPTIONS, *tls.options))
        self._stub = RescorerServiceStub(self._channel)
        self._health = HealthStub(self._channel)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Returns when the server serves; raises DeadlineExceeded where it does not in time."""
        with raising_faults():
            states = self._health.Watch(HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)  # type: ignore[attr-defined]  # missing from the stubs
            for state in states:
                if state.status == HealthCheckResponse.SERVING:
                    states.cancel()
                    return
        raise Unavailable("the server ended the health watch")

    def rescore(
        self,
        lists: Sequence[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        timeout_s: float | None = 30.0,
    ) -> list[Answer]:
        """One call for all the lists; their answers in the same order.

        Args:
            lists: faults among them, as file readers yield them, are handed back in their places.
            weights: own ones, the name of a set of the bundle's, or None: its default.
            merge: make one of hypotheses whose words are equal.
            timeout_s: None: wait for ever.

        Raises:
            RescorerError: the call as a whole failed.
        """
        items, request = self._requests.rescore(lists, weights, merge)
        with raising_faults():
            response = self._stub.Rescore(request, timeout=timeout_s, metadata=metadata(self._token))
        return answers_of(response, items)

    def rescore_stream(
        self,
        lists: Iterable[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[Answer]:
        """Bulk: answers in order, while later lists are read (in another thread), sent and scored.

        Args and Raises: as ``rescore``, of each message; what ``lists`` itself raises is raised here.
        """
        sent: deque[Sequence[Item]] = deque()
        room = threading.Semaphore(LOOK_AHEAD)
        failed: list[Exception] = []

        def requests() -> Iterator[pb.RescoreStreamRequest]:
            try:
                for batch, request in self._requests.stream(lists, weights, merge):
                    room.acquire()
                    sent.append(batch)
                    yield request
            except Exception as fault:  # gRPC would keep it to itself
                failed.append(fault)

        call = self._stub.RescoreStream(requests(), timeout=timeout_s, metadata=metadata(self._token))
        try:
            with raising_faults():
                for response in call:
                    yield from answers_of(response, sent.popleft())
                    room.release()
            if failed:
                raise failed[0]
        finally:
            call.cancel()
            room.release(LOOK_AHEAD)  # lets a waiting sender see that the call is gone

    def score_text(
        self,
        texts: Sequence[str],
        context: str = "",
        weights: Weights | str | None = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> list[TextScore]:
        """Every model's log-probability of each word; of the weights only λ matter. Raises as ``rescore``."""
        request = self._requests.score_text(texts, context, weights)
        with raising_faults():
            response = self._stub.ScoreText(request, timeout=timeout_s, metadata=metadata(self._token))
        return text_scores_of(response)


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
    ) -> None:
        check_token(target, tls, token)
        self._token = token
        self._requests = Requests(model, max_message_bytes)
        if tls is None:
            self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(
                target, tls.credentials(), options=(*OPTIONS, *tls.options)
            )
        self._stub: Any = RescorerServiceStub(self._channel)
        self._health: Any = HealthStub(self._channel)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """As ``Client.wait_ready``."""
        with raising_faults():
            states = self._health.Watch(HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
            async for state in states:
                if state.status == HealthCheckResponse.SERVING:
                    states.cancel()
                    return
        raise Unavailable("the server ended the health watch")

    async def rescore(
        self,
        lists: Sequence[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        timeout_s: float | None = 30.0,
    ) -> list[Answer]:
        """As ``Client.rescore``."""
        items, request = self._requests.rescore(lists, weights, merge)
        with raising_faults():
            response = await self._stub.Rescore(request, timeout=timeout_s, metadata=metadata(self._token))
        return answers_of(response, items)

    async def rescore_stream(
        self,
        lists: Iterable[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Answer]:
        """As ``Client.rescore_stream``; ``lists`` is read in the event loop."""
        sent: deque[Sequence[Item]] = deque()
        room = asyncio.Semaphore(LOOK_AHEAD)
        failed: list[Exception] = []

        async def requests() -> AsyncIterator[pb.RescoreStreamRequest]:
            try:
                for batch, request in self._requests.stream(lists, weights, merge):
                    await room.acquire()
                    sent.append(batch)
                    yield request
            except Exception as fault:
                failed.append(fault)

        call = self._stub.RescoreStream(requests(), timeout=timeout_s, metadata=metadata(self._token))
        try:
            with raising_faults():
                async for response in call:
                    for answer in answers_of(response, sent.popleft()):
                        yield answer
                    room.release()
            if failed:
                raise failed[0]
        finally:
            call.cancel()

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
            response = await self._stub.ScoreText(request, timeout=timeout_s, metadata=metadata(self._token))
        return text_scores_of(response)
