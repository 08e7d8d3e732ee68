"""Score tries with n-gram models in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import numpy as np

from rescorer.lm.ngrams.arrays import NUMPY, ArrayLibrary
from rescorer.lm.ngrams.model import LN_10, NgramModel
from rescorer.lm.ngrams.table import END_ID, NgramTable
from rescorer.lm.ngrams.units import ClassMembers, ClassUnits, Units, WordUnits
from rescorer.trie import HypothesisTrie, Words
from rescorer.vocabulary import END

MIN_DEVICE_EDGES = 16_384
"""Smallest trie that is looked up on a device. Some hundred kernels are launched there whatever its size,
which takes 3 ms; NumPy looks up so many edges in that time."""


class TableContent(NamedTuple):
    """Everything in a file of a table."""

    unit_names: tuple[str, ...]
    """The words, or names of the classes, of which the n-grams are; ``<unk>``, ``<s>`` and ``</s>`` first."""
    table: NgramTable
    skip: int = 0
    """Number of words between a context and the word that it predicts."""
    members: ClassMembers | None = None
    """The words of the classes; None if units are words."""


class TableNgram(NgramModel):
    """A model that looks up all edges of a trie at once.

    Attributes:
        table: the n-grams in NumPy arrays.
    """

    def __init__(self, content: TableContent, name: str = "ngram") -> None:
        super().__init__(name)
        self.content, self.table = content, content.table
        self._library: ArrayLibrary = NUMPY
        self._trie_table: NgramTable | None = None
        members = content.members
        self.units: Units = WordUnits(content.unit_names) if members is None else ClassUnits(members)

    def use_for_tries(self, library: ArrayLibrary) -> None:
        """Look up large tries in a library or on a device, where the first of them copies the table."""
        self._library, self._trie_table = library, None

    @property
    def trie_table(self) -> NgramTable:
        """The table for large tries, possibly on a device; its scores are the same to the last bit."""
        if self._trie_table is None:
            self._trie_table = self.table if self._library is NUMPY else self.table.to(self._library)
        return self._trie_table

    @property
    def order(self) -> int:
        return self.table.order

    def vocabulary(self) -> AbstractSet[str]:
        return self.units.vocabulary()

    def unigram_log_probs(self, words: Sequence[str]) -> np.ndarray:
        return self._add_within(self.table.unigrams[self.units.encode(words), 0], words)

    def next_log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        ids = self.units.encode(words)
        ids[[i for i, word in enumerate(words) if word == END]] = END_ID
        log10_probs = self.table.score_next(self.units.encode(context), ids, self.content.skip)
        return self._add_within(log10_probs, words)

    def edge_log10_probs(self, trie: HypothesisTrie) -> np.ndarray:
        trie = trie.within_sentence
        table = self.trie_table if trie.n_edges >= MIN_DEVICE_EDGES else self.table
        log10_probs = table.score_trie(trie, self.units.encode(trie.words), self.content.skip)
        within = self.units.log10_within(trie.words)
        return log10_probs if within is None else log10_probs + np.append(within, 0.0)[trie.edge_word]

    def _add_within(self, log10_probs: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """ln P of words from log10 P of their units, (n,) float64."""
        within = self.units.log10_within(words)
        return (log10_probs.astype(np.float64) + (0.0 if within is None else within)) * LN_10
