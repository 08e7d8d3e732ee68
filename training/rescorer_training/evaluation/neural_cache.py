"""Neural cache: words of the past are likely again where the network's state was like that of today.

Grave et al. (2016), "Improving Neural Language Models with a Continuous Cache". The cache reads the text that
it predicts, so its perplexities are reported apart from those of models that do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rescorer_training.evaluation.carried_state import TextReading

MAX_CHUNK_TOKENS = 512
"""Largest number of tokens that are compared with their past at once."""
FLATNESS_GRID = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
SHARE_GRID = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of a neural cache."""

    n_words: int
    """Number of past tokens that it remembers."""
    flatness: float
    """θ: the larger, the more a past state must be like that of today to count."""
    share: float
    """Interpolation weight of the cache."""


@torch.inference_mode()
def cache_log_probs(vectors: Tensor, words: Tensor, n_words: int, flatness: float) -> np.ndarray:
    """ln of the cache's probability of each token, (T,) float64, -inf where no past token equals it.

    P(w_t) is the sum over the last ``n_words`` tokens i of softmax_i(θ h_t · h_i), where w_i = w_t.

    Args:
        vectors: (T, D) context vector from which each token is predicted.
        words: (T,) the tokens.
        flatness: θ.
    """
    parts = []
    for begin in range(0, len(words), MAX_CHUNK_TOKENS):
        end, first = min(begin + MAX_CHUNK_TOKENS, len(words)), max(0, begin - n_words)
        scores = (vectors[begin:end] @ vectors[first:end].t()).double().mul_(flatness)  # (n, m)
        now = torch.arange(begin, end, device=words.device).unsqueeze(1)
        past = torch.arange(first, end, device=words.device)
        scores.masked_fill_((past >= now) | (past < now - n_words), -math.inf)
        total = torch.logsumexp(scores, dim=1)
        scores.masked_fill_(words[first:end] != words[begin:end].unsqueeze(1), -math.inf)
        equal = torch.logsumexp(scores, dim=1)
        parts.append(torch.where(equal.isfinite(), equal - total, -math.inf).cpu().numpy())
    return np.concatenate(parts)


def mix_with_cache(log_probs: np.ndarray, cached: np.ndarray, share: float) -> np.ndarray:
    """ln of (1 − share) · P + share · P of the cache, (T,); the first token has no past, so only P counts."""
    mixed: np.ndarray = np.logaddexp(math.log1p(-share) + log_probs, math.log(share) + cached)
    mixed[0] = log_probs[0]
    return mixed


def add_cache(reading: TextReading, settings: CacheSettings) -> np.ndarray:
    """ln P of each token of a text under the network and its cache, (T,) float64."""
    cached = cache_log_probs(reading.vectors, reading.words, settings.n_words, settings.flatness)
    return mix_with_cache(reading.log_probs, cached, settings.share)


def fit_cache(reading: TextReading, n_words: int) -> CacheSettings:
    """Find the θ and the share with the lowest perplexity on a validation text, on a grid."""
    best, best_sum = CacheSettings(n_words, FLATNESS_GRID[0], SHARE_GRID[0]), -math.inf
    for flatness in FLATNESS_GRID:
        cached = cache_log_probs(reading.vectors, reading.words, n_words, flatness)
        for share in SHARE_GRID:
            total = float(mix_with_cache(reading.log_probs, cached, share).sum())
            if total > best_sum:
                best, best_sum = CacheSettings(n_words, flatness, share), total
    return best
