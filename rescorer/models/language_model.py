"""The interface of language models, the mixture of several models, and the cache of a session.

A model reads a trie of hypotheses and returns one log-probability per edge. Models are mixed word by word,
P(w|h) = Σ_m λ_m · P_m(w|h). Before that, ``ngrams.align_vocabularies`` divides each model's P(``<unk>``)
among the words that it lacks and another model has. Nothing here needs torch or KenLM.

A session is what was said before a list: the previous utterances, and the context of the list's own sentence.
Its cache expects the words and n-grams of the session again. Counts of n-grams are interpolated with those of
shorter ones,

    P_k(w | h) = (c(h, w) + PRIOR · P_{k-1}(w | h')) / (c(h) + PRIOR),    P_1(w) = c(w) / c,

where h' is h without its first word. Each word counts the confidence of its utterance, times a decay by the
number of words said since. Σ_w P(w | h) = 1 over the words of the session and ``</s>``. The cache is
interpolated with the mixture word by word,

    P(w | h) = (1 - λ) P_mixture(w | h) + λ P_cache(w | h),    λ = share · c / (c + HALF_COUNT),

so that the cache of a session of a few words has little weight. ``docs/how-to/conversations.md`` says how
much it gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol, runtime_checkable

import numpy as np

from rescorer.trie import EdgeScores, HypothesisTrie


class LanguageModel(Protocol):
    """A model that scores tries. Each model has its own numbering of words."""

    name: str

    @property
    def backward(self) -> bool:
        """Whether the model reads sentences from their last word to their first."""

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        """Score every edge of a trie, or of the reversed trie if this is a backward model.

        Not thread-safe: call it from one thread at a time.
        """

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        """Divide the probability of ``<unk>`` among the words that this model does not know.

        Args:
            log_shares: ln of the share of each unknown word that another model knows.
            default: ln of the share of any other unknown word.
        """

    def log_share(self, word: str) -> float:
        """ln of a word's share of P(``<unk>``); 0 for a word in the vocabulary."""

    def vocabulary(self) -> AbstractSet[str]:
        """The words that the model knows, without ``<s>``, ``</s>`` and ``<unk>``."""


@runtime_checkable
class VectorModel(LanguageModel, Protocol):
    """A language model that predicts words from context vectors, and can encode hypotheses by them."""

    vector_size: int  # D, length of a context vector

    def score(self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None) -> EdgeScores:
        """Score every edge, and encode the words of every hypothesis.

        An encoding is the mean of the context vectors from which the words of the hypothesis and ``</s>`` are
        predicted, times a projection.

        Args:
            projections: (D, K) float64 by name; the encodings get the same names.
        """


@runtime_checkable
class OpenVocabularyModel(VectorModel, Protocol):
    """A model in pieces of words, to which no word is unknown."""

    @property
    def scores_words(self) -> bool:
        """Whether its pieces say where words end, so that it has probabilities of words."""

    @property
    def reads_previous(self) -> bool:
        """Whether it reads the utterances before a sentence."""

    def score_words(
        self, trie: HypothesisTrie, projections: Mapping[str, np.ndarray] | None = None
    ) -> EdgeScores:
        """Score every edge as ``score`` does; sets ``EdgeScores.word_log_probs`` if it ``scores_words``."""


def score_with_words(model: LanguageModel, trie: HypothesisTrie) -> EdgeScores:
    """Score every edge of a trie; the result's ``of_words`` are those that mixtures need, of any model."""
    return model.score_words(trie) if isinstance(model, OpenVocabularyModel) else model.score(trie)


def mix(log_probs: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Compute ln Σ_m λ_m · exp(log_probs[m]), (E,) float64; models of weight 0 are skipped."""
    weighted = [part + math.log(w) for part, w in zip(log_probs, weights, strict=True) if w > 0]
    return reduce(np.logaddexp, weighted)


def mix_scores(scores: Mapping[str, EdgeScores], weights: Mapping[str, float]) -> EdgeScores:
    """Mix the scores of models of one direction, by their weights λ.

    A word counts as unknown to the mixture if the first model does not know it.
    """
    log_probs = mix([scores[name].of_words for name in weights], list(weights.values()))
    first = scores[next(iter(weights))]
    return replace(first, log_probs=log_probs, encodings={}, cached=None, word_log_probs=None)


# The lowest perplexities on held-out conversations; twice or half of each changes them by less than 1 %.
ORDER = 3  # length of the longest n-grams
HALF_LIFE_WORDS = 150.0  # a word counts half as much as one that was said so many words later
PRIOR = 1.0  # count of the shorter history, compared with that of a longer one
HALF_COUNT = 50.0  # count c of a session at which λ is half of what it would be for an endless one


@dataclass(frozen=True, slots=True)
class SessionCache:
    """Predictions of a cache for the edges of a trie, each from the session before the edge's root."""

    probs: np.ndarray  # (E,) float64 P_cache of each edge's word; 0 if its session does not have the word
    shares: np.ndarray  # (E,) float64 λ of the edge's session; 0: nothing was said before

    def interpolate(self, log_probs: np.ndarray, edges: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Interpolate log-probabilities of some edges, (n,). Edges without a session keep theirs exactly."""
        shares = self.shares[edges]
        with np.errstate(divide="ignore"):  # the cache may not know a word
            mixed = np.logaddexp(np.log1p(-shares) + log_probs, np.log(shares * self.probs[edges]))
        return np.where(shares > 0, mixed, log_probs)


def read_sessions(trie: HypothesisTrie, share: float) -> SessionCache | None:
    """Predict the word on each edge of a trie from what was said before its root.

    Each order takes one pass over all words of the sessions and all edges. Its n-grams are the histories in
    the next pass.

    Args:
        share: λ for an endless session, at most ``MAX_CACHE_SHARE``; 0 for no cache.
    """
    if not share:
        return None
    words, root, weights = _list_said(trie)
    lengths = np.bincount(root, minlength=trie.n_roots)
    last = np.cumsum(lengths) - 1  # of each root
    n_words, n_inner = len(trie.words) + 1, trie.n_nodes - trie.n_roots
    said_after, node_history, n_histories = root, trie.root_of_node, trie.n_roots  # the empty histories
    probs, counts = np.zeros(trie.n_edges), np.zeros(trie.n_edges)
    for order in range(1, ORDER + 1):
        is_known = said_after >= 0
        keys, ngram = np.unique(np.where(is_known, said_after * n_words + words, -1), return_inverse=True)
        ngram_counts = np.bincount(ngram, weights, minlength=len(keys))
        history_counts = np.bincount(said_after[is_known], weights[is_known], minlength=n_histories)
        history = node_history[trie.edge_parent]
        total = np.where(history >= 0, history_counts[history], 0.0)
        found = _look_up(keys, np.where(history >= 0, history * n_words + trie.edge_word, -1))
        count = np.where(found >= 0, ngram_counts[found], 0.0)
        if order == 1:
            counts = total
            probs = np.divide(count, total, out=probs, where=total > 0)
        else:
            probs = (count + PRIOR * probs) / (total + PRIOR)
        ngram[~is_known] = -1
        node_history, n_histories = np.append(ngram[last], found[:n_inner]), len(keys)
        said_after = np.append(-1, ngram[:-1])
        said_after[last - lengths + 1] = -1  # a session has nothing before its first word
    return SessionCache(probs, share * counts / (counts + HALF_COUNT))


def mix_neural_caches(
    trie: HypothesisTrie, scores: Mapping[str, EdgeScores], mixture: Mapping[str, float], share: float
) -> SessionCache | None:
    """Mix the neural caches of a mixture's networks in proportion to their λ; None without any cache.

    Like the cache of words, their mixture has the weight λ = ``share`` · c / (c + ``HALF_COUNT``), where c is
    the count of all words of the session.
    """
    cached = {name: scores[name].cached for name, weight in mixture.items() if weight}
    networks = {name: values for name, values in cached.items() if values is not None}
    if not share or not networks:
        return None
    total = sum(mixture[name] for name in networks)
    probs = sum((mixture[name] / total * values for name, values in networks.items()), np.zeros(trie.n_edges))
    histories = zip(trie.contexts, trie.confidences, trie.flatness, strict=True)
    counts = np.array(
        [
            spread_confidences(context, confidences, len(trie.words)).sum() if flatness else 0.0
            for context, confidences, flatness in histories
        ]
    )
    return SessionCache(probs, share * (counts / (counts + HALF_COUNT))[trie.root_of_node[trie.edge_parent]])


def _list_said(trie: HypothesisTrie) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the words of all sessions, one session after another. An ``</s>`` of weight 0 precedes each.

    Returns:
        (T,) int64 words, (T,) int64 root of each word, and (T,) float64 how much each word counts.
    """
    end = len(trie.words)
    words, weights = [], []
    for context, confidences in zip(trie.contexts, trie.confidences, strict=True):
        counted = 0.5 ** (np.arange(len(context))[::-1] / HALF_LIFE_WORDS)
        counted *= spread_confidences(context, confidences, end)
        words.append(np.append(end, context))
        weights.append(np.append(0.0, counted))
    root = np.repeat(np.arange(trie.n_roots), list(map(len, words)))
    return np.concatenate(words), root, np.concatenate(weights)


def spread_confidences(context: np.ndarray, confidences: Sequence[float], end: int) -> np.ndarray:
    """The confidence of each word of a session, (T,) float64.

    Args:
        context: (T,) words said before a root.
        confidences: the confidence of each previous utterance; empty if all are certain.
        end: the word that ends an utterance. The words after the last one belong to the list's own sentence,
            and are certain.
    """
    if not confidences:
        return np.ones(len(context))
    is_end = context == end
    utterance = np.cumsum(is_end) - is_end
    return np.append(confidences, 1.0)[utterance]  # the context of the sentence is certain


def _look_up(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index of each wanted key in sorted keys; -1 if it is negative or not found."""
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[index] == wanted) & (wanted >= 0), index, -1)
