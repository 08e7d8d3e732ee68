"""Back-off n-gram models in flat arrays, which look up the n-grams of a whole trie at once.

The n-grams of each order above 1 are in a hash table. The place of a unigram is the id of its word; the place
of a longer n-gram is its slot in the table of its order. The key of w_1 … w_k is the pair (place of w_1 …
w_{k-1}, id of w_k). So the n-gram that ends at a node of a trie is found from the n-gram that ends at the
node's parent and is one word shorter. This takes one round per order for all nodes, whatever their depth.
Scores follow Katz (1987):

    log10 P(w | h) = the stored value of h w, if the model has this n-gram
                   = backoff(h) + log10 P(w | h without its first word), otherwise

Sums are in float32 and in KenLM's order, so that they equal KenLM's to the last bit.

The n-grams of a table are sequences of units. A unit is a word or, in a class-based model, a class of words.
``Units`` maps words to units, and says how probable a word is within its class: P(w | h) = P(unit of w |
units of h) · P(w | unit of w).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rescorer.models.arpa import FIRST_WORDS
from rescorer.models.language_model import LanguageModel
from rescorer.models.network_files import END, UNKNOWN
from rescorer.runtime import Phase, phase
from rescorer.trie import EdgeScores, HypothesisTrie, Words

Array = Any  # a NumPy array or a torch tensor


class ArrayLibrary:
    """Array operations whose names differ between NumPy and torch. These are NumPy's; see ``TorchArrays``.

    All other operations that look up n-grams, such as arithmetic, comparison and assignment by index, are the
    same in both libraries.
    """

    def asarray(self, values: np.ndarray) -> Array:
        """Convert a NumPy array to an array of this library, on its device."""
        return values

    def numpy(self, array: Array) -> np.ndarray:
        """Convert back to a NumPy array."""
        return array

    def take(self, array: Array, rows: Array) -> Array:
        """Gather rows along the first axis."""
        return array.take(rows, axis=0)

    def true_places(self, mask: Array) -> Array:
        """Return the indices at which a vector is true, int64."""
        return np.flatnonzero(mask)

    def int64(self, array: Array) -> Array:
        """Convert integers to int64."""
        return array.astype(np.int64)

    def float32_view(self, array: Array) -> Array:
        """Reinterpret a contiguous (N, M) int64 array as (N, 2 M) float32."""
        return array.view(np.float32)

    def full(self, size: int, value: float, like: Array) -> Array:
        """Make a vector of one value, with the data type of another array."""
        return np.full(size, value, dtype=like.dtype)


NUMPY = ArrayLibrary()


FIRST_FACTOR, SECOND_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64), 0xD6E8FEB86659FD93 - (1 << 64)
"""Odd multipliers whose bits look random: 2^64 over the golden ratio, and one of Pelle Evensen's."""
PILOT_FACTOR, PILOT_OFFSET = 2 * 0x9E3779B1, 0x85EBCA6B
LOW_32 = 0xFFFFFFFF
MAX_PILOT = 0xFFFF
MAX_SEED = 0xFF
KEYS_PER_BUCKET = 4
KEYS_PER_SLOT = 0.95
FEW_BUCKETS = 512
"""Once so few buckets are left without a pilot, many pilots are tried at once."""
MAX_PAIRS = 1 << 16
"""Largest number of pairs of a bucket and a pilot that are tried at once."""


class PerfectHash(NamedTuple):
    """A hash function that gives each of a fixed set of keys its own slot: compress, hash and displace.

    A key's hash chooses one of many small buckets (Belazzougui, Botelho & Dietzfelbinger 2009). Each bucket
    has a number, its pilot. The pilots were chosen so that all keys fall into distinct slots of the table.

        h       = mix(key)                          64 bits
        bucket  = highest bits of h
        x       = the 32 bits of h below those
        slot    = ((x · (PILOT_FACTOR · pilot[bucket] + PILOT_OFFSET) mod 2^32) · number of slots) / 2^32

    A slot is always smaller than the number of slots. So a damaged table, whose pilots are wrong, gives wrong
    answers but never an index outside of the table. Integers are int64, whose products wrap around in NumPy
    and torch alike. A key that is not in the table gets some slot, too: the records of the table contain the
    keys, so that callers can compare them.
    """

    seed: int
    pilots: Array  # (2^b,) uint16
    n_slots: int

    def slots(self, keys: Array, xp: ArrayLibrary = NUMPY) -> Array:
        """The slot of each key, (N,) int64 → (N,) int64."""
        buckets, low = divide_hash(keys, self.seed, (len(self.pilots) - 1).bit_length())
        return choose_slots(low, xp.int64(xp.take(self.pilots, buckets)), self.n_slots)


class SlotsNotFound(Exception):
    """With this seed, no pilot gives the keys of some bucket distinct slots."""


def divide_hash(keys: Array, seed: int, bucket_bits: int) -> tuple[Array, Array]:
    """Hash keys, (N,) int64; return the bucket of each, and the 32 bits of its hash below the bucket's."""
    mixed = (keys + seed) * FIRST_FACTOR
    mixed ^= (mixed >> 32) & LOW_32
    mixed *= SECOND_FACTOR
    return (mixed >> (64 - bucket_bits)) & ((1 << bucket_bits) - 1), (mixed >> (32 - bucket_bits)) & LOW_32


def choose_slots(low: Array, pilots: Array, n_slots: int) -> Array:
    """The slot of each key, from the low bits of its hash and the pilot of its bucket."""
    spread = pilots * PILOT_FACTOR
    spread += PILOT_OFFSET
    spread *= low
    spread &= LOW_32
    spread *= n_slots
    spread >>= 32
    return spread


def count_bucket_bits(n_keys: int) -> int:
    """Logarithm to base 2 of the number of buckets in a table of ``n_keys``."""
    return max(1, (n_keys // KEYS_PER_BUCKET).bit_length())


def count_slots(n_keys: int) -> int:
    """Number of slots in a table of ``n_keys``."""
    return int(n_keys / KEYS_PER_SLOT) + 1


def build_perfect_hash(keys: np.ndarray) -> tuple[PerfectHash, np.ndarray]:
    """Find pilots that give every key, (N,) int64, a different slot.

    Return the hash function, and the slot of each key, (N,) int64. The hash function does not depend on the
    order of the keys.

    Raises:
        ValueError: a key occurs twice.
    """
    for seed in range(MAX_SEED + 1):
        try:
            pilots = _find_pilots(keys, seed)
        except SlotsNotFound:  # of distinct keys, once in a thousand tables of millions
            if len(np.unique(keys)) < len(keys):
                raise ValueError("a key occurs twice") from None
            continue
        perfect = PerfectHash(seed, pilots, count_slots(len(keys)))
        return perfect, perfect.slots(keys)
    raise AssertionError("no seed separates the keys")


def _find_pilots(keys: np.ndarray, seed: int) -> np.ndarray:
    """Find a pilot for each bucket, (2^b,) uint16, beginning with the largest buckets.

    Every bucket gets the first pilot that gives all its keys slots that are free and distinct. Of several
    buckets that want a slot at the same pilot, the last has it, and the others need another pilot.
    """
    bits, n_slots = count_bucket_bits(len(keys)), count_slots(len(keys))
    buckets, low = divide_hash(keys, seed, bits)
    by_bucket = np.sort((buckets << 32) | low)
    if (by_bucket[1:] == by_bucket[:-1]).any():
        raise SlotsNotFound
    low = by_bucket.astype(np.uint32)
    sizes = np.bincount(buckets, minlength=1 << bits)
    first = np.cumsum(sizes) - sizes
    pilots = np.zeros(1 << bits, dtype=np.uint16)
    is_free, n_free = np.ones(n_slots, dtype=bool), n_slots
    claims = np.empty(n_slots, dtype=np.int32)  # which pending bucket wants a slot, at the current pilot
    for size in range(int(sizes.max()), 0, -1):
        pending, pilot = np.flatnonzero(sizes == size), 0
        keys_low = low.take(first.take(pending) + np.arange(size)[:, None])
        while len(pending):
            if pilot > MAX_PILOT:
                raise SlotsNotFound
            if len(pending) > FEW_BUCKETS:
                n_pilots = 1
                placed = _place_all(keys_low, pilot, is_free, claims)
                pilots[pending.take(placed)] = pilot
            else:
                n_tries = (n_slots / n_free) ** size  # expected for the slots that are free
                n_pilots = int(min(n_tries, MAX_PAIRS // len(pending), MAX_PILOT + 1 - pilot))
                found = _place_in_turn(keys_low, np.arange(pilot, pilot + n_pilots), is_free)
                placed = np.fromiter(found, np.int64)
                pilots[pending.take(placed)] = np.fromiter(found.values(), np.int64)
            n_free -= size * len(placed)
            is_pending = np.ones(len(pending), dtype=bool)
            is_pending[placed] = False
            pending, pilot = pending[is_pending], pilot + n_pilots
            keys_low = keys_low.compress(is_pending, axis=1)
    return pilots


def _place_all(keys_low: np.ndarray, pilot: int, is_free: np.ndarray, claims: np.ndarray) -> np.ndarray:
    """Give the keys of buckets the slots that a pilot chooses, and mark these as taken.

    Args:
        keys_low: (K, B) low bits of the K keys of each of B buckets.

    Returns:
        (P,) indices of the buckets whose keys have slots now.
    """
    fitting, _, slots = _find_fitting(keys_low, np.array([pilot]), is_free)
    claims[np.stack(slots, axis=1)] = fitting[:, None]
    won = np.logical_and.reduce([claims.take(one) == fitting for one in slots])
    for one in slots:
        is_free[one[won]] = False
    placed: np.ndarray = fitting[won]
    return placed


def _place_in_turn(keys_low: np.ndarray, pilots: np.ndarray, is_free: np.ndarray) -> dict[int, int]:
    """Do the same for several pilots, one after the other; return the pilot of each bucket that is placed."""
    fitting, places, slots = _find_fitting(keys_low, pilots, is_free)
    columns = zip(pilots[places].tolist(), fitting.tolist(), *(one.tolist() for one in slots), strict=True)
    found: dict[int, int] = {}
    free: memoryview[int] = memoryview(is_free)  # type: ignore[arg-type]  # faster for single slots
    for pilot, wishes in groupby(columns, key=itemgetter(0)):  # ``is_free`` is that of the first pilot
        wanted = {
            bucket: wish
            for _, bucket, *wish in wishes
            if bucket not in found and all(free[slot] for slot in wish)
        }
        claims = {slot: bucket for bucket, wish in wanted.items() for slot in wish}
        for bucket, wish in wanted.items():
            if all(claims[slot] == bucket for slot in wish):
                found[bucket] = pilot
                for slot in wish:
                    free[slot] = False
    return found


def _find_fitting(
    keys_low: np.ndarray, pilots: np.ndarray, is_free: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Find the buckets that pilots suit, because they give all their keys free and distinct slots.

    Args:
        keys_low: (K, B) uint32, low bits of the K keys of each of B buckets.
        pilots: (P,) ascending.

    Returns:
        (F,) indices of the buckets and (F,) of the pilots, ordered by pilots, then by buckets; and the slots
        of the keys, K times (F,).
    """
    spreads = ((pilots * PILOT_FACTOR + PILOT_OFFSET) & LOW_32).astype(np.uint32)

    def choose(low: np.ndarray, spread: np.ndarray) -> np.ndarray:  # as ``choose_slots``, in fewer bytes
        spread = np.multiply(low * spread, np.uint64(len(is_free)), dtype=np.uint64)
        spread >>= np.uint64(32)
        return spread.view(np.int64)

    slots = choose(keys_low[0], spreads[:, None]).ravel()  # most buckets fail with their first key
    fitting = np.flatnonzero(is_free.take(slots))
    found = [slots.take(fitting)]
    places, fitting = np.divmod(fitting, keys_low.shape[1])
    for low in keys_low[1:]:
        slots = choose(low.take(fitting), spreads.take(places))
        fits = is_free.take(slots)
        for other in found:
            fits &= slots != other
        kept = np.flatnonzero(fits)
        fitting, places = fitting.take(kept), places.take(kept)
        found = [one.take(kept) for one in (*found, slots)]
    return fitting, places, found


LN_10 = math.log(10.0)
"""Converts the base-10 logarithms of n-gram files to natural ones; no other scoring code uses base 10."""


class NgramModel(ABC):
    """A back-off model; see ``LanguageModel``."""

    backward = False  # whether sentences are read backwards; the files of n-grams do not say it

    def __init__(self, name: str) -> None:
        self.name = name
        self._log_shares: Mapping[str, float] = {}
        self._default_log_share = 0.0

    @property
    @abstractmethod
    def order(self) -> int:
        """Length of the longest n-grams."""

    @abstractmethod
    def vocabulary(self) -> AbstractSet[str]:
        """Words that the model knows."""

    @abstractmethod
    def unigram_log_probs(self, words: Sequence[str]) -> np.ndarray:
        """ln P(word) without any context, (n,) float64; unknown words get the probability of ``<unk>``."""

    @abstractmethod
    def next_log_probs(self, context: Words, words: Sequence[str]) -> np.ndarray:
        """ln P of each of several words, or ``</s>``, after ``<s>`` and a context, (n,) float64.

        An unknown word gets the whole probability of ``<unk>``, not its share of it.
        """

    @abstractmethod
    def edge_log10_probs(self, trie: HypothesisTrie) -> np.ndarray:
        """log10 P of every edge of a trie, (E,); an unknown word gets the whole probability of ``<unk>``."""

    def share_unknown(self, log_shares: Mapping[str, float], default: float) -> None:
        self._log_shares, self._default_log_share = log_shares, default

    def log_share(self, word: str) -> float:
        if word in self.vocabulary():
            return 0.0
        return self._log_shares.get(word, self._default_log_share)

    def score(self, trie: HypothesisTrie) -> EdgeScores:
        with phase(Phase.NGRAM):
            trie = trie.in_direction(self.backward)
            vocabulary = self.vocabulary()
            unknown = np.array([word not in vocabulary for word in trie.words] + [False])
            log_probs = self.edge_log10_probs(trie).astype(np.float64) * LN_10
            edge_unknown = unknown[trie.edge_word]
            if unknown.any():
                log_shares = np.zeros(len(unknown))
                log_shares[unknown] = [self.log_share(trie.words[i]) for i in np.flatnonzero(unknown)]
                log_probs += log_shares[trie.edge_word]
            return EdgeScores(log_probs, edge_unknown, backward=self.backward)


UNKNOWN_ID, START_ID, END_ID = range(3)  # ids of ``<unk>``, ``<s>`` and ``</s>``; those of words follow
NO_PLACE = -1
NO_KEY = -1 << 63
"""Key of an empty slot. The keys of n-grams are at least 0. If the context of an n-gram is not in the model,
the key that is looked up is negative, but greater than this."""


class Matches(NamedTuple):
    """Result of looking up pairs of a context and a word: those that are n-grams of one order."""

    pairs: Array  # (M,) indices of the pairs whose n-gram is in the model
    places: Array  # (M,) slots of these n-grams
    values: Array  # (M, 2) float32: log10 probability and log10 back-off weight


class OrderTable(NamedTuple):
    """All n-grams of one order above 1."""

    hash: PerfectHash
    records: Array
    """(slots, 2) int64: the key, and a second integer that holds two float32, log10 P and back-off weight."""

    def match(self, contexts: Array, words: Array, n_words: int, xp: ArrayLibrary = NUMPY) -> Matches:
        """Look up n-grams w_1 … w_k.

        Args:
            contexts: (N,) int64 places of w_1 … w_{k-1}.
            words: (N,) int64 ids of w_k.
        """
        keys = contexts * n_words
        keys += words
        slots = self.hash.slots(keys, xp)
        records = xp.take(self.records, slots)
        pairs = xp.true_places(records[:, 0] == keys)
        return Matches(pairs, xp.take(slots, pairs), xp.float32_view(xp.take(records, pairs))[:, 2:])


@dataclass(frozen=True)
class NgramTable:
    """The n-grams of all orders of a model.

    Attributes:
        unigrams: (V, 2) float32, log10 probability and log10 back-off weight of each word.
        orders: tables of orders 2 and up.
        library: the array library that the arrays belong to.
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
        """Copy a table of NumPy arrays to another array library or device."""
        orders = [
            OrderTable(
                table.hash._replace(pilots=library.asarray(table.hash.pilots)), library.asarray(table.records)
            )
            for table in self.orders
        ]
        return NgramTable(library.asarray(self.unigrams), tuple(orders), library)

    def score_trie(self, trie: HypothesisTrie, ids: np.ndarray, skip: int = 0) -> np.ndarray:
        """log10 P of every edge of a trie, (E,) float32.

        Args:
            ids: (n,) int64 id of each of the trie's words.
            skip: number of words between a context and the word that it predicts; 0 in ordinary n-grams.
        """
        words, parents, n_before = plant_forest(trie, ids, self.order, skip)
        log10_probs = self.score_forest(*map(self.library.asarray, (words, parents)))
        return self.library.numpy(log10_probs)[n_before:]

    def score_next(self, context: np.ndarray, words: np.ndarray, skip: int = 0) -> np.ndarray:
        """log10 P of each of several words after ``<s>`` and a context: (n,) int64 ids → (n,) float32."""
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
        """log10 P of each word of a forest, given the words above it, (W,) float32. See ``plant_forest``."""
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


def plant_forest(
    trie: HypothesisTrie, ids: np.ndarray, order: int, skip: int = 0
) -> tuple[np.ndarray, np.ndarray, int]:
    """Lay out a trie as a forest: an array of its words and of as many context words as this order sees.

    Entry 0 precedes every sentence. The words of the contexts follow, each context from ``<s>`` on; then the
    nodes of the trie; then its edges for ``</s>``. With a ``skip``, the nodes serve as contexts only, and all
    edges of the trie follow them. Each sentence then begins with ``skip`` more ``<s>``, so that its first
    words have contexts too.

    Args:
        ids: (n,) int64 id of each of the trie's words.
        skip: number of words between a context and the word that it predicts.

    Returns:
        (W,) int64 word ids, (W,) int64 entry at which the context of each word ends, and the number of
        entries before the first edge of the trie.
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
    words_of_entries = np.concatenate([node_words, edge_words[n_inner:]])
    return words_of_entries, np.concatenate([node_parents, edge_parents[n_inner:]]), first


N_SPECIAL = len(FIRST_WORDS)  # the first units are ``<unk>``, ``<s>`` and ``</s>``, whatever the others are


class ClassMembers(NamedTuple):
    """The words of classes."""

    words: tuple[str, ...]
    classes: np.ndarray  # (n,) int32 number of the class of each word; it is at least ``N_SPECIAL``
    log10_probs: np.ndarray  # (n,) float32 log10 P(word | class)


class Units:
    """Maps words to the units of a table: each word to itself, or to its class (Brown et al. 1992).

    Args:
        names: names of the units, of which the first ``N_SPECIAL`` are ``<unk>``, ``<s>`` and ``</s>``.
        members: the words of the classes; None if units are words.
    """

    def __init__(self, names: Sequence[str], members: ClassMembers | None) -> None:
        words = names[N_SPECIAL:] if members is None else members.words
        units = np.arange(N_SPECIAL, len(names)) if members is None else members.classes
        self._row_of = dict(zip(words, range(len(words)), strict=True))
        # unknown words have the last row
        self._units = np.append(units, UNKNOWN_ID).astype(np.int64)
        log10_probs = None if members is None else np.append(members.log10_probs, 0.0).astype(np.float64)
        self._log10_within = log10_probs

    def vocabulary(self) -> AbstractSet[str]:
        """Words that the model knows."""
        return self._row_of.keys()

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the unit of each word of a text, (n,) int64. Its ``<s>`` and ``</s>`` are unknown words."""
        return self._units[self._rows(words)]

    def log10_within(self, words: Sequence[str]) -> np.ndarray | None:
        """log10 P(word | its class), (n,) float64; None if units are words."""
        return None if self._log10_within is None else self._log10_within[self._rows(words)]

    def _rows(self, words: Iterable[str]) -> np.ndarray:
        return np.fromiter(map(self._row_of.get, words, repeat(-1)), dtype=np.int64)


MIN_DEVICE_EDGES = 16_384
"""Number of edges from which a trie is looked up on a device. A look-up launches some hundred kernels,
whatever the size of the trie. That takes 3 ms, in which NumPy looks up this many edges."""


class TableContent(NamedTuple):
    """The content of a table's file."""

    unit_names: tuple[str, ...]
    """The words or classes that n-grams consist of; ``<unk>``, ``<s>`` and ``</s>`` come first."""
    table: NgramTable
    skip: int = 0
    """Number of words between a context and the word that it predicts."""
    members: ClassMembers | None = None
    """The words of the classes; None if units are words."""


class TableNgram(NgramModel):
    """A model whose n-grams are in a table, so that it looks up all edges of a trie at once.

    Attributes:
        table: the n-grams in NumPy arrays.
    """

    def __init__(self, content: TableContent, name: str = "ngram") -> None:
        super().__init__(name)
        self.content, self.table = content, content.table
        self._library: ArrayLibrary = NUMPY
        self.units = Units(content.unit_names, content.members)

    def use_for_tries(self, library: ArrayLibrary) -> None:
        """Look up large tries with another library or on a device. The first one copies the table there."""
        self._library = library
        self.__dict__.pop("trie_table", None)

    @cached_property
    def trie_table(self) -> NgramTable:
        """The table for large tries. It may be on a device, but gives the same scores to the last bit."""
        return self.table if self._library is NUMPY else self.table.to(self._library)

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
        """Compute ln P of words, (n,) float64, from log10 P of their units."""
        within = self.units.log10_within(words)
        return (log10_probs.astype(np.float64) + (0.0 if within is None else within)) * LN_10


def align_vocabularies(models: Sequence[LanguageModel], words: frozenset[str] = frozenset()) -> None:
    """Divide each model's P(``<unk>``) among the words that are missing from its vocabulary.

    A word that model m does not know is scored as ``<unk>``, times a share q_m(w) that is fixed when the
    models are loaded: P_m(w|h) = P_m(<unk>|h) · q_m(w). The shares q_m are the n-gram's unigram distribution
    over the words that m lacks and ``<unk>``, which stands for all words that no model knows. They are
    uniform if m is the n-gram itself, or if there is no n-gram.

    Every model then spreads exactly probability 1 over the union of the vocabularies and ``<unk>``, and so
    does a mixture of them. Shares that depend on the context would follow the n-gram more closely, but would
    need a sum over all missing words for every context.

    Args:
        words: further words that get a share of ``<unk>``, such as those of models to compare with.
    """
    models = [model for model in models if model.vocabulary()]  # pieces of words make all words
    union = words.union(*(model.vocabulary() for model in models))
    ngram = next((model for model in models if isinstance(model, NgramModel)), None)
    for model in models:
        missing = sorted(union.difference(model.vocabulary()))
        if not missing:
            continue
        if ngram is None or model is ngram:
            model.share_unknown({}, -math.log(len(missing) + 1))
            continue
        log_probs = ngram.unigram_log_probs([UNKNOWN, *missing])
        log_probs -= np.logaddexp.reduce(log_probs)
        model.share_unknown(dict(zip(missing, log_probs[1:].tolist(), strict=True)), float(log_probs[0]))
