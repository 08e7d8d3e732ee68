"""Back-off n-gram models as flat arrays, read from ARPA files and tables, and written to ARPA files.

The arrays form a trie that can be followed for many contexts in parallel. P(w | h) is stored for some pairs
(h, w). For all others it is backoff(h) · P(w | h without its first word), as in Katz (1987).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from rescorer.errors import BundleError, FormatError
from rescorer.models.arpa import ArpaModel, ArpaOrder, WordIds, read_arpa_ngrams
from rescorer.models.network_files import END, START, UNKNOWN
from rescorer.models.ngram_files import is_table_file, list_ngrams, map_table
from rescorer.progress import track
from rescorer.safe_input import open_regular
from rescorer_training.ngram.smoothing import NGramProbabilities, pack_keys

NGRAMS_PER_BLOCK = 200_000
"""Number of n-grams that are formatted in memory before they are written."""
GZIP_LEVEL = 4
"""Compression level: twice as fast as gzip's default of 6 on these files, and a few per cent larger."""
MIN_LOG10 = -99.0
"""Least log10 probability that is written. In ARPA files it stands for log10 0."""


def write_arpa(path: Path, model: Sequence[NGramProbabilities], vocabulary: Sequence[str]) -> None:
    """Write a model to an ARPA file, gzip if the name ends in ``.gz``.

    Args:
        model: one table per order, starting at order 1.
        vocabulary: the word of each id.

    Raises:
        OSError: the file cannot be written.
    """
    with open_output(path) as stream:
        sizes = "".join(f"ngram {n}={len(table)}\n" for n, table in enumerate(model, start=1))
        stream.write(f"\\data\\\n{sizes}".encode())
        for n in range(1, len(model) + 1):
            stream.write(f"\n\\{n}-grams:\n".encode())
            for block in _format_ngrams(model[:n], vocabulary, with_backoff=n < len(model)):
                stream.write(block.encode())
        stream.write(b"\n\\end\\\n")


def open_output(path: Path) -> BinaryIO:
    """Open a file for writing, through gzip (without a time in the header) if its name ends in ``.gz``."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(path, "wb", compresslevel=GZIP_LEVEL, mtime=0))
    return open(path, "wb")


def _format_ngrams(
    tables: Sequence[NGramProbabilities], vocabulary: Sequence[str], with_backoff: bool
) -> Iterator[str]:
    """Yield the lines of the last table's n-grams in blocks. Their prefixes are in the other tables."""
    top = tables[-1]
    words = np.array(vocabulary, dtype=object)
    line_format = "%.6f\t" + " ".join(["%s"] * len(tables)) + ("\t%.6f\n" if with_backoff else "\n")
    for start in range(0, len(top), NGRAMS_PER_BLOCK):
        rows: np.ndarray = np.arange(start, min(start + NGRAMS_PER_BLOCK, len(top)))
        columns = [clamped_log10(top.backoff[rows]).tolist()] if with_backoff else []
        log10_prob = np.minimum(clamped_log10(top.prob[rows]), 0.0).tolist()
        for table in reversed(tables):
            columns.insert(0, words[table.word[rows]].tolist())
            rows = table.prefix[rows]
        yield "".join([line_format % line for line in zip(log10_prob, *columns, strict=True)])


def clamped_log10(probs: np.ndarray) -> np.ndarray:
    """Return base-10 logarithms for ARPA files; those below ``MIN_LOG10`` are replaced by it."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log10(probs), MIN_LOG10)


def read_arpa_arrays(path: Path, progress: str = "") -> ArpaModel:
    """Read an ARPA file, compressed or plain, into arrays with float64 values.

    Returns:
        The words of the unigrams, in the order of the file, which is also the order of their ids; and the
        n-grams of every order.

    Raises:
        BundleError: the file is not an ARPA file or has an invalid line.
    """
    with open_regular(path) as stream, track(progress, "lines") as task:
        return read_arpa_ngrams(stream, WordIds(), np.float64, task.advance)


def is_table(path: Path) -> bool:
    """Whether a file starts like an n-gram table."""
    try:
        with open_regular(path) as stream:
            return is_table_file(stream)
    except BundleError:
        return False


def read_table_arrays(path: Path) -> ArpaModel:
    """Read the words and the n-grams of every order from an n-gram table.

    Raises:
        BundleError: the table is damaged, or its n-grams are of classes or have a gap.
    """
    with open_regular(path) as stream:
        content = map_table(stream)
        if content.members or content.skip:
            raise BundleError(f"{path}: has n-grams of classes or with a gap; expected n-grams of words")
        orders = list_ngrams(content.table, stream.name)
    wide = [ArpaOrder(ids, values.astype(np.float64)) for ids, values in orders]
    return ArpaModel(tuple(content.unit_names), wide)


MIN_BACKOFF_MASS = 1e-7
"""Minimum probability mass that a context leaves for backing off.

Six decimals of a logarithm, as in ARPA files, cannot distinguish a smaller mass from zero.
"""


@dataclass(frozen=True)
class NGramTrie:
    """The n-grams of a model, one per row. Row 0 is the empty context, and row 1 + w the unigram of word w.

    Rows are sorted by order, then prefix, then word, so that all pairs (prefix, word) are in ascending order.
    """

    words: tuple[str, ...]
    """The word of each id, including ``<s>``, ``</s>`` and ``<unk>``."""
    bounds: tuple[int, ...]
    """Order n has the rows bounds[n-1] … bounds[n]-1; bounds[0] is 1."""
    prefix: np.ndarray
    """(R,) int32 row of w_1 … w_{n-1}."""
    word: np.ndarray
    """(R,) int32 id of w_n."""

    @property
    def order(self) -> int:
        return len(self.bounds) - 1

    def rows(self, order: int) -> slice:
        """Return the rows of one order."""
        return slice(self.bounds[order - 1], self.bounds[order])

    @cached_property
    def keys(self) -> np.ndarray:
        """(R,) int64: prefix and word of each row packed into one number, in ascending order."""
        keys = pack_keys(self.prefix, self.word, len(self.words))
        keys[0] = -1  # the empty context is not a continuation of another row
        return keys

    @cached_property
    def suffix(self) -> np.ndarray:
        """(R,) int32 row of the longest proper suffix that is in the trie."""
        suffix = np.zeros(len(self.word), np.int32)
        for n in range(2, self.order + 1):
            rows = self.rows(n)
            pending, context = np.arange(rows.start, rows.stop), suffix[self.prefix[rows]]
            while len(pending):
                found = self.find(context, self.word[pending])
                suffix[pending] = found
                missed = found == 0
                pending, context = pending[missed], suffix[context[missed]]
        return suffix

    def find(self, context: np.ndarray, word: np.ndarray) -> np.ndarray:
        """Return the row of each context + word, 0 if it is not in the trie; context, word: (N,) → (N,)."""
        keys = pack_keys(context, word, len(self.words))
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, 0)

    def select(self, keep: np.ndarray) -> NGramTrie:
        """Return a trie of some rows.

        Args:
            keep: (R,) bool. The prefix of every kept row must be kept too.
        """
        new_row = np.cumsum(keep, dtype=np.int32) - 1
        bounds = tuple(int(new_row[bound - 1]) + 1 for bound in self.bounds)
        return NGramTrie(self.words, bounds, new_row[self.prefix[keep]], self.word[keep])


@dataclass(frozen=True)
class BackoffModel:
    """A trie with the probability and back-off weight of each row."""

    trie: NGramTrie
    prob: np.ndarray
    """(R,) float64 P(w_n | w_1 … w_{n-1}); 0 for ``<s>``, which is never predicted."""
    backoff: np.ndarray
    """(R,) float64 back-off weight; 1 if no n-gram continues the row."""

    def follow(self, context: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Score one word after each context, and find the contexts for the next words.

        Args:
            context: (N,) rows.
            word: (N,) ids.

        Returns:
            (N,) P(word | context), and (N,) row of the longest suffix of context + word that is stored.
        """
        row = np.zeros(len(word), np.int32)
        weight = np.ones(len(word))
        pending, shorter = np.arange(len(word)), np.asarray(context)
        while len(pending):
            found = self.trie.find(shorter, word[pending])
            row[pending] = found
            missed = found == 0
            pending, shorter = pending[missed], shorter[missed]
            weight[pending] *= self.backoff[shorter]
            shorter = self.trie.suffix[shorter]
        return weight * self.prob[row], row

    def compute_lower_order_probs(self, order: int) -> np.ndarray:
        """Compute P(w_n | w_2 … w_{n-1}), with a shorter context, for every n-gram of an order, (N,)."""
        rows = self.trie.rows(order)
        return self.follow(self.trie.suffix[self.trie.prefix[rows]], self.trie.word[rows])[0]

    def compute_left_over_mass(self, order: int, probs: np.ndarray) -> np.ndarray:
        """Compute 1 - Σ ``probs`` for each context of the n-grams of ``order``.

        The result is at least ``MIN_BACKOFF_MASS``, so that rounding cannot make a word impossible.

        Args:
            probs: (N_order,) one probability per n-gram.

        Returns:
            (N_{order-1},), one value per row of the order below.
        """
        contexts = self.trie.rows(order - 1) if order > 1 else slice(0, 1)
        context = self.trie.prefix[self.trie.rows(order)] - contexts.start
        sums = np.bincount(context, weights=probs, minlength=contexts.stop - contexts.start)
        return np.maximum(1 - sums, MIN_BACKOFF_MASS)

    def renormalise(self, left_over: np.ndarray | None = None) -> BackoffModel:
        """Return the model with back-off weights that make every distribution sum to one.

        Args:
            left_over: (R,) for each row as a context, the probability mass left for backing off. If None, the
                mass is 1 - Σ P over the stored n-grams, which is only as precise as the file's decimals.
        """
        backoff = np.ones_like(self.backoff)
        model = BackoffModel(self.trie, self.prob, backoff)
        for n in range(2, self.trie.order + 1):  # lower orders first: higher ones back off to them
            contexts = self.trie.rows(n - 1)
            if left_over is None:
                mass = self.compute_left_over_mass(n, self.prob[self.trie.rows(n)])
            else:
                mass = left_over[contexts]
            lower_mass = self.compute_left_over_mass(n, model.compute_lower_order_probs(n))
            backoff[contexts] = np.where(lower_mass > MIN_BACKOFF_MASS, mass / lower_mass, 0.0)
        return model

    def save(self, path: Path) -> None:
        """Write an ARPA file, gzip if the name ends in ``.gz``."""
        tables = []
        for n in range(1, self.trie.order + 1):
            rows, first_prefix = self.trie.rows(n), self.trie.bounds[n - 2] if n > 1 else 0
            prefix, word = self.trie.prefix[rows] - first_prefix, self.trie.word[rows]
            tables.append(NGramProbabilities(prefix, word, self.prob[rows], self.backoff[rows], discounts=()))
        write_arpa(path, tables, self.trie.words)


def load_backoff_model(path: Path, progress: str = "") -> BackoffModel:
    """Read an ARPA file, compressed or plain, or an n-gram table.

    Raises:
        FormatError: the model lacks ``<s>``, ``</s>`` or ``<unk>``, has an n-gram twice, or lacks the prefix
            of an n-gram.
        BundleError: the file is neither an ARPA file nor a table, or is damaged.
    """
    content = read_table_arrays(path) if is_table(path) else read_arpa_arrays(path, progress)
    words, orders = [UNKNOWN if word == "<UNK>" else word for word in content.words], content.orders
    missing = [special for special in (START, END, UNKNOWN) if special not in words]
    if missing:
        raise FormatError(f"no unigram {', '.join(missing)}; a back-off model needs it", file=str(path))
    bounds = [1]
    prefix, word = [np.zeros(1, np.int32)], [np.zeros(1, np.int32)]
    prob, backoff = [np.zeros(1)], [np.ones(1)]
    for order in orders:
        n = order.ids.shape[1]
        trie = NGramTrie(tuple(words), tuple(bounds), np.concatenate(prefix), np.concatenate(word))
        ids = order.ids[:, :-1]
        rows = np.zeros(len(ids), np.int32)
        for column in ids.T:
            rows = trie.find(rows, column).astype(np.int32)
            if not rows.all():
                lost = " ".join(trie.words[i] for i in ids[np.flatnonzero(rows == 0)[0]])
                raise FormatError(f"an n-gram begins with {lost!r}, but {lost!r} is missing", file=str(path))
        keys = pack_keys(rows, order.ids[:, -1], len(words))
        by_key = np.argsort(keys, kind="stable")
        if (np.diff(keys[by_key]) == 0).any():
            raise FormatError(f"one of its {n}-grams occurs twice", file=str(path))
        prefix.append(rows[by_key])
        word.append(order.ids[by_key, -1])
        prob.append(10.0 ** order.values[by_key, 0])
        backoff.append(10.0 ** order.values[by_key, 1] if n < len(orders) else np.ones(len(by_key)))
        bounds.append(bounds[-1] + len(by_key))
    trie = NGramTrie(tuple(words), tuple(bounds), np.concatenate(prefix), np.concatenate(word))
    probs = np.concatenate(prob)
    probs[1 + words.index(START)] = 0.0
    return BackoffModel(trie, probs, np.concatenate(backoff))
