"""Intervals and tests that tell a difference between systems from chance.

The input is arrays with the errors of each system on each list; the output is intervals, p-values, and the
number of lists that a test needs. SciPy is loaded at the first use: loading takes a second, and programs that
serve or rescore import this module without computing a statistic.

The bootstrap follows Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance
evaluation" (ICASSP 2004). Lists are drawn with replacement, so that every draw has its own numbers of errors
and of reference words, and two systems are compared on the same draws. Plain percentiles of the draws are too
narrow for small sets. So the interval of a rate is studentised: the deviation of each draw is measured in the
standard error of that draw. The interval of a gain is Student's t with the standard error of the draws.
``docs/decisions/intervals.md`` has the measured coverage, and names the program that simulated it.

NIST's matched pairs test (MAPSSWE) follows Gillick and Cox, "Some statistical issues in the comparison of
speech recognition algorithms" (ICASSP 1989), as implemented in ``sc_stats -t mapsswe``. The texts are divided
into segments, with at least two words between them that both systems have right. The errors of one segment
can then be taken as independent of those of the next. The test asks whether the mean difference of errors per
segment can be 0.

The sign test and Wilcoxon's signed-rank test, as in ``sc_stats``, ask which system is better on each speaker
or list. They make no assumption about the distribution of the differences, and a speaker with two utterances
counts as much as one with a hundred.

The number of lists that would show a gain is a normal approximation. It assumes that the standard error falls
with the square root of the number of lists. The gain is found unless chance takes it below the quantile of
the test.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


def student_quantile(tail: float, degrees: int) -> float:
    """Return the value that Student's t exceeds with the probability ``tail``."""
    return -float(_special().stdtrit(degrees, tail))


def student_tail(value: float, degrees: int) -> float:
    """Return the probability that Student's t exceeds a value."""
    return float(_special().stdtr(degrees, -value))


def normal_quantile(tail: float) -> float:
    """Return the value that a standard normal variable exceeds with the probability ``tail``."""
    return -float(_special().ndtri(tail))


def normal_tail(value: float) -> float:
    """Return the probability that a standard normal variable exceeds a value."""
    return float(_special().ndtr(-value))


def binomial_cdf(successes: int, trials: int, probability: float) -> float:
    """Return the probability of at most ``successes`` successes in independent trials."""
    return float(_special().bdtr(successes, trials, probability))


def _special() -> Any:
    from scipy import special

    return special


@dataclass(frozen=True, slots=True)
class MatchedPairs:
    """Result of the matched pairs test."""

    segments: int
    """Number of segments in which at least one system has errors."""
    mean: float
    """Mean difference of errors per segment; positive if the second system is better."""
    z: float
    """``mean`` divided by its standard error; 0 if all differences are equal, as in ``sc_stats``."""
    p_value: float
    """Two-sided, from the normal distribution."""


def place_errors(kinds: Iterable[str]) -> np.ndarray:
    """Count the errors at each place of a reference of R words: (2 R + 1,) int64.

    Places are counted from 0. An odd place is a word, with 1 if the word is substituted or deleted. An even
    place is a gap before, between or after words, with the number of insertions there.

    Args:
        kinds: kind of each pair of an alignment, in order: ``correct``, ``substitution``, ``deletion`` or
            ``insertion``.

    >>> place_errors(["insertion", "correct", "substitution"]).tolist()
    [1, 0, 0, 1, 0]
    """
    places = [0]
    for kind in kinds:
        if kind == "insertion":
            places[-1] += 1
        else:
            places += (int(kind != "correct"), 0)
    return np.array(places, dtype=np.int64)


def matched_pairs(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> MatchedPairs:
    """Compare two systems by their errors at each place of the same references.

    Args:
        first, second: for each list, an array from ``place_errors``. An array of length 1 with all errors
            makes the list a single segment. Use it if the systems are aligned with different readings of the
            reference, or if the places of errors are unknown.

    Raises:
        ValueError: the systems have different numbers of lists or places.
    """
    errors = segment_errors(first, second)
    differences = errors[0] - errors[1]
    n = len(differences)
    mean = float(differences.mean()) if n else 0.0
    deviation = float(differences.std(ddof=1)) if n > 1 else 0.0
    z = mean / (deviation / math.sqrt(n)) if deviation else 0.0
    return MatchedPairs(n, mean, z, 2 * normal_tail(abs(z)))


def segment_errors(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Count the errors of both systems in each segment that has errors: (2, G) int64."""
    lengths = [len(places) for places in first]
    if lengths != [len(places) for places in second]:
        raise ValueError("the two systems have different lists or different numbers of reference words")
    if not lengths:
        return np.zeros((2, 0), dtype=np.int64)
    errors = np.stack([np.concatenate(first), np.concatenate(second)])
    list_starts = np.cumsum([0, *lengths[:-1]])
    place = np.arange(errors.shape[1]) - np.repeat(list_starts, lengths)
    is_clean = np.asarray(errors.sum(axis=0) == 0)
    starts_segment = place == 0
    # segments end at a gap without insertions between two words that both have right
    is_inner_gap = (place % 2 == 0) & (place > 0)
    is_inner_gap[:-1] &= place[1:] > 0
    is_inner_gap[-1] = False
    gaps = np.flatnonzero(is_inner_gap & is_clean)
    starts_segment[gaps[is_clean[gaps - 1] & is_clean[gaps + 1]]] = True
    segments = np.add.reduceat(errors, np.flatnonzero(starts_segment), axis=1)
    return np.asarray(segments[:, segments.any(axis=0)])


def correct_holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Correct the p-values of several tests, so that the probability of even one false finding is at most the
    level.

    The method is that of Holm, "A simple sequentially rejective multiple test procedure" (1979). The smallest
    of N values is multiplied by N, the next one by N - 1, and so on, and no value becomes smaller than the
    value before it.

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


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute an interval of a probability from independent trials (Wilson 1927).

    >>> [round(bound, 3) for bound in wilson_interval(90, 100)]
    [0.826, 0.945]
    """
    z = normal_quantile((1 - confidence) / 2)
    share, spread = successes / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = abs(z) * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Comparison of two systems that answered the same questions."""

    only_first: int
    """Number of questions that only the first system has right."""
    only_second: int
    p_value: float
    """Two-sided, exact."""


def mcnemar(first: np.ndarray, second: np.ndarray) -> PairedTest:
    """Test whether two systems have the same accuracy (McNemar 1947, exact binomial test).

    Args:
        first, second: (N,) bool, whether each answer is correct.

    Raises:
        ValueError: the shapes differ.
    """
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} answers of one system, {len(second)} of the other")
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    fewer, n = min(only_first, only_second), only_first + only_second
    return PairedTest(only_first, only_second, min(1.0, 2 * binomial_cdf(fewer, n, 0.5)) if n else 1.0)


EQUAL_POINTS = 0.005
"""Two error rates count as equal if they differ by at most this many percentage points."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """Result of a sign test or signed-rank test."""

    better: int
    """Number of speakers or lists on which the second system has the lower error rate."""
    worse: int
    equal: int
    p_value: float
    """Two-sided."""


def sign_test(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> RankTest:
    """Test by the number of speakers for whom a system is better: exact binomial test.

    Of the speakers with equal rates, half count as better and half as worse; an odd one counts for the system
    with the higher mean rate. This test is always exact. For more than 20 speakers, ``sc_stats`` instead uses
    a normal approximation, which halves the smaller number once too often, and so calls nearly every
    difference significant.

    Args:
        baseline, system: (N,) error rates, as shares, of each speaker or list.

    Raises:
        ValueError: the lengths differ.
    """
    points = _differences(baseline, system)
    better, worse, equal = _count(points)
    n_for, n_against = (better, worse) if points.sum() > 0 else (worse, better)
    smaller = min(n_for + equal // 2, n_against + equal - equal // 2)
    p_value = min(2 * binomial_cdf(smaller, len(points), 0.5), 1.0) if len(points) else 1.0
    return RankTest(better, worse, equal, p_value)


def wilcoxon(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> RankTest:
    """Test by the ranks of the absolute differences (Wilcoxon): normal approximation, not corrected for ties.

    Speakers with equal rates are ranked, too. Their ranks count alternately for the first and the second
    system.

    Args:
        baseline, system: (N,) error rates, as shares, of each speaker or list; 8 or more, so that the normal
            approximation holds.

    Raises:
        ValueError: the lengths differ.
    """
    points = _differences(baseline, system)
    better, worse, equal = _count(points)
    n = len(points)
    if not n:
        return RankTest(0, 0, 0, 1.0)
    ranks = _rank(np.abs(points))
    is_equal = np.abs(points) <= EQUAL_POINTS
    shared = np.flatnonzero(is_equal)[0 if points.sum() > 0 else 1 :: 2]
    rank_sum = ranks[(points > 0) & ~is_equal].sum() + ranks[shared].sum()
    z = (rank_sum - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    return RankTest(better, worse, equal, 2 * normal_tail(abs(z)))


def _differences(baseline: Sequence[float] | np.ndarray, system: Sequence[float] | np.ndarray) -> np.ndarray:
    """Compute by how many percentage points the system is better, (N,)."""
    first, second = np.asarray(baseline, dtype=np.float64), np.asarray(system, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} rates of one system, but {len(second)} of the other")
    return np.asarray(100 * first - 100 * second)


def _rank(values: np.ndarray) -> np.ndarray:
    """Rank values from 1, (N,) float64; equal values get the mean of their ranks."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[index])


def _count(points: np.ndarray) -> tuple[int, int, int]:
    """Count the speakers on which the system is better, worse and equal."""
    better, worse = int(np.sum(points > EQUAL_POINTS)), int(np.sum(points < -EQUAL_POINTS))
    return better, worse, len(points) - better - worse


class Coverage(NamedTuple):
    """Percentages of the 95 % intervals that contained the true value in a simulation."""

    rate: float
    """Share for intervals of an error rate."""
    gain: float
    """Share for intervals of a gain."""


COVERAGE: Mapping[str, Mapping[int, Coverage]] = {
    "group": {
        6: Coverage(93.3, 99.0),
        7: Coverage(94.2, 98.3),
        10: Coverage(94.8, 97.1),
        15: Coverage(94.9, 95.8),
        20: Coverage(94.5, 96.0),
        30: Coverage(95.0, 94.9),
    },
    "list": {10: Coverage(89.5, 75.9), 20: Coverage(94.7, 94.1), 143: Coverage(95.1, 96.7)},
}
"""Simulated coverage, by what was drawn (``group`` or ``list``), and by the number of these. All groups
together have 143 lists, but 1,000 lists if there are 30 groups."""


def find_coverage(n_units: int, unit: str) -> tuple[int, Coverage]:
    """Return that simulated number of lists or groups that is nearest to ``n_units``, and the coverage for
    it.

    Args:
        unit: ``list`` or ``group``.

    >>> find_coverage(8, "group")
    (7, Coverage(rate=94.2, gain=98.3))
    """
    simulated = COVERAGE[unit]
    nearest = min(simulated, key=lambda number: (abs(number - n_units), number))
    return nearest, simulated[nearest]


def describe_coverage(n_units: int, unit: str) -> str:
    """Say in a sentence which share of intervals contained the truth, for about as many lists or groups.

    >>> describe_coverage(12, "list")
    'from 10 simulated lists, 90 % of those of error rates and 76 % of those of gains contained the truth'
    """
    nearest, coverage = find_coverage(n_units, unit)
    warning = ", and fewer will if one group is unlike the others" if unit == "group" else ""
    return (
        f"from {nearest} simulated {unit}s, {coverage.rate:.0f} % of those of error rates and "
        f"{coverage.gain:.0f} % of those of gains contained the truth{warning}"
    )


DRAWS = 10_000
LEVEL = 0.95
MIN_UNITS = 30
"""Intervals from at least this many lists or groups had their nominal coverage in simulations."""
MIN_UNITS_FOR_INTERVAL = 6
"""Intervals and p-values are given only if at least this many lists or groups differ. If fewer differ, the
probability that chance alone improves all of them, or worsens all of them, is above 5 % (sign test)."""
USELESS_WIDTH = 2.0
"""If an interval is wider than this many times the error rate, a warning says that it means little."""
MAX_COUNTS_PER_CHUNK = 1 << 22
"""Largest number of counts (draws times units) in memory at once: 32 MiB as float64."""
ROUNDING = 1e-12
"""A variance below this relative size is treated as 0, because it comes from rounding."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval; its ends are infinite if the data do not determine it."""

    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        """Whether the data determine the interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half the distance between the ends: the number after ± in texts."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Gain:
    """The difference between the error rates of a baseline and of a system on the same lists."""

    gain: float
    """Rate of the baseline minus rate of the system: positive if the system is better. NaN if there are no
    reference words."""
    interval: Interval
    """Interval of the gain. It is infinite if too few lists or groups differ, or if all differ by the same
    rate."""
    p_value: float
    """Two-sided p-value: the probability of a difference at least this large, in either direction, if the
    systems were equally good. It is 1 if the interval is infinite."""
    units_changed: int
    """Number of lists or groups in which the two systems differ. Only these say something about the gain."""
    standard_error: float = math.inf
    """Standard error of the gain; infinite if it is not known."""

    @property
    def lower_bound(self) -> float:
        """Lower end of the interval. For an interval of 95 %, it is a one-sided bound of 97.5 %."""
        return self.interval.low

    @property
    def is_loss(self) -> bool:
        """Whether the system has more errors than the baseline, beyond chance."""
        return self.interval.high < 0


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Error rates of S systems on the same lists, and on D draws from these lists."""

    rates: np.ndarray
    """(S,) errors per reference word; infinite or NaN if there are no reference words."""
    n_units: int
    """Number of lists, or of groups if whole groups are drawn."""
    unit: str
    """Whether lists or whole groups are drawn: ``list`` or ``group``."""
    drawn_rates: np.ndarray
    """(D, S) error rates on the draws."""
    _columns: _Columns
    _ratios: np.ndarray
    """(S, D) deviation of each drawn rate, as a multiple of the standard error of its draw; sorted."""

    @property
    def warning(self) -> str:
        """Warning about the intervals if there are few lists or groups; empty if there are enough."""
        if self.n_units >= MIN_UNITS:
            return ""
        if self.n_units < MIN_UNITS_FOR_INTERVAL:
            units = f"1 {self.unit} is" if self.n_units == 1 else f"{self.n_units} {self.unit}s are"
            return f"{units} too few for intervals and tests, which need at least {MIN_UNITS_FOR_INTERVAL}"
        intervals = map(self.interval, range(len(self.rates)))
        is_useless = any(
            interval.is_finite and interval.high - interval.low > USELESS_WIDTH * rate
            for interval, rate in zip(intervals, self.rates.tolist(), strict=True)
        )
        useless = "; those of error rates say next to nothing here" if is_useless else ""
        return (
            f"intervals from only {self.n_units} {self.unit}s are rough{useless}: "
            f"{describe_coverage(self.n_units, self.unit)}"
        )

    def interval(self, system: int, level: float = LEVEL) -> Interval:
        """Compute an interval of the error rate of a system by studentised bootstrap; it is not below 0.

        The upper end is infinite if there are too few lists or groups, or if all have the same rate.
        """
        rate = float(self.rates[system])
        error = float(self._columns.standard_errors(self._columns.sums)[0, system])
        if self.n_units < MIN_UNITS_FOR_INTERVAL or not math.isfinite(rate) or not error > ROUNDING * rate:
            return Interval(0.0, math.inf)
        tail = (1 - level) / 2
        ratios = self._ratios[system]
        rank = max(math.floor(tail * (len(ratios) + 1)), 1)
        # if few lists have errors, some draws have none and no spread: Student's t takes their place
        student = student_quantile(tail, self.n_units - 1)
        least, greatest = (
            float(ratio) if math.isfinite(ratio) else math.copysign(student, ratio)
            for ratio in (ratios[rank - 1], ratios[-rank])
        )
        return Interval(max(rate - error * greatest, 0.0), rate - error * least)

    def gain(self, baseline: int, system: int, level: float = LEVEL) -> Gain:
        """Compare two systems on the same draws.

        The interval is Student's t with the standard error of the drawn differences. Its degrees of freedom
        come only from lists or groups in which the systems differ: three lists that all improve do not prove
        a gain, however many other lists are equal. If fewer than ``MIN_UNITS_FOR_INTERVAL`` differ, the
        interval is infinite. If the interval of 95 % does not contain 0, the p-value is below 5 %.
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
        """Compute the share of the draws in which the system is better; ties count half.

        Bisani and Ney call this share the probability of improvement.
        """
        with np.errstate(invalid="ignore"):  # rates are infinite without reference words
            differences = self.drawn_rates[:, baseline] - self.drawn_rates[:, system]
        return float(np.mean((differences > 0) + 0.5 * (differences == 0)))


def choose_units(groups: Sequence[str]) -> list[Hashable] | None:
    """Choose the units that a bootstrap draws: the group of each list; None, for single lists, if there are
    fewer than two groups.

    A list without a group counts as a group.

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
    """Draw lists, or whole groups of lists, with replacement, and compute the error rates of all systems on
    each draw.

    The time grows with the numbers of draws, of lists or groups, and of systems; the memory grows with the
    numbers of draws and of systems.

    Args:
        errors: (S, L) errors of S systems on the same L lists.
        reference_words: (L,), or (S, L) if references have alternatives, so that the number of words depends
            on the system.
        groups: (L,) speaker or other group of each list. Give groups if lists of a group resemble each other.

    Raises:
        ValueError: the shapes differ, there is no list, or fewer than 2 draws are asked for.
    """
    columns = _Columns.from_lists(errors, reference_words, groups)
    if draws < 2:
        raise ValueError(f"expected at least 2 draws, got {draws}")
    rates = columns.rates(columns.sums)[0]
    drawn_rates, ratios = [], []
    for counts in draw_counts(columns.n_units, draws, seed):
        sums = counts @ columns.values  # (D, 5 S), sums over the units of each draw
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
    """Draw ``n_units`` units with replacement, ``draws`` times, and yield how often each unit was drawn.

    An array has the counts of several draws: (D, U) for D draws and U units.
    """
    generator = np.random.default_rng(seed)
    chunk = max(MAX_COUNTS_PER_CHUNK // n_units, 1)
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        drawn = generator.integers(0, n_units, (size, n_units)) + n_units * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n_units)
        yield counts.reshape(size, n_units).astype(np.float64)


def sum_by_group(columns: np.ndarray, groups: Sequence[Hashable]) -> np.ndarray:
    """Sum each column, (C, L), over the lists of each group: (C, G), with groups in input order.

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
    """Errors and words of each list or group, with the products that standard errors need."""

    values: np.ndarray
    """(U, 5 S): errors, words, squared errors, squared words, and errors times words of the S systems."""
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

    def rates(self, sums: np.ndarray) -> np.ndarray:
        """Compute errors per word, (D, S); NaN or infinite without words."""
        errors, words, *_ = np.split(sums, 5, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(errors / words)

    def standard_errors(self, sums: np.ndarray) -> np.ndarray:
        """Compute the standard errors of the rates, (D, S), from the residuals errors - rate * words.

        The formula is that for ratio estimates in Cochran, Sampling Techniques, 6.4.
        """
        errors, words, error_squares, word_squares, products = np.split(sums, 5, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = errors / words
            residuals = error_squares - 2 * rates * products + rates**2 * word_squares
            residuals[residuals < ROUNDING * error_squares] = 0.0
            return np.asarray(np.sqrt(residuals * self.n_units / max(self.n_units - 1, 1)) / words)

    def count_differences(self, first: int, second: int) -> int:
        """Count the lists or groups in which two systems differ in errors or words."""
        n_systems = self.values.shape[1] // 5
        differs = self.values[:, [first, first + n_systems]] != self.values[:, [second, second + n_systems]]
        return int(differs.any(axis=1).sum())


POWER = 0.8
"""Probability that an experiment finds a gain of the expected size; 0.8 is usual in planning experiments."""


def units_needed(
    gain: float, standard_error: float, n_units: int, power: float = POWER, level: float = LEVEL
) -> int | None:
    """Estimate how many lists (or groups) like the present ones would show a gain, with the given power.

    The result is None if the gain is not positive, or its standard error is not known.

    Args:
        gain: size of the gain, for instance the one that was measured.
        standard_error: standard error of a gain that is measured on ``n_units`` lists.
    """
    if gain <= 0 or not math.isfinite(standard_error):
        return None
    quantiles = normal_quantile((1 - level) / 2) + normal_quantile(1 - power)
    return max(math.ceil(n_units * (quantiles * standard_error / gain) ** 2), 1)
