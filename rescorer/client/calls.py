"""Build request messages, and read responses and errors, for both clients."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rescorer.client.connection import Diagnosis, short_reason
from rescorer.errors import (
    ConfigError,
    DeadlineExceeded,
    InputError,
    LimitExceeded,
    Overloaded,
    RescorerError,
)
from rescorer.protocol.messages import (
    decision_from_proto,
    decision_to_proto,
    error_from_status,
    list_to_proto,
    phrases_to_proto,
    rescored_from_proto,
    weights_from_proto,
    weights_to_proto,
)
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.options import Fallback, RescoreOptions, Weighting, as_texts, read_items
from rescorer.types import NBestList, RescoredList

Item = NBestList | InputError
"""A list, or the error that a file reader yields in place of an invalid list."""
FALLBACKS = {
    "": pb.FALLBACK_UNSPECIFIED,
    "ngram": pb.FALLBACK_NGRAM,
    "first_pass": pb.FALLBACK_FIRST_PASS,
}

MAX_BULK_LISTS = 32
"""Maximum number of lists per call of ``rescore_stream``."""
MAX_BULK_BYTES = 1024 * 1024
"""Approximate size at which a call of ``rescore_stream`` is sent even if it has fewer lists."""
MAX_BULK_RESPONSE_BYTES = 4 * 1024 * 1024
"""Estimated size of the answer at which a call of ``rescore_stream`` is sent, even if the request is small: a
quarter of the server's default ``max_response_bytes``."""
HYPOTHESIS_RESPONSE_BYTES, STREAM_RESPONSE_BYTES = 320, 24
"""Estimated bytes in an answer. The first number is for a hypothesis with the scores of about eight language
models, the second for one of its stream scores, without the stream's name."""
DEFAULT_RETRY_DELAY_S = 0.1
"""Delay before a call is repeated if the server is full and does not say how long to wait."""


@dataclass(slots=True)
class BulkCall:
    """One call of ``rescore_stream``, from its creation until its answers are read."""

    items: Sequence[Item]
    """The lists of the call. An error stands in place of each invalid list."""
    request: pb.RescoreRequest
    deadline_s: float
    """Deadline on the clock of ``time.monotonic``; infinity for no deadline."""
    call: Any = field(default=None)
    """The current attempt to make the call: a future in ``Client``, an awaitable in ``AsyncClient``."""

    @property
    def timeout_s(self) -> float | None:
        """The time until the deadline; None for no deadline."""
        return time_until(self.deadline_s)

    def retry_delay_s(self, error: Overloaded) -> float:
        """Return the seconds to wait before the next attempt, after the server was full.

        Raises:
            DeadlineExceeded: the deadline is earlier than the next attempt.
        """
        delay_s = error.retry_after_s or DEFAULT_RETRY_DELAY_S
        if time.monotonic() + delay_s > self.deadline_s:
            raise DeadlineExceeded(f"the server was full until the deadline: {error}")
        return delay_s


@dataclass(slots=True)
class Attempts:
    """The attempts to make a call that a full server refuses; see ``ConnectionOptions.repeats_refused``."""

    left: int
    """Number of attempts that are left, with the current one."""
    deadline_s: float
    """Deadline on the clock of ``time.monotonic``; infinity for no deadline."""

    @property
    def timeout_s(self) -> float | None:
        """The time until the deadline; None for no deadline."""
        return time_until(self.deadline_s)

    def retry_delay_s(self, error: Overloaded) -> float:
        """Return the seconds to wait before the next attempt, or raise the error if there is none."""
        self.left -= 1
        if not (self.left and 0 < error.retry_after_s < self.deadline_s - time.monotonic()):
            raise error
        return error.retry_after_s


def time_until(deadline_s: float) -> float | None:
    """Return the time until a deadline on the clock of ``time.monotonic``; None if it is infinity."""
    return None if math.isinf(deadline_s) else max(0.0, deadline_s - time.monotonic())


class RequestBuilder:
    """Builds request messages for both clients. An error takes the place of each list that cannot be sent.

    Args:
        model: Model to request unless the options of a call name another.
        max_message_bytes: Maximum size of a request.
    """

    def __init__(self, model: str, max_message_bytes: int) -> None:
        if not isinstance(model, str):
            raise TypeError(f"model is of type {type(model).__name__}; expected its name")
        self._model = model
        self._max_message_bytes = max_message_bytes

    def rescore(
        self, lists: Item | Iterable[Item], options: RescoreOptions, fallback: Fallback
    ) -> tuple[list[Item], pb.RescoreRequest]:
        """Build one request for all lists.

        Return the items, where an error replaces each list that cannot be sent, and then the request.

        Raises:
            ConfigError: the fallback is unknown.
            InputError: the options cannot be encoded, or the request is too large.
            TypeError: something else than lists was given.
        """
        items, request = [], self._new_request(options, fallback)
        for item, messages in self._encode_items(read_items(lists, (NBestList, InputError))):
            items.append(item)
            request.lists.extend(messages)
        return items, self._check_size(request)

    def bulk(
        self,
        lists: Item | Iterable[Item],
        options: RescoreOptions,
        fallback: Fallback,
        timeout_s: float | None,
    ) -> Iterator[BulkCall]:
        """Divide lists among requests of limited size. The timeout of a request starts when it is built.

        Errors in the arguments are raised at once, as by ``rescore``. If a list cannot be sent, an error
        takes its place. If a request cannot be sent, the error is raised when that request is built.
        """
        given, empty = read_items(lists, (NBestList, InputError)), self._new_request(options, fallback)
        return self._build_calls(self._encode_items(given), empty, check_timeout(timeout_s))

    def _build_calls(
        self,
        encoded_items: Iterable[tuple[Item, list[pb.NBestList]]],
        empty: pb.RescoreRequest,
        timeout_s: float | None,
    ) -> Iterator[BulkCall]:
        def new_call() -> BulkCall:
            deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
            return BulkCall(items, self._check_size(request), deadline_s)

        items: list[Item] = []
        request, request_bytes, response_bytes = deepcopy(empty), 0, 0
        for item, messages in encoded_items:
            request_bytes += (item_bytes := sum(message.ByteSize() for message in messages))
            response_bytes += (item_response_bytes := sum(map(estimate_response_bytes, messages)))
            if items and (
                len(items) == MAX_BULK_LISTS
                or request_bytes > MAX_BULK_BYTES
                or response_bytes > MAX_BULK_RESPONSE_BYTES
            ):
                yield new_call()
                items, request = [], deepcopy(empty)
                request_bytes, response_bytes = item_bytes, item_response_bytes
            items.append(item)
            request.lists.extend(messages)
        if items:
            yield new_call()

    def score_text(
        self, texts: str | Sequence[str], context: str, options: RescoreOptions
    ) -> pb.ScoreTextRequest:
        """Build a request to score texts.

        Raises:
            InputError: a text cannot be encoded, or the request is too large.
            TypeError: something else than texts was given.
        """
        if not isinstance(context, str):
            raise TypeError(f"context is of type {type(context).__name__}; expected a string")
        try:
            request = pb.ScoreTextRequest(
                texts=as_texts(texts),
                context=context,
                model=options.model or self._model,
                **weights_fields(options.weights),
            )
        except ValueError as error:
            raise InputError(f"texts cannot be sent: {error}") from None
        return self._check_size(request)

    def _new_request(self, options: RescoreOptions, fallback: Fallback) -> pb.RescoreRequest:
        """Build a request with all options, to which lists can be added."""
        fields = request_fields(options, fallback)
        try:
            return pb.RescoreRequest(**fields | {"model": options.model or self._model})
        except ValueError as error:
            raise InputError(f"the options cannot be sent: {error}") from None

    def _encode_items(self, items: Iterable[Item]) -> Iterator[tuple[Item, list[pb.NBestList]]]:
        """Yield each item with a list of messages: one for a list that can be sent, none for an error.

        A list that cannot be sent is replaced by its error.
        """
        for item in items:
            messages: list[pb.NBestList] = []
            if isinstance(item, NBestList):
                try:
                    messages = [self._check_size(list_to_proto(item))]
                except InputError as error:
                    item = error
            yield item, messages

    def _check_size(self, message: Any) -> Any:
        size_bytes = message.ByteSize()
        if size_bytes > self._max_message_bytes:
            raise LimitExceeded(
                f"the message has {size_bytes} bytes; expected at most {self._max_message_bytes} "
                "(this client's max_message_bytes)",
                field="lists",
            )
        return message


def request_fields(options: RescoreOptions, fallback: Fallback) -> dict[str, Any]:
    """Convert options to fields of a rescoring request.

    Raises:
        ConfigError: the fallback is unknown.
        InputError: a phrase cannot be encoded.
    """
    if not isinstance(fallback, str) or fallback not in FALLBACKS:
        raise ConfigError(f"fallback: expected one of {', '.join(map(repr, FALLBACKS))}, got {fallback!r}")
    try:
        phrases = phrases_to_proto(options.phrases)
    except ValueError as error:
        raise InputError(f"phrases cannot be sent: {error}") from None
    return {
        **weights_fields(options.weights),
        "model": options.model,
        "decision": None if options.decision is None else decision_to_proto(options.decision),
        "merge": options.merge,
        "drop_empty": options.drop_empty,
        "generate": options.generate,
        "phrases": phrases,
        "phrase_lists": options.phrase_lists,
        "fallback": FALLBACKS[fallback],
    }


def weights_fields(weights: Weighting) -> dict[str, Any]:
    """Return the fields of a request that select the weights, by name; none for the default weights."""
    if weights is None:
        return {}
    if isinstance(weights, str):
        return {"weights_name": weights}
    try:
        return {"weights": weights_to_proto(weights)}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"weights cannot be sent: {error}") from None


def check_timeout(timeout_s: float | None) -> float | None:
    """Check a timeout in seconds, and return it. Infinity becomes None, which means to wait forever.

    Raises:
        TypeError: the timeout is neither a number nor None.
        ConfigError: the timeout is NaN.
    """
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real):
        raise TypeError(f"timeout_s is of type {type(timeout_s).__name__}; expected a number or None")
    if math.isnan(timeout_s):
        raise ConfigError(f"timeout_s is {timeout_s}; expected a number of seconds or None")
    return None if timeout_s == math.inf else float(timeout_s)


def estimate_response_bytes(message: pb.NBestList) -> int:
    """Estimate the size of the answer to a list, in which every hypothesis repeats the names of streams."""
    streams = sum(STREAM_RESPONSE_BYTES + len(stream.name) for stream in message.streams)
    return len(message.hypotheses) * (HYPOTHESIS_RESPONSE_BYTES + streams)


def iterate_until_error(calls: Iterator[BulkCall], errors: list[Exception]) -> Iterator[BulkCall]:
    """Yield calls until the iterator ends or raises an error. The error is added to ``errors`` instead of
    being raised, so that the caller can first read the answers to the earlier calls."""
    try:
        yield from calls
    except Exception as error:
        errors.append(error)


Answer = RescoredList | RescorerError
"""A rescored list, or the error that takes its place."""


def read_answers(response: pb.RescoreResponse, items: Sequence[Item]) -> list[Answer]:
    """Return one answer for each item of a call, in the same order. An error is its own answer."""
    weights = weights_from_proto(response.weights)
    decision = decision_from_proto(response.decision)
    messages = iter(response.lists)
    answers: list[Answer] = []
    for item in items:
        if isinstance(item, InputError):
            answers.append(item)
            continue
        message = next(messages)
        if message.status.code:
            answers.append(error_from_status(message.status))
        else:
            answers.append(rescored_from_proto(message, item, weights, response.model, decision))
    return answers


def raise_first_error(answers: Sequence[Answer]) -> list[RescoredList]:
    """Return the answers if all of them are rescored lists; otherwise raise the first error among them."""
    rescored: list[RescoredList] = []
    for answer in answers:
        if isinstance(answer, RescorerError):
            raise answer
        rescored.append(answer)
    return rescored


@contextmanager
def convert_rpc_errors(diagnosis: Diagnosis) -> Iterator[None]:
    """Raise the ``RescorerError`` that corresponds to the status of a failed call.

    Args:
        diagnosis: explains why no server could be reached.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_call(error, diagnosis) from None


@asynccontextmanager
async def convert_rpc_errors_async(diagnosis: Diagnosis) -> AsyncIterator[None]:
    """Like ``convert_rpc_errors``, without blocking the event loop."""
    try:
        yield
    except grpc.RpcError as error:
        raise await asyncio.to_thread(error_from_call, error, diagnosis) from None


def error_from_call(call: Any, diagnosis: Diagnosis) -> RescorerError:
    """Return the error that corresponds to the status of a failed call.

    If gRPC itself reports that there is no connection, or that time ran out, the call may not have reached a
    server. The error then has the explanation of the diagnosis, which may block for some seconds.
    """
    status = rpc_status.from_call(call)
    error = error_from_status(status or Status(code=call.code().value[0], message=call.details() or ""))
    codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    if status is not None or call.code() not in codes:
        return error
    explanation = diagnosis.explain()
    if isinstance(error, DeadlineExceeded):
        return DeadlineExceeded("no answer before the deadline" + (f": {explanation}" if explanation else ""))
    return type(error)(explanation or short_reason(str(error)))
