"""The simulations of coverage, small; docs/decisions/intervals.md has the figures of large ones."""

from __future__ import annotations

import numpy as np
import pytest

from rescorer.evaluation.statistics.bootstrap import Interval
from tools.simulations.coverage import Tally, bca_interval, leave_out_rates, measure, percentile_interval
from tools.simulations.errors import ErrorSample, Scenario, simulate_errors


@pytest.mark.parametrize("n_groups", [None, 40])
def test_simulated_errors_have_the_true_rates(n_groups):
    scenario = Scenario("large", 200_000, n_groups and 20_000, rate=0.2)
    sample = simulate_errors(scenario, np.random.default_rng(1))
    first, second = sample.errors.sum(axis=1) / sample.words.sum()
    assert first == pytest.approx(0.2, rel=0.02)
    assert first - second == pytest.approx(scenario.gain, rel=0.05)
    assert sample.words.min() >= 1
    assert (sample.groups is None) == (n_groups is None)


def test_intervals_cover_what_they_promise():
    """150 sets: 95 % of them within four standard errors."""
    for scenario in (Scenario("lists", 143), Scenario("groups", 300, n_groups=30)):
        tallies = measure(scenario, samples=150, draws=300, seed=2)
        for quantity in ("rate", "gain"):
            assert tallies[quantity, "rescorer"].covered >= 0.88 * 150


def test_tally_counts_sides():
    tally = Tally()
    for low, high in ((0, 2), (0, 2), (2, 3), (-1, 0)):
        tally.add(Interval(low, high), 1)
    assert tally.cells() == ("50.0", "25.0", "25.0")


def test_bca_equals_percentiles_without_bias_and_skewness():
    drawn = np.arange(1001) / 1000
    plain = percentile_interval(drawn)
    corrected = bca_interval(drawn, 0.5, np.array([-1.0, 0.0, 1.0]))
    assert (corrected.low, corrected.high) == pytest.approx((plain.low, plain.high))


def test_leaves_out_one_unit_at_a_time():
    sample = ErrorSample(np.array([[1, 2, 3], [0, 0, 6]]), np.array([10, 10, 20]), np.array([0, 1, 1]))
    assert leave_out_rates(sample).tolist() == [[5 / 30, 1 / 10], [6 / 30, 0.0]]
