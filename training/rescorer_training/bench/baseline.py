"""Baseline of the training benchmark: an LSTM language model as a typical PyTorch user would write it.

It uses no code of this project: a plain model, cross_entropy, Adam, and padded batches of 64 sentences in
random order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rescorer.bench.baselines import PlainLstm


def make_plain_optimiser(model: PlainLstm) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def train_plain_step(
    model: PlainLstm, optimiser: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> float:
    """Update the model once and return the mean loss.

    Args:
        inputs: (B, T) word ids.
        targets: (B, T) word ids, -1 where padded.
    """
    optimiser.zero_grad()
    logits = model(inputs)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.item()
