"""Search for the request that costs a server most memory or time among those that its limits allow.

    python -m tools.fuzz.worst BUNDLE

Shapes of requests come in (numbers of lists, hypotheses, words, streams, names and phrases); the ones whose
handling takes most memory, or most time for their size, go out, and can be sent to a server to see what it
needs.
"""

from __future__ import annotations

import itertools
import sys
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from rescorer.errors import InputError
from rescorer.extensions import make_ranker
from rescorer.models.bundle import Bundle, read_bundle
from rescorer.protocol.messages import write_ranking
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.scoring.batch import Batch, Part, ScoredPart
from rescorer.scoring.components import PreparedList
from rescorer.scoring.ranker import ListRanker
from rescorer.service.api.rescoring import PreparedRequest, prepare_lists
from rescorer.service.engine.request_bounds import check_request, check_response_size
from rescorer.service.settings import ServiceSettings, load_settings
from rescorer.sounds import load_pronouncer
from rescorer.trie import EdgeScores

Difference = Literal["none", "first", "middle", "last"]
DIFFERENCES: tuple[Difference, ...] = ("none", "first", "last")


@dataclass(frozen=True)
class Shape:
    """Sizes of a request, each the same for all of its lists."""

    lists: int = 1
    hypotheses: int = 1
    words: int = 1
    """Words per hypothesis."""
    differs: Difference = "none"
    """Position of the word in which hypotheses differ."""
    streams: int = 1
    name_chars: int = 8
    """Length of the names of streams."""
    context_words: int = 0
    fields: int = 0
    """Client fields per hypothesis."""
    merge: bool = False
    phrases: int = 0
    """Phrases per list."""
    phrase_words: int = 1
    """Words of the longest phrases."""
    spellings: int = 0
    """Other spellings per phrase."""
    generate: bool = False
    previous: int = 0
    """Previous utterances per list, without words."""
    word: str = "a"
    """The word of all hypotheses, with which phrases begin."""

    @property
    def is_searched(self) -> bool:
        """Whether the work is not in proportion to the size, because something is searched or dropped."""
        return bool(self.phrases or self.previous)

    def make_request(self) -> pb.RescoreRequest:
        nbest = pb.NBestList(id="x", context=" ".join(["a"] * self.context_words))
        for index in range(self.hypotheses):
            nbest.hypotheses.add(text=self._text(index))
            if self.fields:
                nbest.hypotheses[index].fields.update({f"f{number}": None for number in range(self.fields)})
        names = (
            "acoustic",
            *(f"{number:x}".ljust(self.name_chars, "n") for number in range(self.streams - 1)),
        )
        for name in names:
            nbest.streams.add(name=name, base=1, sign=1, values=[-1.0] * self.hypotheses)
        nbest.previous.extend([pb.Utterance()] * self.previous)
        new_words = map(_name, itertools.count())
        for index in range(self.phrases):
            ways = [self._way(index, next(new_words)) for _ in range(1 + self.spellings)]
            nbest.phrases.add(text=ways[0], spellings=ways[1:])
        return pb.RescoreRequest(lists=[nbest] * self.lists, merge=self.merge, generate=self.generate)

    def _way(self, index: int, name: str) -> str:
        """A phrase that stands in hypotheses, for the first ones, or that only sounds like their words."""
        words = [self.word] * (1 + index % self.phrase_words)
        if index >= self.phrase_words or self.spellings:
            words[-1] = words[-1][:-1] + name
        return " ".join(words)

    def _text(self, index: int) -> str:
        words = [self.word] * self.words
        if self.differs != "none" and words:
            words[{"first": 0, "middle": self.words // 2, "last": -1}[self.differs]] = f"w{index}"
        return " ".join(words)


def _name(number: int) -> str:
    """A short word of letters, another one for each number."""
    letters = "bdklmnprtaeiou"
    name = ""
    while number:
        number, digit = divmod(number, len(letters))
        name += letters[digit]
    return name or "s"


def searches() -> Iterator[Shape]:
    """Yield a grid of shapes in which phrases are searched, or something is dropped."""
    for hypotheses, words in ((1, 195), (5, 195), (1000, 900), (1800, 100)):
        for phrases, phrase_words, spellings in ((1, 1, 1_998), (20, 1, 98), (1_999, 1, 0), (16, 16, 0)):
            for generate in (False, True):
                yield Shape(
                    hypotheses=hypotheses,
                    words=words,
                    differs="last",
                    phrases=phrases,
                    phrase_words=phrase_words,
                    spellings=spellings,
                    generate=generate,
                    word="rust",
                )
    for lists, previous in ((1, 2_000_000), (1, 65_536), (128, 512)):
        yield Shape(lists=lists, previous=previous)


def shapes() -> Iterator[Shape]:
    """Yield a grid of shapes."""
    grid = itertools.product((1, 16, 128), (1, 100, 2000), (1, 30, 1000), (1, 40, 250), (0, 6))
    for lists, hypotheses, words, streams, fields in grid:
        for differs in DIFFERENCES:
            yield Shape(lists, hypotheses, words, differs, streams, fields=fields)


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


if __name__ == "__main__":
    ranker, settings = make_ranker(read_bundle(sys.argv[1])), load_settings(bundle=sys.argv[1])
    load_pronouncer(None).learn_letters()  # once a process, not for every request
    for cost in (*find_worst(shapes(), ranker, settings), *find_slowest(searches(), ranker, settings)):
        print(cost)
