"""Cache of a session: n-grams of the words that were said before a list, decayed by their age.

The cache predicts a word from the words before the root of a hypothesis: its previous utterances, with their
ends, and the context of its sentence. The counts of n-grams are interpolated with those of shorter ones,

    P_k(w | h) = (c(h, w) + PRIOR · P_{k-1}(w | h')) / (c(h) + PRIOR),    P_1(w) = c(w) / c,

where a word counts the confidence of its utterance times its decay. Σ_w P(w | h) = 1 over the words of the
session and ``</s>``. The mixture is interpolated with it word by word,

    P(w | h) = (1 - λ) P_mixture(w | h) + λ P_cache(w | h),    λ = share · c / (c + HALF_COUNT),

so that little is expected of a session of a few words. ``docs/how-to/conversations.md`` says what it gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.trie import HypothesisTrie

# The lowest perplexities on held-out conversations; twice or half of each changes them by less than 1 %.
ORDER = 3
"""Length of the longest n-grams."""
HALF_LIFE_WORDS = 150.0
"""A word counts half as much as one that was said so many words later."""
PRIOR = 1.0
"""Count of the shorter history beside that of a longer one."""
HALF_COUNT = 50.0
"""Count c of a session at which λ is half of what it would be for an endless one."""


@dataclass(frozen=True, slots=True)
class SessionCache:
    """What the sessions of a trie's roots predict for its edges."""

    probs: np.ndarray
    """(E,) float64 P_cache; 0 for a word that its session does not have."""
    shares: np.ndarray
    """(E,) float64 λ of the edge's session; 0: nothing was said before."""

    def add_to(self, mixture: EdgeScores) -> EdgeScores:
        """Interpolate a mixture of forward models with the cache."""
        return replace(mixture, log_probs=self.interpolate(mixture.log_probs))

    def interpolate(self, log_probs: np.ndarray, edges: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Interpolate scores of some edges, (n,); edges without a session keep their scores bit by bit."""
        shares = self.shares[edges]
        with np.errstate(divide="ignore"):  # the cache may not know a word
            mixed = np.logaddexp(np.log1p(-shares) + log_probs, np.log(shares * self.probs[edges]))
        return np.where(shares > 0, mixed, log_probs)


def read_sessions(trie: HypothesisTrie, share: float) -> SessionCache | None:
    """Predict the word on each edge of a trie from what was said before its root.

    Each order is one pass over all words said and all edges: the n-grams of an order are the histories of the
    next one.

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
    """The neural caches of a mixture's networks, each in proportion to the λ of its network.

    As with the cache of words, λ = ``share`` · c / (c + ``HALF_COUNT``) in a session whose words count c.

    Args:
        mixture: λ of the models.
        share: λ for an endless session; 0 for no cache.
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
    """List what was said before all roots, with an ``</s>`` that does not count before each session.

    Returns:
        (T,) int64 words and roots, and (T,) float64 how much each word counts.
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
    """How sure each word that was said before a root is, (T,) float64.

    Args:
        context: (T,) words; ``end`` ends an utterance.
        confidences: that of each utterance; empty: all are certain.
    """
    if not confidences:
        return np.ones(len(context))
    is_end = context == end
    utterance = np.cumsum(is_end) - is_end
    return np.append(confidences, 1.0)[utterance]  # the context of the sentence is certain


def _look_up(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Index of each wanted key among sorted ones; -1 for a key that is not there or negative."""
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[index] == wanted) & (wanted >= 0), index, -1)
