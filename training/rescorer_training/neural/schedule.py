"""Owns the optimiser of a run and its learning rate: warm-up, then cosine, plateau halving or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from rescorer_training.neural.options import TrainingOptions


def make_optimiser(
    options: TrainingOptions, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), or stochastic gradient descent with or without momentum."""
    rate, decay = options.learning_rate, options.weight_decay
    if options.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=rate, momentum=options.momentum, weight_decay=decay, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay, fused=True)


def learning_rate(options: TrainingOptions, step: int, total_steps: int, reductions: int = 0) -> float:
    """Linear warm-up; then a cosine to zero at ``total_steps`` (Loshchilov & Hutter 2017), or the peak times
    ``plateau_factor`` for each reduction so far (Mikolov et al. 2010 halve it)."""
    rate = options.learning_rate * min(1.0, (step + 1) / max(1, options.warmup_steps))
    if options.schedule == "cosine":
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, step / total_steps)))
    return rate * options.plateau_factor**reductions


def reduces(options: TrainingOptions, perplexity: float, best_perplexity: float) -> bool:
    """Whether a validation gains too little over the best before it, so that the rate goes down."""
    return options.schedule == "plateau" and perplexity > best_perplexity * (1 - options.plateau_gain)
