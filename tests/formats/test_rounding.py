"""Rounding of many numbers at once, against Python's, which takes them one by one."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from rescorer.formats.common import round_all

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
