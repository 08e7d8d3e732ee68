"""Bootstrap intervals of error rates, and of the difference between two systems on the same lists.

After Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation" (ICASSP
2004): lists are drawn with replacement, every draw has its own numbers of errors and of reference words, and
two systems are compared on the same draws. Their plain percentiles are too narrow for small sets. So the
interval of a rate is studentised (each draw is measured in its own standard error), and that of a gain is
Student's t with the standard error of the draws. ``docs/decisions/intervals.md`` has the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.statistics.coverage import describe_coverage
from rescorer.evaluation.statistics.distributions import student_quantile, student_tail

DRAWS = 10_000
LEVEL = 0.95
MIN_UNITS = 30
"""Smallest number of lists or groups for which the intervals have been shown to cover what they promise."""
MIN_UNITS_FOR_INTERVAL = 6
"""Smallest number of lists or groups for which intervals and p-values are given. If fewer differ between two
systems, chance alone would improve all of them, or worsen all, with a probability above 5 % (sign test)."""
USELESS_WIDTH = 2.0
"""Width of an interval, as a multiple of the error rate, above which it is said to say next to nothing."""
MAX_COUNTS_PER_CHUNK = 1 << 22
"""Largest number of counts (draws times units) in memory at once: 32 MiB as float64."""
ROUNDING = 1e-12
"""Relative size below which a variance is a rounding error of zero."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; its ends are infinite if the data say nothing about the spread."""

    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        """Whether the data say something about the spread."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half of the distance between the ends: the number after ±."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Gain:
    """By how much the error rate of a system is lower than that of a baseline, on the same lists."""

    gain: float
    """Rate of the baseline minus rate of the system: positive if the system is better. NaN if there are no
    reference words."""
    interval: Interval
    """Infinite if too few lists or groups differ, or all differ by the same rate."""
    p_value: float
    """Two-sided: probability of so large a difference in either direction if there were none; 1 if the
    interval is infinite."""
    units_changed: int
    """Number of lists or groups in which the two systems differ; the other ones say nothing."""
    standard_error: float = math.inf
    """Standard error of the gain; infinite if it is not known."""

    @property
    def lower_bound(self) -> float:
        """One-sided lower bound of the gain, of level 97.5 % if the interval has 95 %."""
        return self.interval.low


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Error rates of systems on the same lists, and on draws from these."""

    rates: np.ndarray
    """(S,) errors per reference word; infinite or NaN if there are no reference words."""
    n_units: int
    """Number of lists, or of groups if whole groups are drawn."""
    unit: str
    """What is drawn: ``list`` or ``group``."""
    drawn_rates: np.ndarray
    """(D, S) rates of the draws."""
    _columns: _Columns
    _ratios: np.ndarray
    """(S, D) deviations of the drawn rates in their own standard errors, sorted."""

    @property
    def warning(self) -> str:
        """What to expect of the intervals if there are few units; empty if there are enough."""
        if self.n_units >= MIN_UNITS:
            return ""
        if self.n_units < MIN_UNITS_FOR_INTERVAL:
            units = f"1 {self.unit} is" if self.n_units == 1 else f"{self.n_units} {self.unit}s are"
            return f"{units} too few for intervals and tests, which need at least {MIN_UNITS_FOR_INTERVAL}"
        useless = "; those of error rates say next to nothing here" if self._has_useless_interval else ""
        return (
            f"intervals from only {self.n_units} {self.unit}s are rough{useless}: "
            f"{describe_coverage(self.n_units, self.unit)}"
        )

    @property
    def _has_useless_interval(self) -> bool:
        """Whether the interval of some error rate is wider than ``USELESS_WIDTH`` times the rate."""
        intervals = map(self.interval, range(len(self.rates)))
        return any(
            interval.is_finite and interval.high - interval.low > USELESS_WIDTH * rate
            for interval, rate in zip(intervals, self.rates.tolist(), strict=True)
        )

    def interval(self, system: int, level: float = LEVEL) -> Interval:
        """Interval of the error rate of a system: studentised bootstrap, not below 0.

        Its upper end is infinite if there are too few units, or all have the same rate.
        """
        rate = float(self.rates[system])
        error = float(self._columns.standard_errors(self._columns.sums)[0, system])
        if self.n_units < MIN_UNITS_FOR_INTERVAL or not math.isfinite(rate) or not error > ROUNDING * rate:
            return Interval(0.0, math.inf)
        tail = (1 - level) / 2
        ratios = self._ratios[system]
        rank = max(math.floor(tail * (len(ratios) + 1)), 1)
        # where few lists have errors, draws without any have no spread, and Student's t takes their place
        student = student_quantile(tail, self.n_units - 1)
        least, greatest = (
            float(ratio) if math.isfinite(ratio) else math.copysign(student, ratio)
            for ratio in (ratios[rank - 1], ratios[-rank])
        )
        return Interval(max(rate - error * greatest, 0.0), rate - error * least)

    def gain(self, baseline: int, system: int, level: float = LEVEL) -> Gain:
        """Compare two systems on the same draws.

        The interval is Student's t with the standard error of the drawn differences. Only units in which the
        systems differ count as degrees of freedom: three lists that all improve do not prove a gain, however
        many lists are equal. Where the interval of 95 % leaves out 0, the p-value is below 5 %. If fewer than
        ``MIN_UNITS_FOR_INTERVAL`` units differ, the interval is infinite.
        """
        rates = self.rates[[baseline, system]]
        changed = self._columns.count_differences(baseline, system)
        if not changed:
            return Gain(0.0, Interval(0.0, 0.0), 1.0, 0, 0.0)
        if not np.isfinite(rates).all():
            return Gain(math.nan, Interval(-math.inf, math.inf), 1.0, changed)
        gain = float(rates[0] - rates[1])
        differences = self.drawn_rates[:, baseline] - self.drawn_rates[:, system]
        error = float(differences.std(ddof=1)) * math.sqrt(self.n_units / max(self.n_units - 1, 1))
        if changed < MIN_UNITS_FOR_INTERVAL or not error > ROUNDING * rates.max():
            return Gain(gain, Interval(-math.inf, math.inf), 1.0, changed)
        reach = student_quantile((1 - level) / 2, changed - 1) * error
        p_value = 2 * student_tail(abs(gain) / error, changed - 1)
        return Gain(gain, Interval(gain - reach, gain + reach), p_value, changed, error)

    def share_of_better_draws(self, baseline: int, system: int) -> float:
        """Share of the draws in which the system is better, ties by half.

        Bisani and Ney call it the probability of improvement.
        """
        with np.errstate(invalid="ignore"):  # infinite rates, without reference words
            differences = self.drawn_rates[:, baseline] - self.drawn_rates[:, system]
        return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


def choose_units(groups: Sequence[str]) -> list[Hashable] | None:
    """Choose what every command draws: whole groups, or single lists (None) if the lists have no two groups.

    A list without a group is a group of its own.

    >>> choose_units(["a", "", "a", ""]), choose_units(["a", "a"])
    (['a', 1, 'a', 3], None)
    """
    units: list[Hashable] = [group or number for number, group in enumerate(groups)]
    return units if any(groups) and len(set(units)) > 1 else None


def bootstrap(
    errors: Sequence[Sequence[float]] | np.ndarray,
    reference_words: Sequence[float] | Sequence[Sequence[float]] | np.ndarray,
    groups: Sequence[Hashable] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Bootstrap:
    """Draw lists, or whole groups of lists, with replacement, and count the errors of all systems on them.

    Time grows with draws times (units times systems), memory with draws times systems.

    Args:
        errors: (S, L) errors of S systems on the same L lists.
        reference_words: (L,); or (S, L) where the reading of a reference with alternatives, and so its
            length, depends on the system.
        groups: (L,) speaker or other group of each list; give them if lists of a group resemble each other.

    Raises:
        ValueError: the shapes differ, there is no list, or fewer than 2 draws are asked for.
    """
    columns = _Columns.from_lists(errors, reference_words, groups)
    if draws < 2:
        raise ValueError(f"expected at least 2 draws, got {draws}")
    rates = columns.rates(columns.sums)[0]
    drawn_rates, ratios = [], []
    for counts in draw_counts(columns.n_units, draws, seed):
        sums = columns.sum_draws(counts)
        chunk_rates = columns.rates(sums)
        no_words = ~np.isfinite(chunk_rates)
        chunk_rates[no_words] = np.broadcast_to(rates, chunk_rates.shape)[no_words]
        drawn_rates.append(chunk_rates)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (chunk_rates - rates) / columns.standard_errors(sums)
        ratios.append(np.where(np.isnan(ratio), 0.0, ratio))
    unit = "list" if groups is None else "group"
    sorted_ratios = np.sort(np.concatenate(ratios).T)
    return Bootstrap(rates, columns.n_units, unit, np.concatenate(drawn_rates), columns, sorted_ratios)


def draw_counts(n_units: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each unit occurs in draws of ``n_units`` with replacement: chunks of shape (D, U)."""
    generator = np.random.default_rng(seed)
    chunk = max(MAX_COUNTS_PER_CHUNK // n_units, 1)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        drawn = generator.integers(0, n_units, (size, n_units)) + n_units * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n_units)
        yield counts.reshape(size, n_units).astype(np.float64)


def sum_by_group(columns: np.ndarray, groups: Sequence[Hashable]) -> np.ndarray:
    """Sum columns of lists, (C, L), over the lists of each group: (C, G), groups in input order.

    Raises:
        ValueError: there is not one group per list.
    """
    numbers: dict[Hashable, int] = {}
    index = [numbers.setdefault(group, len(numbers)) for group in groups]
    if len(index) != columns.shape[1]:
        raise ValueError(f"expected one group per list, got {len(index)} groups for {columns.shape[1]} lists")
    return np.stack([np.bincount(index, weights=column, minlength=len(numbers)) for column in columns])


@dataclass(frozen=True, slots=True)
class _Columns:
    """Errors and words of each unit, and the products that standard errors need."""

    values: np.ndarray
    """(U, 5 S): for each system errors and words, then their squares and their product."""
    sums: np.ndarray
    """(1, 5 S): sums over all units."""

    @classmethod
    def from_lists(
        cls, errors: object, reference_words: object, groups: Sequence[Hashable] | None
    ) -> _Columns:
        by_system = np.asarray(errors, dtype=np.float64)
        if by_system.ndim != 2 or not by_system.size:
            raise ValueError(f"expected errors of shape (systems, lists), got {by_system.shape}")
        words = np.asarray(reference_words, dtype=np.float64)
        if words.shape not in (by_system.shape[1:], by_system.shape):
            raise ValueError(f"errors of shape {by_system.shape}, but words of shape {words.shape}")
        columns = np.concatenate([by_system, np.broadcast_to(words, by_system.shape)])
        if groups is not None:
            columns = sum_by_group(columns, groups)
        by_system, words = columns[: len(by_system)], columns[len(by_system) :]
        values = np.concatenate([by_system, words, by_system**2, words**2, by_system * words]).T
        return cls(values, values.sum(axis=0, keepdims=True))

    @property
    def n_units(self) -> int:
        return len(self.values)

    def sum_draws(self, counts: np.ndarray) -> np.ndarray:
        """Sums over the units of each draw, (D, 5 S), from how often each was drawn, (D, U)."""
        return counts @ self.values

    def rates(self, sums: np.ndarray) -> np.ndarray:
        """Errors per word, (D, S); NaN or infinite without words."""
        errors, words, *_ = np.split(sums, 5, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(errors / words)

    def standard_errors(self, sums: np.ndarray) -> np.ndarray:
        """Standard errors of the rates, (D, S), as ratio estimates: from the residuals errors - rate * words.

        After Cochran, Sampling Techniques, 6.4.
        """
        errors, words, error_squares, word_squares, products = np.split(sums, 5, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = errors / words
            residuals = error_squares - 2 * rates * products + rates**2 * word_squares
            residuals[residuals < ROUNDING * error_squares] = 0.0
            return np.asarray(np.sqrt(residuals * self.n_units / max(self.n_units - 1, 1)) / words)

    def count_differences(self, first: int, second: int) -> int:
        """Number of units in which two systems differ in errors or words."""
        n_systems = self.values.shape[1] // 5
        differs = self.values[:, [first, first + n_systems]] != self.values[:, [second, second + n_systems]]
        return int(differs.any(axis=1).sum())
