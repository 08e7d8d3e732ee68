"""Perplexity of a text of which the lines before each line are its session: with a cache, and without.

The control reads another conversation, the lines half the text away: what a cache gains there, it did not
learn from the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.lm.caches.session_cache import SessionCache, read_sessions
from rescorer.preparation.previous import MAX_PREVIOUS_WORDS, join_history
from rescorer.trie import Words, build_trie
from rescorer.types import MAX_CACHE_SHARE
from rescorer_training.evaluation.perplexity import perplexity

SHARES = tuple(round(0.01 * step, 2) for step in range(1, int(100 * MAX_CACHE_SHARE) + 1))
"""Values of λ to choose from."""
BATCH_SENTENCES = 64
"""Number of sentences whose sessions are counted together."""


@dataclass(frozen=True, slots=True)
class SessionPerplexity:
    """Perplexities of one text under a mixture."""

    without: float
    with_session: float
    """With the cache of the lines before each line."""
    wrong_session: float
    """With the cache of the lines half the text away."""


@dataclass(frozen=True, slots=True)
class SessionReport:
    """Perplexities of several texts under a mixture with a cache."""

    share: float
    """λ of the cache, fitted on another text."""
    texts: Mapping[str, SessionPerplexity]
    """Perplexities by path of the text."""


def fit_share(cache: SessionCache, log_probs: np.ndarray) -> float:
    """Find the λ with the lowest perplexity.

    Args:
        cache: the session of each token for λ = 1, as ``read_text_sessions`` returns it.
        log_probs: (T,) ln P of each token under the mixture.
    """
    return min(SHARES, key=lambda share: _measure(cache, log_probs, share))


def measure_sessions(sentences: Sequence[Words], log_probs: np.ndarray, share: float) -> SessionPerplexity:
    """Compute the perplexities of a text; arguments as for ``fit_share``."""
    right, wrong = (
        _measure(read_text_sessions(sentences, away), log_probs, share) for away in (0, len(sentences) // 2)
    )
    return SessionPerplexity(perplexity(log_probs), right, wrong)


def _measure(cache: SessionCache, log_probs: np.ndarray, share: float) -> float:
    """Perplexity with a cache of which λ = ``share``."""
    return perplexity(replace(cache, shares=share * cache.shares).interpolate(log_probs))


def read_text_sessions(sentences: Sequence[Words], away: int = 0) -> SessionCache:
    """Return what the sentences before each sentence predict for its tokens, with λ = 1 for endless sessions.

    Args:
        away: read the sentences before the one that is so many sentences later instead, around the end.
    """
    probs, shares = [], []
    for begin in range(0, len(sentences), BATCH_SENTENCES):
        batch = range(begin, min(begin + BATCH_SENTENCES, len(sentences)))
        histories = [_history(sentences, (i + away) % len(sentences)) for i in batch]
        trie = build_trie([sentences[i] for i in batch], histories)
        cache = read_sessions(trie, 1.0)
        assert cache is not None
        for row in range(len(batch)):
            edges = trie.path_edges(row)
            probs.append(cache.probs[edges])
            shares.append(cache.shares[edges])
    return SessionCache(np.concatenate(probs), np.concatenate(shares))


def _history(sentences: Sequence[Words], index: int) -> Words:
    """The newest sentences before a sentence that a cache reads."""

    def newest() -> Iterator[Words]:
        n_words = 0
        for words in reversed(sentences[max(0, index - MAX_PREVIOUS_WORDS) : index]):
            n_words += len(words)
            if n_words > MAX_PREVIOUS_WORDS:
                return
            yield words

    return join_history(reversed(list(newest())), ())
