"""What the features of a list are computed from, with its words coded as integers."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, pairwise

import numpy as np

from rescorer.errors import LimitExceeded
from rescorer.ranking import posteriors
from rescorer.score_combination import WORDS
from rescorer.trie import Words

MAX_CELLS = 1 << 24
"""Largest table of hypotheses and words, in bytes; beyond, pairs are sorted."""
UNKNOWN_CODE = -1
"""Code of the words of a context that no hypothesis has."""


@dataclass(frozen=True)
class ListView:
    """H hypotheses of N words in total, of which V are distinct."""

    components: Mapping[str, np.ndarray]
    """(H,) float64 by name: streams and language models in nats, and the counts ``words`` and ``oov``."""
    words: Sequence[Words]
    """Canonical words of each hypothesis."""
    context: Words
    """Canonical words of what was said before."""
    totals: np.ndarray
    """(H,) float64, totals in nats under the reranker's base weights."""
    _remembered: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @cached_property
    def n_words(self) -> np.ndarray:
        """Number of words, but at least 1, (H,) float64."""
        return np.maximum(self.components[WORDS], 1.0)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of words of each hypothesis, (H,) int64."""
        return np.fromiter(map(len, self.words), np.int64, len(self.words))

    @cached_property
    def _coded(self) -> tuple[dict[str, int], np.ndarray]:
        """``vocabulary`` and ``codes``, in one pass: a word that is looked up first gets the next code."""
        vocabulary: defaultdict[str, int] = defaultdict(count().__next__)
        words = map(vocabulary.__getitem__, chain.from_iterable(self.words))
        codes = np.fromiter(words, np.int64, int(self.lengths.sum()))
        vocabulary.default_factory = None
        return vocabulary, codes

    @property
    def vocabulary(self) -> dict[str, int]:
        """Code of each distinct word, from 0."""
        return self._coded[0]

    @property
    def codes(self) -> np.ndarray:
        """Codes of the words of all hypotheses, one after another, (N,) int64."""
        return self._coded[1]

    @cached_property
    def texts(self) -> list[str]:
        """Each hypothesis with one character per word, whose number is the code of the word.

        Raises:
            LimitExceeded: there are more distinct words than characters.
        """
        if len(self.vocabulary) > sys.maxunicode:
            raise LimitExceeded(
                f"{len(self.vocabulary):,} distinct words; expected at most {sys.maxunicode:,}; send fewer "
                "hypotheses",
                field="hypotheses",
            )
        text = self.codes.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")
        return [text[begin:end] for begin, end in pairwise(self.offsets.tolist())]

    @cached_property
    def context_codes(self) -> np.ndarray:
        """Codes of the words of the context, (C,) int64; those that no hypothesis has are below 0."""
        codes = (self.vocabulary.get(word, UNKNOWN_CODE) for word in self.context)
        return np.fromiter(codes, np.int64, len(self.context))

    @cached_property
    def rows(self) -> np.ndarray:
        """Index of the hypothesis of each of ``codes``, (N,) int64."""
        return np.repeat(np.arange(len(self.words)), self.lengths)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each hypothesis begins in ``codes``, and the end of the last, (H + 1,) int64."""
        return np.concatenate(([0], np.cumsum(self.lengths)))

    def posteriors(self, temperatures: Sequence[str]) -> np.ndarray:
        """Softmax of the base totals at each temperature, (H, T)."""

        def compute(text: str) -> np.ndarray:
            return self.remember(text, lambda view: posteriors(view.totals, float(text)))

        return np.stack([compute(text) for text in temperatures], axis=1)

    def remember(self, key: str, compute: Callable[[ListView], np.ndarray]) -> np.ndarray:
        """Compute an array only once, for several features that need it."""
        if key not in self._remembered:
            self._remembered[key] = compute(self)
        return self._remembered[key]

    def sum_rows(self, values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Sum values over hypotheses, (H,) float64.

        Args:
            values: (K,) one per word, or per index of ``rows``.
            rows: (K,) index of the hypothesis of each value; None for that of each word.
        """
        where = self.rows if rows is None else rows
        return np.bincount(where, weights=values, minlength=len(self.words))

    def mean_per_row(self, values: np.ndarray) -> np.ndarray:
        """Mean of the (N,) values of each hypothesis's words, (H,); 0 without words."""
        return self.sum_rows(values) / np.maximum(self.lengths, 1)

    def least_per_row(self, values: np.ndarray) -> np.ndarray:
        """Least of the (N,) values of each hypothesis's words, (H,); 0 without words."""
        least = np.zeros(len(self.words))
        if len(values):
            filled = self.lengths > 0
            least[filled] = np.minimum.reduceat(values, self.offsets[:-1][filled])
        return least

    @cached_property
    def word_keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Each pair of a hypothesis and a word that it has, once: rows and codes, (P,) int64 each."""
        n = max(len(self.vocabulary), 1)
        keys = self.rows * n + self.codes
        if len(self.words) * n > MAX_CELLS:
            return np.divmod(np.unique(keys), n)
        has_word = np.zeros((len(self.words), n), dtype=bool)
        has_word.ravel()[keys] = True
        rows, codes = np.nonzero(has_word)
        return rows, codes
