"""Times that a list takes in a server: of its front end, and of a worker, alone and in a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer.load.service_times import ServiceTimes, read_service_times

N_DRAWN = 1 << 16
"""Number of times that are drawn at once."""


@dataclass(frozen=True)
class TimeModel:
    """What a list takes of a worker and of the front end.

    A batch takes the sum of what its lists would take alone, times the efficiency of its size.

    Args:
        draw: returns ``(N,)`` times of a worker for N lists, each scored alone, in seconds.
        front_s: time of the front end per list, in seconds.
        efficiency: time per list in a batch, relative to that of a list alone, by lists per batch; between
            and beyond the sizes that were measured, it is interpolated over their logarithm.
    """

    draw: Callable[[int, np.random.Generator], np.ndarray]
    mean_s: float
    front_s: float = 0.0
    efficiency: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})

    def batch_efficiency(self, max_lists: int) -> list[float]:
        """The efficiency of batches of 0, 1, …, ``max_lists`` lists."""
        sizes = np.log([size for size, _ in sorted(self.efficiency.items())])
        values = [value for _, value in sorted(self.efficiency.items())]
        wanted = np.log(np.arange(1, max_lists + 1))
        return [1.0, *np.interp(wanted, sizes, values).tolist()]

    def capacity_per_s(self, workers: int, max_lists: int) -> float:
        """The most lists per second that one server can do, by its workers or by its front end."""
        per_list_s = self.mean_s * self.batch_efficiency(max_lists)[max_lists] / workers
        return 1 / max(per_list_s, self.front_s)


def measured(times: ServiceTimes) -> TimeModel:
    """Draw from measured times."""
    alone_s = np.array(times.worker_s[1])
    mean_s = float(alone_s.mean())
    efficiency = {
        size: float(np.mean(seconds)) / size / mean_s for size, seconds in sorted(times.worker_s.items())
    }
    front_s = float(np.median(times.front_s[max(times.front_s)])) / max(times.front_s)
    return TimeModel(
        lambda count, generator: generator.choice(alone_s, count),
        mean_s,
        front_s,
        efficiency,
    )


def exponential(mean_s: float) -> TimeModel:
    return TimeModel(lambda count, generator: generator.exponential(mean_s, count), mean_s)


def constant(mean_s: float) -> TimeModel:
    return TimeModel(lambda count, generator: np.full(count, mean_s), mean_s)


def lognormal(mean_s: float, variation: float) -> TimeModel:
    """Logarithmically normal times with this coefficient of variation."""
    sigma = math.sqrt(math.log1p(variation**2))
    mu = math.log(mean_s) - sigma**2 / 2
    return TimeModel(lambda count, generator: generator.lognormal(mu, sigma, count), mean_s)


def with_server(
    model: TimeModel, max_lists: int, front_ms: float | None, batched_ms: float | None
) -> TimeModel:
    """Return a model with another time of the front end, or of lists in batches.

    What a batch takes grows by equal steps from one list to a full batch.

    Args:
        front_ms: milliseconds of the front end per list; None: unchanged.
        batched_ms: milliseconds per list in a batch of ``max_lists``; None: unchanged.
    """
    if front_ms is not None:
        model = replace(model, front_s=front_ms / 1e3)
    if batched_ms is not None:
        step_s = (max_lists * batched_ms / 1e3 - model.mean_s) / max(1, max_lists - 1)
        totals_s = {size: model.mean_s + (size - 1) * step_s for size in range(1, max_lists + 1)}
        efficiency = {size: total_s / size / model.mean_s for size, total_s in totals_s.items()}
        model = replace(model, efficiency=efficiency)
    return model


DISTRIBUTIONS: dict[str, tuple[Callable[..., TimeModel], int]] = {
    "exponential": (exponential, 1),
    "constant": (constant, 1),
    "lognormal": (lognormal, 2),
}
"""Distributions that can be named, and how many numbers each needs."""


def parse_service_times(text: str) -> TimeModel:
    """Parse ``exponential:MS``, ``constant:MS``, ``lognormal:MS:VARIATION``, or the name of a file that
    ``rescorer load --service-times`` wrote.

    Raises:
        ConfigError: If it is none of these.
        FormatError: If the file has another format.
    """
    kind, *numbers = text.split(":")
    if kind not in DISTRIBUTIONS:
        return measured(read_service_times(Path(text)))
    make, n_numbers = DISTRIBUTIONS[kind]
    try:
        mean_ms, *rest = map(float, numbers)
    except ValueError:
        mean_ms, rest = math.nan, []
    if len(numbers) != n_numbers or not all(0 < number < math.inf for number in (mean_ms, *rest)):
        raise ConfigError(
            f"{text!r}: expected exponential:MS, constant:MS or lognormal:MS:VARIATION with numbers above 0, "
            "or a file of `rescorer load --service-times`"
        )
    return make(mean_ms / 1e3, *rest)
