"""A call with a fallback keeps time to decide and to write its answer."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from rescorer.errors import DeadlineExceeded
from rescorer.protocol.messages import list_from_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.engine.engine import CallContext, Dispatcher
from rescorer.types import Weights
from tests.support.random_lists import make_list, make_request


class IdleBatcher:
    """Takes work items, notes until when they are worth scoring, and never scores them."""

    advice = "try again later"

    def __init__(self):
        self.deadlines = []

    def put(self, item, client, *, urgent=False):
        self.deadlines.append(item.deadline)

    def cancel(self, items):
        pass


def dispatch(library, batcher, call):
    (message,) = make_request(make_list("u", random.Random(3))).lists
    prepared = library.ranker.prepare(list_from_proto(message), library.ranker.bind(Weights()))
    dispatcher = Dispatcher(batcher, 10_000)
    return asyncio.run(dispatcher.score_lists(library.ranker, [prepared], call))


def make_call(fallback, remaining_s, response_s):
    deadline = time.monotonic() + remaining_s
    return CallContext("client", "id", time.perf_counter(), deadline, fallback, response_s)


def test_scoring_ends_early_enough_to_respond(library):
    batcher = IdleBatcher()
    call = make_call(pb.FALLBACK_FIRST_PASS, 0.5, response_s=0.2)
    (outcome,) = dispatch(library, batcher, call)
    assert outcome.degradation == pb.DEGRADATION_FIRST_PASS
    assert len(batcher.deadlines) == 2  # complete scoring, then the n-gram model alone
    assert max(batcher.deadlines) < call.deadline - 0.2


def test_a_long_response_leaves_half_of_the_time_for_scoring(library):
    batcher = IdleBatcher()
    began = time.monotonic()
    call = make_call(pb.FALLBACK_FIRST_PASS, 0.8, response_s=60.0)
    dispatch(library, batcher, call)
    assert batcher.deadlines[0] > began + 0.1


def test_without_a_fallback_all_of_the_time_is_for_scoring(library):
    batcher = IdleBatcher()
    call = make_call(pb.FALLBACK_UNSPECIFIED, 0.2, response_s=0.1)
    with pytest.raises(DeadlineExceeded, match=IdleBatcher.advice):
        dispatch(library, batcher, call)
    assert batcher.deadlines == [call.deadline]
