"""Intervals contain the truth as often as they promise, and warnings quote the documentation's figures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rescorer.evaluation.statistics import COVERAGE, bootstrap, find_coverage

PAGE = Path(__file__).resolve().parents[2] / "docs" / "decisions" / "intervals.md"
ROW = re.compile(
    r"^\| (?:[\d,]+ lists, )?(\d+) (list|group)s \| [\d.]+ \| ([\d.]+) \| [\d.]+ \| ([\d.]+) \|$",
    re.MULTILINE,
)
"""Rows with the share of intervals of rates and of gains, by percentiles and as they are chosen."""


def test_figures_are_those_of_the_page():
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    shown = {(unit, int(number)): (float(rate), float(gain)) for number, unit, rate, gain in rows}
    for unit, by_number in COVERAGE.items():
        for number, coverage in by_number.items():
            assert shown[unit, number] == (coverage.rate, coverage.gain)


@pytest.mark.parametrize(("n_units", "nearest"), [(6, 6), (8, 7), (9, 10), (13, 15), (27, 30)])
def test_the_nearest_number_of_groups_is_quoted(n_units, nearest):
    assert find_coverage(n_units, "group") == (nearest, COVERAGE["group"][nearest])
    errors, groups = [[k % 3 for k in range(60)]], [k % n_units for k in range(60)]
    assert f"from {nearest} simulated groups, " in bootstrap(errors, [9] * 60, groups).warning


def test_says_that_an_interval_is_useless():
    """Seven conversations with very different error rates leave an interval from 0 to twice the rate."""
    errors = [[1, 1, 2, 1, 40, 60, 2]]
    drawn = bootstrap(errors, [90, 100, 110, 100, 60, 100, 95], list("abcdefg"))
    interval = drawn.interval(0)
    assert interval.high - interval.low > 2 * drawn.rates[0]
    assert "those of error rates say next to nothing here" in drawn.warning
    even = bootstrap([[8, 9, 10, 9, 8, 9, 10]], [100] * 7, list("abcdefg"))
    assert "next to nothing" not in even.warning


def test_many_lists_have_no_warning():
    assert bootstrap([[0, 1] * 20], [5] * 40).warning == ""


RATE, FIXED, BROKEN = 0.08, 0.10, 0.05
"""Error rate of the first of two systems, and shares of its errors that only one of the two makes."""


def simulate_errors(
    n_lists: int, n_groups: int | None, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[int] | None]:
    """Draw the errors of two recognisers on the same read speech, (2, L), words (L,), and groups.

    Lengths and the spread of errors within and between speakers are those of ``docs/decisions/intervals.md``.
    """
    words = np.maximum(np.round(random.gamma(2.0, 7.5, n_lists)), 1).astype(np.int64)
    expected = RATE * words * random.gamma(1.1, 1 / 1.1, n_lists)
    groups = None
    if n_groups is not None:
        numbers = np.arange(n_lists) % n_groups
        expected *= random.gamma(4.0, 0.25, n_groups)[numbers]
        groups = numbers.tolist()
    first = random.poisson(expected)
    second = first - random.binomial(first, FIXED) + random.poisson(BROKEN * expected)
    return np.stack([first, second]), words, groups


@pytest.mark.parametrize(("n_lists", "n_groups"), [(143, None), (300, 30)])
def test_intervals_contain_the_truth_as_often_as_they_promise(n_lists, n_groups):
    """150 sets: 95 % of them within four standard errors."""
    random = np.random.default_rng(2)
    covered = np.zeros(2, int)
    for _ in range(150):
        errors, words, groups = simulate_errors(n_lists, n_groups, random)
        drawn = bootstrap(errors, words, groups, 300, int(random.integers(1 << 32)))
        truths = ((drawn.interval(0), RATE), (drawn.gain(0, 1).interval, RATE * (FIXED - BROKEN)))
        covered += [interval.low <= truth <= interval.high for interval, truth in truths]
    assert min(covered) >= 0.88 * 150
