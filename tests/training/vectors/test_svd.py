"""PPMI and its decomposition, against formulas word by word and numpy's dense decomposition."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from rescorer.errors import ConfigError
from rescorer_training.vectors.counts import SvdOptions, compute_ppmi, compute_singular_vectors, decompose

WORDS = tuple("abcdef")


def random_counts(seed: int) -> np.ndarray:
    half = np.random.default_rng(seed).integers(0, 5, (len(WORDS), len(WORDS))).astype(float)
    return half + half.T + np.eye(len(WORDS))


@given(st.integers(0, 1000), st.sampled_from([1.0, 2.0]), st.sampled_from([0.75, 1.0]))
def test_ppmi_equals_the_formula(seed: int, shift: float, smoothing: float) -> None:
    counts = random_counts(seed)
    expected = np.zeros_like(counts)
    contexts = [sum(counts[:, j]) ** smoothing for j in range(len(WORDS))]
    for i, j in np.argwhere(counts):
        joint = counts[i, j] / counts.sum()
        apart = (counts[i].sum() / counts.sum()) * (contexts[j] / sum(contexts))
        expected[i, j] = max(0.0, math.log(joint / apart) - math.log(shift))
    found = compute_ppmi(csr_array(counts), shift, smoothing).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_products_equal_those_of_the_dense_decomposition(power: float) -> None:
    counts = csr_array(random_counts(3))
    found = decompose(WORDS, counts, SvdOptions(dimensions=3, power=power)).matrix
    left, values, _ = np.linalg.svd(compute_ppmi(counts).toarray())
    expected = left[:, :3] * values[:3] ** power
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)


def test_same_seed_gives_the_same_vectors() -> None:
    first, second = (decompose(WORDS, csr_array(random_counts(1)), SvdOptions(2)) for _ in range(2))
    np.testing.assert_array_equal(first.matrix, second.matrix)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"shift": 0.5}, "shift"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"power": 2.0}, "power"),
    ],
)
def test_rejects_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SvdOptions(**options)  # type: ignore[arg-type]


def test_rejects_as_many_dimensions_as_words() -> None:
    with pytest.raises(ConfigError, match="expected at most 5"):
        decompose(WORDS, csr_array(random_counts(0)), SvdOptions(6))


def test_rejects_a_shift_that_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match="--shift"):
        decompose(WORDS, csr_array(random_counts(0)), SvdOptions(2, shift=1e6))


def test_memory_does_not_grow_with_columns_times_dimensions() -> None:
    matrix = random_array((50, 200_000), density=0.001, format="csr", rng=np.random.default_rng(1))
    tracemalloc.start()
    vectors = compute_singular_vectors(matrix, 20, 1.0, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert vectors.shape == (50, 20)
    assert peak < 16e6  # a dense matrix of 200,000 times 20 values has 32 MB
