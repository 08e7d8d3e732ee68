"""Work items (hypotheses of one list that wait to be scored together) and the scores that they receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rescorer.errors import DeadlineExceeded
from rescorer.list_ranker import ListRanker
from rescorer.lm.base import EdgeScores
from rescorer.lm.caches.mixing import read_caches
from rescorer.lm.caches.session_cache import Caches
from rescorer.lm.contexts.context_stats import ContextWords
from rescorer.phrases.matching import PhraseMatch
from rescorer.phrases.slots import SlotReadings, SlotScores, read_slots
from rescorer.preparation.batching import plan_batches
from rescorer.prepared_list import PreparedList
from rescorer.runtime.profiling import Phase, phase
from rescorer.service.observability.timings import PhaseTiming
from rescorer.trie import HypothesisTrie, Words, build_trie
from rescorer.types import Weights


class BatchScores:
    """The scores of a batch, shared by its work items.

    Args:
        ranker: sums the scores over the paths of the trie.
        partial: (H,) bool, hypotheses whose end of sentence is not scored.
        timings: phases of the batch, starting with building its trie.
        context_words: context words that the networks needed.
        slots: scores of the readings of hypotheses with slots.
    """

    def __init__(
        self,
        ranker: ListRanker,
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        partial: np.ndarray,
        timings: Sequence[PhaseTiming],
        context_words: ContextWords,
        slots: SlotScores,
    ) -> None:
        self.ranker, self.trie, self.scores, self.timings = ranker, trie, scores, timings
        self.context_words, self.slots = context_words, slots
        self._partial = partial
        self._sums: dict[Hashable, dict[str, np.ndarray]] = {}
        self._caches: dict[Hashable, Caches] = {}

    def read_caches(self, weights: Weights) -> Caches:
        """The caches of the batch's sessions, computed once for all requests with the same weights."""
        key = _mixture_key(weights)
        if key not in self._caches:
            self._caches[key] = read_caches(self.trie, self.scores, weights)
        return self._caches[key]

    def sentence_sums(self, weights: Weights) -> dict[str, np.ndarray]:
        """``ListRanker.sentence_sums`` of all hypotheses of the batch; may be called from any thread.

        The sums are computed once for all requests with the same weights of the mixture and of caches.
        """
        key = _mixture_key(weights)
        if key not in self._sums:
            caches = self.read_caches(weights)
            self._sums[key] = self.ranker.sentence_sums(
                self.trie, self.scores, weights, self._partial, caches
            )
        return self._sums[key]


def _mixture_key(weights: Weights) -> Hashable:
    """What the sums of a batch depend on besides its scores."""
    return tuple(weights.mixture.items()), weights.cache, weights.neural_cache


class ItemScores(NamedTuple):
    """The scores of one work item."""

    batch: BatchScores
    rows: slice
    """Range of the batch's hypotheses that belong to the item."""
    indices: Sequence[int]
    """For each of these hypotheses, its index in the list."""
    queue: PhaseTiming
    """Time in the queue, until scoring of the batch began."""


def collect_sums(
    prepared: PreparedList, parts: Sequence[ItemScores], weights: Weights
) -> dict[str, np.ndarray]:
    """``ListRanker.sentence_sums`` of the hypotheses of a list, from all its work items."""
    sums: dict[str, np.ndarray] = {}
    for part in parts:
        for name, values in part.batch.sentence_sums(weights).items():
            list_sums = sums.setdefault(name, np.empty((len(prepared.words), *values.shape[1:])))
            list_sums[list(part.indices)] = values[part.rows]
        if prepared.matches:
            part.batch.ranker.adjust_for_phrases(
                sums,
                part.batch.trie,
                part.batch.scores,
                weights.mixture,
                prepared.words,
                prepared.matches,
                enumerate(part.indices, start=part.rows.start),
                part.batch.read_caches(weights),
                part.batch.slots,
            )
    return sums


@dataclass(eq=False, slots=True)
class WorkItem:
    """Hypotheses of one list: all of them, or as many as fit into a batch."""

    ranker: ListRanker
    """Ranker of the bundle that scores the item."""
    words: Sequence[Words]
    """Words of each hypothesis after text normalisation."""
    partial: Sequence[bool]
    """Whether the end of sentence of each hypothesis is not scored."""
    context: Words
    confidences: tuple[float, ...]
    """How sure each previous utterance of the context is; empty: all are certain."""
    flatness: float
    """θ of the neural cache; 0: there is none."""
    matches: Sequence[Sequence[PhraseMatch]]
    """Phrases of each hypothesis."""
    deadline: float
    """Time after which the scores are of no use, in ``time.monotonic`` seconds."""
    only: tuple[str, ...] = ()
    """Names of the models that score the item; empty: all."""
    encode: tuple[str, ...] = ()
    """Names of the rerankers for which its words are encoded."""
    cost: int = 0
    """Number of tokens: words, ends of sentences and context."""
    request_id: str = ""
    queued_at: float = field(default_factory=time.perf_counter)
    """Time of creation, in ``time.perf_counter`` seconds."""
    indices: Sequence[int] = ()
    """For each hypothesis, its index in the list."""
    future: asyncio.Future[ItemScores] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Receives the scores."""
    leave_queue: Callable[[], None] = lambda: None
    """Removes the item from the queue, if it still waits there."""

    @property
    def kind(self) -> tuple[str, tuple[str, ...]]:
        """Bundle and models; only items of the same kind can be scored together."""
        return self.ranker.bundle.label, self.only

    @property
    def has_slots(self) -> bool:
        """Whether a phrase of a hypothesis has a slot."""
        return any(match.slots for found in self.matches for match in found)

    def is_finished(self) -> bool:
        """Whether the item is scored, failed or cancelled; an item past its deadline fails now."""
        if not self.future.done() and time.monotonic() >= self.deadline:
            self.fail(DeadlineExceeded("the deadline passed before scoring began"))
        return self.future.done()

    def fail(self, error: Exception) -> None:
        """Finish the item with an error, unless it is already finished."""
        if not self.future.done():
            self.future.set_exception(error)
            # Mark the exception as retrieved: if the caller is gone, asyncio would log it.
            self.future.exception()


def make_work_items(
    ranker: ListRanker,
    prepared: PreparedList,
    max_batch_tokens: int,
    deadline: float,
    only: tuple[str, ...] = (),
    encode: tuple[str, ...] = (),
    request_id: str = "",
) -> list[WorkItem]:
    """Split a list into work items that fit into batches; see ``WorkItem`` for the arguments."""
    words, context, hypotheses = prepared.words, prepared.history, prepared.nbest.hypotheses
    backward = bool(ranker.bundle.backward)
    contexts = [context] * len(words)
    return [
        WorkItem(
            ranker,
            [words[i] for i in indices],
            [hypotheses[i].partial for i in indices],
            context,
            prepared.confidences,
            prepared.flatness,
            [prepared.matches[i] if prepared.matches else () for i in indices],
            deadline,
            only,
            encode,
            cost,
            request_id,
            indices=indices,
        )
        for indices, cost in plan_batches(words, contexts, max_batch_tokens, backward=backward)
    ]


def read_item_slots(items: Sequence[WorkItem]) -> Iterator[SlotReadings]:
    """The readings of the hypotheses of a batch that have phrases with slots; see ``read_slots``."""
    return read_slots(
        [words for item in items for words in item.words],
        [item.context for item in items for _ in item.words],
        [found for item in items for found in item.matches],
        [is_partial for item in items for is_partial in item.partial],
    )


def build_batch_trie(items: Sequence[WorkItem]) -> HypothesisTrie:
    with phase(Phase.TRIE):
        return build_trie(
            [words for item in items for words in item.words],
            [item.context for item in items for _ in item.words],
            [item.confidences for item in items for _ in item.words],
            [item.flatness for item in items for _ in item.words],
        )
