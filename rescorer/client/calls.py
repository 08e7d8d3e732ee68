"""Owns what the blocking and the asyncio client send and how they read the answers."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rescorer.errors import (
    ConfigError,
    DeadlineExceeded,
    InputError,
    LimitExceeded,
    Overloaded,
    RescorerError,
)
from rescorer.protocol.messages import (
    list_to_proto,
    rescored_from_proto,
    text_score_from_proto,
    weights_from_proto,
    weights_to_proto,
)
from rescorer.protocol.status import fault_of
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList, RescoredList, TextScore, Weights

Item = NBestList | InputError
"""What file readers yield: a list, or what is wrong with it."""
Answer = RescoredList | RescorerError
Fallback = Literal["", "ngram", "first_pass"]
"""What is taken where there is no time for a whole answer; empty: nothing."""
FALLBACKS: Mapping[str, pb.Fallback] = MappingProxyType(
    {
        "": pb.FALLBACK_UNSPECIFIED,
        "ngram": pb.FALLBACK_NGRAM,
        "first_pass": pb.FALLBACK_FIRST_PASS,
    }
)

BULK_LISTS, BULK_BYTES = 32, 1024 * 1024
"""Of one call of a bulk, whichever is reached first."""
PAUSE_S = 0.1
"""Before a full server that does not say when is asked again."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller wants of a request beside its lists."""

    weights: Weights | str | None = None
    merge: bool = False
    fallback: Fallback = ""

    def __post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            raise ConfigError(
                f"fallback is {self.fallback!r}; expected one of {', '.join(map(repr, FALLBACKS))}"
            )

    @property
    def fields(self) -> dict[str, Any]:
        """Of a request."""
        return {**weighting(self.weights), "merge": self.merge, "fallback": FALLBACKS[self.fallback]}


@dataclass(slots=True)
class Sent:
    """A call of a bulk that is under way."""

    items: Sequence[Item]
    """What it is about, faults among them."""
    request: pb.RescoreRequest
    until: float
    """When its time is over, in ``time.monotonic`` seconds."""
    call: Any = field(default=None)

    @property
    def timeout_s(self) -> float | None:
        """What is left of its time; None: for ever."""
        return None if math.isinf(self.until) else max(0.0, self.until - time.monotonic())

    def pause_s(self, fault: Overloaded) -> float:
        """Before a full server is asked again; raises DeadlineExceeded where its time is over before that."""
        pause_s = fault.retry_after_s or PAUSE_S
        if time.monotonic() + pause_s > self.until:
            raise DeadlineExceeded(f"the server is full, and has been for all the time there was: {fault}")
        return pause_s


class Requests:
    """Makes requests; a list that cannot be sent is replaced by its fault and left out.

    Args:
        model: as in ``RescoreRequest``.
        max_message_bytes: above it nothing is sent.
    """

    def __init__(self, model: str, max_message_bytes: int) -> None:
        self._model = model
        self._max_message_bytes = max_message_bytes

    def rescore(self, lists: Iterable[Item], options: Options) -> tuple[list[Item], pb.RescoreRequest]:
        """Raises LimitExceeded where the lists together are too large."""
        items, messages = [], []
        for item, message in self._encoded(lists):
            items.append(item)
            messages += message
        request = pb.RescoreRequest(lists=messages, model=self._model, **options.fields)
        return items, self._checked(request)

    def bulk(self, lists: Iterable[Item], options: Options, timeout_s: float | None) -> Iterator[Sent]:
        """Requests of at most ``BULK_LISTS`` and about ``BULK_BYTES``; its time begins when it is made."""

        def fresh() -> pb.RescoreRequest:
            return pb.RescoreRequest(model=self._model, **fields)

        def made() -> Sent:
            until = math.inf if timeout_s is None else time.monotonic() + timeout_s
            return Sent(items, self._checked(request), until)

        fields = options.fields
        items: list[Item] = []
        request, size = fresh(), 0
        for item, message in self._encoded(lists):
            item_bytes = sum(each.ByteSize() for each in message)
            if items and (len(items) == BULK_LISTS or size + item_bytes > BULK_BYTES):
                yield made()
                items, request, size = [], fresh(), 0
            items.append(item)
            request.lists.extend(message)
            size += item_bytes
        if items:
            yield made()

    def score_text(
        self, texts: Sequence[str], context: str, weights: Weights | str | None
    ) -> pb.ScoreTextRequest:
        try:
            request = pb.ScoreTextRequest(
                texts=texts, context=context, model=self._model, **weighting(weights)
            )
        except (TypeError, ValueError) as fault:
            raise InputError(f"texts cannot be sent: {fault}") from None
        return self._checked(request)

    def _encoded(self, lists: Iterable[Item]) -> Iterator[tuple[Item, list[pb.NBestList]]]:
        """Each list with its one message; a fault with none."""
        for item in lists:
            message: list[pb.NBestList] = []
            if isinstance(item, NBestList):
                try:
                    message = [self._checked(list_to_proto(item))]
                except InputError as fault:
                    item = fault
            yield item, message

    def _checked(self, message: Any) -> Any:
        size = message.ByteSize()
        if size > self._max_message_bytes:
            raise LimitExceeded(
                f"{size} bytes to send; expected at most {self._max_message_bytes} "
                "(this client's max_message_bytes)",
                field="lists",
            )
        return message


def weighting(weights: Weights | str | None) -> dict[str, Any]:
    """The field of a request that says which weights."""
    if weights is None:
        return {}
    if isinstance(weights, str):
        return {"weights_name": weights}
    return {"weights": weights_to_proto(weights)}


def until_fault(calls: Iterator[Sent], faults: list[Exception]) -> Iterator[Sent]:
    """The calls before the lists cannot be read on; the fault is kept, for when those are answered."""
    try:
        yield from calls
    except Exception as fault:
        faults.append(fault)


def answers_of(response: pb.RescoreResponse, items: Sequence[Item]) -> list[Answer]:
    """One an item, in their order."""
    used = weights_from_proto(response.weights)
    messages = iter(response.lists)
    answers: list[Answer] = []
    for item in items:
        if isinstance(item, InputError):
            answers.append(item)
            continue
        message = next(messages)
        if message.status.code:
            answers.append(fault_of(message.status))
        else:
            answers.append(rescored_from_proto(message, item, used, response.model))
    return answers


def text_scores_of(response: pb.ScoreTextResponse) -> list[TextScore]:
    return [text_score_from_proto(each) for each in response.scores]


@contextmanager
def raising_faults() -> Iterator[None]:
    """Raises the fault of our tree that a failed call's status tells of."""
    try:
        yield
    except grpc.RpcError as error:
        call: Any = error  # also a grpc.Call
        status = rpc_status.from_call(call) or Status(code=call.code().value[0], message=call.details() or "")
        raise fault_of(status) from None
