"""The arrays that weights are tuned on: the components and errors of every hypothesis of every list.

Under the maximum, only the proportions between weights matter, so one of them, the scale, may be fixed:
usually that of the recogniser's score. Rules that use posteriors also depend on the scale. There, a factor on
all totals takes its place: the sharpness of the expected errors while tuning, and the temperature of a
decision rule (see ``expected_errors`` and ``temperature``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.weight_search.segments import (
    first_maximum_per_list,
    make_offsets,
    spread_per_list,
)
from rescorer.ranking import TIE_DECIMALS

MAX_UNITS = 100.0
"""Distance in natural units from the start beyond which no weight is tried."""
MAX_COMPONENT = 1e100
"""Largest component, weighted or not; sums of squares of larger ones overflow."""
ROUNDING = 1e-12
"""Relative size below which the spread of a component is a rounding error of zero."""


@dataclass(frozen=True, slots=True)
class MixtureChoices:
    """Interpolation weights λ to choose from, and the mixture's log-probabilities under each of them."""

    column: int
    """Index of the weight of the mixture."""
    lambdas: tuple[tuple[float, ...], ...]
    """Interpolation weights of each choice, one per language model and for a cache; those of the start come
    first."""
    log_probs: np.ndarray
    """(G, H) float64, the component of the mixture under each choice."""

    def distance(self, choice: int) -> float:
        """Squared Hellinger distance between a choice and the start, in natural units of half a distance."""
        start, other = (np.sqrt(self.lambdas[index]) for index in (0, choice))
        return 2.0 * float(((start - other) ** 2).sum())


@dataclass(frozen=True, slots=True)
class TuningProblem:
    """Lists with K components per hypothesis, and what may be changed of their K weights."""

    names: tuple[str, ...]
    """Name of each weight, such as ``lm:mixture``."""
    components: np.ndarray
    """(K, H) float64, unweighted; the hypotheses of a list are adjacent and in the recogniser's order."""
    errors: np.ndarray
    """(H,) int64, errors of each hypothesis, in words or other units."""
    offsets: np.ndarray
    """(L + 1,) int64, where each list begins."""
    start: np.ndarray
    """(K,) weights to start from, which the penalty keeps the others close to."""
    bounds: np.ndarray
    """(K, 2) lowest and highest value of each weight; equal for weights that are fixed."""
    units: np.ndarray
    """(K,) natural unit of each weight; see ``find_units``."""
    mixtures: MixtureChoices | None = None
    mixture: int = 0
    """Which choice of λ the components hold."""

    @property
    def free(self) -> np.ndarray:
        """Indices of the weights that may change and make a difference."""
        return np.flatnonzero((self.units > 0) & (self.bounds[:, 0] < self.bounds[:, 1]))

    @property
    def n_lists(self) -> int:
        return len(self.offsets) - 1

    def select(self, lists: np.ndarray) -> TuningProblem:
        """Copy some lists, by their indices; units and start stay those of the whole."""
        lengths = np.diff(self.offsets)[lists]
        offsets = make_offsets(lengths)
        rows = np.repeat(self.offsets[lists] - offsets[:-1], lengths) + np.arange(offsets[-1])
        mixtures = self.mixtures and replace(self.mixtures, log_probs=self.mixtures.log_probs[:, rows])
        parts = {"components": self.components[:, rows], "errors": self.errors[rows]}
        return replace(self, **parts, offsets=offsets, mixtures=mixtures)

    def with_mixture(self, choice: int) -> TuningProblem:
        """The same problem under another choice of λ."""
        if choice == self.mixture or self.mixtures is None:
            return self
        components = self.components.copy()
        components[self.mixtures.column] = self.mixtures.log_probs[choice]
        return replace(self, components=components, mixture=choice)

    def totals(self, weights: np.ndarray) -> np.ndarray:
        """Total of each hypothesis, (H,)."""
        result: np.ndarray = weights @ self.components
        return result

    def choose(self, weights: np.ndarray) -> np.ndarray:
        """Position of the hypothesis with the highest total of each list; ties go to the first: (L,)."""
        return self.choose_by(self.totals(weights))

    def choose_by(self, totals: np.ndarray) -> np.ndarray:
        """Like ``choose``, for given totals (H,)."""
        return first_maximum_per_list(np.round(totals, TIE_DECIMALS), self.offsets)

    def list_errors(self, weights: np.ndarray) -> np.ndarray:
        """Errors of the hypothesis that is ranked first in each list, (L,) int64."""
        result: np.ndarray = self.errors[self.choose(weights)]
        return result

    def moves(self, weights: np.ndarray) -> np.ndarray:
        """Distance of each weight from the start, (K,) in natural units."""
        return np.divide(weights - self.start, self.units, out=np.zeros_like(weights), where=self.units > 0)

    def penalty(self, weights: np.ndarray) -> float:
        """Squared distance from the start in natural units, λ included."""
        return float((self.moves(weights) ** 2).sum()) + self.penalty_of_mixture

    @property
    def penalty_of_mixture(self) -> float:
        """The part of the penalty that λ makes."""
        return self.mixtures.distance(self.mixture) if self.mixtures else 0.0

    def cost(self, weights: np.ndarray, strength: float) -> float:
        """Errors plus ``strength`` times the penalty."""
        return float(self.list_errors(weights).sum()) + strength * self.penalty(weights)


def make_problem(
    names: Sequence[str],
    components: np.ndarray,
    errors: np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    start: Sequence[float] | np.ndarray,
    bounds: Sequence[tuple[float, float]] | np.ndarray,
    mixtures: MixtureChoices | None = None,
) -> TuningProblem:
    """Check the arrays and determine the natural unit of each weight.

    Args:
        names: (K,).
        components: (K, H).
        errors: (H,).
        lengths: (L,) number of hypotheses of each list, at least 1.
        start: (K,).
        bounds: (K, 2), the same twice for a weight that is fixed.

    Raises:
        ConfigError: there are no lists, shapes do not match, a component is not finite or too large, or a
            start weight is outside its bounds.
    """
    components = np.ascontiguousarray(components, dtype=np.float64)
    errors, lengths = np.asarray(errors, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    start, limits = np.asarray(start, dtype=np.float64), np.asarray(bounds, dtype=np.float64)
    k, h = len(names), int(lengths.sum())
    if not len(lengths) or lengths.min() < 1:
        raise ConfigError("no lists to tune on, or a list without hypotheses")
    if components.shape != (k, h) or errors.shape != (h,) or start.shape != (k,) or limits.shape != (k, 2):
        raise ConfigError(
            f"components {components.shape}, errors {errors.shape}, start {start.shape}, "
            f"bounds {limits.shape}; expected ({k}, {h}), ({h},), ({k},) and ({k}, 2)"
        )
    for name, row, weight, (low, high) in zip(names, components, start, limits, strict=True):
        if not np.isfinite(row).all():
            raise ConfigError(f"the component of {name!r} is not finite in every hypothesis")
        if (largest := np.abs(row).max()) * max(abs(weight), 1.0) > MAX_COMPONENT:
            raise ConfigError(
                f"the component of {name!r} is up to ±{largest:g}, with the weight {weight:g}; expected "
                f"at most ±{MAX_COMPONENT:g} for both and for their product: give the stream its log base"
            )
        if not low <= weight <= high:
            raise ConfigError(f"the start weight {name}={weight:g} is outside its bounds {low:g} to {high:g}")
    offsets = make_offsets(lengths)
    units = find_units(components, start @ components, offsets)
    near = np.stack([start - MAX_UNITS * units, start + MAX_UNITS * units], axis=1)
    limits = np.stack([np.maximum(limits[:, 0], near[:, 0]), np.minimum(limits[:, 1], near[:, 1])], axis=1)
    return TuningProblem(tuple(names), components, errors, offsets, start, limits, units, mixtures)


def find_units(components: np.ndarray, totals: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Find the natural unit of each weight: it changes the totals by about as much as they vary in a list.

    Only lists in which a component differs between hypotheses count for its unit. The others say nothing
    about the weight, so that they must not change how far it may move: otherwise a component that differs in
    few lists, such as the number of unknown words, could take a huge weight at the price of a moderate one.

    Args:
        components: (K, H).
        totals: (H,) under the weights that tuning starts from.
        offsets: (L + 1,).

    Returns:
        (K,), 0 for a component that makes no difference in any list.
    """
    total_spread = _find_spread(totals, offsets)
    units = np.zeros(len(components))
    for k, row in enumerate(components):
        spread = _find_spread(row, offsets)
        differs = spread > 0
        if differs.any():
            units[k] = (total_spread[differs].mean() or 1.0) / spread[differs].mean()
    return units


def _find_spread(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Standard deviation within each list, (L,), exactly 0 where it is a rounding error."""
    spread = spread_per_list(values, offsets)
    smallest = ROUNDING * max(np.abs(values).max(initial=0.0), 1.0)
    return np.where(spread > smallest, spread, 0.0)
