"""Words with a vector each: what is refused, and rows of length 1."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer_training.vectors.files import WordVectors


def test_finds_rows_and_normalises():
    vectors = WordVectors(("a", "b", "c"), np.array([[3, 4], [0, 0], [1e30, 0]], np.float32))
    assert vectors.index == {"a": 0, "b": 1, "c": 2}
    assert vectors.dimensions == 2
    np.testing.assert_allclose(vectors.normalised(), [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-6)
    assert vectors.normalised().dtype == np.float32


@pytest.mark.parametrize(
    ("words", "matrix", "message"),
    [
        ((), np.empty((0, 2), np.float32), r"shape \(0, dimensions\), got \(0, 2\)"),
        (("a",), np.zeros((2, 2), np.float32), r"shape \(1, dimensions\), got \(2, 2\)"),
        (("a",), np.zeros(2, np.float32), r"got \(2,\)"),
        (("a",), np.zeros((1, 0), np.float32), r"got \(1, 0\)"),
        (("a",), np.zeros((1, 2)), "float32, got float64"),
        (("a", "b", "a"), np.zeros((3, 1), np.float32), "'a' occurs twice"),
        (("a", "b"), np.array([[0], [np.nan]], np.float32), "'b' has a value that is not finite"),
    ],
)
def test_refuses_what_is_not_a_vector_per_word(words, matrix, message):
    with pytest.raises(ValueError, match=message):
        WordVectors(words, matrix)
