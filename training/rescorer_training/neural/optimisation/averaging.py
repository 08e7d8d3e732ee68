"""Average the weights of a network over training steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from rescorer_training.neural.options import TrainingOptions

STALL_VALIDATIONS = 5
"""Number of consecutive validations without a new best perplexity after which the uniform average starts."""


class WeightAverage:
    """Averaged weights, used for validation and for the saved model; training updates the raw weights.

    ``ema``: Polyak's exponential moving average. Its decay rises as (1 + n) / (10 + n), so that the random
    initial weights are soon forgotten. ``uniform``: the mean over steps (Polyak & Juditsky 1992), started
    after a given epoch (SWA, Izmailov et al. 2018) or when validation stops improving (NT-ASGD, Merity et
    al. 2018). ``none``: the raw weights.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], options: TrainingOptions) -> None:
        self.parameters = list(parameters)
        self.options = options
        self.values: list[Tensor] = []
        """One tensor per parameter; empty before the average starts."""
        self.n_steps = 0
        if options.average == "ema":
            self.start()

    def start(self) -> None:
        """Start averaging, from the current weights."""
        self.values = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Add the current weights to the average if it has started."""
        if not self.values:
            return
        self.n_steps += 1
        decay = 1 - 1 / self.n_steps
        if self.options.average == "ema":
            decay = min(self.options.average_decay, (1 + self.n_steps) / (10 + self.n_steps))
        torch._foreach_lerp_(self.values, [parameter.detach() for parameter in self.parameters], 1 - decay)

    def start_if_due(self, epoch: int, perplexities: list[float]) -> None:
        """Start the uniform average after the configured epoch, or once validation has stalled.

        Args:
            perplexities: validation perplexities of the run so far.
        """
        if self.options.average != "uniform" or self.values:
            return
        if self.options.average_from:
            is_due = epoch >= self.options.average_from
        else:
            earlier = perplexities[:-STALL_VALIDATIONS]
            is_due = bool(earlier) and min(perplexities[-STALL_VALIDATIONS:]) >= min(earlier)
        if is_due:
            self.start()

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Put the averaged weights into the model for the duration of the block."""
        if not self.n_steps:
            yield
            return
        raw = [parameter.detach().clone() for parameter in self.parameters]
        self._assign(self.values)
        try:
            yield
        finally:
            self._assign(raw)

    @torch.no_grad()
    def _assign(self, values: list[Tensor]) -> None:
        torch._foreach_copy_([*self.parameters], values)
