"""Conversion of scores to nats from every log base and sign."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InvalidList
from rescorer.formats.common import NATURAL, Units, stream_to_nats

PROBABILITY = 0.0625
LN_P = math.log(PROBABILITY)


@pytest.mark.parametrize(
    ("value", "base"),
    [
        (LN_P, "e"),
        (-4.0, "2"),
        (math.log10(PROBABILITY), "10"),
        (math.log(PROBABILITY, 1.0001), "1.0001"),
        (LN_P * 10000.5 / 1024, "bytelog"),
    ],
)
def test_converts_every_base_and_sign(value, base):
    assert value * Units(base).nats_per_unit == pytest.approx(LN_P, rel=1e-12)
    assert -value * Units(base, "cost").nats_per_unit == pytest.approx(LN_P, rel=1e-12)


def test_rejects_unknown_base_and_sign():
    with pytest.raises(ValueError, match=r"base is .3.; expected one of e, 2, 10, 1\.0001, bytelog, prob"):
        Units("3")
    with pytest.raises(ValueError, match="sign is 'prob'; expected one of log_prob, cost"):
        Units("e", "prob")


def test_stream_without_any_value_is_absent():
    assert stream_to_nats("lm", [None, None]) is None


def test_accepts_positive_log_likelihoods():
    assert stream_to_nats("acoustic", [12, -3.5]) == (12.0, -3.5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no score, though other hypotheses"),
        (True, "True is not a number"),
        ("-1.5", "'-1.5' is not a number"),
        ([1], r"\[1\] is not a number"),
        (math.nan, "the score is nan"),
        (-math.inf, "the score is -inf"),
        (10**400, "too large for a float64"),
        (1.7e308, "too large for a float64 in nats"),
    ],
)
def test_rejects_invalid_values_with_their_place(value, message):
    with pytest.raises(InvalidList, match=message) as caught:
        stream_to_nats("acoustic", [-1.0, value], Units("10"), list_id="u1")
    assert (caught.value.list_id, caught.value.hypothesis) == ("u1", 1)
    assert caught.value.field == 'streams["acoustic"]'


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.sampled_from(["e", "2", "10", "1.0001", "bytelog"]))
def test_converts_value_by_value(values, base):
    assert stream_to_nats("s", values, Units(base, "cost")) == tuple(
        v * Units(base, "cost").nats_per_unit for v in values
    )
    assert stream_to_nats("s", values, NATURAL) == tuple(values)


@given(st.lists(st.floats(1e-300, 1.0, exclude_min=True), min_size=1))
def test_probabilities_become_logarithms_and_back(values):
    units = Units("prob")
    nats = stream_to_nats("s", values, units)
    assert nats == tuple(map(math.log, values))
    assert [units.from_nats(value) for value in nats] == pytest.approx(values, rel=1e-12)


@pytest.mark.parametrize("value", [0.0, 0, -0.5, 1.0000001, 93])
def test_rejects_numbers_that_are_no_probabilities(value):
    with pytest.raises(InvalidList, match="not a probability above 0 and at most 1") as caught:
        stream_to_nats("confidence", [1, value], Units("prob"), list_id="u1")
    assert caught.value.hypothesis == 1


def test_zero_confidence_is_said_to_be_none():
    with pytest.raises(InvalidList, match="services that write 0 mean that they have no confidence"):
        stream_to_nats("confidence", [0.9, 0.0], Units("prob"))


def test_a_probability_is_no_cost_and_has_to_exist():
    with pytest.raises(ValueError, match="a probability is higher where a text is better"):
        Units("prob", "cost")
    for nats in (0.1, -1000.0):
        with pytest.raises(ValueError, match="not a probability above 0 and at most 1"):
            Units("prob").from_nats(nats)
