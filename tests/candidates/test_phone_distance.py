"""Distances of phones: what is found at once against a plain computation of one pair at a time."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import sounds
from rescorer.sounds import (
    GAPS,
    PHONES,
    SUBSTITUTIONS,
    UNIT,
    SoundMatch,
    find_similar,
    longest_match,
    phone_numbers,
)
from tests.support.phrase_search import estimate_sound_bytes


def slow_distance(first: bytes, second: bytes) -> int:
    """The edit distance of two sequences, cell by cell."""
    cells = {(0, 0): 0}
    for i in range(len(first) + 1):
        for j in range(len(second) + 1):
            ways = []
            if i:
                ways.append(cells[i - 1, j] + GAPS[first[i - 1]])
            if j:
                ways.append(cells[i, j - 1] + GAPS[second[j - 1]])
            if i and j:
                ways.append(cells[i - 1, j - 1] + SUBSTITUTIONS[first[i - 1], second[j - 1]])
            cells[i, j] = min(ways, default=0)
    return int(cells[len(first), len(second)])


def slow_find(texts, boundaries, phrases, max_per_phone):
    found = []
    for text, places in enumerate(boundaries):
        for start in places:
            for phrase, phones in enumerate(phrases):
                ends = [(slow_distance(phones, texts[text][start:end]), end) for end in places if end > start]
                if ends and phones:
                    distance, end = min(ends)
                    if distance <= int(max_per_phone * 100 * len(phones)):
                        found.append(SoundMatch(text, phrase, start, end, distance))
    return found


phones = st.binary(max_size=7).map(lambda raw: bytes(byte % len(PHONES) for byte in raw))


@st.composite
def cut_texts(draw):
    texts = draw(st.lists(phones, max_size=3))
    places = [sorted(draw(st.sets(st.integers(0, len(text)), max_size=len(text) + 1))) for text in texts]
    return texts, places


@settings(max_examples=300)
@given(cut_texts(), st.lists(phones, max_size=4), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_finds_what_a_plain_search_finds(texts, phrases, max_per_phone):
    assert find_similar(*texts, phrases, max_per_phone) == slow_find(*texts, phrases, max_per_phone)


def test_many_phrases_are_compared_in_parts(monkeypatch):
    rng = np.random.default_rng(1)
    texts = [bytes(rng.integers(0, len(PHONES), 12).tolist()) for _ in range(2)]
    boundaries = [range(0, 13, 3)] * 2
    phrases = [bytes(rng.integers(0, len(PHONES), rng.integers(1, 4)).tolist()) for _ in range(40)]
    expected = find_similar(texts, boundaries, phrases, 0.5)
    monkeypatch.setattr(sounds, "MAX_PAIRS", 7)
    assert find_similar(texts, boundaries, phrases, 0.5) == expected
    monkeypatch.setattr(sounds, "MAX_CELLS", 9)
    assert find_similar(texts, boundaries, phrases, 0.5) == expected
    assert expected


def test_of_too_many_matches_those_with_the_most_sound_remain(monkeypatch):
    texts, boundaries = [bytes([1, 2, 3, 4] * 3)] * 2, [range(13)] * 2
    phrases = [bytes([1, 2, 3, 4]), bytes([1, 2, 3]), bytes([2, 3, 4]), bytes([4])]
    every = find_similar(texts, boundaries, phrases, 0.4)

    def against(match):
        return 5 * match.distance - UNIT * len(phrases[match.phrase]), match.text, match.start, match.phrase

    for n in range(1, len(every)):
        monkeypatch.setattr(sounds, "MAX_MATCHES", n)
        found = find_similar(texts, boundaries, phrases, 0.4)
        assert len(found) == n
        assert sorted(map(against, found))[: n // 2] == sorted(map(against, every))[: n // 2]


def test_search_ends_after_so_many_steps(monkeypatch):
    texts, boundaries = [bytes([1, 2, 3, 4] * 50)], [range(201)]
    phrases = [bytes([1, 2, 3, 4]), bytes([1, 2, 3, 4] * 25), bytes([1, 2])]
    steps = []
    match_pairs = sounds._match_pairs

    def count(pairs, rows, windows, bound):
        steps.append(len(pairs) * rows.shape[1] * windows.phones.shape[1])
        return match_pairs(pairs, rows, windows, bound)

    monkeypatch.setattr(sounds, "_match_pairs", count)
    every = find_similar(texts, boundaries, phrases, 0.4)
    assert sum(steps) > 500_000
    monkeypatch.setattr(sounds, "MAX_STEPS", 500_000)
    steps.clear()
    found = find_similar(texts, boundaries, phrases, 0.4)
    assert 0 < sum(steps) <= 500_000
    assert set(found) < set(every)
    short = [[match for match in part if match.phrase != 1] for part in (found, every)]
    assert short[0] == short[1]


@pytest.mark.parametrize(
    ("n_phones", "n_phrases", "length", "n_sounds"),
    [(200, 200, 3, 2), (200, 200, 20, 39), (200, 20, 100, 3), (9, 3, 4, 3), (100, 500, 5, 1)],
)
def test_memory_is_bounded(n_phones, n_phrases, length, n_sounds):
    rng = np.random.default_rng(1)
    text = bytes(rng.integers(0, n_sounds, n_phones).tolist())
    phrases = [bytes(rng.integers(0, n_sounds, length).tolist()) for _ in range(n_phrases)]
    tracemalloc.start()
    try:
        find_similar([text], [range(n_phones + 1)], phrases, 0.4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= estimate_sound_bytes(n_phones + 1, [length] * n_phrases, 0.4)


def test_costs_are_a_distance():
    assert (SUBSTITUTIONS == SUBSTITUTIONS.T).all()
    assert not SUBSTITUTIONS.diagonal().any()
    assert (SUBSTITUTIONS + UNIT * np.eye(len(PHONES), dtype=int) > 0).all()
    costs = {}
    for pair in ("P B", "AA IY", "P T", "P S", "P AA"):
        costs[pair] = SUBSTITUTIONS[tuple(phone_numbers(pair.split()))]
    assert list(costs.values()) == sorted(costs.values())


def test_unknown_phone_is_named():
    assert phone_numbers(["AH0", "b"]) == bytes([PHONES.index("AH"), PHONES.index("B")])
    with pytest.raises(ValueError, match="unknown phone 'XX'"):
        phone_numbers(["B", "XX1"])


def test_longest_match_cannot_be_nearer():
    length = longest_match(4, 0.5)
    assert (length - 4) * GAPS.min() <= 0.5 * UNIT * 4 < (length + 1 - 4) * GAPS.min()
