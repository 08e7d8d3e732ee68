"""Infer what the words before a sentence are about: mixtures of topics (Blei, Ng & Jordan 2003).

A network reads topics as features, f = θ - 1/K: zeros if nothing is known.
``docs/decisions/feature-inputs.md`` says where they go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from rescorer.lm.contexts.context_cache import RowCache

UPDATES = 20
"""Number of updates of a mixture; a fixed number, so that a mixture does not depend on others."""
MIN_WEIGHT = 0.05
"""Words whose decayed weight is smaller are not read."""
CONTEXT_BLOCK = 32
"""Number of words of a context that are read with the same topics, those of the words before the block."""
MAX_VALUES = 1 << 19
"""Number of P(topic | word) that are read together (2 MB), so that they stay in a processor's cache."""
CACHE_BYTES = 1 << 24
"""Size of the cache of mixtures."""


def infer_mixtures(word_topics: Tensor, counts: Tensor) -> Tensor:
    """Infer the mixture of topics of each text by variational Bayes, with a Dirichlet prior of 1/K.

    The update is γ_k = 1/K + Σ_w n_w φ_wk, where φ_wk ∝ P(k | w) exp ψ(γ_k) is the posterior of the word's
    topic. The mixture θ is γ / Σ_k γ_k.

    Args:
        word_topics: (N, L, K) P(topic | word) under even topics, or zeros, for the words of each text.
        counts: (N, L) how often each word counts; need not be integers.

    Returns:
        (N, K) θ; a text without topical words has even topics.
    """
    n_topics = word_topics.shape[2]
    gamma = torch.ones_like(word_topics[:, 0])
    tiny = torch.finfo(gamma.dtype).tiny
    for _ in range(UPDATES):
        expected = torch.digamma(gamma)  # E[ln θ] up to a constant, (N, K)
        weights = (expected - expected.amax(dim=1, keepdim=True)).exp()
        total = (word_topics @ weights.unsqueeze(2)).squeeze(2)  # (N, L)
        shares = counts / total.clamp(min=tiny)
        shares = torch.where(total > 0, shares, torch.zeros_like(shares))
        gamma = 1 / n_topics + weights * (shares.unsqueeze(1) @ word_topics).squeeze(1)
    return gamma / gamma.sum(dim=1, keepdim=True)


class TopicReader:
    """Compute the topic features of texts, and cache them by their last words.

    Args:
        word_topics: (V, K) P(topic | word) under even topics; zeros for words that are not topical.
        decay: the n-th topical word from the end counts decay^n.
    """

    def __init__(self, word_topics: Tensor, decay: float) -> None:
        self._word_topics = word_topics.detach().cpu().float()
        self._is_topical = (self._word_topics > 0).any(dim=1).numpy()
        self.n_read = math.ceil(math.log(MIN_WEIGHT) / math.log(decay))
        """Number of topical words that are read."""
        self._weights = (decay ** torch.arange(self.n_read, dtype=torch.float64)).float()
        self._cache = RowCache(CACHE_BYTES)

    @property
    def n_topics(self) -> int:
        return self._word_topics.shape[1]

    def topical(self, words: np.ndarray) -> np.ndarray:
        """Whether each word, an id of the network, is topical: (n,) bool."""
        return self._is_topical[words]

    def features(self, texts: Sequence[np.ndarray]) -> Tensor:
        """Features of some texts, (N,) arrays of the network's word ids → (N, K) float32."""
        texts = [text[self.topical(text)][-self.n_read :] for text in texts]
        keys = [blake2b(np.ascontiguousarray(text).tobytes(), digest_size=16).digest() for text in texts]
        features = torch.zeros(len(texts), self.n_topics)
        is_cached, cached = self._cache.recall_rows(keys)
        if is_cached.any():
            features[torch.from_numpy(is_cached)] = cached
        unread = [i for i, text in enumerate(texts) if len(text) and not is_cached[i]]
        if unread:
            last = np.zeros((len(unread), self.n_read), dtype=np.int64)  # the last word first
            for row, i in zip(last, unread, strict=True):
                row[: len(texts[i])] = texts[i][::-1]
            lengths = np.array([len(texts[i]) for i in unread])
            features[unread] = self.read_last(last, lengths)
            self._cache.store_rows([keys[i] for i in unread], features[unread])
        return features

    def read_last(self, words: np.ndarray, lengths: np.ndarray) -> Tensor:
        """Features of texts of topical words, (N, K) float32.

        Args:
            words: (N, n_read) ids of the last words of each text, the last one first.
            lengths: (N,) number of words of each text that exist.
        """
        exists = torch.arange(self.n_read) < torch.from_numpy(lengths)[:, None]
        counts = torch.where(exists, self._weights, torch.zeros_like(self._weights))
        rows = max(1, MAX_VALUES // (self.n_read * self.n_topics))
        parts = zip(torch.from_numpy(words).split(rows), counts.split(rows), strict=True)
        mixtures = torch.cat([infer_mixtures(self._word_topics[ids], part) for ids, part in parts])
        return mixtures - 1 / self.n_topics

    def block_features(self, contexts: Sequence[np.ndarray]) -> list[Tensor]:
        """Features with which the words of each context are read, one row per block of words.

        Those of a word are the topics of the words before its block. They do not depend on later words, so
        what a network has computed of a context can be used again when the context has grown.
        """
        starts = [range(0, len(context), CONTEXT_BLOCK) for context in contexts]
        before = [context[:start] for context, row in zip(contexts, starts, strict=True) for start in row]
        return list(self.features(before).split([len(row) for row in starts]))
