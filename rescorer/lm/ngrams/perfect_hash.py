"""A static hash table in which every key is found by exactly one probe: compress, hash and displace.

Belazzougui, Botelho & Dietzfelbinger (2009), "Hash, displace, and compress": a key's hash chooses one of many
small buckets; each bucket has a number, its pilot, that was chosen so that all keys fall into distinct slots.

    h       = mix(key)                          64 bits
    bucket  = highest bits of h
    x       = the 32 bits of h below those
    slot    = ((x · (PILOT_FACTOR · pilot[bucket] + PILOT_OFFSET) mod 2^32) · number of slots) / 2^32

A slot is smaller than the number of slots whatever the pilots are, so that a damaged table can give wrong
answers but cannot lead outside of itself. Integers are int64, whose products wrap in NumPy and torch alike.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from rescorer.lm.ngrams.arrays import NUMPY, Array, ArrayLibrary

FIRST_FACTOR, SECOND_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64), 0xD6E8FEB86659FD93 - (1 << 64)
"""Odd multipliers whose bits look random: 2^64 over the golden ratio, and one of Pelle Evensen's."""
PILOT_FACTOR, PILOT_OFFSET = 2 * 0x9E3779B1, 0x85EBCA6B
LOW_32 = 0xFFFFFFFF
MAX_PILOT = 0xFFFF
MAX_SEED = 0xFF
KEYS_PER_BUCKET = 4
KEYS_PER_SLOT = 0.95
FEW_BUCKETS = 32
"""Pilots of so few buckets are tried many at once."""


class PerfectHash(NamedTuple):
    """Places keys into slots; ``records`` of a table hold the keys themselves, for comparison."""

    seed: int
    pilots: Array
    """(2^b,) uint16."""
    n_slots: int

    def slots(self, keys: Array, xp: ArrayLibrary = NUMPY) -> Array:
        """The slot of each key, or of a key that is not in the table: (N,) int64 → (N,) int64."""
        buckets, low = divide_hash(keys, self.seed, (len(self.pilots) - 1).bit_length())
        return choose_slots(low, xp.int64(xp.take(self.pilots, buckets)), self.n_slots)


class SlotsNotFound(Exception):
    """With this seed, the keys of a bucket cannot be separated."""


def divide_hash(keys: Array, seed: int, bucket_bits: int) -> tuple[Array, Array]:
    """The bucket of each key, and the 32 bits that are left of its hash; (N,) int64 each."""
    mixed = (keys + seed) * FIRST_FACTOR
    mixed ^= (mixed >> 32) & LOW_32
    mixed *= SECOND_FACTOR
    return (mixed >> (64 - bucket_bits)) & ((1 << bucket_bits) - 1), (mixed >> (32 - bucket_bits)) & LOW_32


def choose_slots(low: Array, pilots: Array, n_slots: int) -> Array:
    """The slot of each key by the low bits of its hash and the pilot of its bucket."""
    spread = pilots * PILOT_FACTOR
    spread += PILOT_OFFSET
    spread *= low
    spread &= LOW_32
    spread *= n_slots
    spread >>= 32
    return spread


def count_bucket_bits(n_keys: int) -> int:
    """Number of bits of a bucket's number in a table of ``n_keys``."""
    return max(1, (n_keys // KEYS_PER_BUCKET).bit_length())


def count_slots(n_keys: int) -> int:
    """Number of slots of a table of ``n_keys``."""
    return int(n_keys / KEYS_PER_SLOT) + 1


def build_perfect_hash(keys: np.ndarray) -> tuple[PerfectHash, np.ndarray]:
    """Find pilots that give every key a slot of its own; the result depends on the set of keys alone.

    Args:
        keys: (N,) int64.

    Returns:
        The hash function, and the slot of each key, (N,) int64.

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
    """Find a pilot for each bucket, the largest buckets first: (2^b,) uint16."""
    bits, n_slots = count_bucket_bits(len(keys)), count_slots(len(keys))
    buckets, low = divide_hash(keys, seed, bits)
    by_bucket = np.sort((buckets << 32) | low)
    if (by_bucket[1:] == by_bucket[:-1]).any():
        raise SlotsNotFound
    low = by_bucket & LOW_32
    sizes = np.bincount(buckets, minlength=1 << bits)
    first = np.cumsum(sizes) - sizes
    pilots = np.zeros(1 << bits, dtype=np.uint16)
    is_taken = np.zeros(n_slots, dtype=bool)
    claims = np.empty(n_slots, dtype=np.int32)  # which pending bucket wants a slot, in the current round
    for size in range(int(sizes.max()), 0, -1):
        pending, pilot = np.flatnonzero(sizes == size), 0
        keys_low = low.take(first.take(pending) + np.arange(size)[:, None])
        while len(pending):
            if len(pending) <= FEW_BUCKETS:
                pilot = _skip_pilots(keys_low, pilot, is_taken)
            if pilot > MAX_PILOT:
                raise SlotsNotFound
            fitting, slots = _find_fitting(keys_low, np.int64(pilot), is_taken)
            in_order = np.ascontiguousarray(slots.T)
            claims[in_order] = fitting[:, None]  # of several buckets that want a slot, the last has it
            won = (claims.take(slots) == fitting).all(axis=0)
            placed = fitting[won]
            pilots[pending[placed]] = pilot
            is_taken[slots[:, won]] = True
            is_pending = np.ones(len(pending), dtype=bool)
            is_pending[placed] = False
            pending, pilot = pending[is_pending], pilot + 1
            keys_low = keys_low.compress(is_pending, axis=1)
    return pilots


def _find_fitting(
    keys_low: np.ndarray, pilot: np.int64, is_taken: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the buckets all of whose keys a pilot gives free and distinct slots.

    Args:
        keys_low: (K, B) the low bits of the keys of each bucket.

    Returns:
        (F,) the fitting buckets, and (K, F) the slots of their keys.
    """
    fitting, found = np.arange(keys_low.shape[1]), np.empty((0, keys_low.shape[1]), dtype=np.int64)
    for low in keys_low:  # most buckets fail with their first key
        slots = choose_slots(low.take(fitting), pilot, len(is_taken))
        fits = ~is_taken.take(slots) & (slots != found).all(axis=0)
        fitting, found = fitting[fits], np.vstack([found, slots]).compress(fits, axis=1)
    return fitting, found


def _skip_pilots(keys_low: np.ndarray, pilot: int, is_taken: np.ndarray) -> int:
    """Find the first pilot, from this one on, that suits any bucket; ``MAX_PILOT`` + 1 if there is none.

    Args:
        keys_low: (K, B) the low bits of the keys of each bucket.
    """
    n_pilots = 16
    while pilot <= MAX_PILOT:
        pilots = np.arange(pilot, min(pilot + n_pilots, MAX_PILOT + 1))
        tried = np.broadcast_to(pilots[:, None], (len(pilots), keys_low.shape[1]))
        slots = [choose_slots(low, tried, len(is_taken)) for low in keys_low]
        fits = ~np.logical_or.reduce([is_taken.take(one) for one in slots])
        for one, other in combinations(slots, 2):
            fits &= one != other
        suits = fits.any(axis=1)
        if suits.any():
            return pilot + int(suits.argmax())
        pilot, n_pilots = pilot + n_pilots, min(4 * n_pilots, 1024)
    return MAX_PILOT + 1
