"""Count n-grams and smooth the counts, so that words that were not seen in a context have a probability.

An n-gram is represented by its prefix (a row of the table one order lower) and its last word. Both are packed
into one integer, which suffices for any order and any size of the vocabulary. No n-gram crosses a sentence
boundary, and each sentence begins with one ``<s>``.

A smoothing method divides the mass of each context between its n-grams and the shorter context (see
``MassSplit``). In an interpolated model, all words share the mass that is left to the shorter context. In a
back-off model (Katz 1987), only those words share it that were not seen in the longer context. Both become
the same kind of model, in which n-grams have a probability and contexts a back-off weight. The methods are

- Katz's back-off with Good-Turing discounts (Katz 1987; Chen & Goodman 1999, section 2.5): counts r up to k =
  5 are multiplied by a discount d_r below 1, so that as much mass is freed as the Good-Turing estimate gives
  to unseen n-grams; larger counts stay as they are;
- interpolated modified Kneser-Ney (Chen & Goodman 1999, "An empirical study of smoothing techniques for
  language modeling");
- interpolated Witten-Bell (Witten & Bell 1991; Chen & Goodman 1999, section 2.6): a context h that occurred
  c(h) times, before T(h) distinct words, leaves T(h) / (c(h) + T(h)) of its mass to the shorter context,
  because every distinct word was new once;
- none, for teaching: relative frequencies, of which most are 0.

Counts can be cut off as in Heafield et al. (2013), "Scalable modified Kneser-Ney language model estimation":
an n-gram is pruned by its raw count, discounts are estimated from all n-grams, and the mass of a pruned
n-gram is left to the shorter context. So every distribution still sums to one.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rescorer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class NGramCounts:
    """The distinct n-grams of one order, sorted by (prefix, word); at order 1 row i is word i."""

    prefix: np.ndarray
    """(N,) int32: row of w_1 … w_{n-1} one order lower; zeros at order 1."""
    suffix: np.ndarray
    """(N,) int32: row of w_2 … w_n one order lower; zeros at order 1."""
    word: np.ndarray
    """(N,) int32: id of w_n."""
    count: np.ndarray
    """(N,) int64: occurrences in the text. 0 for n-grams that are only contexts, in models with a gap."""
    starts_sentence: np.ndarray
    """(N,) bool: True if w_1 is ``<s>``."""

    def __len__(self) -> int:
        return len(self.word)


def count_ngrams(
    ids: np.ndarray, order: int, *, n_words: int, start_id: int, end_id: int, skip: int = 0
) -> list[NGramCounts]:
    """Count every n-gram of orders 1 to ``order``.

    In a model with a gap, the context w_1 … w_{n-1} of a word w_n ends ``skip`` words before w_n. The words
    of a context itself are contiguous. A table then contains two kinds of n-grams: those that predict a word
    over the gap, which are counted, and those that are contexts in the next table.

    Args:
        ids: (T,) word ids, every sentence closed by ``end_id`` and none containing ``start_id``.
        n_words: size of the vocabulary; every id is smaller.
        start_id: id of ``<s>``; 1 + ``skip`` of them precede each sentence.
        end_id: id of ``</s>``.
        skip: number of words between a context and the word that it predicts.

    Returns:
        One table per order, empty if no sentence is long enough.
    """
    words, position = insert_sentence_starts(ids, start_id, end_id, 1 + skip)
    unigrams = NGramCounts(
        prefix=np.zeros(n_words, np.int32),
        suffix=np.zeros(n_words, np.int32),
        word=np.arange(n_words, dtype=np.int32),
        count=np.bincount(words, minlength=n_words),
        starts_sentence=np.arange(n_words) == start_id,
    )
    tables = [unigrams]
    # rows, in the table of the current order, of the n-grams that end at each token: contiguous words (rows),
    # and words of which the last is predicted over the gap (gap_rows)
    rows = gap_rows = words
    for n in range(2, order + 1):
        predicted = np.flatnonzero(position >= n - 1 + skip).astype(np.int32)
        contexts = find_contexts(position, n, skip) if skip and n < order else predicted[:0]
        ends = np.concatenate([predicted, contexts])
        prefix = np.concatenate([rows[predicted - 1 - skip], rows[contexts - 1]])
        suffix = np.concatenate([gap_rows[predicted], rows[contexts]])
        table, found = _count_one_order(prefix, suffix, words[ends], len(predicted), tables[-1], n_words)
        tables.append(table)
        gap_rows, rows = np.zeros_like(words), np.zeros_like(words)
        gap_rows[predicted] = found[: len(predicted)]
        rows[contexts] = found[len(predicted) :]
        rows = rows if skip else gap_rows
    return tables


def insert_sentence_starts(
    ids: np.ndarray, start_id: int, end_id: int, n_starts: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Insert ``start_id`` before each sentence, ``n_starts`` times.

    Returns:
        Word ids and positions within the sentence, 0 for the first ``start_id``: both (T + S · n_starts,)
        int32, for S sentences.
    """
    ends = np.flatnonzero(ids == end_id)
    starts = np.concatenate([[0], ends[:-1] + 1])
    words = np.insert(ids, np.repeat(starts, n_starts), start_id)
    starts += n_starts * np.arange(len(starts))
    lengths = np.diff(starts, append=len(words))
    position = np.arange(len(words), dtype=np.int32)
    position -= np.repeat(starts.astype(np.int32), lengths)
    return words, position


def find_contexts(position: np.ndarray, n: int, skip: int) -> np.ndarray:
    """Find the last tokens of all contexts of n words. A word of the sentence must follow after the gap."""
    ahead = 1 + skip
    is_context = (position[:-ahead] >= n - 1) & (position[ahead:] == position[:-ahead] + ahead)
    return np.flatnonzero(is_context).astype(np.int32)


def _count_one_order(
    prefix: np.ndarray,
    suffix: np.ndarray,
    words: np.ndarray,
    n_counted: int,
    lower: NGramCounts,
    n_words: int,
) -> tuple[NGramCounts, np.ndarray]:
    """Make the table of one order from the n-grams at M places of the text.

    Args:
        prefix, suffix: (M,) row of each n-gram's prefix, and of its suffix, in the table ``lower``.
        words: (M,) last word of each n-gram.
        n_counted: number of places at which n-grams are counted. They come first.

    Returns:
        The table, and the row of the n-gram at each place, (M,).
    """
    keys = pack_keys(prefix, words, n_words)
    by_key = np.argsort(keys)
    keys = keys[by_key]
    is_new = np.concatenate([np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]])
    found = np.empty(len(keys), np.int32)
    found[by_key] = np.cumsum(is_new, dtype=np.int32) - 1
    example = by_key[is_new]  # one place of each distinct n-gram
    table = NGramCounts(
        prefix=prefix[example],
        suffix=suffix[example],
        word=words[example],
        count=np.bincount(found[:n_counted], minlength=len(example)),
        starts_sentence=lower.starts_sentence[prefix[example]],
    )
    return table, found


def pack_keys(prefix: np.ndarray, word: np.ndarray, n_words: int) -> np.ndarray:
    """Pack each pair of prefix and word into one int64, a key. Keys sort in the same order as pairs."""
    keys = np.asarray(prefix).astype(np.int64)
    keys *= n_words
    keys += word
    return keys


MIN_UNSEEN_MASS = 1e-12
"""Least total probability of the words not seen in a context. A smaller one is a rounding error."""


@dataclass(frozen=True, slots=True)
class NGramProbabilities:
    """The n-grams of one order that a model keeps; at order 1 row i is word i."""

    prefix: np.ndarray
    """(N,) int32: row of w_1 … w_{n-1} one order lower; zeros at order 1."""
    word: np.ndarray
    """(N,) int32: id of w_n."""
    prob: np.ndarray
    """(N,) float64: P(w_n | w_1 … w_{n-1}); 1 for ``<s>``."""
    backoff: np.ndarray
    """(N,) float64: back-off weight of w_1 … w_n as a context."""
    discounts: tuple[float, ...]
    """Discounts of small counts, for reports. Empty if the smoothing method has none."""

    def __len__(self) -> int:
        return len(self.word)


@dataclass(frozen=True, slots=True)
class MassSplit:
    """Division of the mass of each context, at one order, between its n-grams and the shorter context.

    A smoothing method takes something from the count of each n-gram. This is left to the shorter context, as
    are the whole counts of n-grams that the model does not keep, and ``extra_counts``.
    """

    counts: np.ndarray
    """(N,) counts of the n-grams, either raw or adjusted."""
    reduced: np.ndarray
    """(N,) float64: part of each count that the n-gram itself keeps."""
    taken: np.ndarray
    """(N,) float64: part of each count that is left to the shorter context, ``counts - reduced``."""
    discounts: tuple[float, ...] = ()
    """See ``NGramProbabilities``."""

    def __call__(
        self, context: np.ndarray, keep: np.ndarray, n_contexts: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Divide the mass of each context.

        Args:
            context: (N,) context that each n-gram extends, from 0 to ``n_contexts`` - 1.
            keep: (N,) bool, whether the model keeps each n-gram.

        Returns:
            (kept,) share of each kept n-gram, and (n_contexts,) mass left to the shorter context. For each
            context, these sum to 1. A context without n-grams leaves all its mass.
        """
        total = sum_by_context(self.counts, context, n_contexts)
        left = sum_by_context(np.where(keep, self.taken, self.counts), context, n_contexts)
        extra = self.extra_counts(context, total, left)
        total, left = total + extra, left + extra
        left = np.where(total > 0, left / np.maximum(total, 1), 1.0)
        return self.reduced[keep] / total[context[keep]], left

    def extra_counts(self, context: np.ndarray, total: np.ndarray, left: np.ndarray) -> np.ndarray | float:
        """Return extra counts, one per context, that are added to its total and left to the shorter context.

        Args:
            context: (N,) context of each n-gram, as for ``__call__``.
            total: (n_contexts,) sum of the counts of each context.
            left: (n_contexts,) part of the total that is left to the shorter context.
        """
        return 0.0


class Smoothing(NamedTuple):
    """Result of applying a smoothing method to the counts of a text."""

    splits: Sequence[MassSplit]
    """One per order."""
    interpolated: bool


def build_model(
    counts: Sequence[NGramCounts],
    cutoffs: Sequence[int],
    smoothing: Smoothing,
    *,
    start_id: int,
    vocabulary_size: int,
) -> list[NGramProbabilities]:
    """Build a model of orders 1 to len(counts).

    Args:
        counts: one table per order, from ``count_ngrams``.
        cutoffs: n-grams of order n with raw counts up to cutoffs[n-1] are pruned.
        start_id: id of ``<s>``.
        vocabulary_size: number of words in the model. Words with higher ids are out of its vocabulary, and
            n-grams that contain them are pruned regardless of their counts.

    Raises:
        ConfigError: there is not one cut-off per order, or the cut-offs decrease or would prune unigrams.
    """
    check_cutoffs(cutoffs, len(counts))
    n_words = vocabulary_size - 1  # <s> is never predicted
    prefix = counts[0].prefix[:vocabulary_size]
    kept = counts[0].word < vocabulary_size  # (N_{n-1},) whether the model keeps each lower-order n-gram
    uniform = np.where(np.arange(vocabulary_size) == start_id, 0.0, 1 / n_words)
    split, context = smoothing.splits[0], np.zeros(vocabulary_size, np.int32)
    shares = split(counts[0].prefix, kept, 1)
    prob, _ = _join_mass(*shares, context, uniform, n_words, smoothing.interpolated)
    prob[start_id] = 1.0
    model = []
    for n, table in enumerate(counts[1:], start=2):
        row = np.cumsum(kept, dtype=np.int32) - 1  # (N_{n-1},) row in the model of each kept n-gram
        # those of count 0 are only contexts, see NGramCounts
        keep = ((table.count > cutoffs[n - 1]) | (table.count == 0)) & kept[table.prefix]
        keep &= table.word < vocabulary_size
        shares = smoothing.splits[n - 1](table.prefix, keep, len(kept))
        lower = prob[row[table.suffix[keep]]]
        higher, backoff = _join_mass(*shares, table.prefix[keep], lower, n_words, smoothing.interpolated)
        model.append(
            NGramProbabilities(prefix, counts[n - 2].word[kept], prob, backoff[kept], split.discounts)
        )
        prob, prefix, kept, split = higher, row[table.prefix[keep]], keep, smoothing.splits[n - 1]
    model.append(NGramProbabilities(prefix, counts[-1].word[kept], prob, np.ones_like(prob), split.discounts))
    return model


def check_cutoffs(cutoffs: Sequence[int], order: int) -> None:
    """Check that the prefix and the suffix of every n-gram that the cut-offs keep are also kept.

    Raises:
        ConfigError: there is not one cut-off per order, or the cut-offs decrease or would prune unigrams.
    """
    if len(cutoffs) != order:
        raise ConfigError(
            f"got {len(cutoffs)} cut-offs {list(cutoffs)} for order {order}; expected one per order"
        )
    if cutoffs[0] != 0:
        raise ConfigError(
            f"the cut-off of order 1 is {cutoffs[0]}; expected 0; limit the vocabulary to remove words"
        )
    if any(low > high for low, high in itertools.pairwise(cutoffs)):
        raise ConfigError(
            f"cut-offs {list(cutoffs)} decrease; expected numbers that do not decrease, because "
            f"every n-gram that is kept needs its prefix"
        )


def count_raw(table: NGramCounts, start_id: int) -> np.ndarray:
    """Return raw counts, (N,). N-grams that end in ``<s>`` have 0, because ``<s>`` is never predicted."""
    return np.where(table.word == start_id, 0, table.count)


def sum_by_context(values: np.ndarray, context: np.ndarray, n_contexts: int) -> np.ndarray:
    """Sum (N,) values over the n-grams of each context, (n_contexts,) float64."""
    return np.bincount(context, weights=values, minlength=n_contexts)


def _join_mass(
    share: np.ndarray,
    left: np.ndarray,
    context: np.ndarray,
    lower: np.ndarray,
    n_words: int,
    interpolated: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Join the shares of an order's n-grams with the probabilities of the shorter contexts.

    Args:
        share, left: (kept,) and (n_contexts,), the results of a ``MassSplit``.
        context: (kept,) context of each kept n-gram.
        lower: (kept,) probability of each kept n-gram's last word after the shorter context.
        n_words: number of words that can be predicted.

    Returns:
        (kept,) probabilities, and (n_contexts,) back-off weights.
    """
    if interpolated:
        return share + left[context] * lower, left
    seen = share > 0
    is_full = sum_by_context(seen, context, len(left)) == n_words  # no other word to leave anything to
    unseen_mass = 1 - sum_by_context(np.where(seen, lower, 0.0), context, len(left))
    backoff = np.where(is_full, 1.0, left / np.maximum(unseen_mass, MIN_UNSEEN_MASS))
    scale = np.where(is_full, 1 / (1 - np.where(is_full, left, 0.0)), 1.0)
    return np.where(seen, share * scale[context], backoff[context] * lower), backoff


logger = logging.getLogger(__name__)

MAX_DISCOUNTED = 5
"""Largest count k that Katz's method discounts. Larger counts are reliable."""


class KatzSplit(MassSplit):
    """Multiplies small counts by discounts.

    If this leaves nothing to the shorter context, because no count of a context has a discount, the context
    gets one more occurrence, which goes to the shorter context (Doug Paul's remedy, as in SRILM): each of its
    N occurrences then counts N / (N + 1).
    """

    __slots__ = ()

    def extra_counts(self, context: np.ndarray, total: np.ndarray, left: np.ndarray) -> np.ndarray:
        return (left == 0) & (total > 0)


def smooth_katz(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Apply Katz's smoothing to the counts of a text, one table per order."""
    splits = []
    for n, table in enumerate(counts, start=1):
        raw = count_raw(table, start_id)
        discounts = estimate_good_turing(raw, n)
        factors = np.array([1.0, *discounts, 1.0])
        reduced = raw * factors[np.minimum(raw, len(factors) - 1)]
        splits.append(KatzSplit(raw, reduced, raw - reduced, discounts))
    return Smoothing(splits, interpolated=False)


def estimate_good_turing(counts: np.ndarray, n: int) -> tuple[float, ...]:
    """Estimate the discounts d_1 … d_k of an order's counts.

        d_r = (r*/r - a) / (1 - a),  r* = (r + 1) n_{r+1} / n_r,  a = (k + 1) n_{k+1} / n_1

    where n_r n-grams occur r times, and k is 5. In small or unusual texts, some of these discounts may not
    lie between 0 and 1. Then k is the largest number below 5 for which all do; without one, no count has a
    discount, and each context is given one more occurrence (see ``KatzSplit``). A warning names order n.
    """
    of_count = np.bincount(np.minimum(counts, MAX_DISCOUNTED + 2), minlength=MAX_DISCOUNTED + 3).tolist()
    for k in range(MAX_DISCOUNTED, 1, -1):
        if min(of_count[1 : k + 2]) == 0:
            continue
        a = (k + 1) * of_count[k + 1] / of_count[1]
        ratios = [(r + 1) * of_count[r + 1] / (r * of_count[r]) for r in range(1, k + 1)]
        discounts = tuple((ratio - a) / (1 - a) if a != 1 else 0.0 for ratio in ratios)
        if all(0 < discount < 1 for discount in discounts):
            if k < MAX_DISCOUNTED:
                logger.warning("order %d: Good-Turing discounts only of counts up to %d", n, k)
            return discounts
    logger.warning(
        "order %d: the counts allow no Good-Turing discounts; instead, a context that occurred N times "
        "counts N + 1, and 1 of these is left to words that did not follow it",
        n,
    )
    return ()


FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of adjusted counts 1, 2 and 3 or more, for texts too small or unusual to estimate discounts.

lmplz is run with the same values.
"""


def smooth_kneser_ney(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Apply Kneser-Ney smoothing to the counts of a text, one table per order.

    A discount is subtracted from every adjusted count.
    """
    splits = []
    for n, (table, higher) in enumerate(zip(counts, [*counts[1:], None], strict=True), start=1):
        adjusted = adjust_counts(table, higher)
        if n == 1:
            adjusted[start_id] = 0  # <s> is never predicted
        discounts = estimate_discounts(adjusted, n)
        taken = np.array([0.0, *discounts])[np.minimum(adjusted, 3)]
        splits.append(MassSplit(adjusted, adjusted - taken, taken, discounts))
    return Smoothing(splits, interpolated=True)


def adjust_counts(table: NGramCounts, higher: NGramCounts | None) -> np.ndarray:
    """Count the distinct words that precede each n-gram: (N,) int64.

    N-grams that begin with ``<s>`` keep their raw counts. So do n-grams of the highest order, for which
    ``higher`` is None.
    """
    if higher is None:
        return table.count
    adjusted = np.bincount(higher.suffix[higher.count > 0], minlength=len(table))
    return np.where(table.starts_sentence, table.count, adjusted)


def estimate_discounts(adjusted: np.ndarray, n: int) -> tuple[float, float, float]:
    """Estimate the discounts of adjusted counts 1, 2 and 3 or more: Chen & Goodman (1999), equation 26.

    Returns ``FALLBACK_DISCOUNTS``, with a warning that names order ``n``, if a count of counts is zero or an
    estimate is out of range.
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
    logger.warning("order %d: %s; using discounts %s instead", n, reason, FALLBACK_DISCOUNTS)
    return FALLBACK_DISCOUNTS


def keep_relative_frequencies(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Smooth nothing, for teaching: the probability of a word is its share of the words after a context.

    These are the maximum likelihood estimates. A word that never followed a context that occurred has the
    probability 0. After a context that never occurred, the shorter context decides.
    """
    raw = [count_raw(table, start_id) for table in counts]
    splits = [MassSplit(of_order, of_order.astype(float), np.zeros(len(of_order))) for of_order in raw]
    return Smoothing(splits, interpolated=False)


class WittenBellSplit(MassSplit):
    """Leaves one extra count to the shorter context for every distinct word."""

    __slots__ = ()

    def extra_counts(self, context: np.ndarray, total: np.ndarray, left: np.ndarray) -> np.ndarray:
        return sum_by_context(self.counts > 0, context, len(total))


def smooth_witten_bell(counts: Sequence[NGramCounts], start_id: int) -> Smoothing:
    """Apply Witten-Bell smoothing to the counts of a text, one table per order."""
    raw = [count_raw(table, start_id) for table in counts]
    splits = [WittenBellSplit(of_order, of_order, np.zeros(len(of_order))) for of_order in raw]
    return Smoothing(splits, interpolated=True)
