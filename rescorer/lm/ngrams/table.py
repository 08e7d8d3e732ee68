"""A back-off n-gram model as flat arrays, in which the n-grams of a whole trie are looked up at once.

An n-gram w_1 … w_k, k > 1, lies in the hash table of its order under the key (place of w_1 … w_{k-1}, w_k),
where the place of a unigram is the id of its word and that of a longer n-gram its slot. So the n-gram that
ends at a node of a trie is found from the one that ends at its parent and is one word shorter: one round per
order for all nodes, whatever their depth. Scores follow Katz (1987):

    log10 P(w | h) = the stored value of h w, or else backoff(h) + log10 P(w | h without its first word)

Sums are in float32 and in KenLM's order, so that they equal KenLM's to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rescorer.lm.ngrams.arrays import NUMPY, Array, ArrayLibrary
from rescorer.lm.ngrams.perfect_hash import PerfectHash
from rescorer.trie import HypothesisTrie

UNKNOWN_ID, START_ID, END_ID = range(3)
"""Ids of ``<unk>``, ``<s>`` and ``</s>``; those of words follow."""
NO_PLACE = -1
NO_KEY = -1 << 63
"""Key of an empty slot; those of n-grams are at least 0, and those of n-grams without a place above it."""


class Matches(NamedTuple):
    """The n-grams of one order that some pairs of context and word have."""

    pairs: Array
    """(M,) indices of the pairs whose n-gram is in the model."""
    places: Array
    """(M,) their slots."""
    values: Array
    """(M, 2) float32: log10 probability and log10 back-off weight."""


class OrderTable(NamedTuple):
    """The n-grams of one order above 1."""

    hash: PerfectHash
    records: Array
    """(slots, 2) int64: key, and two float32 in one integer: log10 probability and back-off weight."""

    def match(self, contexts: Array, words: Array, n_words: int, xp: ArrayLibrary = NUMPY) -> Matches:
        """Look up n-grams.

        Args:
            contexts: (N,) int64, place of w_1 … w_{k-1}.
            words: (N,) int64, id of w_k.
        """
        keys = contexts * n_words
        keys += words
        slots = self.hash.slots(keys, xp)
        records = xp.take(self.records, slots)
        pairs = xp.true_places(records[:, 0] == keys)
        return Matches(pairs, xp.take(slots, pairs), xp.float32_view(xp.take(records, pairs))[:, 2:])


class WordForest(NamedTuple):
    """The words of a trie and of its contexts, each with the entry where the context that predicts it ends.

    Entry 0 comes before every sentence. Then come the words of the contexts, from ``<s>``, as far as the
    model looks back; the nodes of the trie; and its edges for ``</s>``. If words are predicted over a gap,
    the nodes are only contexts, and all edges follow them.
    """

    words: np.ndarray
    """(W,) int64 word ids."""
    parents: np.ndarray
    """(W,) int64 entry of the word before each, or of the last word before the gap."""
    n_before: int
    """Number of entries before the first edge of the trie."""


@dataclass(frozen=True)
class NgramTable:
    """All orders of a model.

    Attributes:
        unigrams: (V, 2) float32, log10 probability and log10 back-off weight of each word.
        orders: tables of orders 2 and up.
        library: the library and device of the arrays.
    """

    unigrams: Array
    orders: tuple[OrderTable, ...]
    library: ArrayLibrary = NUMPY

    @property
    def order(self) -> int:
        return 1 + len(self.orders)

    @property
    def n_words(self) -> int:
        return len(self.unigrams)

    @property
    def n_bytes(self) -> int:
        """Size of all arrays."""
        orders = sum(table.hash.pilots.nbytes + table.records.nbytes for table in self.orders)
        return int(self.unigrams.nbytes + orders)

    def to(self, library: ArrayLibrary) -> NgramTable:
        """Copy a table of NumPy arrays to another library or device."""
        orders = [
            OrderTable(
                table.hash._replace(pilots=library.asarray(table.hash.pilots)), library.asarray(table.records)
            )
            for table in self.orders
        ]
        return NgramTable(library.asarray(self.unigrams), tuple(orders), library)

    def look_up(self, ngram: Sequence[int]) -> tuple[float, float] | None:
        """log10 probability and log10 back-off weight of one n-gram; None if the model does not have it."""
        xp, place = self.library, ngram[0]
        values = self.unigrams[place]
        for order, word in zip(self.orders, ngram[1:], strict=False):
            context, last = xp.asarray(np.array([place])), xp.asarray(np.array([word]))
            matches = order.match(context, last, self.n_words, xp)
            if not len(matches.pairs):
                return None
            place, values = int(matches.places[0]), matches.values[0]
        return float(values[0]), float(values[1])

    def score_trie(self, trie: HypothesisTrie, ids: np.ndarray, skip: int = 0) -> np.ndarray:
        """log10 P of every edge of a trie, (E,) float32.

        Args:
            ids: (n,) int64 id of each of the trie's words.
            skip: number of words between a context and the word that it predicts.
        """
        forest = plant_forest(trie, ids, self.order, skip)
        asarray = self.library.asarray
        log10_probs = self.score_forest(asarray(forest.words), asarray(forest.parents))
        return self.library.numpy(log10_probs)[forest.n_before :]

    def score_next(self, context: np.ndarray, words: np.ndarray, skip: int = 0) -> np.ndarray:
        """log10 P of each of several words after ``<s>`` and a context, (n,) float32.

        Args:
            context: (m,) int64 word ids.
            words: (n,) int64 word ids.
            skip: as in ``score_trie``.
        """
        seen = context[-self.order - skip :]  # no n-gram sees all of it
        before = np.concatenate([[UNKNOWN_ID], np.full(1 + skip, START_ID), seen])
        parents = np.maximum(np.arange(-1, len(before) - 1), 0)
        asarray = self.library.asarray
        log10_probs = self.score_forest(
            asarray(np.concatenate([before, words])),
            asarray(np.concatenate([parents, np.full(len(words), len(before) - 1 - skip)])),
        )
        return self.library.numpy(log10_probs)[len(before) :]

    def score_forest(self, words: Array, parents: Array) -> Array:
        """log10 P of each word of a forest after those above it, (W,) float32; see ``WordForest``."""
        xp = self.library
        values = xp.take(self.unigrams, words)
        log10_probs, backoffs, places = values[:, 0] + 0.0, values[:, 1], words + 0
        places[0] = NO_PLACE
        for table in self.orders:
            contexts = xp.take(places, parents)
            known = xp.true_places(contexts >= 0)  # those of which the model has the context
            log10_known = xp.take(log10_probs, known) + xp.take(backoffs, xp.take(parents, known))
            matches = table.match(xp.take(contexts, known), xp.take(words, known), self.n_words, xp)
            log10_known[matches.pairs] = matches.values[:, 0]
            log10_probs[known] = log10_known
            matched = xp.take(known, matches.pairs)
            places = xp.full(len(words), NO_PLACE, places)
            places[matched] = matches.places
            backoffs = xp.full(len(words), 0.0, backoffs)
            backoffs[matched] = matches.values[:, 1]
        return log10_probs


def plant_forest(trie: HypothesisTrie, ids: np.ndarray, order: int, skip: int = 0) -> WordForest:
    """Lay out the words of a trie, with as much of its contexts as an n-gram of this order sees.

    Args:
        ids: (n,) int64 id of each of the trie's words.
        skip: number of words between a context and the word that it predicts. So many more ``<s>`` precede
            each sentence, that its first words have contexts too.
    """
    words, parents = [UNKNOWN_ID], [0]
    last_words, last_parents = [], []  # of each context: these are the roots
    for context in trie.contexts:
        above = 0
        seen = [START_ID] * (1 + skip) + ids[context[-order - skip :]].tolist()  # no n-gram sees more
        for word in seen[:-1]:
            words.append(word)
            parents.append(above)
            above = len(words) - 1
        last_words.append(seen[-1])
        last_parents.append(above)
    shift, n_inner = len(words), trie.n_nodes - trie.n_roots
    ends = np.full(len(trie.end_nodes), END_ID)
    edge_words = np.concatenate([ids[trie.node_word[trie.n_roots :]], ends])
    edge_parents = trie.edge_parent + shift
    node_words = np.concatenate([words, last_words, edge_words[:n_inner]])
    node_parents = np.concatenate([parents, last_parents, edge_parents[:n_inner]])
    first = shift + trie.n_roots
    if skip:
        for _ in range(skip):
            edge_parents = node_parents[edge_parents]
        n_inner, first = 0, len(node_words)
    return WordForest(
        np.concatenate([node_words, edge_words[n_inner:]]),
        np.concatenate([node_parents, edge_parents[n_inner:]]),
        first,
    )
