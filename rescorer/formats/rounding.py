"""Round many numbers at once to the same decimals as Python's ``round``, which takes them one by one."""

from __future__ import annotations

import numpy as np

MAX_SCALED = 2.0**42
"""Scaled values below this one have at least ten bits after the point."""
MARGIN = 2.0**-8
"""Distance from the middle of two decimals, in units of the last one, within which a scaled value does not
say which is nearer: many times its rounding error."""


def round_all(values: np.ndarray, decimals: int) -> np.ndarray:
    """Round each value, as ``round(value, decimals)`` does: correctly, halves to even.

    The quotient of an integer and a power of ten is the float nearest to that decimal. Python rounds only the
    values for which the integer is in doubt after the multiplication.

    Args:
        values: float64 of any shape; infinite values and NaN stay as they are.
        decimals: at most 22, up to which powers of ten are exact.
    """
    scale = 10.0**decimals
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * scale
        nearest = np.rint(scaled)
        unsure = ~((0.5 - np.abs(scaled - nearest) > MARGIN) & (np.abs(scaled) < MAX_SCALED))  # or NaN
    rounded = nearest / scale
    rounded[unsure] = [round(value, decimals) for value in values[unsure].tolist()]
    return rounded
