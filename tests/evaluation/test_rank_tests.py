"""Sign and rank tests against enumeration and scipy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rescorer.evaluation.statistics import RankTest, sign_test, wilcoxon

RATES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=9)


@given(RATES)
def test_sign_test_equals_enumeration(pairs):
    baseline, system = (np.array(rates) / 8 for rates in zip(*pairs, strict=True))
    better = sum(a > b for a, b in pairs)
    worse = sum(a < b for a, b in pairs)
    equal = len(pairs) - better - worse
    if sum(a for a, _ in pairs) > sum(b for _, b in pairs):
        smaller = min(better + equal // 2, worse + (equal + 1) // 2)
    else:
        smaller = min(worse + equal // 2, better + (equal + 1) // 2)
    as_extreme = sum(sum(signs) <= smaller for signs in product([0, 1], repeat=len(pairs)))
    result = sign_test(baseline, system)
    assert (result.better, result.worse, result.equal) == (better, worse, equal)
    assert result.p_value == pytest.approx(min(2 * as_extreme / 2 ** len(pairs), 1))


def slow_wilcoxon(pairs: list[tuple[int, int]]) -> float:
    """Step by step as in ``compute_wilcoxon_for_treatment`` of sc_stats."""
    if sum(a for a, _ in pairs) > sum(b for _, b in pairs):
        differences = [a - b for a, b in pairs]
    else:
        differences = [b - a for a, b in pairs]
    sizes = sorted(abs(difference) for difference in differences)
    plus = minus = 0.0
    alternate = 0
    for difference in differences:
        at = [rank for rank, size in enumerate(sizes, 1) if size == abs(difference)]
        rank = sum(at) / len(at)
        if difference > 0 or (difference == 0 and alternate % 2 == 0):
            plus += rank
        else:
            minus += rank
        alternate += difference == 0
    n = len(pairs)
    z = (min(plus, minus) - n * (n + 1) / 4) / (n * (n + 1) * (2 * n + 1) / 24) ** 0.5
    return 2 * float(stats.norm.cdf(z))


@given(RATES)
def test_wilcoxon_equals_the_slow_twin(pairs):
    baseline, system = (np.array(rates) / 8 for rates in zip(*pairs, strict=True))
    assert wilcoxon(baseline, system).p_value == pytest.approx(slow_wilcoxon(pairs))


def test_wilcoxon_equals_scipy_without_ties():
    generator = np.random.default_rng(0)
    baseline, system = generator.random((2, 40))
    expected = stats.wilcoxon(baseline, system, correction=False, method="approx").pvalue
    assert wilcoxon(baseline, system).p_value == pytest.approx(expected)


@pytest.mark.parametrize("test", [sign_test, wilcoxon])
def test_edge_cases(test):
    assert test([], []) == RankTest(0, 0, 0, 1.0)
    assert test([0.1] * 10, [0.1] * 10).p_value == pytest.approx(1.0)
    assert test([0.2] * 10, [0.1] * 10).p_value < 0.01
    with pytest.raises(ValueError, match="rates of one system"):
        test([0.1, 0.2], [0.1])
