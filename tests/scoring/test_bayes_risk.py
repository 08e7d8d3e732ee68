"""Expected errors and the order of minimum Bayes risk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.decision import expected_errors, fewest_errors_first
from rescorer.ranking import log_posteriors, posteriors
from tests.scoring.test_distances import LISTS
from tests.support.decision_twins import plain_expected_errors, plain_posteriors

TOTALS = st.floats(-1e3, 1e3)


@given(LISTS.flatmap(lambda words: st.tuples(st.just(words), st.tuples(*[TOTALS] * len(words)))),
       st.floats(0.01, 100), st.sampled_from(["word", "character", "mixed"]))  # fmt: skip
def test_agrees_with_plain_expected_errors(list_and_totals, temperature, unit):
    words, totals = list_and_totals
    expected = plain_expected_errors(words, plain_posteriors(totals, temperature), unit)
    assert expected_errors(words, posteriors(np.array(totals), temperature), unit) == pytest.approx(
        expected, abs=1e-9
    )


def test_more_hypotheses_than_a_block():
    rng = np.random.default_rng(2)
    words = [tuple(str(i) for i in rng.integers(0, 3, 4)) for _ in range(150)]
    weights = rng.dirichlet(np.ones(150))
    found = expected_errors(words, weights)
    assert found == pytest.approx(plain_expected_errors(words, weights.tolist(), "word"))


def test_the_middle_hypothesis_beats_the_most_probable_one():
    words = [("a", "b", "c"), ("x", "y", "z"), ("x", "y", "q"), ("x", "y", "r")]
    shares = np.array([0.4, 0.2, 0.2, 0.2])
    errors = expected_errors(words, shares)
    assert errors == pytest.approx([1.8, 1.6, 1.6, 1.6])
    assert fewest_errors_first(errors, np.log(shares)).tolist() == [1, 2, 3, 0]


def test_ties_are_settled_by_rounded_totals_and_then_by_input_order():
    errors = np.array([1.00001, 1.00002, 1.0, 1.0])
    totals = np.array([-2.0, -1.00001, -1.0, -3.0])
    assert fewest_errors_first(errors, totals).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("temperature", [1e-300, 1e300])
def test_extreme_temperatures_give_the_maximum_or_equal_posteriors(temperature):
    totals = np.array([-1e300, 5.0, 4.0, -np.inf])
    expected = [0, 1, 0, 0] if temperature < 1 else [1 / (2 + np.exp(-1))] * 3
    found = posteriors(totals, temperature)
    if temperature < 1:
        assert found.tolist() == expected
    else:
        assert found == pytest.approx([np.exp(-1) / (2 + np.exp(-1)), expected[1], expected[2], 0])


def test_temperature_one_is_the_default_and_leaves_the_totals_alone():
    totals = np.array([1.0, 2.0, 3.0])
    assert log_posteriors(totals, 1.0).tolist() == log_posteriors(totals).tolist()
    assert log_posteriors(totals, 2.0) == pytest.approx(log_posteriors(totals / 2))
    assert totals.tolist() == [1.0, 2.0, 3.0]
