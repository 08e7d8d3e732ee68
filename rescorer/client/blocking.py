"""Blocking client."""

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
    BulkCall,
    Item,
    RequestBuilder,
    convert_rpc_errors,
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

DEFAULT_OPEN_CALLS = 4
"""Default number of calls in flight: keeps a server busy, but leaves capacity for other clients."""


class Client:
    """Blocking client of one server or of several equivalent servers; safe to share between threads.

    Args:
        target: ``host:port``, or several separated by commas; a host name may resolve to several servers.
            Calls are distributed round robin over the healthy servers.
        model: Model to request, ``name`` or ``name/version``; empty requests the default model.
        max_message_bytes: Maximum size of a message that the server accepts; larger requests fail without
            being sent.
        tls: TLS options; None sends plain text.
        token: Bearer token; never sent in plain text beyond this machine.
        retry: Policy for retrying failed calls. ``timeout_s`` of a call covers all of its attempts.
        connections: Number of connections, used in turn; more than one helps behind a load balancer that
            balances connections instead of calls.
        in_flight: Maximum number of calls that ``rescore_stream`` keeps in flight at once.

    Raises:
        ConfigError: If an address is invalid, a certificate cannot be read, or the token would be sent in
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
        in_flight: int = DEFAULT_OPEN_CALLS,
    ) -> None:
        self._requests = RequestBuilder(model, max_message_bytes)
        self._max_open_calls = max(1, in_flight)
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
        for channel in self._connections.channels:
            channel.close()

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until a server is ready.

        Raises:
            DeadlineExceeded: If no server becomes ready in time; the message gives the reason.
        """
        health: Any = HealthStub(self._connections.channels[0])
        try:
            with convert_rpc_errors(self._connections.diagnosis):
                states = health.Watch(HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
                for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = self._connections.diagnosis.explain() or self._find_unready_reason(health)
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise Unavailable(f"{self._connections.target}: the server ended the health check")

    def missing_models(self, timeout_s: float = 30.0) -> tuple[str, ...]:
        """Return the models, as ``name/version``, that the server serves from memory although its repository
        has lost them: it could not start again. The last one is ``...`` if there are too many to send."""
        health: Any = HealthStub(self._connections.channels[0])
        with convert_rpc_errors(self._connections.diagnosis):
            _, call = health.Check.with_call(HealthCheckRequest(), timeout=timeout_s)
        return decode_missing_models(call.trailing_metadata())

    def _find_unready_reason(self, health: Any) -> str:
        """Find the reason with a call that does not wait; gRPC reports none to calls that wait."""
        try:
            state = health.Check(HealthCheckRequest(), timeout=UNREADY_REASON_TIMEOUT_S)
        except grpc.RpcError as error:
            return describe_unready(error)
        return HealthCheckResponse.ServingStatus.Name(state.status)

    def rescore(
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
        """Rescore lists with a single call.

        Args:
            lists: N-best lists. May include errors, which file readers yield in place of invalid lists; they
                are returned at the same positions.
            weights: Weights, the name of one of the bundle's weights sets, or None for the bundle's default
                set.
            merge: Whether to merge hypotheses with equal words.
            drop_empty: Whether to drop hypotheses without words; the first one stays if all are empty.
            generate: Whether to add hypotheses with phrases in place of what sounds like them; their
                ``generated`` says how they were made.
            fallback: Degraded answer to accept if time runs out, ``ngram`` or ``first_pass``; the answer's
                ``degradation`` says whether it was used. If empty, no degraded answer is accepted.
            model: Model to request; empty for that of the client.
            decision: Rule by which the totals decide; None for that of the weights. Since hypotheses are sent
                without their fields, words of a consensus have no times.
            phrases: Names and phrases that are expected in all lists, besides the lists' own.
            phrase_lists: Names of the bundle's lists of phrases that are expected in all lists.
            timeout_s: Deadline of the call in seconds; None waits forever.

        Returns:
            One answer per list, in input order: the rescored list, or the error if it cannot be scored.

        Raises:
            RescorerError: If the call as a whole fails.
        """
        items, request = self._requests.rescore(
            lists,
            RequestOptions(
                weights, merge, drop_empty, fallback, model, decision, phrases, phrase_lists, generate
            ),
        )
        with convert_rpc_errors(self._connections.diagnosis):
            response = self._connections.stub.Rescore(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return read_answers(response, items)

    def rescore_stream(
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
    ) -> Iterator[Answer]:
        """Rescore many lists; yield their answers in input order while later lists are read and scored.

        Sends a few lists per call and keeps up to ``in_flight`` calls open. Unlike one gRPC stream, these
        calls can be retried individually and distributed over several servers. If a server is full, waits
        until it has capacity again.

        Takes the arguments of ``rescore``; ``timeout_s`` applies to each call. Raises the same errors as
        ``rescore``. If iterating over ``lists`` raises an error, it is raised after the answers to all calls
        built before it.
        """
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
                    yield from self._wait_for_answers(open_calls[0])
                    open_calls.popleft()
            while open_calls:
                yield from self._wait_for_answers(open_calls[0])
                open_calls.popleft()
        finally:
            for bulk_call in open_calls:
                bulk_call.call.cancel()
        if errors:
            raise errors[0]

    def _send(self, bulk_call: BulkCall) -> None:
        bulk_call.call = self._connections.stub.Rescore.future(
            bulk_call.request, timeout=bulk_call.timeout_s, metadata=self._connections.metadata
        )

    def _wait_for_answers(self, bulk_call: BulkCall) -> list[Answer]:
        while True:
            try:
                with convert_rpc_errors(self._connections.diagnosis):
                    return read_answers(bulk_call.call.result(), bulk_call.items)
            except Overloaded as error:
                time.sleep(bulk_call.retry_delay_s(error))
                self._send(bulk_call)

    def score_text(
        self,
        texts: Sequence[str],
        context: str = "",
        weights: Weights | str | None = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> list[TextScore]:
        """Compute the log-probability that each language model gives to each word of the texts.

        Args:
            texts: Texts to score.
            context: Words that precede each text in the same sentence.
            weights: As in ``rescore``; only the interpolation weights of the mixture matter.
            timeout_s: Deadline of the call in seconds; None waits forever.

        Raises:
            InputError: If a text cannot be encoded.
            RescorerError: If the call fails.
        """
        request = self._requests.score_text(texts, context, weights)
        with convert_rpc_errors(self._connections.diagnosis):
            response = self._connections.stub.ScoreText(
                request, timeout=timeout_s, metadata=self._connections.metadata
            )
        return read_text_scores(response)

    def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """List the models that a server has loaded or refused to load; see models.proto.

        With several servers, each call asks the next server; the answers may differ while models are being
        changed.

        Raises:
            RescorerError: If the call fails.
        """
        with convert_rpc_errors(self._connections.diagnosis):
            response = self._connections.models.ListModels(
                models_pb2.ListModelsRequest(), timeout=timeout_s, metadata=self._connections.metadata
            )
        return list(response.models)

    def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """Describe a model, by default the default model; see models.proto.

        Raises:
            ModelNotFound: If the model is not served.
            RescorerError: If the call fails for another reason.
        """
        with convert_rpc_errors(self._connections.diagnosis):
            response = self._connections.models.GetModel(
                models_pb2.GetModelRequest(model=model),
                timeout=timeout_s,
                metadata=self._connections.metadata,
            )
        return response.model
