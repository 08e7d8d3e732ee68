"""Make the optimiser and compute its learning rate: warm-up, then cosine decay, plateau reductions or a
constant rate."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from rescorer_training.neural.options import TrainingOptions


def make_optimiser(
    options: TrainingOptions, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Make AdamW (Loshchilov & Hutter 2019), or stochastic gradient descent with optional momentum."""
    rate, decay = options.learning_rate, options.weight_decay
    if options.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=options.momentum, weight_decay=decay, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)


def compute_learning_rate(
    options: TrainingOptions, step: int, total_steps: int, reductions: int = 0
) -> float:
    """Compute the learning rate of a step.

    A linear warm-up is followed by a cosine decay to zero at ``total_steps`` (Loshchilov & Hutter 2017), or
    by the peak rate times ``plateau_factor`` for each reduction so far (Mikolov et al. 2010 halve it).
    """
    rate = options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup_steps))
    if options.schedule == "cosine":
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total_steps)))
    return rate * options.plateau_factor**reductions


def has_stalled(options: TrainingOptions, perplexity: float, best_perplexity: float) -> bool:
    """Whether a validation improves so little on the previous best that the learning rate must be reduced."""
    return options.schedule == "plateau" and perplexity > best_perplexity * (1 - options.plateau_gain)
