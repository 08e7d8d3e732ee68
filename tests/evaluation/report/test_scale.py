"""Scales and ticks of charts."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.report.pages import Scale, format_ticks, log_ticks, padded, round_ticks

NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


@given(NUMBERS, st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_round_equally_spaced_and_inside(low, width, count):
    high = low + width
    ticks = round_ticks(low, high, count)
    assert 1 <= len(ticks) <= count + 1
    margin = 1e-6 * width
    assert low - margin <= ticks[0] <= ticks[-1] <= high + margin
    steps = [b - a for a, b in itertools.pairwise(ticks)]
    for step in steps:
        assert math.isclose(step, steps[0], rel_tol=1e-6)
        mantissa = step / 10.0 ** math.floor(math.log10(step) + 1e-6)
        assert any(math.isclose(mantissa, digit, rel_tol=1e-5) for digit in (1, 2, 5, 10))


@given(NUMBERS, st.floats(1e-3, 1e6))
def test_labels_tell_the_ticks_apart(low, width):
    ticks = round_ticks(low, low + width)
    labels = format_ticks(ticks)
    assert len(set(labels)) == len(ticks)
    for tick, label in zip(ticks, labels, strict=True):
        assert math.isclose(float(label.replace("−", "-").replace(",", "")), tick, rel_tol=1e-9, abs_tol=1e-6)


def test_log_ticks_cover_orders_of_magnitude():
    assert log_ticks(1, 50, 6) == [1, 2, 5, 10, 20, 50]
    assert log_ticks(1, 1000, 6) == [1, 3, 10, 30, 100, 300, 1000]
    assert log_ticks(1, 1e6, 7) == [10.0**power for power in range(7)]


def test_scale_maps_ends_and_clamps():
    scale = Scale(0, 10, 50, 350)
    assert [scale(value) for value in (0, 5, 10, -3, 99)] == [50, 200, 350, 50, 350]
    log = Scale(1, 100, 0, 200, is_log=True)
    assert log(10) == 100
    assert Scale(3, 3, 0, 10)(3) == 5


def test_padded_range_is_never_empty():
    assert padded(0, 0) == (-1, 1)
    low, high = padded(5, 5)
    assert low < 5 < high
