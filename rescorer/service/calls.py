"""Owns what the blocking and the asyncio client send and how they read the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rescorer.errors import InputError, LimitExceeded, RescorerError
from rescorer.service.convert import (
    list_to_proto,
    rescored_from_proto,
    text_score_from_proto,
    weights_from_proto,
    weights_to_proto,
)
from rescorer.service.faults import fault_of
from rescorer.service.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList, RescoredList, TextScore, Weights

Item = NBestList | InputError
"""What file readers yield: a list, or what is wrong with it."""
Answer = RescoredList | RescorerError
Request = TypeVar("Request", pb.RescoreRequest, pb.RescoreStreamRequest, pb.ScoreTextRequest)

STREAM_LISTS, STREAM_BYTES = 32, 1024 * 1024
"""Of one message of a stream, whichever is reached first."""


class Requests:
    """Makes requests; a list that cannot be sent is replaced by its fault and left out.

    Args:
        model: as in ``RescoreRequest``.
        max_message_bytes: above it nothing is sent.
    """

    def __init__(self, model: str, max_message_bytes: int) -> None:
        self._model = model
        self._max_message_bytes = max_message_bytes

    def rescore(
        self, lists: Iterable[Item], weights: Weights | str | None, merge: bool
    ) -> tuple[list[Item], pb.RescoreRequest]:
        """Raises LimitExceeded where the lists together are too large."""
        items, messages = [], []
        for item, message in self._encoded(lists):
            items.append(item)
            messages += message
        request = pb.RescoreRequest(lists=messages, merge=merge, model=self._model, **weighting(weights))
        return items, self._checked(request)

    def stream(
        self, lists: Iterable[Item], weights: Weights | str | None, merge: bool
    ) -> Iterator[tuple[list[Item], pb.RescoreStreamRequest]]:
        """Messages of at most ``STREAM_LISTS`` and about ``STREAM_BYTES``, each with what it stands for."""
        chosen = weighting(weights)

        def fresh() -> pb.RescoreStreamRequest:
            return pb.RescoreStreamRequest(merge=merge, model=self._model, **chosen)

        items: list[Item] = []
        request, size = fresh(), 0
        for item, message in self._encoded(lists):
            item_bytes = sum(each.ByteSize() for each in message)
            if items and (len(items) == STREAM_LISTS or size + item_bytes > STREAM_BYTES):
                yield items, self._checked(request)
                items, request, size = [], fresh(), 0
            items.append(item)
            request.lists.extend(message)
            size += item_bytes
        if items:
            yield items, self._checked(request)

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
                f"{size} bytes to send; expected at most {self._max_message_bytes}", field="lists"
            )
        return message


def weighting(weights: Weights | str | None) -> dict[str, Any]:
    """The field of a request that says which weights."""
    if weights is None:
        return {}
    if isinstance(weights, str):
        return {"weights_name": weights}
    return {"weights": weights_to_proto(weights)}


def answers_of(
    response: pb.RescoreResponse | pb.RescoreStreamResponse, items: Sequence[Item]
) -> list[Answer]:
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
