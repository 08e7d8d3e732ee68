"""Owns a back-off n-gram model as flat arrays: a trie of n-grams in one block, followed many steps at once.

P(w | h) is stored for some (h, w); for the others it is backoff(h) · P(w | h without its first word), Katz
(1987). What is computed on such a model (mixing, pruning) is in modules of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rescorer.errors import FormatError
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.ngram.arpa import read_orders, write_arpa

MIN_MASS = 1e-7
"""Smallest probability left to back off with: what six decimals of a logarithm can tell from none."""


@dataclass(frozen=True)
class NGramTrie:
    """Which n-grams a model has; row 0 is the empty context, row 1 + w the word w.

    Rows are ordered by order, then prefix, then word, so that the pair (prefix, word) is sorted over all.
    """

    words: tuple[str, ...]
    """By id, ``<s>``, ``</s>`` and ``<unk>`` among them."""
    bounds: tuple[int, ...]
    """Order n is rows bounds[n-1] … bounds[n]-1; bounds[0] is 1."""
    prefix: np.ndarray
    """(R,) int32 row of w_1 … w_{n-1}."""
    word: np.ndarray
    """(R,) int32 id of w_n."""

    @property
    def order(self) -> int:
        return len(self.bounds) - 1

    def rows(self, order: int) -> slice:
        """The rows of one order."""
        return slice(self.bounds[order - 1], self.bounds[order])

    @cached_property
    def keys(self) -> np.ndarray:
        """(R,) int64, rising: prefix and word in one number."""
        keys = pair_keys(self.prefix, self.word, len(self.words))
        keys[0] = -1  # nobody's child
        return keys

    @cached_property
    def suffix(self) -> np.ndarray:
        """(R,) int32 row of the longest proper suffix that is stored."""
        suffix = np.zeros(len(self.word), np.int32)
        for n in range(2, self.order + 1):
            rows = self.rows(n)
            going, at = np.arange(rows.start, rows.stop), suffix[self.prefix[rows]]
            while len(going):
                found = self.find(at, self.word[going])
                suffix[going] = found
                missed = found == 0
                going, at = going[missed], suffix[at[missed]]
        return suffix

    def find(self, context: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Rows of context + word, 0 where they are not stored; context, word: (N,) → (N,)."""
        keys = pair_keys(context, word, len(self.words))
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, 0)

    def kept(self, keep: np.ndarray) -> NGramTrie:
        """The trie of the rows in ``keep``, (R,) bool, which holds every prefix of what it holds."""
        new_row = np.cumsum(keep, dtype=np.int32) - 1
        bounds = tuple(int(new_row[bound - 1]) + 1 for bound in self.bounds)
        return NGramTrie(self.words, bounds, new_row[self.prefix[keep]], self.word[keep])


@dataclass(frozen=True)
class BackoffModel:
    """A trie and its probabilities."""

    trie: NGramTrie
    prob: np.ndarray
    """(R,) float64 P(w_n | w_1 … w_{n-1}); 0 for ``<s>``, which nothing predicts."""
    backoff: np.ndarray
    """(R,) float64; 1 where no n-gram continues the row."""

    def follow(self, context: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P(word | context), and the row of the longest stored suffix of context + word: (N,) both."""
        row = np.zeros(len(word), np.int32)
        weight = np.ones(len(word))
        going, at = np.arange(len(word)), np.asarray(context)
        while len(going):
            found = self.trie.find(at, word[going])
            row[going] = found
            missed = found == 0
            going, at = going[missed], at[missed]
            weight[going] *= self.backoff[at]
            at = self.trie.suffix[at]
        return weight * self.prob[row], row

    def lower_probs(self, order: int) -> np.ndarray:
        """P(w_n | w_2 … w_{n-1}) of every n-gram of one order, (N,)."""
        rows = self.trie.rows(order)
        return self.follow(self.trie.suffix[self.trie.prefix[rows]], self.trie.word[rows])[0]

    def left_over(self, order: int, probs: np.ndarray) -> np.ndarray:
        """1 - Σ of ``probs``, one an n-gram of ``order``, over each context: (N_{order-1},), none below
        ``MIN_MASS``, so that no word becomes impossible by rounding."""
        below = self.trie.rows(order - 1) if order > 1 else slice(0, 1)
        context = self.trie.prefix[self.trie.rows(order)] - below.start
        sums = np.bincount(context, weights=probs, minlength=below.stop - below.start)
        return np.maximum(1 - sums, MIN_MASS)

    def renormalised(self, left: np.ndarray | None = None) -> BackoffModel:
        """The model with the back-off weights that make every distribution sum to one.

        Args:
            left: (R,) what the n-grams that continue each row leave to back off with, where it is known
                better than by 1 - Σ P, which has only the digits that the file's figures leave.
        """
        backoff = np.ones_like(self.backoff)
        model = BackoffModel(self.trie, self.prob, backoff)
        for n in range(2, self.trie.order + 1):  # lower contexts first: the higher ones back off to them
            contexts = self.trie.rows(n - 1)
            of_order = self.left_over(n, self.prob[self.trie.rows(n)]) if left is None else left[contexts]
            lower_left = self.left_over(n, model.lower_probs(n))
            backoff[contexts] = np.where(lower_left > MIN_MASS, of_order / lower_left, 0.0)
        return model

    def save(self, path: Path) -> None:
        """Writes an ARPA file, gzip where the name ends in ``.gz``."""
        tables = [_Table(self, n) for n in range(1, self.trie.order + 1)]
        write_arpa(path, tables, self.trie.words)


class _Table:
    """One order, as ``write_arpa`` takes it."""

    def __init__(self, model: BackoffModel, order: int) -> None:
        rows = model.trie.rows(order)
        below = model.trie.bounds[order - 2] if order > 1 else 0
        self.prefix = model.trie.prefix[rows] - below
        self.word = model.trie.word[rows]
        self.prob, self.backoff = model.prob[rows], model.backoff[rows]

    def __len__(self) -> int:
        return len(self.word)


def pair_keys(prefix: np.ndarray, word: np.ndarray, n_words: int) -> np.ndarray:
    """Prefix and word in one int64, sorted as the pairs are."""
    keys = np.asarray(prefix).astype(np.int64)
    keys *= n_words
    keys += word
    return keys


def load_backoff(path: Path, progress: str = "") -> BackoffModel:
    """Reads an ARPA file, gzip or plain.

    Raises:
        FormatError: it is no ARPA file, lacks a mark, or holds an n-gram without its prefix.
    """
    words, orders = read_orders(path, progress)
    words = [UNKNOWN if word == "<UNK>" else word for word in words]
    missing = [mark for mark in (START, END, UNKNOWN) if mark not in words]
    if missing:
        raise FormatError(f"no unigram {', '.join(missing)}", file=str(path))
    bounds = [1]
    prefix, word = [np.zeros(1, np.int32)], [np.zeros(1, np.int32)]
    prob, backoff = [np.zeros(1)], [np.ones(1)]
    for order in orders:
        n = order.ids.shape[1]
        trie = NGramTrie(tuple(words), tuple(bounds), np.concatenate(prefix), np.concatenate(word))
        rows = _prefix_rows(trie, order.ids[:, :-1], path)
        by_key = np.argsort(pair_keys(rows, order.ids[:, -1], len(words)), kind="stable")
        prefix.append(rows[by_key])
        word.append(order.ids[by_key, -1])
        prob.append(10.0 ** order.log10_prob[by_key])
        backoff.append(10.0 ** order.log10_backoff[by_key] if n < len(orders) else np.ones(len(by_key)))
        bounds.append(bounds[-1] + len(by_key))
    trie = NGramTrie(tuple(words), tuple(bounds), np.concatenate(prefix), np.concatenate(word))
    probs = np.concatenate(prob)
    probs[1 + words.index(START)] = 0.0
    return BackoffModel(trie, probs, np.concatenate(backoff))


def _prefix_rows(trie: NGramTrie, ids: np.ndarray, path: Path) -> np.ndarray:
    """Rows of w_1 … w_{n-1}, given as (N, n-1) ids: (N,) int32."""
    rows = np.zeros(len(ids), np.int32)
    for column in ids.T:
        rows = trie.find(rows, column).astype(np.int32)
        if not rows.all():
            lost = " ".join(trie.words[i] for i in ids[np.flatnonzero(rows == 0)[0]])
            raise FormatError(f"an n-gram begins with {lost!r}, which is not in it", file=str(path))
    return rows


def word_ids(model: BackoffModel, words: Sequence[str]) -> np.ndarray:
    """Ids of words in the model's trie, ``<unk>``'s where it lacks them: (n,) int32."""
    ids = {word: i for i, word in enumerate(model.trie.words)}
    unknown = ids[UNKNOWN]
    return np.fromiter((ids.get(word, unknown) for word in words), np.int32)
