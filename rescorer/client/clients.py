"""The blocking client and the asyncio client. ``BaseClient`` has the code that never waits for a server."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.client.calls import (
    Answer,
    Attempts,
    BulkCall,
    Item,
    RequestBuilder,
    check_timeout,
    convert_rpc_errors,
    convert_rpc_errors_async,
    iterate_until_error,
    raise_first_error,
    read_answers,
)
from rescorer.client.connection import (
    UNREADY_REASON_TIMEOUT_S,
    ConnectionOptions,
    Connections,
    describe_unready,
)
from rescorer.errors import ConfigError, DeadlineExceeded, Overloaded, Unavailable
from rescorer.protocol.messages import LIVENESS, decode_missing_models, text_score_from_proto
from rescorer.protocol.v1 import models_pb2
from rescorer.scoring.options import Fallback, RescoreOptions, Weighting
from rescorer.types import RescoredList, TextScore


class BaseClient:
    """The code that both clients share. None of it waits for a server."""

    _channels: Any
    """The module that creates channels: ``grpc`` or ``grpc.aio``."""

    def __init__(self, target: str, *, model: str = "", **connection: Any) -> None:
        options = ConnectionOptions.make(**connection)
        self._requests = RequestBuilder(model, options.max_message_bytes)
        self._max_open_calls = max(1, options.in_flight)
        self._n_attempts = options.retry.attempts if options.repeats_refused else 1  # apart from gRPC's
        self._connections = Connections(self._channels, target, options)
        self._health: Any = HealthStub(self._connections.channels[0])

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied to another process, because its connections belong to "
            "this one; make one in each process from the same target"
        )

    def _watch_health(self, timeout_s: float | None) -> Any:
        return self._health.Watch(HealthCheckRequest(), timeout=check_timeout(timeout_s), wait_for_ready=True)

    def _ended_error(self) -> Unavailable:
        return Unavailable(f"{self._connections.target}: the server ended the health check")

    def _plan_attempts(self, timeout_s: float | None) -> Attempts:
        timeout_s = check_timeout(timeout_s)
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        return Attempts(self._n_attempts, deadline_s)

    def _begin(self, request: Any, timeout_s: float | None) -> Any:
        """Send a request to rescore lists. Return a future or awaitable without waiting for the answer."""
        raise NotImplementedError

    def _send(self, bulk_call: BulkCall) -> None:
        bulk_call.call = self._begin(bulk_call.request, bulk_call.timeout_s)

    def _send_all(self, calls: Iterator[BulkCall]) -> Generator[BulkCall | None, None, None]:
        """Send calls one by one. Yield None after each is sent, and a call when its answers should be read.

        If ``calls`` raises an error, the answers to the earlier calls are read before it is raised. When the
        generator is closed, the open calls are cancelled.
        """
        open_calls: deque[BulkCall] = deque()
        errors: list[Exception] = []
        try:
            for bulk_call in iterate_until_error(calls, errors):
                self._send(bulk_call)
                open_calls.append(bulk_call)
                while open_calls and (len(open_calls) == self._max_open_calls or open_calls[0].call.done()):
                    yield open_calls[0]
                    open_calls.popleft()
                yield None
            while open_calls:
                yield open_calls[0]
                open_calls.popleft()
        finally:
            for bulk_call in open_calls:
                bulk_call.call.cancel()
        if errors:
            raise errors[0]


class Client(BaseClient):
    """Blocking client of one server or of several equivalent servers; safe to share between threads.

    Args:
        target: ``host:port``, or several separated by commas; a host name may resolve to several servers.
            Calls are distributed round robin over the healthy servers.
        model: Model to request, ``name`` or ``name/version``; empty requests the default model.
        connection: Fields of ``ConnectionOptions``: ``tls``, ``token``, ``retry``, ``connections``,
            ``in_flight``, ``max_message_bytes``, ``only_ready``.

    Raises:
        ConfigError: an address is invalid, a certificate cannot be read, or the token would be sent in
            plain text.
        TypeError: an argument is unknown or has the wrong type.
    """

    _channels = grpc

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        for channel in self._connections.channels:
            channel.close()

    def wait_ready(self, timeout_s: float | None = 30.0) -> None:
        """Wait until a server is ready.

        Raises:
            DeadlineExceeded: no server becomes ready in time; the message gives the reason.
        """
        try:
            with convert_rpc_errors(self._connections.diagnosis):
                states = self._watch_health(timeout_s)
                for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = self._connections.diagnosis.explain() or self._find_unready_reason()
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise self._ended_error()

    def check_alive(self, timeout_s: float | None = 30.0) -> None:
        """Check that a server answers at all. Unless ``only_ready`` is False, only a ready one is asked.

        Raises:
            DeadlineExceeded, Unavailable: no server answers.
        """
        with convert_rpc_errors(self._connections.diagnosis):
            self._health.Check(HealthCheckRequest(service=LIVENESS), timeout=check_timeout(timeout_s))

    def missing_models(self, timeout_s: float | None = 30.0) -> tuple[str, ...]:
        """Return the models, as ``name/version``, that the server serves although their files are lost.

        These models are only in the server's memory, so it could not start again. The last name is ``...`` if
        there are too many to send.
        """
        with convert_rpc_errors(self._connections.diagnosis):
            _, call = self._health.Check.with_call(HealthCheckRequest(), timeout=check_timeout(timeout_s))
        return decode_missing_models(call.trailing_metadata())

    def _find_unready_reason(self) -> str:
        """Return why no server is ready. A call that does not wait finds this out, because gRPC gives no
        reason to calls that wait."""
        try:
            state = self._health.Check(HealthCheckRequest(), timeout=UNREADY_REASON_TIMEOUT_S)
        except grpc.RpcError as error:
            return describe_unready(error)
        return HealthCheckResponse.ServingStatus.Name(state.status)

    def rescore(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 30.0,
        fallback: Fallback = "",
        **changes: Any,
    ) -> list[RescoredList]:
        """Rescore lists with a single call.

        Args:
            lists: N-best lists, or one list alone. May include errors, which file readers yield in place of
                invalid lists.
            options: How to rescore. May also be only weights, or the name of a weights set of the bundle;
                None: the bundle's default weights. A model that the options name is used instead of the
                client's. User-defined fields of hypotheses are not sent, so the words of a consensus have no
                times.
            timeout_s: Deadline of the call in seconds; None waits forever.
            fallback: Degraded answer to accept if time runs out, ``ngram`` or ``first_pass``; the answer's
                ``degradation`` says whether it was used. If empty, no degraded answer is accepted.
            changes: Fields of ``RescoreOptions`` to set or to change, such as ``merge=True``.

        Returns:
            One rescored list per list, in input order.

        Raises:
            InputError: a list cannot be scored, or an error was given in its place; the first such error is
                raised. Use ``rescore_each`` to have the other lists scored.
            RescorerError: the call as a whole fails.
            TypeError: an argument has the wrong type.
        """
        return raise_first_error(
            self.rescore_each(lists, options, timeout_s=timeout_s, fallback=fallback, **changes)
        )

    def rescore_each(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 30.0,
        fallback: Fallback = "",
        **changes: Any,
    ) -> list[Answer]:
        """Like ``rescore``, but return an error in place of each list that cannot be scored."""
        items, request = self._requests.rescore(lists, RescoreOptions.make(options, **changes), fallback)
        return read_answers(self._call(self._connections.stub.Rescore, request, timeout_s), items)

    def rescore_stream(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 60.0,
        fallback: Fallback = "",
        **changes: Any,
    ) -> Iterator[Answer]:
        """Rescore many lists; yield their answers in input order while later lists are read and scored.

        Sends a few lists per call and keeps up to ``in_flight`` calls open. Unlike one gRPC stream, these
        calls can be retried individually and distributed over several servers. If a server is full, the
        client waits and sends the call again until ``timeout_s`` is over, even with ``NO_RETRY``.

        Takes the arguments of ``rescore``; ``timeout_s`` applies to each call. Like ``rescore_each``, yields
        an error in place of each list that cannot be scored. If a call fails, or iterating over ``lists``
        raises an error, the answers to the earlier calls are yielded before the error is raised.
        """
        options = RescoreOptions.make(options, **changes)
        return self._stream(self._requests.bulk(lists, options, fallback, timeout_s))

    def _stream(self, calls: Iterator[BulkCall]) -> Iterator[Answer]:
        with closing(self._send_all(calls)) as sent:
            for bulk_call in sent:
                if bulk_call is not None:
                    yield from self._wait_for_answers(bulk_call)

    def _begin(self, request: Any, timeout_s: float | None) -> Any:
        metadata = self._connections.metadata
        return self._connections.stub.Rescore.future(request, timeout=timeout_s, metadata=metadata)

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
        texts: str | Sequence[str],
        context: str = "",
        weights: RescoreOptions | Weighting = None,
        *,
        timeout_s: float | None = 30.0,
    ) -> list[TextScore]:
        """Compute the log-probability that each language model gives to each word of the texts.

        Args:
            texts: Texts to score, or one text alone.
            context: Words that precede each text in the same sentence.
            weights: Weights or their name. Only their interpolation weights of the mixture are used. May also
                be options, of which only the weights and the model are used.
            timeout_s: Deadline of the call in seconds; None waits forever.

        Raises:
            InputError: a text cannot be encoded.
            RescorerError: the call fails.
            TypeError: an argument has the wrong type.
        """
        request = self._requests.score_text(texts, context, RescoreOptions.make(weights))
        response = self._call(self._connections.stub.ScoreText, request, timeout_s)
        return list(map(text_score_from_proto, response.scores))

    def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """List the models that a server has loaded or refused to load; see models.proto.

        With several servers, each call asks the next server; the answers may differ while models are being
        changed.

        Raises:
            RescorerError: the call fails.
        """
        request = models_pb2.ListModelsRequest()
        return list(self._call(self._connections.models.ListModels, request, timeout_s).models)

    def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """Describe a model; an empty name means the server's default model. See models.proto.

        Raises:
            ModelNotFound: the model is not served.
            RescorerError: the call fails for another reason.
        """
        request = models_pb2.GetModelRequest(model=model)
        return self._call(self._connections.models.GetModel, request, timeout_s).model

    def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        attempts = self._plan_attempts(timeout_s)
        while True:
            try:
                with convert_rpc_errors(self._connections.diagnosis):
                    return method(request, timeout=attempts.timeout_s, metadata=self._connections.metadata)
            except Overloaded as error:
                time.sleep(attempts.retry_delay_s(error))


class AsyncClient(BaseClient):
    """Asyncio version of ``Client``. It belongs to the event loop in which it is created.

    Raises:
        ConfigError: as in ``Client``, or no event loop is running.
    """

    _channels = grpc.aio

    def __init__(self, target: str, *, model: str = "", **connection: Any) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "no event loop is running; create an AsyncClient inside the coroutine that asyncio.run runs"
            ) from None
        super().__init__(target, model=model, **connection)

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError("this AsyncClient belongs to another event loop; create one in each loop")

    def _watch_health(self, timeout_s: float | None) -> Any:
        self._check_loop()
        return super()._watch_health(timeout_s)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        for channel in self._connections.channels:
            await channel.close()

    async def wait_ready(self, timeout_s: float | None = 30.0) -> None:
        """Like ``Client.wait_ready``."""
        try:
            async with convert_rpc_errors_async(self._connections.diagnosis):
                states = self._watch_health(timeout_s)
                async for state in states:
                    if state.status == HealthCheckResponse.SERVING:
                        states.cancel()
                        return
        except DeadlineExceeded:
            reason = await asyncio.to_thread(self._connections.diagnosis.explain)
            reason = reason or await self._find_unready_reason()
            raise DeadlineExceeded(f"{self._connections.target}: {reason}") from None
        raise self._ended_error()

    async def check_alive(self, timeout_s: float | None = 30.0) -> None:
        """Like ``Client.check_alive``."""
        async with convert_rpc_errors_async(self._connections.diagnosis):
            await self._health.Check(HealthCheckRequest(service=LIVENESS), timeout=check_timeout(timeout_s))

    async def missing_models(self, timeout_s: float | None = 30.0) -> tuple[str, ...]:
        """Like ``Client.missing_models``."""
        async with convert_rpc_errors_async(self._connections.diagnosis):
            call = self._health.Check(HealthCheckRequest(), timeout=check_timeout(timeout_s))
            await call
            return decode_missing_models(await call.trailing_metadata())

    async def _find_unready_reason(self) -> str:
        try:
            state = await self._health.Check(HealthCheckRequest(), timeout=UNREADY_REASON_TIMEOUT_S)
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
        with closing(self._send_all(calls)) as sent:
            for bulk_call in sent:
                if bulk_call is None:
                    await asyncio.sleep(0)  # let other tasks run while lists are read
                else:
                    for answer in await self._wait_for_answers(bulk_call):
                        yield answer

    def _begin(self, request: Any, timeout_s: float | None) -> Any:
        self._check_loop()
        return self._connections.stub.Rescore(request, timeout=timeout_s, metadata=self._connections.metadata)

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
        response = await self._call(self._connections.stub.ScoreText, request, timeout_s)
        return list(map(text_score_from_proto, response.scores))

    async def list_models(self, *, timeout_s: float | None = 30.0) -> list[models_pb2.ModelSummary]:
        """Like ``Client.list_models``."""
        request = models_pb2.ListModelsRequest()
        return list((await self._call(self._connections.models.ListModels, request, timeout_s)).models)

    async def get_model(self, model: str = "", *, timeout_s: float | None = 30.0) -> models_pb2.Model:
        """Like ``Client.get_model``."""
        request = models_pb2.GetModelRequest(model=model)
        return (await self._call(self._connections.models.GetModel, request, timeout_s)).model

    async def _call(self, method: Any, request: Any, timeout_s: float | None) -> Any:
        self._check_loop()
        attempts, metadata = self._plan_attempts(timeout_s), self._connections.metadata
        while True:
            try:
                async with convert_rpc_errors_async(self._connections.diagnosis):
                    return await method(request, timeout=attempts.timeout_s, metadata=metadata)
            except Overloaded as error:
                await asyncio.sleep(attempts.retry_delay_s(error))
