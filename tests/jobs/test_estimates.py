"""Estimates of rates and speeds: their intervals hold the truth, and the next run, as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rescorer.jobs.forecast import (
    QUANTILES_95,
    Estimate,
    estimate_rate,
    estimate_repeat,
    estimate_speed,
    quantile_95,
)


@given(*[st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1)) for _ in range(2)])
def test_relative_errors_of_a_product_add_up_as_squares(a, b):
    first, second = (Estimate(value, value * (1 - error), value * (1 + error)) for value, error in (a, b))
    product = first.product(second)
    assert product.value == pytest.approx(a[0] * b[0])
    assert product.high / product.value - 1 == pytest.approx(math.hypot(a[1], b[1]), abs=1e-9)
    assert math.isinf(first.product(Estimate(1.0, 0.0, math.inf)).high)


def test_quantiles_are_those_of_student():
    exact = stats.t.ppf(0.975, np.arange(1, len(QUANTILES_95) + 1))
    assert pytest.approx(exact, abs=0.006) == QUANTILES_95
    for degrees in (16, 30, 1000):
        assert quantile_95(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=3e-3)


def test_intervals_cover_the_truth_as_often_as_they_promise():
    generator, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        words = generator.integers(800, 1200, 12)
        seconds = words * 2e-5 * generator.lognormal(-(0.3**2) / 2, 0.3, 12)
        estimate = estimate_rate(words.tolist(), seconds.tolist())
        covered += estimate.low <= 2e-5 <= estimate.high
    assert 0.90 <= covered / 1000 <= 0.975


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=30), st.floats(1e-6, 1))
def test_parts_that_agree_leave_no_doubt(words, rate):
    estimate = estimate_rate(words, [rate * count for count in words])
    assert (estimate.low, estimate.high) == pytest.approx((rate, rate))


def simulate_run(generator, words, speeds):
    """Seconds of batches that are scored on a machine whose speed differs by 8 % from pass to pass."""
    moment = generator.lognormal(-(0.08**2) / 2, 0.08)
    return words * speeds * moment * generator.lognormal(0, 0.01, len(words))


def test_intervals_of_a_speed_hold_the_next_run_on_a_machine_that_varies():
    generator, covered, covered_by_lists_alone = np.random.default_rng(0), 0, 0
    for _ in range(1000):
        words = generator.integers(800, 1200, 12)
        speeds = 2e-5 * generator.lognormal(-(0.05**2) / 2, 0.05, 12)
        passes = [simulate_run(generator, words, speeds).tolist() for _ in range(3)]
        estimate = estimate_speed(words.tolist(), list(zip(*passes, strict=True)))
        once = estimate_rate(words.tolist(), passes[0])
        next_run = 2e-5 * generator.lognormal(-(0.08**2) / 2, 0.08)
        covered += estimate.low <= next_run <= estimate.high
        covered_by_lists_alone += once.low <= next_run <= once.high
    assert 0.93 <= covered / 1000 <= 0.99
    assert covered_by_lists_alone / 1000 < 0.5


def test_repetitions_that_agree_leave_the_interval_to_the_lists():
    words, times = [900, 1100, 1000], [0.9, 1.2, 1.0]
    estimate = estimate_speed(words, [(seconds, seconds, seconds) for seconds in times])
    once = estimate_rate(words, times)
    assert estimate.value == pytest.approx(once.value)
    assert estimate.high == pytest.approx(once.high)
    assert estimate_repeat([2.0, 2.0]) == Estimate(1.0, 1.0, 1.0)


@pytest.mark.parametrize("amounts", [[1.0], [0.0, 0.0]])
def test_without_repetitions_there_is_no_interval(amounts):
    assert estimate_repeat(amounts) == Estimate(1.0, 0.0, math.inf)


def test_the_interval_of_a_repetition_is_that_of_a_prediction():
    amounts = [9.0, 10.0, 11.0]
    margin = stats.t.ppf(0.975, 2) * math.sqrt(1 + 1 / 3) / 10
    assert estimate_repeat(amounts).high == pytest.approx(1 + margin, rel=1e-3)
    assert estimate_repeat(amounts).low == pytest.approx(1 - margin, rel=1e-2)
