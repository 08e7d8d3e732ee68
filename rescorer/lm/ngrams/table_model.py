"""Score tries with n-gram models in flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat

import numpy as np

from rescorer.lm.files.arpa_ngrams import FIRST_WORDS
from rescorer.lm.ngrams.model import LN_10, NgramModel
from rescorer.lm.ngrams.table import END_ID, UNKNOWN_ID, NgramTable
from rescorer.trie import HypothesisTrie, Words
from rescorer.vocabulary import END


class TableNgram(NgramModel):
    """A model that looks up all edges of a trie at once.

    Args:
        words: the word of each id, ``<unk>``, ``<s>`` and ``</s>`` first.
    """

    def __init__(self, words: Sequence[str], table: NgramTable, name: str = "ngram") -> None:
        super().__init__(name)
        self.table = table
        first = len(FIRST_WORDS)
        self._ids = dict(zip(words[first:], range(first, len(words)), strict=True))

    @property
    def order(self) -> int:
        return self.table.order

    def words(self) -> tuple[str, ...]:
        """The word of each id."""
        return (*FIRST_WORDS, *self._ids)

    def vocabulary(self) -> AbstractSet[str]:
        return self._ids.keys()

    def unigram_log_probs(self, words: Sequence[str]) -> np.ndarray:
        log10_probs = self.table.library.numpy(self.table.unigrams)[self.encode(words), 0]
        return log10_probs.astype(np.float64) * LN_10

    def next_log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        ids = self.encode(words)
        ids[[i for i, word in enumerate(words) if word == END]] = END_ID
        return self.table.score_next(self.encode(context), ids).astype(np.float64) * LN_10

    def edge_log10_probs(self, trie: HypothesisTrie) -> np.ndarray:
        return self.table.score_trie(trie, self.encode(trie.words))

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the ids of words, (n,) int64; ``<s>`` and ``</s>`` inside a text are unknown words."""
        return np.fromiter(map(self._ids.get, words, repeat(UNKNOWN_ID)), dtype=np.int64)
