"""Power against a small simulation, and against its own inverse."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rescorer.evaluation.statistics import LEVEL, bootstrap, normal_quantile, normal_tail, units_needed


def power_of_test(gain: float, standard_error: float, level: float = LEVEL) -> float:
    """Probability that the lower end of the two-sided interval of the gain will be above 0.

    Args:
        gain: true gain.
        standard_error: of the measured gain.
        level: of the interval: 0.95 for a one-sided bound of 97.5 %.
    """
    if not standard_error:
        return float(gain > 0)
    return normal_tail(normal_quantile((1 - level) / 2) - gain / standard_error)


@pytest.mark.parametrize("gain", [0.001, 0.01, 0.2])
def test_as_many_lists_as_needed_have_the_power(gain):
    needed = units_needed(gain, 0.02, 100, power=0.9)
    error = 0.02 * math.sqrt(100 / needed)
    assert power_of_test(gain, error) >= 0.9
    if needed > 1:
        assert power_of_test(gain, 0.02 * math.sqrt(100 / (needed - 1))) < 0.9


def test_no_number_of_lists_shows_what_is_not_there():
    assert units_needed(0.0, 0.02, 100) is None
    assert units_needed(-0.1, 0.02, 100) is None
    assert units_needed(0.1, math.inf, 100) is None
    assert power_of_test(0.0, 0.02) == pytest.approx(0.025)
    assert power_of_test(0.1, 0.0) == 1
    assert power_of_test(0.0, 0.0) == 0


def test_power_predicts_how_often_the_bootstrap_finds_a_gain():
    generator = np.random.default_rng(5)
    words = np.full(200, 10)
    found, errors = 0, []
    for seed in range(150):
        fixed, broken = generator.poisson(0.3, 200), generator.poisson(0.19, 200)
        baseline = generator.poisson(2, 200) + 3
        result = bootstrap([baseline, baseline - fixed + broken], words, draws=200, seed=seed).gain(0, 1)
        found += result.lower_bound > 0
        errors.append(result.standard_error)
    assert found / 150 == pytest.approx(power_of_test(0.011, float(np.mean(errors))), abs=0.12)
