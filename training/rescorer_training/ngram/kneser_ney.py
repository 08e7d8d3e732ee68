"""Owns interpolated modified Kneser-Ney estimation: from counts to probabilities and back-off weights.

Chen & Goodman (1999), "An empirical study of smoothing techniques for language modeling", with count
cut-offs as in Heafield et al. (2013), "Scalable modified Kneser-Ney language model estimation": an n-gram
is dropped by its raw count, discounts come from the adjusted counts of all n-grams, and what a dropped
n-gram had goes to its context's back-off, so that every distribution still sums to one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.ngram.counts import NGramCounts

logger = logging.getLogger(__name__)

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""For adjusted counts 1, 2 and 3 or more, where the corpus is too small or odd to give any (lmplz's)."""


@dataclass(frozen=True, slots=True)
class NGramProbabilities:
    """The n-grams of one order that a model keeps; at order 1 row i is word i."""

    prefix: np.ndarray
    """(N,) int32: row of w_1 … w_{n-1} one order lower; zeros at order 1."""
    word: np.ndarray
    """(N,) int32: id of w_n."""
    prob: np.ndarray
    """(N,) float64: P(w_n | w_1 … w_{n-1}), interpolated; 1 for ``<s>``."""
    backoff: np.ndarray
    """(N,) float64: weight of the shorter context where w_1 … w_n is followed by a word not kept with it."""
    discounts: tuple[float, float, float]
    """What was taken from adjusted counts 1, 2 and 3 or more."""

    def __len__(self) -> int:
        return len(self.word)


def estimate(
    counts: Sequence[NGramCounts], cutoffs: Sequence[int], *, begin: int, n_listed: int
) -> list[NGramProbabilities]:
    """Estimates a model of orders 1 to len(counts).

    Args:
        counts: one table an order, from ``count_ngrams``.
        cutoffs: n-grams of order n with raw counts up to cutoffs[n-1] are dropped.
        begin: id of ``<s>``.
        n_listed: size of the model's vocabulary. Words with this id or a higher one stand in the text
            only: every n-gram with one of them is dropped, whatever its count.

    Raises:
        ConfigError: the cut-offs are not one an order, decrease, or would drop unigrams.
    """
    check_cutoffs(cutoffs, len(counts))
    adjusted = [
        adjusted_counts(table, above) for table, above in zip(counts, [*counts[1:], None], strict=True)
    ]
    adjusted[0][begin] = 0  # nothing predicts <s>
    discounts = [estimate_discounts(each, n) for n, each in enumerate(adjusted, start=1)]

    prefix = counts[0].prefix[:n_listed]
    kept = counts[0].word < n_listed  # (N_{n-1},) which n-grams of the order below the model has
    prob = unigram_probs(adjusted[0], kept, discounts[0], begin)  # (kept,) theirs
    model = []
    for n, table in enumerate(counts[1:], start=2):
        row = np.cumsum(kept, dtype=np.int32) - 1  # (N_{n-1},) where the model has them
        keep = (table.count > cutoffs[n - 1]) & kept[table.prefix] & (table.word < n_listed)
        share, gamma = _split(table.prefix, adjusted[n - 1], keep, discounts[n - 1], len(kept))
        model.append(
            NGramProbabilities(prefix, counts[n - 2].word[kept], prob, gamma[kept], discounts[n - 2])
        )
        prob = share + gamma[table.prefix[keep]] * prob[row[table.suffix[keep]]]
        prefix, kept = row[table.prefix[keep]], keep
    model.append(NGramProbabilities(prefix, counts[-1].word[kept], prob, np.ones_like(prob), discounts[-1]))
    return model


def check_cutoffs(cutoffs: Sequence[int], order: int) -> None:
    """Raises ConfigError unless these cut-offs keep the prefix and the suffix of every n-gram they keep."""
    if len(cutoffs) != order:
        raise ConfigError(f"{len(cutoffs)} cut-offs {list(cutoffs)} for order {order}; expected one an order")
    if cutoffs[0] != 0:
        raise ConfigError(
            f"the cut-off of order 1 is {cutoffs[0]}; expected 0: limit the vocabulary to drop words"
        )
    if any(low > high for low, high in itertools.pairwise(cutoffs)):
        raise ConfigError(f"cut-offs {list(cutoffs)} decrease; an n-gram would be kept without its parts")


def adjusted_counts(table: NGramCounts, above: NGramCounts | None) -> np.ndarray:
    """How many different words stand to the left of each n-gram: (N,) int64.

    Raw counts for n-grams that begin with ``<s>`` and, where there is no order above, for all.
    """
    if above is None:
        return table.count
    adjusted = np.bincount(above.suffix, minlength=len(table))
    return np.where(table.starts_sentence, table.count, adjusted)


def estimate_discounts(adjusted: np.ndarray, n: int) -> tuple[float, float, float]:
    """Discounts of adjusted counts 1, 2 and 3 or more: Chen & Goodman (1999), equation 26.

    Falls back to ``FALLBACK_DISCOUNTS``, with a warning, where a count of counts is missing or the
    estimate is out of range; ``n`` is the order that the warning names.
    """
    of_count = np.bincount(np.minimum(adjusted, 5), minlength=6).tolist()
    missing = [j for j in (1, 2, 3) if of_count[j] == 0]
    if missing:
        reason = f"no {n}-gram has adjusted count {missing[0]}"
    else:
        y = of_count[1] / (of_count[1] + 2 * of_count[2])
        one, two, three = (j - (j + 1) * y * of_count[j + 1] / of_count[j] for j in (1, 2, 3))
        if 0 <= one <= 1 and 0 <= two <= 2 and 0 <= three <= 3:
            return one, two, three
        reason = f"the estimates {one:.3f}, {two:.3f}, {three:.3f} are out of range"
    logger.warning("order %d: %s; discounts %s are used instead", n, reason, FALLBACK_DISCOUNTS)
    return FALLBACK_DISCOUNTS


def unigram_probs(
    adjusted: np.ndarray, keep: np.ndarray, discounts: tuple[float, float, float], begin: int
) -> np.ndarray:
    """Unigram probabilities, interpolated with the uniform distribution: (kept,) float64, 1 for ``begin``.

    Args:
        adjusted: (V,) adjusted counts, 0 for ``begin``.
        keep: (V,) which words the model has; the mass of the others is spread evenly over these.
    """
    share, gamma = _split(np.zeros(len(adjusted), np.int32), adjusted, keep, discounts, 1)
    prob = share + gamma[0] / (len(share) - 1)  # <s> is no outcome
    prob[begin] = 1.0
    return prob


def _split(
    context: np.ndarray, adjusted: np.ndarray, keep: np.ndarray, discounts: tuple[float, ...], n_contexts: int
) -> tuple[np.ndarray, np.ndarray]:
    """Splits each context's mass between the n-grams that are kept and the shorter context.

    Args:
        context: (N,) which context each n-gram extends.

    Returns:
        (kept,) what each kept n-gram has before interpolation, and (n_contexts,) what goes to the
        shorter context: all of it where a context has no n-gram.
    """
    taken = np.array([0.0, *discounts])[np.minimum(adjusted, 3)]  # (N,)
    np.copyto(taken, adjusted, where=~keep)
    total = np.bincount(context, weights=adjusted, minlength=n_contexts)
    gamma = np.bincount(context, weights=taken, minlength=n_contexts)
    gamma = np.where(total > 0, gamma / np.maximum(total, 1), 1.0)
    return (adjusted[keep] - taken[keep]) / total[context[keep]], gamma
