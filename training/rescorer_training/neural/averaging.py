"""Owns averaged weights: an exponential moving average, or the mean over the steps since it was started."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rescorer_training.neural.options import TrainingOptions

NO_GAIN_OVER = 5
"""Validations: the uniform average starts when none of the last so many was better than all before."""


class WeightAverage:
    """The weights that validation and the kept model use, beside those that training moves.

    ``ema``: Polyak's exponential average, its decay rising as (1 + n) / (10 + n) so that the random start
    is soon forgotten. ``uniform``: the plain mean over steps (Polyak & Juditsky 1992), started after a
    given epoch (SWA, Izmailov et al. 2018) or when validation stops improving (NT-ASGD, Merity et al. 2018).
    ``none``: the weights themselves.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], options: TrainingOptions) -> None:
        self.parameters = list(parameters)
        self.options = options
        self.values: list[Tensor] = []
        """One a parameter; empty before the average starts."""
        self.n_steps = 0
        if options.average == "ema":
            self.start()

    def start(self) -> None:
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Takes one step's weights in."""
        if not self.values:
            return
        self.n_steps += 1
        kept = 1 - 1 / self.n_steps
        if self.options.average == "ema":
            kept = min(self.options.average_decay, (1 + self.n_steps) / (10 + self.n_steps))
        torch._foreach_lerp_(self.values, [each.detach() for each in self.parameters], 1 - kept)

    def consider(self, epoch: int, perplexities: list[float]) -> None:
        """Starts the uniform average where it is time; ``perplexities``: of all validations so far."""
        if self.options.average != "uniform" or self.values:
            return
        if self.options.average_from:
            stalled = epoch >= self.options.average_from
        else:
            before = perplexities[:-NO_GAIN_OVER]
            stalled = bool(before) and min(perplexities[-NO_GAIN_OVER:]) >= min(before)
        if stalled:
            self.start()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The averaged weights are the model's inside the block."""
        if not self.n_steps:
            yield
            return
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._put(self.values)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        torch._foreach_copy_([*self.parameters], values)
