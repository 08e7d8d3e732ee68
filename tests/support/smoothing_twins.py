"""Slow, obvious smoothing: the papers' recursions over dictionaries, one probability at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache

import numpy as np

from rescorer_training.ngram.smoothing import estimate_discounts, estimate_good_turing

Context = tuple[str, ...]
Corpus = Sequence[Sequence[str]]


class SmoothingTwin:
    """P(word | context) of a model with a gap of ``skip`` words, estimated from a corpus.

    Args:
        vocabulary: all words that can be predicted.
        cutoffs: one per order; with a gap, zeros.
    """

    def __init__(
        self, corpus: Corpus, vocabulary: set[str], method: str, cutoffs: Sequence[int], skip: int = 0
    ) -> None:
        self.vocabulary, self.cutoffs, self.skip, self.order = vocabulary, cutoffs, skip, len(cutoffs)
        self.counts: defaultdict[Context, Counter[str]] = defaultdict(Counter)
        for words in corpus:
            padded = ["<s>"] * (1 + skip) + [*words, "</s>"]
            for i in range(1 + skip, len(padded)):
                history = tuple(padded[: i - skip])
                for n in range(min(self.order, 1 + len(history))):
                    self.counts[history[len(history) - n :]][padded[i]] += 1
        methods = {"kneser-ney": self.kneser_ney, "katz": self.katz, "witten-bell": self.witten_bell}
        methods["none"] = self.relative_frequency
        self.prob = cache(methods[method])
        self.adjusted = {context: self._adjust(context) for context in self.counts}

    def _adjust(self, context: Context) -> dict[str, int]:
        """Kneser-Ney's adjusted counts: the number of words before an n-gram, where there can be any."""
        counts = self.counts[context]
        if len(context) == self.order - 1 or context[:1] == ("<s>",):
            return dict(counts)
        longer = [other for other in self.counts if other[1:] == context and len(other) == len(context) + 1]
        return {word: sum(word in self.counts[other] for other in longer) for word in counts}

    def of_order(self, context: Context, counts: dict) -> np.ndarray:
        """The counts of all n-grams as long as those of a context."""
        same = [counts[other] for other in counts if len(other) == len(context)]
        return np.array([count for words in same for count in words.values()], dtype=np.int64)

    def keeps(self, context: Context, word: str) -> bool:
        return self.counts[context][word] > self.cutoffs[len(context)]

    def lower(self, context: Context, word: str) -> float:
        return self.prob(context[1:], word) if context else 1 / len(self.vocabulary)

    def kneser_ney(self, context: Context, word: str) -> float:
        if context not in self.counts:
            return self.lower(context, word)
        discounts = estimate_discounts(self.of_order(context, self.adjusted), 1)
        adjusted = self.adjusted[context]
        taken = {
            other: discounts[min(count, 3) - 1] if self.keeps(context, other) else count
            for other, count in adjusted.items()
        }
        left = sum(taken.values()) * self.lower(context, word)
        return (adjusted.get(word, 0) - taken.get(word, 0) + left) / sum(adjusted.values())

    def witten_bell(self, context: Context, word: str) -> float:
        if context not in self.counts:
            return self.lower(context, word)
        counts = self.counts[context]
        kept = {other: count for other, count in counts.items() if self.keeps(context, other)}
        left = len(counts) + counts.total() - sum(kept.values())
        return (kept.get(word, 0) + left * self.lower(context, word)) / (counts.total() + len(counts))

    def katz(self, context: Context, word: str) -> float:
        if context not in self.counts:
            return self.lower(context, word)
        counts = self.counts[context]
        discounts = dict(enumerate(estimate_good_turing(self.of_order(context, self.counts), 1), 1))
        kept = {
            other: count * discounts.get(count, 1.0)
            for other, count in counts.items()
            if self.keeps(context, other)
        }
        total = counts.total()
        if len(kept) == len(self.vocabulary):
            return kept[word] / sum(kept.values())
        if sum(kept.values()) == total:
            total += 1
        if word in kept:
            return kept[word] / total
        unseen = [self.lower(context, other) for other in self.vocabulary - kept.keys()]
        return (1 - sum(kept.values()) / total) * self.lower(context, word) / sum(unseen)

    def relative_frequency(self, context: Context, word: str) -> float:
        if context not in self.counts:
            return self.lower(context, word)
        counts = self.counts[context]
        kept = {other: count for other, count in counts.items() if self.keeps(context, other)}
        if word in kept:
            return kept[word] / counts.total()
        if not (left := 1 - sum(kept.values()) / counts.total()):
            return 0.0
        unseen = sum(self.lower(context, other) for other in self.vocabulary - kept.keys())
        return left * self.lower(context, word) / unseen
