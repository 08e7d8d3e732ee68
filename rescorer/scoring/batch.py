"""Batches of hypotheses: plan them, build their tries, and sum scores of edges to scores of hypotheses.

No other module builds a trie for scoring. The caller of a batch decides where the models run:

    batch = Batch(parts)
    request = batch.advance()
    while request is not None:
        request = batch.advance(score(request))

The library scores in this loop; the service sends each request to a worker. Components then read the scores
of each list from its ``ScoredPart``s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain, compress, count, pairwise
from operator import ne
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from rescorer.models.language_model import mix_scores
from rescorer.runtime import Phase, phase
from rescorer.scoring.components import Asked, BoundOptions, EdgeScoresByModel, PreparedList, find_by_name
from rescorer.trie import HypothesisTrie, Words, build_trie, join_texts, text_lengths
from rescorer.types import TextScore
from rescorer.weights import MIXTURE

if TYPE_CHECKING:
    from rescorer.models.bundle import Bundle
    from rescorer.trie import WordEncoder

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A request to score the edges of a trie."""

    trie: HypothesisTrie
    models: tuple[str, ...] = ()
    """Names of the models that score the trie; empty: all models of the bundle."""
    encoders: Mapping[str, WordEncoder] = field(default_factory=dict)
    """Encoders to apply to the words of the trie, by the names under which the encodings are returned."""
    surface: bool = False
    """Whether the words of the trie are those of texts as they are written. Only models that read such texts
    score it; all other models score tries of canonical words."""
    words: frozenset[str] = frozenset()
    """Names of the models in pieces of words of which ``EdgeScores.word_log_probs`` are needed."""


class Part(NamedTuple):
    """Hypotheses of one list that are scored together: all of them, or as many as fit into a batch."""

    prepared: PreparedList
    indices: Sequence[int]  # indices of the hypotheses in the list
    cost: int  # upper bound of the number of tokens to score; see ``BatchPlan.cost``

    @property
    def partial(self) -> Sequence[bool]:
        """Whether each of these hypotheses is scored without the end of the sentence."""
        nbest = self.prepared.nbest
        is_plain, hypotheses = nbest.is_plain, nbest.hypotheses
        return [False] * len(self.indices) if is_plain else [hypotheses[i].partial for i in self.indices]

    @property
    def words(self) -> Sequence[Words]:
        """Canonical words of these hypotheses."""
        words = self.prepared.words
        return words if self.indices == range(len(words)) else [words[i] for i in self.indices]


class Batch:
    """Hypotheses of one or more lists that are scored together, and their scores.

    Args:
        models: names of the models that score the hypotheses; empty: all models of the bundle. If some are
            named, the word encoders that components need are not used.
        encoders: encoders of words that the caller needs, in addition to those that components need.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        models: Sequence[str] = (),
        encoders: Mapping[str, WordEncoder] | None = None,
    ) -> None:
        self.parts, self.models = parts, tuple(models)
        self._encoders = encoders or {}
        ends = accumulate((len(part.indices) for part in parts), initial=0)
        self._rows = [slice(first, last) for first, last in pairwise(ends)]
        # The generator of further requests; None before the trie is scored, and after the last request.
        self._asking: Asked | None = None
        self._known: dict[Hashable, Any] = {}
        self._indices: list[Sequence[int]] = []
        self.scores: EdgeScoresByModel = {}
        """Edge scores of the trie by model; empty until the first request has been answered."""
        self.surface_scores: EdgeScoresByModel = {}
        """Edge scores of ``surface_trie``, by the models that read texts as they are written."""
        self.notes: dict[str, Any] = {}
        """Data that each component keeps about the scores that it asked for, by the component's name."""

    @cached_property
    def trie(self) -> HypothesisTrie:
        """The trie of all hypotheses, in canonical words."""
        lists = [part.prepared for part in self.parts]
        with phase(Phase.TRIE):
            return build_trie(
                join_texts([part.words for part in self.parts]),
                [prepared.history for prepared in lists],
                [prepared.confidences for prepared in lists],
                [prepared.flatness for prepared in lists],
                [len(part.indices) for part in self.parts],
            )

    @cached_property
    def surface_trie(self) -> HypothesisTrie:
        """The trie of all hypotheses, in the words of their texts as they are written."""
        words, contexts = [], []
        for part in self.parts:
            words += [part.prepared.surfaces[i] for i in part.indices]
            contexts += [part.prepared.surface_history] * len(part.indices)
        with phase(Phase.TRIE):
            return build_trie(words, contexts)

    @cached_property
    def partial(self) -> np.ndarray:
        """(H,) bool, true for hypotheses that are scored without the end of the sentence."""
        return np.fromiter(chain.from_iterable(part.partial for part in self.parts), dtype=bool)

    @property
    def tokens_asked(self) -> int:
        """Upper bound of the number of tokens for which components ask for scores, besides the trie."""
        return sum(one.tokens(part.prepared) for part in self.parts for one in part.prepared.components)

    def advance(self, scores: EdgeScoresByModel | None = None) -> ScoreRequest | None:
        """Return the next request for scores, or None when there is nothing left to score.

        Args:
            scores: the answer to the previous request; None at the first call.
        """
        if scores is None:
            return ScoreRequest(self.trie, self.models, self.find_encoders(), words=self._find_word_models())
        try:
            if self._asking is not None:
                return self._asking.send(scores)
            self.scores, self._asking = scores, self._ask()
            return next(self._asking)
        except StopIteration:
            self.close()
            return None

    def close(self) -> None:
        """Drop the lists, so that the scores of one list do not keep the other lists in memory."""
        self._asking = None
        if self.parts:
            self._indices = [part.indices for part in self.parts]
            self.partial  # noqa: B018  # computed here, while the lists are there
            self.parts = ()

    def part(self, index: int) -> ScoredPart:
        """Return the scores of one part. Call this after all requests have been answered."""
        return ScoredPart(self, self._rows[index], self._indices[index])

    def once(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Call ``compute`` once for each key, and return its result for all later calls with that key.

        Any thread may call this.
        """
        if key not in self._known:
            self._known[key] = compute()
        value: Value = self._known[key]
        return value

    def _ask(self) -> Asked:
        of_lists = {id(part.prepared.components): part.prepared.components for part in self.parts}
        for component in find_by_name([*chain.from_iterable(of_lists.values())]).values():
            yield from component.ask(self)

    def find_encoders(self) -> dict[str, WordEncoder]:
        """Return the word encoders that the caller and the components need, by name."""
        encoders = dict(self._encoders)
        if not self.models:
            for options in self._distinct_options():
                for component in options.components:
                    encoders |= component.encoders(options.weights)
        return encoders

    def _find_word_models(self) -> frozenset[str]:
        """Names of the models whose probabilities of words lists and components need."""
        by_components = (
            component.word_models(options.weights)
            for options in self._distinct_options()
            for component in options.components
        )
        return frozenset().union(*by_components, *(part.prepared.word_models for part in self.parts))

    def _distinct_options(self) -> Collection[BoundOptions]:
        return {id(part.prepared.options): part.prepared.options for part in self.parts}.values()


class ScoredPart(NamedTuple):
    """Hypotheses of one list that have been scored."""

    batch: Batch
    rows: slice  # rows of these hypotheses in the batch
    indices: Sequence[int]  # indices of these hypotheses in the list


def score_words(part: ScoredPart, prepared: PreparedList, bundle: Bundle) -> dict[int, TextScore]:
    """Score each word of the hypotheses of a part, by each model that scores words, and by the mixture.

    Models in pieces of words that do not score words are left out. So are models for which a text is
    too long, for that text.

    Returns:
        Word scores by the index of the hypothesis in its list.
    """
    trie, ngram = part.batch.trie, bundle.ngram
    scores = {
        name: values
        for name, values in part.batch.scores.items()
        if name not in bundle.open_vocabulary or values.word_log_probs is not None
    }
    mixture = prepared.options.weights.mixture
    parts = {**scores, MIXTURE: mix_scores(scores, mixture)} if mixture else dict(scores)
    by_direction = {values.backward: values for values in parts.values()}
    by_node: dict[int, tuple[dict[str, tuple[float, ...]], tuple[bool, ...]]] = {}  # equal texts share a node
    answers = {}
    for row, index in enumerate(part.indices, start=part.rows.start):
        node = int(trie.hypothesis_node[row])
        if node not in by_node:
            edges = {backward: values.path_edges(trie, row) for backward, values in by_direction.items()}
            log_probs = {
                name: tuple(values.of_words[edges[values.backward]].tolist())
                for name, values in parts.items()
            }
            unknown = np.zeros(len(prepared.words[index]), dtype=bool)
            if ngram in scores:
                unknown = scores[ngram].unknown[edges[scores[ngram].backward][:-1]]
            by_node[node] = log_probs, tuple(unknown.tolist())
        text, (log_probs, flags) = prepared.nbest.hypotheses[index].text, by_node[node]
        unread = {name for name, indices in prepared.unread.items() if index in indices}
        unread |= {MIXTURE} if unread.intersection(mixture) else set()
        log_probs = {name: values for name, values in log_probs.items() if name not in unread}
        answers[index] = TextScore(text, prepared.words[index], log_probs, flags)
    return answers


def plan(lists: Sequence[PreparedList], max_words: int, *, backward: bool = False) -> Iterator[list[Part]]:
    """Divide lists, in order, into batches of at most ``max_words`` words and pieces of words.

    A list with more words is divided by ``plan_batches``; a hypothesis with more words is a batch by itself.
    """
    costs = [count_tokens(each) + each.n_units for each in lists]
    surplus = sum(costs) - max_words
    for index, each in enumerate(lists):
        if surplus <= 0:
            break
        # A slower count, in which shared words count once: of a few lists if these are to be one batch.
        distinct = count_distinct(each.words, each.history, backward=backward) + each.n_units
        surplus -= costs[index] - distinct
        costs[index] = distinct
    batch, total = list[Part](), 0
    for prepared, cost in zip(lists, costs, strict=True):
        if not prepared.words:
            continue
        parts = [Part(prepared, range(len(prepared.words)), cost)]
        for part in parts if cost <= max_words else split(prepared, max_words, backward=backward):
            if batch and total + part.cost > max_words:
                yield batch
                batch, total = [], 0
            batch.append(part)
            total += part.cost
    if batch:
        yield batch


def split(prepared: PreparedList, max_words: int, *, backward: bool = False) -> Iterator[Part]:
    """Divide the hypotheses of a list into parts of at most ``max_words`` words; see ``plan_batches``.

    If models read pieces of words, parts have fewer words, so that words and pieces together are as many if
    pieces are spread evenly. Afterwards these pieces, and the tokens for which components ask for scores, are
    added to the costs of the parts, in proportion to their numbers of hypotheses.
    """
    histories, n = [prepared.history] * len(prepared.words), len(prepared.words)
    asked = prepared.n_units + sum(component.tokens(prepared) for component in prepared.components)
    if prepared.n_units:
        n_words = count_distinct(prepared.words, prepared.history, backward=backward)
        max_words = max(1, max_words * n_words // (n_words + prepared.n_units))
    for indices, cost in plan_batches(prepared.words, histories, max_words, backward=backward):
        yield Part(prepared, indices, cost + asked * len(indices) // n)


def count_tokens(prepared: PreparedList) -> int:
    """Count the words of a list, the ends of its sentences and the words of its context."""
    return int(prepared.word_counts.sum()) + len(prepared.words) + len(prepared.history)


class BatchPlan(NamedTuple):
    """Hypotheses that are scored together."""

    indices: Sequence[int]
    """Indices of the hypotheses in the sequence given to ``plan_batches``."""
    cost: int
    """Upper bound of the number of words to score: canonical words, one ``</s>`` per hypothesis, and the
    words of every distinct context. A prefix that several hypotheses share counts once if the hypotheses had
    to be divided. Otherwise it counts for each of them, because then a fast count matters more."""


def plan_batches(
    words: Sequence[Words], contexts: Sequence[Words], max_words: int, *, backward: bool = False
) -> Iterator[BatchPlan]:
    """Plan batches of at most ``max_words`` words; a longer hypothesis is a batch by itself.

    Hypotheses that fit into one batch keep their order. Otherwise they are sorted. Then hypotheses with a
    common prefix come into the same batch, and few prefixes are scored twice.

    Args:
        contexts: for each hypothesis, the words before it in the same sentence.
        backward: whether a backward model scores the hypotheses too. A shared prefix then counts for each
            hypothesis, because the trie of the reversed words does not share it.
    """
    if not words:
        return
    if (cost := _cost(words, contexts)) <= max_words:
        yield BatchPlan(range(len(words)), cost)
        return
    order = sorted(range(len(words)), key=words.__getitem__)
    order.sort(key=contexts.__getitem__)  # stable: hypotheses with equal contexts stay sorted by their words
    remaining = sum(map(len, words)) + len(words) + sum(map(len, contexts))
    begin = total = 0
    for position, i in enumerate(order):
        if total + remaining <= max_words:
            total += remaining
            break
        whole = _whole_cost(words, contexts, i)
        cost = _cost_after(words, contexts, order[position - 1], i, backward) if position > begin else whole
        if position > begin and total + cost > max_words:
            yield BatchPlan(order[begin:position], total)
            begin, total, cost = position, 0, whole
        total += cost
        remaining -= whole
    yield BatchPlan(order[begin:], total)


def count_distinct(words: Sequence[Words], context: Words, *, backward: bool = False) -> int:
    """Count the words to score in a list; a prefix that hypotheses share counts once."""
    contexts = [context] * len(words)
    order = sorted(range(len(words)), key=words.__getitem__)
    added = sum(_cost_after(words, contexts, before, i, backward) for before, i in pairwise(order))
    return added + (len(words[order[0]]) + 1 + len(context) if order else 0)


def _whole_cost(words: Sequence[Words], contexts: Sequence[Words], i: int) -> int:
    """Count the words of hypothesis i and of its context."""
    return len(words[i]) + 1 + len(contexts[i])


def _cost_after(
    words: Sequence[Words], contexts: Sequence[Words], before: int, i: int, backward: bool
) -> int:
    """Count the words that hypothesis i adds to a batch, after ``before``, the one sorted before it."""
    if contexts[i] != contexts[before]:
        return _whole_cost(words, contexts, i)
    if words[i] == words[before]:
        return 0
    if backward:
        return len(words[i]) + 1
    shared = next(compress(count(), map(ne, words[before], words[i])), len(words[before]))
    return len(words[i]) - shared + 1


def _cost(words: Sequence[Words], contexts: Sequence[Words]) -> int:
    """Count the words to score in one batch; a context shared by adjacent hypotheses counts once."""
    pairs = zip([None, *contexts], contexts, strict=False)
    context_words = sum(len(context) for previous, context in pairs if context is not previous)
    return int(text_lengths(words).sum()) + len(words) + context_words
