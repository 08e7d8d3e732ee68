"""Few draws of the simulations of tuning; the figures of many are in the documentation."""

from __future__ import annotations

import numpy as np
import pytest

from tools.simulations.tuning import (
    CHANGED,
    ERROR_RATE,
    GAINED,
    N_WORDS,
    changes_weights,
    draw_gain,
    draw_noise,
)


def test_the_simulated_gain_is_as_large_as_it_says():
    changes = np.concatenate([draw_gain(np.random.default_rng(seed))[1] for seed in range(40)])
    errors = ERROR_RATE * N_WORDS
    assert np.abs(changes).mean() == pytest.approx(CHANGED * errors, rel=0.06)
    assert -changes.mean() == pytest.approx(GAINED * errors, rel=0.2)


@pytest.mark.slow
def test_noise_changes_nothing_and_a_gain_is_found():
    assert not changes_weights(draw_noise(np.random.default_rng([1, 0])))
    assert changes_weights(draw_gain(np.random.default_rng([1, 0]))[0])
