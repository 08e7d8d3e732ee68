"""Compute the cross-entropies of a table of scores together with their gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropies_and_gradients(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """−ln softmax(scores)[target] of each row, (N,), and its gradient with respect to the scores, (N, K).

    Args:
        scores: (N, K); −∞ is padding.
        target: (N,) int64.
    """
    log_p = torch.log_softmax(scores, dim=1)
    column = target.unsqueeze(1)
    losses = -log_p.gather(1, column).squeeze(1)
    return losses, log_p.exp_().scatter_add_(1, column, log_p.new_full(column.shape, -1.0))
