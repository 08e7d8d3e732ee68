"""Options of GloVe, validated on construction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rescorer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GloveOptions:
    """Training options, saved with the run. The defaults are those of the original program.

    Raises:
        ConfigError: a value is out of range.
    """

    dimensions: int = 100
    epochs: int = 15
    learning_rate: float = 0.05
    x_max: float = 100.0
    """Co-occurrence from which on a cell has the full weight of 1."""
    alpha: float = 0.75
    """Power of the weighting function f(x) = min(1, (x / x_max)^alpha)."""
    block_cells: int = 1024
    """Number of cells whose gradients are computed at once."""
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("dimensions", "epochs", "block_cells"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')}: expected at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "x_max", "alpha"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name.replace('_', '-')}: expected a positive number, got {value:g}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, got {self.seed}")
