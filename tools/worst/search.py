"""Find the shapes of requests that are within a server's limits and take most memory, or time."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rescorer.bundle import Bundle
from rescorer.errors import InputError
from rescorer.lm.base import EdgeScores
from rescorer.protocol.messages import write_ranking
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.batch import Batch, Part, ScoredPart
from rescorer.scoring.components import PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.api.planning import PreparedRequest, prepare_lists
from rescorer.service.limits.requests import check_request, check_response_size
from rescorer.service.settings import ServiceSettings
from tools.worst.shapes import Shape


class Cost(NamedTuple):
    """What a request costs a front end; Python's memory only, without that of protocol messages."""

    peak_bytes: int
    request_bytes: int
    response_bytes: int
    shape: Shape
    seconds: float
    """Processor time for checking the request and preparing its lists."""


def estimated_bytes(shape: Shape) -> int:
    """Estimate the size of a request without making it."""
    hypothesis = (len(shape.word) + 1) * shape.words + 6 + 8 * shape.streams + 12 * shape.fields
    phrase = shape.phrase_words * (len(shape.word) + 1) + 6
    phrases = shape.phrases * (1 + shape.spellings) * phrase
    return shape.lists * (
        shape.hypotheses * hypothesis + shape.streams * shape.name_chars + phrases + 2 * shape.previous
    )


def measure(shape: Shape, ranker: ListRanker, settings: ServiceSettings) -> Cost | None:
    """Measure what a front end does for a request, with scores of 0; None if the limits refuse it."""
    least = 0 if shape.is_searched else settings.max_message_bytes / 8  # other small requests cost little
    if not least < estimated_bytes(shape) < 2 * settings.max_message_bytes:
        return None
    request = shape.make_request()
    request_bytes = request.ByteSize()
    if request_bytes > settings.max_message_bytes:
        return None
    try:
        began = time.process_time()
        _prepare(request, ranker, settings)
        seconds = time.process_time() - began
    except InputError:
        return None
    tracemalloc.start()
    try:
        prepared_request = _prepare(request, ranker, settings)
        response = pb.RescoreResponse()
        for prepared in prepared_request.valid_lists:
            ranked = ranker.rank(prepared, [score_with_zeros(prepared, ranker.bundle)])
            write_ranking(ranked, response.lists.add())
        if not prepared_request.valid_lists:
            return None
        peak_bytes = tracemalloc.get_traced_memory()[1]
        return Cost(peak_bytes, request_bytes, response.ByteSize(), shape, seconds)
    finally:
        tracemalloc.stop()


def _prepare(request: pb.RescoreRequest, ranker: ListRanker, settings: ServiceSettings) -> PreparedRequest:
    check_request(request, settings)
    check_response_size(request, request.ByteSize(), ranker, settings.max_response_bytes)
    return prepare_lists(ranker, request, settings)


def score_with_zeros(prepared: PreparedList, bundle: Bundle) -> ScoredPart:
    """The scores of a list by models that give every word the probability 1."""
    batch = Batch([Part(prepared, range(len(prepared.words)), 0)])
    request = batch.advance()
    while request is not None:
        scores = {}
        for name in request.models or bundle.model_kinds:
            backward = name in bundle.backward
            n_edges = request.trie.in_direction(backward).n_edges
            scores[name] = EdgeScores(np.zeros(n_edges), np.zeros(n_edges, bool), backward=backward)
        request = batch.advance(scores)
    return batch.part(0)


def find_slowest(
    candidates: Iterable[Shape], ranker: ListRanker, settings: ServiceSettings, n: int = 3
) -> list[Cost]:
    """Return the ``n`` allowed shapes that need most processor time for their size, the worst one last.

    A kilobyte is added to each size, so that the smallest requests do not win by what every call costs.
    """
    costs = [cost for shape in candidates if (cost := measure(shape, ranker, settings)) is not None]
    return sorted(costs, key=lambda cost: cost.seconds / (cost.request_bytes + 1024))[-n:]


def find_worst(
    candidates: Iterable[Shape], ranker: ListRanker, settings: ServiceSettings, n: int = 3
) -> list[Cost]:
    """Return the ``n`` allowed shapes that need most memory for the request, its lists and its answer."""
    costs = [cost for shape in candidates if (cost := measure(shape, ranker, settings)) is not None]
    return sorted(costs, key=lambda cost: cost.peak_bytes + cost.request_bytes + 4 * cost.response_bytes)[-n:]
