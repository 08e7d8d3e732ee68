"""Read responses and errors of calls, for both the blocking and the asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from rescorer.client.connection import short_reason
from rescorer.client.diagnosis import Diagnosis
from rescorer.client.requests import Item
from rescorer.errors import DeadlineExceeded, InputError, RescorerError
from rescorer.protocol.messages import (
    decision_from_proto,
    rescored_from_proto,
    text_score_from_proto,
    weights_from_proto,
)
from rescorer.protocol.status import error_from_status
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import RescoredList, TextScore

Answer = RescoredList | RescorerError
"""A rescored list, or the error that takes its place."""


def read_answers(response: pb.RescoreResponse, items: Sequence[Item]) -> list[Answer]:
    """Read the answers of a response; return one answer per item, in the same order."""
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
    """Return the rescored lists; raise the first error among them, if there is one."""
    rescored: list[RescoredList] = []
    for answer in answers:
        if isinstance(answer, RescorerError):
            raise answer
        rescored.append(answer)
    return rescored


def read_text_scores(response: pb.ScoreTextResponse) -> list[TextScore]:
    return [text_score_from_proto(score) for score in response.scores]


@contextmanager
def convert_rpc_errors(diagnosis: Diagnosis) -> Iterator[None]:
    """Raise the ``RescorerError`` that corresponds to the status of a failed call.

    Args:
        diagnosis: explains errors of the connection.
    """
    try:
        yield
    except grpc.RpcError as rpc_error:
        error = error_from_call(rpc_error)
        if concerns_connection(rpc_error):
            error = explain_error(error, diagnosis.explain())
        raise error from None


@asynccontextmanager
async def convert_rpc_errors_async(diagnosis: Diagnosis) -> AsyncIterator[None]:
    """Like ``convert_rpc_errors``, without blocking the event loop."""
    try:
        yield
    except grpc.RpcError as rpc_error:
        error = error_from_call(rpc_error)
        if concerns_connection(rpc_error):
            error = explain_error(error, await asyncio.to_thread(diagnosis.explain))
        raise error from None


def error_from_call(call: Any) -> RescorerError:
    """Return the error that corresponds to the status of a failed call."""
    status = rpc_status.from_call(call) or Status(code=call.code().value[0], message=call.details() or "")
    return error_from_status(status)


def concerns_connection(call: Any) -> bool:
    """Whether no server may have been reached: gRPC itself failed the call, for a lack of a connection or of
    time."""
    codes = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return call.code() in codes and rpc_status.from_call(call) is None


def explain_error(error: RescorerError, explanation: str) -> RescorerError:
    """Return the error with an explanation of the failed connection, if there is one."""
    if isinstance(error, DeadlineExceeded):
        return DeadlineExceeded("no answer before the deadline" + (f": {explanation}" if explanation else ""))
    return type(error)(explanation or short_reason(str(error)))
