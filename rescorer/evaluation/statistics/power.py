"""How many lists would show a gain.

By the normal approximation: a gain of so many standard errors is found if chance does not take it below the
quantile of the test. The standard error falls with the square root of the number of lists.
"""

from __future__ import annotations

import math

from rescorer.evaluation.statistics.bootstrap import LEVEL
from rescorer.evaluation.statistics.distributions import normal_quantile

POWER = 0.8
"""Usual probability with which a planned experiment should find what it looks for."""


def units_needed(
    gain: float, standard_error: float, n_units: int, power: float = POWER, level: float = LEVEL
) -> int | None:
    """Number of lists (or groups) like these that would show a gain of this size with the given power.

    None if no number would: the gain is not positive, or its standard error is not known.

    Args:
        gain: to be found, for instance the one measured.
        standard_error: of a gain measured on ``n_units`` lists.
    """
    if gain <= 0 or not math.isfinite(standard_error):
        return None
    quantiles = normal_quantile((1 - level) / 2) + normal_quantile(1 - power)
    return max(math.ceil(n_units * (quantiles * standard_error / gain) ** 2), 1)
