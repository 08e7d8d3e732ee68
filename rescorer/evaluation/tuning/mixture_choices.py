"""Interpolation weights that tuning chooses from: the λ of the mixture, and those of caches of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rescorer.types import DEFAULT_FLATNESS

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
"""Values of λ to choose from, for one model at a time; the others keep their proportions."""
CACHE_SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Values of the cache's λ to choose from, each with all λ of the models."""
NEURAL_CACHES = tuple((share, flatness) for share in (0.02, 0.05, 0.1, 0.2) for flatness in (0.1, 0.3, 1.0))
"""Values of the neural cache's λ and θ to choose from, each with all λ of the models."""


class MixtureChoice(NamedTuple):
    """What the probability of a word is interpolated from."""

    shares: tuple[float, ...]
    """λ of each model; their sum is 1."""
    cache: float = 0.0
    """λ of the cache in an endless session."""
    neural_cache: float = 0.0
    """λ of the neural cache, likewise."""
    flatness: float = DEFAULT_FLATNESS
    """θ of the neural cache."""

    @property
    def distribution(self) -> tuple[float, ...]:
        """Shares of the models and of the caches; their sum is 1."""
        rest = 1.0 - self.neural_cache
        models = (rest * (1.0 - self.cache) * share for share in self.shares)
        return (*models, rest * self.cache, self.neural_cache)


def list_choices(
    start: MixtureChoice, *, models: bool, cache: bool, neural_cache: bool = False
) -> list[MixtureChoice]:
    """Interpolation weights to choose from; those of the start come first.

    Args:
        models: whether the λ of the models may change.
        cache: whether the λ of the cache may change; each value is tried with all λ of the models.
        neural_cache: whether λ and θ of the neural cache may change; likewise, with the cache of the start.
    """
    shares, caches, neural = [start.shares], [start.cache], (start.neural_cache, start.flatness)
    if models:
        indices = range(len(start.shares))
        shares += [scale_shares(start.shares, index, share) for index in indices for share in SHARES]
    caches += CACHE_SHARES if cache else ()
    pairs = [(share, *neural) for share in caches]
    if neural_cache:
        pairs += [(start.cache, 0.0, start.flatness), *((start.cache, *chosen) for chosen in NEURAL_CACHES)]
    return list(dict.fromkeys(MixtureChoice(one, *chosen) for chosen in pairs for one in shares))


def scale_shares(start: Sequence[float], index: int, share: float) -> tuple[float, ...]:
    """Interpolation weights with one of them given, the others in the proportions of the start.

    >>> scale_shares((0.5, 0.3, 0.2), 0, 0.9)
    (0.9, 0.06, 0.04)
    """
    others = 1.0 - start[index]
    scaled = [
        weight * (1.0 - share) / others if others else (1.0 - share) / (len(start) - 1) for weight in start
    ]
    scaled[index] = share
    return tuple(round(weight, 12) for weight in scaled)
