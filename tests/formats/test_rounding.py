"""Rounding and writing of many numbers at once, against Python's and orjson's, which take them one by one."""

from __future__ import annotations

import math

import numpy as np
import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from rescorer.formats.common import round_all
from rescorer.formats.score_rows import BLOCK_ROWS, MAX_INTEGER, encode_rows

TIES = st.integers(-(10**9), 10**9).map(lambda n: (2 * n + 1) / 2e6)
"""Floats nearest to the middle between two decimals, on either side or exact."""


@given(
    st.lists(st.floats() | st.floats(-1e4, 1e4) | TIES | TIES.map(lambda x: math.nextafter(x, 0))),
    st.integers(0, 9),
)
@example([0.5, 1.5, 2.5, -0.5, -0.0, 4.4e6, 4.5e6, 1e300, math.nan, math.inf, -math.inf], 0)
@example([2.675, 1.0000005, 0.0000005, -0.0000015, 5e-324], 6)
def test_rounds_as_python_does(values, decimals):
    found = round_all(np.array(values, dtype=np.float64), decimals).tolist()
    assert list(map(repr, found)) == [repr(round(value, decimals)) for value in values]


def test_keeps_the_shape():
    assert round_all(np.full((2, 3), 0.26), 1).tolist() == [[0.3] * 3] * 2
    assert round_all(np.zeros((2, 0)), 1).shape == (2, 0)


SCORES = (
    st.floats(-999_999, 999_999) | st.integers(-2000, 2000).map(lambda n: n / 1e6) | TIES | st.integers(-9, 9)
)
RANKS = st.integers(1, 120) | st.integers(1, MAX_INTEGER - 1)


@given(st.lists(st.tuples(RANKS, SCORES, SCORES), min_size=1, max_size=9), st.booleans())
@example([(999_999, 999_999.9999994, -999_999.9999994), (1000, 1e-6, -9e-6), (1, 0.00001, -0.0)], True)
def test_rows_have_the_numbers_that_orjson_writes(values, is_long):
    values *= BLOCK_ROWS // 5 if is_long else 1
    ranks, *numbers = zip(*values, strict=True)
    found = encode_rows(['{"ü":', ',"a":', ',"b":'], [np.array(ranks)], np.array(numbers, dtype=float), "}")
    rows = ({"ü": n, "a": round(a, 6) + 0.0, "b": round(b, 6) + 0.0} for n, a, b in values)
    assert found == [orjson.dumps(row).decode() for row in rows]


@given(st.sampled_from([1e6, -1e6, 1e300, math.inf, -math.inf, math.nan]) | st.just(999_999.9999996))
def test_large_numbers_are_written_by_other_means(odd):
    numbers = np.array([[1.0, odd, 2.0]])
    assert encode_rows(["a"], [], numbers, "") is None
    assert encode_rows(["a", "b"], [np.array([1, MAX_INTEGER])], numbers[:, ::2], "") is None
