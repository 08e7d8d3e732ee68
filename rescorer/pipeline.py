"""Owns the one path from lists to answers: normalise, trie, language models, combine, rank.

The gRPC service, the file command, evaluation, tuning and the benchmark all call ``Rescorer``; nothing
scores text by another route.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rescorer.batching import budget_cuts, subtree_order, word_costs
from rescorer.bundle import Bundle, check_weights, load_bundle
from rescorer.errors import InputError, InvalidList, ScoringError
from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.lm.base import EdgeScores
from rescorer.lm.mixture import mixed_scores
from rescorer.profiling import Phase, phase
from rescorer.ranking import Ranking, ranking
from rescorer.score_combination import MIXTURE, OOV, WORDS, totals
from rescorer.trie import HypothesisTrie, Words, build_trie
from rescorer.types import NBestList, RescoredList, TextScore, Weights

MAX_BATCH_WORDS = 65_536
"""Words scored at once. A batch of so many needs about 1 KB a word and network, 64 MB at hidden size 200."""
MAX_WORDS = 100_000
"""Words of the longest hypothesis that is taken for one; above it something else was sent."""


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A list that can be scored."""

    nbest: NBestList
    words: tuple[Words, ...]
    """Canonical words of each hypothesis."""
    context: Words


class Rescorer:
    """Scores and re-ranks n-best lists with one bundle of models.

    >>> rescorer = Rescorer.load("models/starter/1")       # doctest: +SKIP
    >>> rescorer.rescore(lists)[0].best.text               # doctest: +SKIP
    """

    def __init__(self, bundle: Bundle, max_batch_words: int = MAX_BATCH_WORDS) -> None:
        self.bundle = bundle
        self.max_batch_words = max_batch_words
        self._names = frozenset({*bundle.models, MIXTURE, WORDS, OOV})
        self._words = bundle.normaliser.words

    @classmethod
    def load(
        cls,
        folder: Path | str,
        device: str = "cpu",
        max_batch_words: int = MAX_BATCH_WORDS,
        dtype: str = "float32",
        context_cache_bytes: int = CONTEXT_CACHE_BYTES,
    ) -> Rescorer:
        """Raises BundleError where the bundle cannot be used; ``dtype`` and ``context_cache_bytes`` as of
        ``NeuralLanguageModel``."""
        return cls(load_bundle(folder, device, dtype, context_cache_bytes), max_batch_words)

    def rescore(
        self, lists: Sequence[NBestList], weights: Weights | None = None, *, merge: bool = False
    ) -> list[RescoredList]:
        """Re-ranked lists, in the order they came.

        Args:
            weights: None: the bundle's default.
            merge: make one of hypotheses whose canonical words are equal, adding their probabilities.

        Raises:
            InvalidList: the first list that cannot be scored; ``rescore_each`` keeps the others.
            ConfigError: the weights do not fit the bundle.
        """
        answers = self.rescore_each(lists, weights, merge=merge)
        for answer in answers:
            if isinstance(answer, InputError):
                raise answer
        return answers  # type: ignore[return-value]

    def rescore_each(
        self, lists: Sequence[NBestList], weights: Weights | None = None, *, merge: bool = False
    ) -> list[RescoredList | InvalidList]:
        """As ``rescore``, but a list that cannot be scored is answered by its fault."""
        weights = self.effective_weights(weights)
        answers: list[RescoredList | InvalidList | None] = [None] * len(lists)
        good: list[tuple[int, PreparedList]] = []
        for i, nbest in enumerate(lists):
            try:
                good.append((i, self.prepared(nbest, weights)))
            except InvalidList as fault:
                answers[i] = fault
        words = [hypothesis for _, each in good for hypothesis in each.words]
        contexts = [each.context for _, each in good for _ in each.words]
        partial = [hypothesis.partial for _, each in good for hypothesis in each.nbest.hypotheses]
        sums = self._sentence_sums(words, contexts, weights, np.array(partial, dtype=bool))
        begin = 0
        for i, each in good:
            end = begin + len(each.words)
            parts = {name: values[begin:end] for name, values in sums.items()}
            try:
                with phase(Phase.RANK):
                    ordered = self.ranked(each, parts, weights, merge=merge)
                    answers[i] = ordered.to_rescored_list(weights, self.bundle.label)
            except InvalidList as fault:
                answers[i] = fault
            begin = end
        return answers  # type: ignore[return-value]

    def score_text(
        self, texts: Sequence[str], context: str = "", weights: Weights | None = None
    ) -> list[TextScore]:
        """Every model's log-probability of each word of some texts; of the weights only λ matter."""
        weights = self.effective_weights(weights)
        with phase(Phase.TEXT):
            words, before = [self._words(text) for text in texts], self._words(context)
        answers: list[TextScore] = []
        for begin, trie, scores in self._scored_batches(words, [before] * len(texts)):
            end = begin + len(trie.hypothesis_node)
            answers += self.text_scores(texts[begin:end], words[begin:end], trie, scores, weights)
        return answers

    def prepared(self, nbest: NBestList, weights: Weights) -> PreparedList:
        """A list checked against complete weights, in canonical words; raises InvalidList."""
        with phase(Phase.TEXT):
            check_list(nbest, weights, self._names)
            words = tuple(self._words(hypothesis.text) for hypothesis in nbest.hypotheses)
            context = self._words(nbest.context)
            check_lengths(nbest.id, words, context)
        return PreparedList(nbest, words, context)

    def edge_scores(self, trie: HypothesisTrie, only: Sequence[str] = ()) -> dict[str, EdgeScores]:
        """Each model's view of a trie, by its name; raises ScoringError where a score is not finite.

        Args:
            only: names of the models to ask; empty: all.
        """
        models = self.bundle.models
        scores = {name: models[name].score(trie) for name in only or models}
        for name, part in scores.items():
            if not np.isfinite(part.log_probs).all():
                raise ScoringError(f"model {name!r} of {self.bundle.label} gave a score that is not finite")
        return scores

    def sentence_sums(
        self,
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        weights: Weights,
        partial: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Sums over each hypothesis of a trie: every LM by name, and the count of unknown words, (H,).

        Args:
            partial: (H,) bool, hypotheses without an end; None: none.
        """
        sums = {name: trie.sum_paths(part.log_probs, partial) for name, part in scores.items()}
        sums[MIXTURE] = trie.sum_paths(mixed_scores(scores, weights.mixture), partial)
        # </s> is known to every model, so the path holds unknown words only.
        sums[OOV] = trie.sum_paths(scores[self.bundle.ngram].unknown)
        return sums

    def text_scores(
        self,
        texts: Sequence[str],
        words: Sequence[Words],
        trie: HypothesisTrie,
        scores: Mapping[str, EdgeScores],
        weights: Weights,
        first: int = 0,
    ) -> list[TextScore]:
        """Scores word by word of texts that are the hypotheses of a trie from ``first`` on."""
        log_probs = {name: part.log_probs for name, part in scores.items()}
        log_probs[MIXTURE] = mixed_scores(scores, weights.mixture)
        unknown = scores[self.bundle.ngram].unknown
        paths = [trie.path_edges(first + i) for i in range(len(texts))]
        return [
            TextScore(
                text=text,
                words=of_text,
                log_probs={name: tuple(values[edges].tolist()) for name, values in log_probs.items()},
                unknown=tuple(unknown[edges[:-1]].tolist()),
            )
            for text, of_text, edges in zip(texts, words, paths, strict=True)
        ]

    def effective_weights(self, weights: Weights | None) -> Weights:
        """The given weights, or the bundle's default; λ are the bundle's where the weights name none.

        Raises:
            ConfigError: the weights name models that the bundle lacks, or λ are no shares.
        """
        default = self.bundle.weights["default"]
        if weights is None:
            return default
        check_weights(weights, list(self.bundle.models))
        return weights if weights.mixture else replace(weights, mixture=default.mixture)

    def _scored_batches(
        self, words: Sequence[Words], contexts: Sequence[Words]
    ) -> Iterator[tuple[int, HypothesisTrie, dict[str, EdgeScores]]]:
        """Cuts hypotheses into batches within the budget; yields the first one's index, trie and scores."""
        for begin, end in budget_cuts(word_costs(words, contexts), self.max_batch_words):
            with phase(Phase.TRIE):
                trie = build_trie(words[begin:end], contexts[begin:end])
            yield begin, trie, self.edge_scores(trie)

    def _sentence_sums(
        self, words: Sequence[Words], contexts: Sequence[Words], weights: Weights, partial: np.ndarray
    ) -> dict[str, np.ndarray]:
        """``sentence_sums`` of any number of hypotheses.

        Where they are too many for one batch, they are cut between subtrees of their common trie, so that few
        prefixes are scored in more than one batch.
        """
        sums = {name: np.zeros(len(words)) for name in (*self.bundle.models, MIXTURE, OOV)}
        order = np.arange(len(words))
        if sum(word_costs(words, contexts)) > self.max_batch_words:
            ordered = subtree_order(words, contexts)
            words, contexts = [words[i] for i in ordered], [contexts[i] for i in ordered]
            order = np.array(ordered)
        for begin, trie, scores in self._scored_batches(words, contexts):
            rows = order[begin : begin + len(trie.hypothesis_node)]
            with phase(Phase.RANK):
                for name, values in self.sentence_sums(trie, scores, weights, partial[rows]).items():
                    sums[name][rows] = values
        return sums

    def ranked(
        self, prepared: PreparedList, sums: Mapping[str, np.ndarray], weights: Weights, *, merge: bool = False
    ) -> Ranking:
        """One list in its new order; raises InvalidList where a total is not finite."""
        components = components_of(prepared, sums)
        keys = prepared.words if merge else None
        return ranking(prepared.nbest, components, totals(components, weights), keys)


def components_of(prepared: PreparedList, sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a list's totals are made of, by name: its streams, what models gave, and words, (H,) float64."""
    streams = prepared.nbest.streams.items()
    components = {name: np.array(values, dtype=np.float64) for name, values in streams}
    words = np.array([len(each) for each in prepared.words], dtype=np.float64)
    return {**components, **sums, WORDS: words}


def check_lengths(list_id: str, words: Sequence[Words], context: Words) -> None:
    """Raises InvalidList where a hypothesis or the context is longer than any sentence."""
    for i, each in enumerate(words):
        if len(each) > MAX_WORDS:
            message = f"{len(each):,} words; expected at most {MAX_WORDS:,}"
            raise InvalidList(message, list_id=list_id, hypothesis=i, field="text")
    if len(context) > MAX_WORDS:
        message = f"{len(context):,} words; expected at most {MAX_WORDS:,}"
        raise InvalidList(message, list_id=list_id, field="context")


def check_list(nbest: NBestList, weights: Weights, reserved: frozenset[str] = frozenset()) -> None:
    """Raises InvalidList, naming the field, where a list cannot be scored under these weights.

    Args:
        reserved: names of our own components, which no stream may take.
    """

    def fault(message: str, field: str = "", hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, field=field, hypothesis=hypothesis)

    if not nbest.hypotheses:
        raise fault("no hypotheses; expected at least one", "hypotheses")
    for name, values in nbest.streams.items():
        field = f'streams["{name}"]'
        if len(values) != len(nbest.hypotheses):
            raise fault(f"{len(values)} scores for {len(nbest.hypotheses)} hypotheses", field)
        for i, value in enumerate(values):
            if not math.isfinite(value):
                raise fault(f"{value}; expected a finite number", field, i)
    for name, weight in weights.streams.items():
        if weight != 0 and name not in nbest.streams:
            have = ", ".join(sorted(nbest.streams)) or "none"
            missing = f"missing, but weights {weights.name!r} count it; the list has: {have}"
            raise fault(missing, f'streams["{name}"]')
    taken = sorted(set(nbest.streams) & reserved)
    if taken:
        raise fault(f"the name {taken[0]!r} is one of our own; send the stream under another", "streams")
