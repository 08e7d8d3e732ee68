"""Map values to pixels, and choose round numbers for the ticks of an axis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rescorer.evaluation.figures import format_number

STEPS = (1.0, 2.0, 5.0, 10.0)
"""Distances between ticks, up to a power of ten."""
MAX_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic map from values to pixels."""

    low: float
    high: float
    start_px: float
    end_px: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside the scale are moved to its nearest end."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, count: int = 5) -> list[float]:
        """About ``count`` round values within the scale."""
        if self.is_log:
            return log_ticks(self.low, self.high, count)
        return round_ticks(self.low, self.high, count)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between ``low`` and ``high``, at most ``count + 1``.

    >>> round_ticks(17.9, 29.2)
    [18.0, 20.0, 22.0, 24.0, 26.0, 28.0]
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next((s * power for s in STEPS if (high - low) / (s * power) <= count + 0.5), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Powers of ten between ``low`` and ``high``, with 2 and 5 times them if there is room.

    >>> log_ticks(1, 100, 7)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f * 10**p) for p in powers for f in factors if low <= f * 10**p <= high]
        if len(ticks) <= count + 1:
            return ticks
    return ticks


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Labels with as many decimals as the ticks need, all the same.

    >>> format_ticks([0.0, 0.5, 1.0])
    ['0.0', '0.5', '1.0']
    """
    gap = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
    decimals = 0
    while decimals < MAX_DECIMALS and any(abs(tick - round(tick, decimals)) > 0.01 * gap for tick in ticks):
        decimals += 1
    return [format_number(tick, decimals) for tick in ticks]


def padded(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """A range that is a little larger on both sides, and never empty."""
    margin = (high - low) * share or abs(high) * share or 1.0
    return low - margin, high + margin
