"""Tails and quantiles against scipy.stats."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rescorer.evaluation.statistics import (
    _rank,
    binomial_cdf,
    normal_quantile,
    normal_tail,
    student_quantile,
    student_tail,
)


@pytest.mark.parametrize("degrees", [1, 2, 9, 500])
@pytest.mark.parametrize("tail", [0.001, 0.025, 0.3, 0.5])
def test_student_and_normal_equal_scipy(tail, degrees):
    assert student_quantile(tail, degrees) == pytest.approx(stats.t.isf(tail, degrees))
    assert student_tail(10 * tail, degrees) == pytest.approx(stats.t.sf(10 * tail, degrees))
    assert normal_quantile(tail) == pytest.approx(stats.norm.isf(tail))
    assert normal_tail(10 * tail) == pytest.approx(stats.norm.sf(10 * tail))


@pytest.mark.parametrize("trials", [1, 2, 9, 500])
def test_binomial_equals_scipy(trials):
    for successes in {0, trials // 3, trials}:
        assert binomial_cdf(successes, trials, 0.5) == pytest.approx(stats.binom.cdf(successes, trials, 0.5))


def test_ranks_equal_scipy():
    values = np.random.default_rng(0).integers(0, 9, 50) * 0.1
    assert (_rank(values) == stats.rankdata(values)).all()
