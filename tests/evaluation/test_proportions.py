"""Intervals and tests of shares beside SciPy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from rescorer.evaluation.statistics import mcnemar, wilson_interval


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_interval_is_that_of_scipy(counts):
    expected = binomtest(*counts).proportion_ci(method="wilson")
    assert wilson_interval(*counts) == pytest.approx((expected.low, expected.high), abs=1e-9)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_paired_test_is_binomial_over_the_disagreements(rows):
    first, second = (np.array(column) for column in zip(*rows, strict=True))
    result = mcnemar(first, second)
    n = result.only_first + result.only_second
    assert n == sum(a != b for a, b in rows)
    assert result.p_value == pytest.approx(binomtest(result.only_first, n).pvalue if n else 1.0)


def test_paired_test_refuses_other_questions():
    with pytest.raises(ValueError, match="3 answers"):
        mcnemar(np.ones(3, dtype=bool), np.ones(2, dtype=bool))
