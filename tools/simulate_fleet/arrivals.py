"""Draw the times at which lists arrive: a Poisson process, of constant or of changing rate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pattern:
    """Phases of equal mean rate: bursts of ``burst_s`` seconds at ``factor`` times the rate between them.

    Phases last an exponential time, so that the number of lists is a Markov-modulated Poisson process; with a
    factor of 1 it is a plain Poisson process.
    """

    factor: float = 1.0
    burst_s: float = 5.0
    """Mean duration of a burst."""
    between_s: float = 20.0
    """Mean time between two bursts."""

    def __post_init__(self) -> None:
        if self.factor < 1 or not (self.burst_s > 0 and self.between_s > 0):
            raise ConfigError("bursts: expected a factor of at least 1 and durations above 0 s")


def draw_arrivals(
    rate_per_s: float, duration_s: float, pattern: Pattern, generator: np.random.Generator
) -> np.ndarray:
    """Draw the arrival times of ``duration_s`` seconds.

    Returns:
        (N,) float64, sorted, in seconds from 0; N varies around ``rate_per_s * duration_s``.
    """
    if pattern.factor == 1:
        return _draw_poisson(rate_per_s, 0.0, duration_s, generator)
    cycle_s = pattern.burst_s + pattern.between_s
    quiet_rate_per_s = rate_per_s * cycle_s / (pattern.factor * pattern.burst_s + pattern.between_s)
    parts, start_s = [], 0.0
    is_burst = generator.random() < pattern.burst_s / cycle_s
    while start_s < duration_s:
        end_s = start_s + generator.exponential(pattern.burst_s if is_burst else pattern.between_s)
        phase_rate_per_s = quiet_rate_per_s * (pattern.factor if is_burst else 1)
        parts.append(_draw_poisson(phase_rate_per_s, start_s, min(end_s, duration_s), generator))
        start_s, is_burst = end_s, not is_burst
    return np.concatenate(parts)


def _draw_poisson(
    rate_per_s: float, start_s: float, end_s: float, generator: np.random.Generator
) -> np.ndarray:
    count = generator.poisson(rate_per_s * (end_s - start_s))
    return np.sort(generator.uniform(start_s, end_s, count))
