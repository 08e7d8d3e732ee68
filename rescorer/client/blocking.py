"""Owns the blocking client."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

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

IN_FLIGHT = 4
"""Calls of a bulk: enough that the server never waits for the client, few enough to leave room for others."""


class Client:
    """Blocking client of one server or several alike; safe to share between threads.

    Args:
        target: ``host:port``, which may stand for several servers by its DNS entry, or several with commas.
            Calls take turns between those that are healthy.
        model: ask for this model, ``name`` or ``name/version``; empty: whichever is served.
        max_message_bytes: the server's limit; a larger request is refused before it is sent.
        tls: how to encrypt; None: plain text.
        token: tells a server that asks for it who calls; not sent in plain text beyond this machine.
        retry: when a call that failed is sent again; within ``timeout_s``, which bounds a call as a whole.
        connections: to each server, taken in turn; several are of use behind what balances connections.
        in_flight: calls that ``rescore_stream`` has open at a time.

    Raises:
        ConfigError: an address makes no sense, certificates cannot be read, or the token would be sent in
            plain text.
    """

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
            grpc,
            target,
            tls=tls,
            token=token,
            retry=retry,
            count=connections,
            max_message_bytes=max_message_bytes,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for each in self._connections.channels:
            each.close()

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Returns when a server serves; raises DeadlineExceeded, with the reason, where none does in time."""
        health: Any = HealthStub(self._connections.channels[0])
        try:
            with raising_faults():
                states = health.Watch(HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
                for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = self._why_unready(health)
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise Unavailable(f"{self._connections.target}: the server ended the health watch")

    def _why_unready(self, health: Any) -> str:
        """A call that does not wait is told what one that waits is not."""
        try:
            state = health.Check(HealthCheckRequest(), timeout=REASON_S)
        except grpc.RpcError as error:
            return why_unready(error)
        return HealthCheckResponse.ServingStatus.Name(state.status)

    def rescore(
        self,
        lists: Sequence[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        fallback: Fallback = "",
        timeout_s: float | None = 30.0,
    ) -> list[Answer]:
        """One call for all the lists; their answers in the same order.

        Args:
            lists: faults among them, as file readers yield them, are handed back in their places.
            weights: own ones, the name of a set of the bundle's, or None: its default.
            merge: make one of hypotheses whose words are equal.
            fallback: what to take where there is no time, ``ngram`` or ``first_pass``; ``degradation`` of an
                answer says where that was so. Empty: an error instead.
            timeout_s: None: wait for ever.

        Raises:
            RescorerError: the call as a whole failed.
        """
        items, request = self._requests.rescore(lists, Options(weights, merge, fallback))
        with raising_faults():
            response = self._connections.stub.Rescore(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return answers_of(response, items)

    def rescore_stream(
        self,
        lists: Iterable[Item],
        weights: Weights | str | None = None,
        *,
        merge: bool = False,
        fallback: Fallback = "",
        timeout_s: float | None = 60.0,
    ) -> Iterator[Answer]:
        """Bulk: answers in order, while later lists are read, sent and scored.

        Some lists a call and ``in_flight`` calls at a time: gRPC sends each again if it must, and several
        servers share them, where one stream would stay with one server and end with it. A full server is
        waited for.

        Args and Raises: as ``rescore``, of each call; what ``lists`` itself raises is raised here, after the
        answers to what came before.
        """
        options = Options(weights, merge, fallback)
        under_way: deque[Sent] = deque()
        faults: list[Exception] = []
        try:
            for sent in until_fault(self._requests.bulk(lists, options, timeout_s), faults):
                self._send(sent)
                under_way.append(sent)
                while under_way and (len(under_way) == self._in_flight or under_way[0].call.done()):
                    yield from self._answers(under_way[0])
                    under_way.popleft()
            while under_way:
                yield from self._answers(under_way[0])
                under_way.popleft()
        finally:
            for sent in under_way:
                sent.call.cancel()
        if faults:
            raise faults[0]

    def _send(self, sent: Sent) -> None:
        sent.call = self._connections.stub.Rescore.future(
            sent.request, timeout=sent.timeout_s, metadata=self._connections.metadata
        )

    def _answers(self, sent: Sent) -> list[Answer]:
        while True:
            try:
                with raising_faults():
                    return answers_of(sent.call.result(), sent.items)
            except Overloaded as fault:
                time.sleep(sent.pause_s(fault))
                self._send(sent)

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
            response = self._connections.stub.ScoreText(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return text_scores_of(response)

    def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """Every model in a server's memory, and those it refused, as in models.proto. Raises as ``rescore``.

        Servers may differ while they change models: each call asks the next one.
        """
        with raising_faults():
            response = self._connections.models.ListModels(
                models_pb2.ListModelsRequest(), timeout=timeout_s, metadata=self._connections.metadata
            )
        return list(response.models)

    def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """All that is known of one; empty: the default. Raises ModelNotFound where it is not served."""
        with raising_faults():
            response = self._connections.models.GetModel(
                models_pb2.GetModelRequest(model=model),
                timeout=timeout_s,
                metadata=self._connections.metadata,
            )
        return response.model
