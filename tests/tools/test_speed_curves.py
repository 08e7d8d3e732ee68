"""The tool that draws speed against sizes measures, fits slopes and writes a picture."""

from __future__ import annotations

import pytest

from tools import speed_curves
from tools.speed_curves import PARTS, Sizes, draw, fit_slope, measure


def test_slopes_are_powers_of_the_size():
    sizes = [1, 10, 100, 1000]
    assert fit_slope(sizes, [7.0, 5.0, 5.0, 5.0]) == pytest.approx(0.0)
    assert fit_slope(sizes, [7.0, 1e6, 1e4, 1e2]) == pytest.approx(2.0)


def test_measures_and_draws(tmp_path):
    pytest.importorskip("matplotlib")
    rates = measure(Sizes(4, 3, 50, 8), "gru", 60, 1, tmp_path)
    assert rates.keys() == PARTS.keys()
    assert min(rates.values()) > 0
    picture = tmp_path / "curves.svg"
    draw({name: {1: rates, 2: rates, 4: rates} for name in speed_curves.VALUES}, "gru", picture)
    assert "words of the vocabulary" in picture.read_text() or picture.stat().st_size > 10_000
