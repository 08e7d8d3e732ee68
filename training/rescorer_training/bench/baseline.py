"""Owns the yardstick of the training benchmark: an LSTM language model as a PyTorch user writes it.

Nothing of ours is in it: a plain model, cross_entropy, Adam, and padded batches of 64 sentences in random
order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.bench.baselines import PlainLstm


def plain_optimiser(model: PlainLstm) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def plain_step(model: PlainLstm, optimiser: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    """One update; inputs, targets: (B, T), targets -1 where padded. Returns the mean loss."""
    optimiser.zero_grad()
    logits = model(inputs)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.item()
