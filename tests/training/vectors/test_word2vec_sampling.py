"""Subsampling, windows and noise words against their definitions."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer_training.vectors.word2vec import NoiseSampler, WindowSampler, keep_probabilities

N_WORDS = 5
END, RARE = N_WORDS, N_WORDS + 1


def draw_pairs(sampler: WindowSampler, ids: list[int], seed: int) -> tuple[list[int], list[tuple[int, int]]]:
    """All centre words, and the places of each pair of centre and context word."""
    words: list[int] = []
    pairs: list[tuple[int, int]] = []
    for block in sampler.draw_blocks(np.array(ids, dtype=np.int32), torch.Generator().manual_seed(seed)):
        begin, stride = len(words), block.contexts.stride
        words += block.centres.reshape(-1).tolist()
        for chunk, place, column in block.mask.nonzero().tolist():
            centre = begin + chunk * stride + place
            pairs.append((centre, begin + chunk * stride + column - sampler.window))
    return words, pairs


@given(
    ids=st.lists(st.integers(0, RARE), max_size=40),
    window=st.integers(1, 4),
    chunk_words=st.integers(1, 5),
    block_words=st.integers(1, 30),
    seed=st.integers(0, 999),
)
@settings(deadline=None)
def test_windows_stay_within_sentences(
    ids: list[int], window: int, chunk_words: int, block_words: int, seed: int
) -> None:
    sampler = WindowSampler(np.ones(N_WORDS), window, chunk_words, block_words)
    words, pairs = draw_pairs(sampler, ids, seed)
    expected = [(number, ids[:place].count(END)) for place, number in enumerate(ids) if number < N_WORDS]
    assert words[: len(expected)] == [word for word, _ in expected]
    assert set(words[len(expected) :]) <= {END}
    # the windows are drawn after one number per id for subsampling
    random = torch.Generator().manual_seed(seed)
    torch.rand(len(ids), generator=random)
    reach = torch.randint(1, window + 1, (len(words),), generator=random).tolist()
    assert sorted(pairs) == [
        (centre, context)
        for centre in range(len(expected))
        for context in range(len(expected))
        if 0 < abs(centre - context) <= reach[centre] and expected[centre][1] == expected[context][1]
    ]


def test_keep_probabilities_follow_the_original_program() -> None:
    counts = np.array([900, 90, 10])
    expected = [min(1.0, math.sqrt(0.01 / f) + 0.01 / f) for f in (0.9, 0.09, 0.01)]
    np.testing.assert_allclose(keep_probabilities(counts, 0.01), expected)
    np.testing.assert_array_equal(keep_probabilities(counts, 0), 1)


def test_frequent_words_are_skipped_as_often_as_said() -> None:
    sampler = WindowSampler(np.array([0.25, 1.0]), 2, 4, 64)
    blocks = sampler.draw_blocks(np.tile([0, 1], 4000).astype(np.int32), torch.Generator().manual_seed(1))
    counts = sum(torch.bincount(block.centres.reshape(-1), minlength=3) for block in blocks)
    assert counts[1] == 4000
    assert abs(int(counts[0]) - 1000) < 100


def test_noise_follows_the_power_of_counts() -> None:
    counts = np.array([1000, 100, 10])
    words = NoiseSampler(counts, 0.75).draw(20_000, torch.Generator().manual_seed(1))
    share = torch.bincount(words, minlength=3).numpy() / 20_000
    np.testing.assert_allclose(share, counts**0.75 / (counts**0.75).sum(), atol=0.02)
