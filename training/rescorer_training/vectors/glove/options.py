"""Options of GloVe, validated on construction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rescorer.errors import ConfigError
from rescorer_training.option_fields import option
from rescorer_training.vectors.cooccurrences.counting import check_window


@dataclass(frozen=True, slots=True)
class GloveOptions:
    """Training options, saved with the run. When the run is resumed, they are compared with the new ones.

    Apart from 100 dimensions, the defaults are those of the original program's demo for 17 million words.

    Raises:
        ConfigError: a value is out of range.
    """

    dimensions: int = option(100, "Number of values per vector.")
    window: int = option(
        15, "Largest distance of two words that occur together, 1 to 100, within a sentence."
    )
    min_count: int = option(5, "Leave out words that occur less often.")
    epochs: int = option(15, "Number of passes over all pairs.")
    learning_rate: float = option(0.05, "Learning rate of AdaGrad; biases learn at a rate of 1.")
    x_max: float = option(
        10.0,
        "Co-occurrence from which on a pair has the full weight; rarer pairs weigh less. Take 100 for "
        "billions of words.",
    )
    alpha: float = option(0.75, "Power of the weights: a pair weighs (co-occurrence / x-max)^alpha.")
    block_cells: int = option(
        1024, "Number of pairs per step. With 1, each pair sees the vectors after the last one."
    )
    seed: int = option(1, "Random seed.")

    def __post_init__(self) -> None:
        check_window(self.window)
        for name in ("dimensions", "min_count", "epochs", "block_cells"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name.replace('_', '-')}: expected at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "x_max", "alpha"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name.replace('_', '-')}: expected a positive number, got {value:g}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, got {self.seed}")
