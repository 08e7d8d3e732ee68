"""The perfect hash: a slot of its own for every key, the same for any order of keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.models import ngrams
from rescorer.models.ngrams import (
    build_perfect_hash,
    choose_slots,
    count_bucket_bits,
    count_slots,
    divide_hash,
)

key_sets = st.sets(st.integers(0, (1 << 62) - 1) | st.integers(0, 300), max_size=400)


@settings(max_examples=100, deadline=None)
@given(key_sets, st.randoms())
def test_every_key_has_its_own_slot(keys, random):
    in_order = np.array(sorted(keys), dtype=np.int64)
    perfect, slots = build_perfect_hash(in_order)
    assert len(set(slots.tolist())) == len(keys)
    assert all(0 <= slot < perfect.n_slots for slot in slots)
    np.testing.assert_array_equal(perfect.slots(in_order), slots)
    shuffled = in_order.copy()
    random.shuffle(shuffled)
    again, _ = build_perfect_hash(shuffled)
    assert again.seed == perfect.seed
    np.testing.assert_array_equal(again.pilots, perfect.pilots)


@settings(deadline=None)
@given(key_sets.filter(len))
def test_pilots_are_those_found_bucket_by_bucket(keys):
    """The same tables as those of files that were written before the search was made faster."""
    in_order = np.array(sorted(keys), dtype=np.int64)
    perfect, _ = build_perfect_hash(in_order)
    assert perfect.pilots.tolist() == find_pilots_bucket_by_bucket(in_order, perfect.seed)


def find_pilots_bucket_by_bucket(keys: np.ndarray, seed: int) -> list[int]:
    """The largest buckets first; of buckets that want a slot with the same pilot, the last one gets it."""
    n_slots, n_bits = count_slots(len(keys)), count_bucket_bits(len(keys))
    buckets: list[list[int]] = [[] for _ in range(1 << n_bits)]
    for bucket, low in zip(*(part.tolist() for part in divide_hash(keys, seed, n_bits)), strict=True):
        buckets[bucket].append(low)
    pilots, taken = [0] * len(buckets), set()
    for size in range(len(keys), 0, -1):
        pending, pilot = [i for i, lows in enumerate(buckets) if len(lows) == size], 0
        while pending:
            wanted = {i: {choose_slots(low, pilot, n_slots) for low in buckets[i]} for i in pending}
            fitting = [i for i, slots in wanted.items() if len(slots) == size and not slots & taken]
            last = {slot: i for i in fitting for slot in wanted[i]}
            for i in fitting:
                if all(last[slot] == i for slot in wanted[i]):
                    pilots[i] = pilot
                    taken |= wanted[i]
                    pending.remove(i)
            pilot += 1
    return pilots


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 255), st.integers(1, 31))
def test_hash_follows_its_description(key, seed, bits):
    """The same with Python's integers, which do not wrap."""
    mixed = (key + seed) * 0x9E3779B97F4A7C15 % 2**64
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 % 2**64
    with np.errstate(over="ignore"):
        buckets, low = divide_hash(np.array([key]), seed, bits)
    assert (int(buckets[0]), int(low[0])) == (mixed >> (64 - bits), (mixed >> (32 - bits)) % 2**32)


def test_another_seed_separates_keys_that_collide(monkeypatch):
    """With seed 0, all keys of this test fall into one bucket with the same low bits."""
    original = ngrams.divide_hash

    def collide(keys, seed, bits):
        return original(keys * (seed > 0), seed, bits)

    monkeypatch.setattr(ngrams, "divide_hash", collide)
    perfect, slots = build_perfect_hash(np.arange(50))
    assert perfect.seed == 1
    assert len(set(slots.tolist())) == 50


def test_refuses_a_key_that_occurs_twice():
    with pytest.raises(ValueError, match="twice"):
        build_perfect_hash(np.array([1, 2, 1]))


def test_damaged_pilots_do_not_lead_outside():
    perfect, _ = build_perfect_hash(np.arange(1000))
    damaged = perfect._replace(pilots=np.random.default_rng(0).integers(0, 1 << 16, len(perfect.pilots)))
    keys = np.random.default_rng(1).integers(-(1 << 63), 1 << 63, 100_000)
    slots = damaged.slots(keys)
    assert slots.min() >= 0
    assert slots.max() < perfect.n_slots
