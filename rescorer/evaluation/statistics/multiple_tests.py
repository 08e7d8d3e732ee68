"""Correct p-values for the number of comparisons that were made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def correct_holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Correct p-values of several tests so that the chance of any false finding stays at the level.

    After Holm, "A simple sequentially rejective multiple test procedure" (1979): the smallest of N values is
    multiplied by N, the next one by N - 1, and so on; none becomes smaller than the one before it.

    Returns:
        (N,) float64 in input order, at most 1.

    >>> correct_holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected
