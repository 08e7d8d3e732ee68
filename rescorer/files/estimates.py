"""Estimates with intervals: of a rate from the parts of a sample, and of how much one more run may differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

QUANTILES_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Quantiles of 97.5 % of Student's t with 1 to 15 degrees of freedom; beyond, ``1.96 + 2.5 / degrees`` is as
good."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its interval of 95 %, which is infinite if the sample does not tell."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Estimate:
        return cls(value, value, value)

    def times(self, factor: float, plus: float = 0.0) -> Estimate:
        return Estimate(*(factor * bound + plus for bound in (self.value, self.low, self.high)))

    def to_dict(self) -> dict[str, float | None]:
        """The three figures; None for an infinite bound, which JSON does not know."""
        return {name: bound if math.isfinite(bound) else None for name, bound in asdict(self).items()}

    def product(self, other: Estimate) -> Estimate:
        """The product of independent estimates, whose relative errors add up as squares do."""
        value = self.value * other.value
        errors = other.value * (self.high - self.value), self.value * (other.high - other.value)
        error = math.hypot(*errors)
        return Estimate(value, max(0.0, value - error), value + error)

    def inverse(self) -> Estimate:
        return Estimate(*(1 / bound if bound else math.inf for bound in (self.value, self.high, self.low)))


def estimate_speed(words: Sequence[int], times_s: Sequence[Sequence[float]]) -> Estimate:
    """Estimate the seconds per word of another run, whose lists and whose moment are drawn at random.

    Args:
        words: of each batch.
        times_s: what each batch took in each pass.
    """
    of_batches = estimate_rate(words, [statistics.fmean(passes) for passes in times_s])
    return of_batches.product(estimate_repeat([sum(batches) for batches in zip(*times_s, strict=True)]))


def estimate_repeat(amounts: Sequence[float]) -> Estimate:
    """Estimate what one more repetition takes, as a multiple of the mean of some repetitions.

    The interval is that of a prediction: the spread of a single repetition, and the error of the mean.
    """
    n, mean = len(amounts), statistics.fmean(amounts)
    if n < 2 or not mean:
        return Estimate(1.0, 0.0, math.inf)
    error = quantile_95(n - 1) * statistics.stdev(amounts) * math.sqrt(1 + 1 / n) / mean
    return Estimate(1.0, max(0.0, 1.0 - error), 1.0 + error)


def quantile_95(degrees: int) -> float:
    """The quantile of 97.5 % of Student's t."""
    return QUANTILES_95[degrees - 1] if degrees <= len(QUANTILES_95) else 1.96 + 2.5 / degrees


def estimate_rate(words: Sequence[int], amounts: Sequence[float]) -> Estimate:
    """Estimate an amount per word by the ratio of sums, with an interval from the spread of the parts.

    The parts are treated as a random sample (Cochran, Sampling Techniques, 1977, chapter 6). A single part
    has no spread: its interval reaches to infinity.
    """
    n_parts, total = len(words), sum(words)
    ratio = sum(amounts) / total
    if n_parts < 2:
        return Estimate(ratio, 0.0, math.inf)
    degrees = n_parts - 1
    squares = sum((amount - ratio * count) ** 2 for count, amount in zip(words, amounts, strict=True))
    error = math.sqrt(n_parts * squares / degrees) / total
    margin = quantile_95(degrees) * error
    return Estimate(ratio, max(0.0, ratio - margin), ratio + margin)
