"""Owns what waits to be scored, and what it is given: hypotheses of one list, and their part of a batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rescorer.batching import plan_batches
from rescorer.errors import DeadlineExceeded
from rescorer.list_ranker import ListRanker, PreparedList
from rescorer.lm.base import EdgeScores
from rescorer.lm.context_stats import ContextWords
from rescorer.profiling import Phase, phase
from rescorer.service.observability.timings import PhaseTiming
from rescorer.trie import HypothesisTrie, Words, build_trie
from rescorer.types import Weights


class BatchScores:
    """The scores of a batch; sums over its paths are made once for all who mix the models alike.

    Args:
        ranker: knows the models' names.
        timings: what the batch took, from its trie on.
        context_words: that its networks needed.
    """

    def __init__(
        self,
        ranker: ListRanker,
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        partial: np.ndarray,  # (H,) bool
        timings: Sequence[PhaseTiming],
        context_words: ContextWords,
    ) -> None:
        self.ranker, self.trie, self.scores, self.timings = ranker, trie, scores, timings
        self.context_words = context_words
        self._partial = partial
        self._sums: dict[tuple[tuple[str, float], ...], dict[str, np.ndarray]] = {}

    def sums(self, weights: Weights) -> dict[str, np.ndarray]:
        """``ListRanker.sentence_sums`` of all hypotheses of the batch; called from any thread."""
        mixture = tuple(weights.mixture.items())
        if mixture not in self._sums:
            self._sums[mixture] = self.ranker.sentence_sums(self.trie, self.scores, weights, self._partial)
        return self._sums[mixture]


class ItemScores(NamedTuple):
    """What one piece of work is given."""

    batch: BatchScores
    rows: slice
    """Which hypotheses of the batch are its own."""
    places: Sequence[int]
    """Of each of them in its list."""
    queue: PhaseTiming
    """Until the scoring of the batch began."""


@dataclass(eq=False, slots=True)
class WorkItem:
    """Hypotheses of one list, or as many of them as fit into a batch."""

    ranker: ListRanker
    """Stands for the bundle."""
    words: Sequence[Words]
    partial: Sequence[bool]
    """Whose end is left out."""
    context: Words
    deadline: float
    """In ``time.monotonic`` seconds; afterwards nobody waits for it."""
    only: tuple[str, ...] = ()
    """Models to ask; empty: all."""
    cost: int = 0
    """Tokens: words, ends and context."""
    request_id: str = ""
    queued: float = field(default_factory=time.perf_counter)
    """When it came into the queue, in ``time.perf_counter`` seconds."""
    places: Sequence[int] = ()
    """Of the hypotheses in their list."""
    answer: asyncio.Future[ItemScores] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def kind(self) -> tuple[str, tuple[str, ...]]:
        """Only work of one kind can be scored together."""
        return self.ranker.bundle.label, self.only

    def is_over(self) -> bool:
        """Whether it is answered, given up, or late; a late one is told so."""
        if not self.answer.done() and time.monotonic() >= self.deadline:
            self.fail(DeadlineExceeded("the deadline passed before scoring began"))
        return self.answer.done()

    def fail(self, fault: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(fault)
            self.answer.exception()  # whoever waits may be gone: that is no news for the log


def make_work_items(
    ranker: ListRanker,
    prepared: PreparedList,
    max_batch_tokens: int,
    deadline: float,
    only: tuple[str, ...] = (),
    request_id: str = "",
) -> list[WorkItem]:
    """A list as work that fits into batches; arguments as of ``WorkItem``."""
    words, context, hypotheses = prepared.words, prepared.context, prepared.nbest.hypotheses
    return [
        WorkItem(
            ranker,
            [words[place] for place in places],
            [hypotheses[place].partial for place in places],
            context,
            deadline,
            only,
            cost,
            request_id,
            places=places,
        )
        for places, cost in plan_batches(words, [context] * len(words), max_batch_tokens)
    ]


def build_batch_trie(works: Sequence[WorkItem]) -> HypothesisTrie:
    with phase(Phase.TRIE):
        return build_trie(
            [each for work in works for each in work.words],
            [work.context for work in works for _ in work.words],
        )
